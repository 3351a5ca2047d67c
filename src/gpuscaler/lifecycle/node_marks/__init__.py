"""Taints and a label that nodes of our pools have in normal operation, not only while they are opened or drained."""
