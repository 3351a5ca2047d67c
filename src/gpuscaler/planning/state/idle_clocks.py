"""Idle clocks: since when each node has been seen idle, without a gap."""

from collections.abc import Mapping, Set

from msgspec import Struct


class Observed(Struct, frozen=True, gc=False):
    """The nodes that were ``idle`` at ``at``, of all nodes of the cluster."""

    idle: Set[str]
    at: float


class IdleClocks(Struct, frozen=True, gc=False):
    """By node, the first of the looks in a row at which it was idle."""

    since: Mapping[str, float] = {}


def step(clocks: IdleClocks, event: Observed) -> IdleClocks:
    """The clocks after a look: those of nodes that are still idle go on, and no others."""
    return IdleClocks({name: clocks.since.get(name, event.at) for name in sorted(event.idle)})


def idle_seconds(clocks: IdleClocks, now: float) -> Mapping[str, float]:
    """What :class:`~gpuscaler.planning.state.State` takes: how long each node has been idle, never below zero."""
    return {name: max(0.0, now - since) for name, since in clocks.since.items()}
