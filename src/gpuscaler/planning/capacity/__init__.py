"""Capacity: machines that exist, that are ordered, and that could be bought."""
