"""How long pods waited, those that never ran included.

A pod that had not run when the run ended (or when it was no longer wanted) waited at least that long: its wait is censored. Leaving it out
would flatter the policy that leaves most pods waiting. The share of pods that still wait after ``t`` seconds is therefore estimated as
Kaplan and Meier do ("Nonparametric estimation from incomplete observations", 1958): the product, over all waits up to ``t``, of the share
of pods that were still waiting and continued to wait. If every pod ran, that is the plain distribution of waits.
"""

from collections.abc import Iterable, Sequence

import numpy as np
from msgspec import Struct

#: Kinds of pods, by the number of GPUs; pods of gangs are a kind of their own.
NO_GPU, FRACTION, ONE, FEW, MANY, MOST, GANGS = CLASSES = (
    "no GPU",
    "part of a GPU",
    "1 GPU",
    "2-3 GPUs",
    "4-7 GPUs",
    "8 GPUs or more",
    "gangs",
)
#: Maximum number of points of a curve.
POINTS = 160


class PodWait(Struct, frozen=True, gc=False):
    """Seconds from a pod's creation until it first ran; if it never ``ran``, until it was no longer wanted.

    ``since`` is when it was created, in seconds since the epoch.
    """

    pod: str
    pod_class: str
    seconds: float
    ran: bool
    since: float = 0.0


class Wait(Struct, frozen=True, gc=False):
    """Seconds from creation to running; None if there was no pod.

    ``at_least`` names the fields that are lower bounds: so many pods never ran that the true value is unknown.
    """

    mean: float | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    at_least: tuple[str, ...] = ()


class ClassWait(Struct, frozen=True, gc=False):
    """The waits of one kind of pods, with the number of pods and of those that ran."""

    pod_class: str
    pods: int
    served: int
    wait: Wait


class Curve(Struct, frozen=True, gc=False):
    """``shares[i]`` of all pods ran within ``seconds[i]``; both rise."""

    seconds: tuple[float, ...] = ()
    shares: tuple[float, ...] = ()


def class_of(gpus: float, gang: str) -> str:
    """The kind of a pod that takes ``gpus`` GPUs and belongs to the gang ``gang``, if any."""
    if gang:
        return GANGS
    if gpus <= 0:
        return NO_GPU
    return next((name for name, end in ((FRACTION, 1), (ONE, 2), (FEW, 4), (MANY, 8)) if gpus < end), MOST)


def wait_of(waits: Sequence[PodWait]) -> Wait:
    """Mean and percentiles: the shortest time within which that share of the pods ran.

    If fewer ever ran, the longest wait of all is a lower bound; the mean is a lower bound if the longest wait is of a pod that never ran.
    """
    if not waits:
        return Wait()
    times, waiting = _still_waiting(waits)
    longest = max(pod_wait.seconds for pod_wait in waits)
    values: dict[str, float] = {}
    unknown: list[str] = []
    before = np.concatenate(([1.0], waiting))
    values["mean"] = float(np.sum(before * np.diff(np.concatenate(([0.0], times, [longest])))))
    if before[-1] > 0:
        unknown.append("mean")
    for name, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99)):
        # A share of pods is a quotient of counts: a difference of a billionth is rounding.
        reached = np.flatnonzero(waiting <= 1.0 - share + 1e-9)
        values[name] = float(times[reached[0]]) if len(reached) else longest
        if not len(reached):
            unknown.append(name)
    return Wait(**values, at_least=tuple(unknown))


def by_class(waits: Iterable[PodWait]) -> tuple[ClassWait, ...]:
    """The waits of every kind of pods that occurred, in the order of ``CLASSES``."""
    kinds: dict[str, list[PodWait]] = {}
    for pod_wait in waits:
        kinds.setdefault(pod_wait.pod_class, []).append(pod_wait)
    return tuple(
        ClassWait(name, len(kinds[name]), sum(pod_wait.ran for pod_wait in kinds[name]), wait_of(kinds[name]))
        for name in CLASSES
        if name in kinds
    )


def curve_of(waits: Sequence[PodWait]) -> Curve:
    """The distribution of waits at no more than ``POINTS`` times, densest where waits are short."""
    if not waits:
        return Curve()
    times, waiting = _still_waiting(waits)
    if len(times) > POINTS:
        spaced = np.geomspace(max(1.0, times[0]), max(2.0, times[-1]), POINTS - 1)
        places = np.unique(np.concatenate((np.searchsorted(times, spaced, side="right") - 1, [len(times) - 1])))
        places = places[places >= 0]
        times, waiting = times[places], waiting[places]
    return Curve(tuple(times.tolist()), tuple((1.0 - waiting).tolist()))


def _still_waiting(waits: Sequence[PodWait]) -> tuple[np.ndarray, np.ndarray]:
    """The distinct waits of pods that ran, ascending, and the share of pods that waited longer than each."""
    seconds = np.array([pod_wait.seconds for pod_wait in waits])
    ran = np.array([pod_wait.ran for pod_wait in waits])
    times, ended = np.unique(seconds[ran], return_counts=True)
    at_risk = len(seconds) - np.searchsorted(np.sort(seconds), times, side="left")
    return times, np.cumprod(1.0 - ended / at_risk)
