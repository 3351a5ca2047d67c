"""Decisions with their inputs: stored and replayed."""
