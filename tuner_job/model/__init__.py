"""The model's files: fetched, inspected and digested, without an engine library."""
