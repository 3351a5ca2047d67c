"""Measures the figures that the project promises: ``make bench``."""
