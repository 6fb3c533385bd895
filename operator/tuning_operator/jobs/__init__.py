"""A worker's Job: what is created, where it may run, and what the API server says of it. Pure functions on plain data."""
