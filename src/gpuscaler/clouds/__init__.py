"""Clouds: one module per provider, and a simulated one."""
