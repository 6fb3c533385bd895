"""The command `trtfleet`."""
