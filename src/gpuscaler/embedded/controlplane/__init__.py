"""Kubernetes' own control plane on this machine: compiled once, started with its own certificates, removed at the end."""
