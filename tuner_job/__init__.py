"""Everything that tunes: builds, checks, measures, decides and publishes. Knows nothing of Kubernetes."""

__version__ = "0.1.0"
