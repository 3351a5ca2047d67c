"""The HorizontalPodAutoscaler's algorithm, as kube-controller-manager 1.35 computes it; see docs/explanation/replicas-like-kubernetes.md.

:func:`step` computes one decision from plain data. :func:`read_autoscaler` parses the object. :func:`quiet_until` returns when to ask
again.
"""

from gpuscaler.simulation.horizontal.history import History, Recommendation, ScaleEvent
from gpuscaler.simulation.horizontal.quiet import quiet_until, repeat_outcome
from gpuscaler.simulation.horizontal.reading import AutoscalerError, read_autoscaler
from gpuscaler.simulation.horizontal.stepping import Outcome, step

__all__ = [
    "AutoscalerError",
    "History",
    "Outcome",
    "Recommendation",
    "ScaleEvent",
    "quiet_until",
    "read_autoscaler",
    "repeat_outcome",
    "step",
]
