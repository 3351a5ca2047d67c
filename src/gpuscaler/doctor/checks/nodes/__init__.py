"""Checks of nodes with GPUs, and of what makes their GPUs usable."""
