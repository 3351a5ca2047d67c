"""Decisions with their inputs, kept and replayed."""
