"""Clouds: one package per provider, behind one protocol."""
