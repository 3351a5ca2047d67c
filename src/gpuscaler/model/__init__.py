"""Kubernetes and cloud things as plain, immutable data. No I/O."""
