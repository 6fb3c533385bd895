"""The Kubernetes API behind one small protocol on plain dicts. Only this package imports the client library."""
