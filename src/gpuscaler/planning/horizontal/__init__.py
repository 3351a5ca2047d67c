"""The HorizontalPodAutoscaler's algorithm, as kube-controller-manager 1.35 computes it; see docs/explanation/horizontal.md.

:func:`step` decides once, from data to data. :func:`read_autoscaler` reads the object.
"""

from gpuscaler.planning.horizontal.history import History, Recommendation, ScaleEvent
from gpuscaler.planning.horizontal.reading import AutoscalerError, read_autoscaler
from gpuscaler.planning.horizontal.stepping import Outcome, step

__all__ = ["AutoscalerError", "History", "Outcome", "Recommendation", "ScaleEvent", "read_autoscaler", "step"]
