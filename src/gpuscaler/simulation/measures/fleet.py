"""The number of machines of every offering over time."""

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.simulation.cloud.machines import CloudMachine

#: Number of equal intervals that a run is divided into.
STRETCHES = 288


class Presence(Struct, frozen=True, gc=False):
    """Machines of one offering: their average number in every interval of the run, from its beginning to its end."""

    pool: str
    market: str
    instance_type: str
    zone: str
    machines: tuple[float, ...]


def machines_over_time(history: Iterable[CloudMachine], *, began: float, ended: float) -> tuple[Presence, ...]:
    """One entry for every offering that had machines, by its key; empty for a run of no duration."""
    if ended <= began:
        return ()
    spans: dict[OfferingKey, list[tuple[float, float]]] = defaultdict(list)
    for machine in history:
        spans[machine.offering.key].append((machine.bought_at, ended if machine.ended_at is None else machine.ended_at))
    edges = np.linspace(began, ended, STRETCHES + 1)
    return tuple(Presence(*key, machines=_averages(np.array(spans[key]), edges)) for key in sorted(spans))


def _averages(spans: np.ndarray, edges: np.ndarray) -> tuple[float, ...]:
    """The average number of ``spans``, shape (n, 2), that were active between each of ``edges`` and the next."""
    lived = np.zeros(len(edges))
    for number, edge in enumerate(edges):
        lived[number] = float(np.sum(np.clip(edge - spans[:, 0], 0.0, spans[:, 1] - spans[:, 0])))
    return tuple(np.round(np.diff(lived) / np.diff(edges), 6).tolist())
