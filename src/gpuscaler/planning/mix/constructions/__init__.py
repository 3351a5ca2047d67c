"""Mixes that are built directly, without the linear program."""
