"""Autoscalers of nodes: those that act beside each other, and their priorities."""
