"""The taints and the label that nodes of our pools keep for longer than opening or draining takes."""
