"""Nodes whose removal was begun and could not be finished: they are left alone for a while, longer each time, and anybody can read why."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey

#: So long a node is left alone the first time, and at most, in seconds. Cluster Autoscaler looks again after 5 minutes.
FIRST_SECONDS, MOST_SECONDS = 600.0, 4 * 3600.0


class Spared(Struct, frozen=True, gc=False):
    """A removal of ``node``, the machine ``instance``, came to nothing for the ``times``-th time; none begins before ``until``."""

    node: str
    instance: str
    offering: OfferingKey
    why: str
    until: float
    times: int = 1


class Sparing(Struct, frozen=True, gc=False):
    nodes: tuple[Spared, ...] = ()


class GivenUp(Struct, frozen=True, gc=False):
    """The removal of ``node`` was begun and could not be finished."""

    node: str
    instance: str
    offering: OfferingKey
    why: str
    at: float


def step(known: Sparing, event: GivenUp) -> Sparing:
    before = next((one for one in known.nodes if (one.node, one.instance) == (event.node, event.instance)), None)
    times = before.times + 1 if before is not None else 1
    until = event.at + min(FIRST_SECONDS * 2.0 ** min(times - 1, 10), MOST_SECONDS)
    others = tuple(one for one in known.nodes if one.node != event.node)
    return Sparing((*others, Spared(event.node, event.instance, event.offering, event.why, until, times)))


def remaining(known: Sparing, instances: Iterable[str], now: float) -> Sparing:
    """Without machines that are not there any more, and without those that nothing was the matter with for as long as the longest pause."""
    if not known.nodes:
        return known
    there = set(instances)
    left = tuple(one for one in known.nodes if one.instance in there and now < one.until + MOST_SECONDS)
    return known if len(left) == len(known.nodes) else Sparing(left)


def spared(known: Sparing, now: float) -> Mapping[str, str]:
    """Why each node is left alone at ``now``."""
    return {one.node: f"{one.why}; its removal was given up and is tried again later" for one in known.nodes if now < one.until}
