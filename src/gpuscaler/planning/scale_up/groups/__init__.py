"""Families of pod classes that differ only in size: their order, placement on existing machines first, and checks of their spread."""
