"""Giving machines back: idle ones, and those whose pods fit elsewhere at a saving. Everything that stays says why."""

from gpuscaler.planning.scale_down.candidates import CandidateCache
from gpuscaler.planning.scale_down.contract import Down, Situation
from gpuscaler.planning.scale_down.decide import scale_down

__all__ = ["CandidateCache", "Down", "Situation", "scale_down"]
