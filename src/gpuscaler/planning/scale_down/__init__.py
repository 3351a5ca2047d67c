"""Giving machines back: idle ones, and those whose pods fit elsewhere at a saving. Everything that stays says why."""

from gpuscaler.planning.scale_down.deciding import scale_down
from gpuscaler.planning.scale_down.situation import Down, Situation
from gpuscaler.planning.scale_down.survey import Memory

__all__ = ["Down", "Memory", "Situation", "scale_down"]
