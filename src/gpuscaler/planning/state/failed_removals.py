"""Failed removals: nodes whose removal could not be finished are not removed for a while, longer each time, and the reason is shown."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey

#: The pause before the next removal of a node, the first time and at most, in seconds. Cluster Autoscaler tries again after 5 minutes.
FIRST_SECONDS, MOST_SECONDS = 600.0, 4 * 3600.0


class Spared(Struct, frozen=True, gc=False):
    """The removal of ``node``, the machine ``instance``, failed for the ``times``-th time; none begins before ``until``."""

    node: str
    instance: str
    offering: OfferingKey
    why: str
    until: float
    times: int = 1


class Sparing(Struct, frozen=True, gc=False):
    nodes: tuple[Spared, ...] = ()


class GivenUp(Struct, frozen=True, gc=False):
    """The removal of ``node`` began and could not be finished."""

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
    """``known`` without machines that no longer exist, and without those whose pause ended longer ago than the longest pause."""
    if not known.nodes:
        return known
    there = set(instances)
    left = tuple(one for one in known.nodes if one.instance in there and now < one.until + MOST_SECONDS)
    return known if len(left) == len(known.nodes) else Sparing(left)


def spared(known: Sparing, now: float) -> Mapping[str, str]:
    """The reason that each paused node is not removed at ``now``."""
    return {one.node: f"{one.why}; its removal was abandoned and will be retried later" for one in known.nodes if now < one.until}
