"""Raising and lowering capacity, following operations, ending machines by id."""
