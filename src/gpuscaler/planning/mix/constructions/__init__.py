"""Mixes that are built directly, without pattern generation."""
