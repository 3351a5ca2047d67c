"""Placing pods that take parts of GPUs on a fixed cluster until it is full: the published schedulers' scores, and ours."""
