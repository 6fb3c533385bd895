"""The store side of the operator: plain blocking code, called in threads by `Stores`."""
