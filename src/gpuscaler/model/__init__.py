"""Kubernetes and cloud objects as plain, immutable data. No I/O."""
