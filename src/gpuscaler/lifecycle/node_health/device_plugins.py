"""Restarts of device plugins: for some minutes the missing devices of a node still count.

When a plugin stops, the kubelet at once reports 0 allocatable devices (kubernetes/kubernetes#99571), but keeps their capacity for five
minutes. A kubelet that restarts reports neither until the plugin registers again. An upgrade does this on every node. For five minutes the
node counts with the devices that it had, so that nothing is bought in its place and it does not look idle. After that it counts without
them, and is reported.
"""

from collections.abc import Collection, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.model.cluster import Cluster, Delta
from gpuscaler.model.nodes import Node
from gpuscaler.model.well_known import ARRIVING_TAINT

#: How long missing devices still count, in seconds. A plugin usually registers sooner, unless its image has to be pulled first.
COUNTED_SECONDS = 300.0


class AbsentDevices(Struct, frozen=True, gc=False):
    """The devices that the node with ``uid`` showed until ``since`` and has not shown since."""

    uid: str
    amounts: Mapping[str, int]
    since: float


def observe(absences: Mapping[str, AbsentDevices], before: Mapping[str, Node], cluster: Cluster, now: float) -> Mapping[str, AbsentDevices]:
    """Return the missing devices by node; ``before`` are the nodes of the last call, empty after a restart."""
    if before is cluster.nodes and not absences:
        return absences
    away: dict[str, AbsentDevices] = {}
    for name, node in cluster.nodes.items():
        last, previous = before.get(name), absences.get(name)
        if node is last and previous is None:
            continue
        if previous is not None and previous.uid != node.uid:
            previous = None
        if amounts := _missing(node, last, previous):
            away[name] = AbsentDevices(node.uid, amounts, previous.since if previous is not None else now)
    return absences if away == absences else away


def _missing(node: Node, last: Node | None, previous: AbsentDevices | None) -> dict[str, int]:
    """Return the devices that ``node`` had but does not show now; empty for a machine that is not open yet."""
    if any(taint.key == ARRIVING_TAINT for taint in node.taints):
        return {}
    had = {name: amount for name, amount in node.capacity.items() if amount}
    if last is not None and last.uid == node.uid:
        had |= {name: amount for name, amount in last.allocatable.items() if amount}
    had |= previous.amounts if previous is not None else {}
    missing = {name: amount for name, amount in had.items() if "/" in name and not node.allocatable.get(name)}
    if not missing:
        return missing
    # A node that shows devices of the same vendor under other names has been repartitioned, as with MIG.
    vendors = {name.partition("/")[0] for name, amount in node.allocatable.items() if amount and name not in had}
    return {name: amount for name, amount in missing.items() if name.partition("/")[0] not in vendors}


def coming_back(absences: Mapping[str, AbsentDevices], now: float) -> frozenset[str]:
    """Return the nodes whose missing devices still count."""
    return frozenset(name for name, away in absences.items() if now < away.since + COUNTED_SECONDS)


def as_before(cluster: Cluster, absences: Mapping[str, AbsentDevices], now: float) -> Cluster:
    """Return ``cluster`` with the missing devices that still count."""
    nodes = (cluster.nodes.get(name) for name in coming_back(absences, now))
    changed = tuple(
        replace(node, allocatable={**node.allocatable, **absences[node.name].amounts})
        for node in nodes
        if node is not None and node.uid == absences[node.name].uid
    )
    return cluster.apply(Delta(upserts=changed)) if changed else cluster


def reports(absences: Mapping[str, AbsentDevices], now: float, *, known: Collection[str] = ()) -> Iterator[str]:
    """Report each node whose devices have been missing for too long, in one sentence; nodes in ``known`` are reported elsewhere."""
    for name in sorted(absences.keys() - coming_back(absences, now) - set(known)):
        away = absences[name]
        shown = ", ".join(f"{amount} {resource}" for resource, amount in sorted(away.amounts.items()))
        yield (
            f"node {name} had {shown} and has shown none for {(now - away.since) / 60:.0f} min; plans use what it shows; check "
            f"the device plugin's pod on it, and the driver's log"
        )


def recalled(absences: Mapping[str, AbsentDevices], now: float) -> Mapping[str, AbsentDevices]:
    """Return ``absences`` without timestamps after ``now``, which another clock has written."""
    return {name: replace(away, since=min(away.since, now)) for name, away in absences.items()}
