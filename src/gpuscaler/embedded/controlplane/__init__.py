"""Kubernetes' own control plane on this machine: compiled once, started with certificates of its own, and gone at the end."""
