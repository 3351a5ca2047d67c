"""Compares our filters with kube-scheduler's own: ``python -m tests.conformance --cases N --seed S``."""
