"""Launches: launch templates, volumes, the choice of type and zone."""
