"""Cluster Autoscaler's estimate of how many machines of one group a set of pods needs: first-fit decreasing on empty machines.

Source: kubernetes/autoscaler, ``cluster-autoscaler/estimator/binpacking_estimator.go`` and ``decreasing_pod_orderer.go``.
"""

from collections.abc import Sequence

import numpy as np

from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Offering
from gpuscaler.model.table import Array
from gpuscaler.simulation.policies.peers.expanders import Option


def estimate(offering: Offering, pods: Sequence[tuple[PodSpec, int]], *, most: int) -> Option | None:
    """How many new machines of ``offering``, ``most`` at most, take which of ``pods``; None if they take none."""
    helped = [(spec, number) for spec, number in pods if _per_machine(offering, spec) and offering.admits(spec)]
    columns = sorted({name for spec, _ in helped for name in spec.requests} | {"pods"})
    empty: Array = np.array([offering.allocatable.get(name, 0) for name in columns], dtype=np.int64)
    free: Array = np.zeros((0, len(columns)), dtype=np.int64)
    placed: list[tuple[PodSpec, int]] = []
    for spec, number in sorted(helped, key=lambda spec_and_number: (-_score(offering, spec_and_number[0]), spec_and_number[0].digest)):
        request: Array = np.array([{**spec.requests, "pods": 1}.get(name, 0) for name in columns], dtype=np.int64)
        missing = -(-max(0, number - int(_room(free, request).sum())) // _per_machine(offering, spec))
        new = min(missing, most - len(free))
        if new > 0:
            free = np.concatenate((free, np.repeat(empty[None, :], new, axis=0)))
        counts = _first(_room(free, request), number)
        free = free - counts[:, None] * request
        if counts.any():
            placed.append((spec, int(counts.sum())))
    return Option(offering, len(free), tuple(placed)) if placed else None


def _per_machine(offering: Offering, spec: PodSpec) -> int:
    """The number of pods of ``spec`` that fit an empty machine."""
    requests = {**{name: amount for name, amount in spec.requests.items() if amount}, "pods": 1}
    return min(offering.allocatable.get(name, 0) // amount for name, amount in requests.items())


def _score(offering: Offering, spec: PodSpec) -> float:
    """The sum of the shares of a machine's CPU and memory: the largest pods are packed first."""
    shares = ((spec.requests.get(name, 0), offering.allocatable.get(name, 0)) for name in ("cpu", "memory"))
    return sum(amount / allocatable for amount, allocatable in shares if allocatable)


def _room(free: Array, request: Array) -> Array:
    """The number of pods with ``request`` that fit on each row of ``free``."""
    requested = request > 0
    room: Array = (free[:, requested] // request[requested]).min(axis=1)
    return room


def _first(room: Array, number: int) -> Array:
    """``number`` pods on the first rows that have room."""
    before = np.concatenate(([0], np.cumsum(room)[:-1])) if len(room) else room
    counts: Array = np.clip(number - before, 0, room)
    return counts
