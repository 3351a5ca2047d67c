"""The Kubernetes API: configuration and credentials, list and watch, writes, leases, Events."""
