"""Scale-down: removes idle machines, and others if their pods fit elsewhere more cheaply. Every node that stays gets a reason."""

from gpuscaler.planning.scale_down.candidates import CandidateCache
from gpuscaler.planning.scale_down.contract import ScaleDownResult, Situation
from gpuscaler.planning.scale_down.decide import scale_down

__all__ = ["CandidateCache", "ScaleDownResult", "Situation", "scale_down"]
