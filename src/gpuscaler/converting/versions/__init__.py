"""Kinds whose fields changed between versions of the Kubernetes API."""
