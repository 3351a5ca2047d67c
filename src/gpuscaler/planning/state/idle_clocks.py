"""Idle clocks: the time since which each node has been idle in every observation."""

from collections.abc import Mapping, Set

from msgspec import Struct


class IdleObservation(Struct, frozen=True, gc=False):
    """The nodes that were ``idle`` at ``at``, of all nodes of the cluster."""

    idle: Set[str]
    at: float


class IdleClocks(Struct, frozen=True, gc=False):
    """The time of the first of the consecutive observations in which each node was idle."""

    since: Mapping[str, float] = {}


def step(clocks: IdleClocks, event: IdleObservation) -> IdleClocks:
    """The clocks after an observation: the clocks of idle nodes start or continue, all others are dropped."""
    return IdleClocks({name: clocks.since.get(name, event.at) for name in sorted(event.idle)})


def idle_seconds(clocks: IdleClocks, now: float) -> Mapping[str, float]:
    """How long each node has been idle, never below zero, for :class:`~gpuscaler.planning.state.State`."""
    return {name: max(0.0, now - since) for name, since in clocks.since.items()}
