"""Failed removals: nodes whose removal could not be finished are not removed for a while, longer each time, and the reason is shown."""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey

#: The pause before the next removal of a node, the first time and at most, in seconds. Cluster Autoscaler tries again after 5 minutes.
FIRST_SECONDS, MOST_SECONDS = 600.0, 4 * 3600.0


class SparedNode(Struct, frozen=True, gc=False):
    """The removal of ``node``, the machine ``instance``, failed for the ``times``-th time; none begins before ``until``."""

    node: str
    instance: str
    offering: OfferingKey
    why: str
    until: float
    times: int = 1


class SparedNodes(Struct, frozen=True, gc=False):
    nodes: tuple[SparedNode, ...] = ()


class GivenUp(Struct, frozen=True, gc=False):
    """The removal of ``node`` began and could not be finished."""

    node: str
    instance: str
    offering: OfferingKey
    why: str
    at: float


def step(sparing: SparedNodes, event: GivenUp) -> SparedNodes:
    before = next((spared for spared in sparing.nodes if (spared.node, spared.instance) == (event.node, event.instance)), None)
    times = before.times + 1 if before is not None else 1
    until = event.at + min(FIRST_SECONDS * 2.0 ** min(times - 1, 10), MOST_SECONDS)
    others = tuple(spared for spared in sparing.nodes if spared.node != event.node)
    return SparedNodes((*others, SparedNode(event.node, event.instance, event.offering, event.why, until, times)))


def prune(sparing: SparedNodes, instances: Iterable[str], now: float) -> SparedNodes:
    """``sparing`` without machines that no longer exist, and without those whose pause ended longer ago than the longest pause."""
    if not sparing.nodes:
        return sparing
    existing = set(instances)
    left = tuple(spared for spared in sparing.nodes if spared.instance in existing and now < spared.until + MOST_SECONDS)
    return sparing if len(left) == len(sparing.nodes) else SparedNodes(left)


def spared_reasons(sparing: SparedNodes, now: float) -> Mapping[str, str]:
    """The reason that each paused node is not removed at ``now``."""
    return {
        spared.node: f"{spared.why}; its removal was abandoned and will be retried later" for spared in sparing.nodes if now < spared.until
    }
