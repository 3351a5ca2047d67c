"""Nodes that stay not Ready: they are reported, and later their machines are ended, one at a time.

A machine whose kubelet has stopped for good (a hung kernel, a GPU off the bus, a full disk) passes the status checks of its cloud. It costs
money, runs no pods and counts for the maximum of its pool. But if many nodes become not Ready together, the network or the control plane
is the likely cause, not the machines: then none is ended. Cluster Autoscaler waits 20 minutes (``--scale-down-unready-time``), EKS' node
auto repair 30.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.lifecycle.interruptions import Announcements, Remark
from gpuscaler.lifecycle.observed.machine_index import MachineIndex
from gpuscaler.lifecycle.termination.removing import is_halted
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import STOPPING, TERMINATED
from gpuscaler.model.nodes import Node, first_label
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.model.well_known import ZONE_LABELS
from gpuscaler.planning.capacity.pool_membership import Member, members
from gpuscaler.planning.scale_down.blockers import is_arriving
from gpuscaler.planning.state import Ending
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.entries import CLEARING, Removal
from gpuscaler.planning.state.ledger.ledger import Ledger

#: After how many seconds a node is reported as not Ready. This process itself must have seen it not Ready for as long before its machine is
#: ended, because clocks differ.
REPORT_SECONDS = 300.0
#: Minimum time between the starts of two such removals in one pool.
PACE_SECONDS = 600.0
#: How long after the announced time a machine that its cloud repairs or reboots may take to become Ready, in seconds.
REPAIR_SECONDS = 3600.0
#: How long the pods of a machine that is not Ready have until it is ended: its kubelet probably does not stop them.
DRAIN_SECONDS = 120.0
#: A zone is considered at fault only if it has at least this many nodes.
ZONE_NODES = 3


class UnreadyNode(Struct, frozen=True, gc=False):
    """A node of a managed pool that has not been Ready since ``since``; ``seen`` is when this process first saw it not Ready.

    ``reported`` is whether the node has been reported. ``held`` is why its machine is not ended although it is overdue, as text.
    """

    node: str
    instance: str
    offering: OfferingKey
    since: float
    seen: float
    reported: bool = False
    held: str = ""


class EndingMachine(Struct, frozen=True, gc=False):
    """A machine that is ended because its node was not Ready. ``stopping`` means that the cloud is ending it but still lists it."""

    node: str
    instance: str
    offering: OfferingKey
    stopping: bool = False


class Unready(Struct, frozen=True, gc=False, rename={"ending": "fading"}):
    """``nodes`` are those that are not Ready, ``ending`` the machines whose removal has begun for this reason.

    ``begun`` is when such a removal last began in each pool, in seconds since the epoch.
    """

    nodes: tuple[UnreadyNode, ...] = ()
    ending: tuple[EndingMachine, ...] = ()
    begun: Mapping[str, float] = {}


class UnreadyFindings(Struct, frozen=True, gc=False):
    """``unready`` is the new memory, ``steps`` are events for the ledger, ``remarks`` are reported."""

    unready: Unready
    steps: tuple[ledger.Event, ...] = ()
    remarks: tuple[Remark, ...] = ()


def observe(
    before: Unready,
    current: Ledger,
    cluster: Cluster,
    policy: Policy,
    *,
    announced: Announcements,
    index: MachineIndex,
    fresh: bool,
    stopped: str,
    now: float,
) -> UnreadyFindings:
    """Find the nodes that are not Ready now, and the machines to end because of it. None is ended unless the data is ``fresh`` (I4).

    ``stopped`` is the reason for a hold on removals; empty without one. Before the cloud's first list nothing changes: it is not known yet
    whose machines the nodes are.
    """
    if index.listed.instances is None:
        return UnreadyFindings(before)
    unready_nodes = _unready_nodes(index, current)
    if not (unready_nodes or before.nodes or before.ending):
        return UnreadyFindings(before)
    belonging = members({node.name: node for node in unready_nodes}, policy, index.unlisted)
    entries = {(entry.node, entry.instance): entry for entry in before.nodes}
    leaving = {removal.node for removal in current.leaving}
    begun = {pool: at for pool, at in before.begun.items() if now < at + PACE_SECONDS}
    guard = _Objections(current, cluster, policy, announced=announced, index=index, now=now)
    nodes: list[UnreadyNode] = []
    steps: list[ledger.Event] = []
    remarks: list[Remark] = []
    ending_machines = list(_ending_machines(before.ending, current, index))
    for node, member in sorted(
        ((node, belonging[node.name]) for node in unready_nodes if node.name in belonging), key=lambda pair: _age(pair[0])
    ):
        entry = _continued(entries.get((node.name, node.provider_id)), node, member, now)
        after = member.pool.unready_after
        if node.name not in leaving and after and now >= max(entry.since + after, entry.seen + min(after, REPORT_SECONDS)):
            held = stopped or guard.objection(node, begun.get(member.pool.name)) if fresh else entry.held
            entry = replace(entry, held=held)
            if fresh and not held:
                begun[member.pool.name] = now
                steps.append(ledger.RemovalUpdated(_removal_of(entry, cluster, after, now)))
                ending_machines.append(EndingMachine(node.name, node.provider_id, entry.offering))
        if not entry.reported and now >= entry.since + REPORT_SECONDS:
            entry = replace(entry, reported=True)
            remarks.append(Remark(node.provider_id, node.name, describe_unready(entry, policy, now)))
        nodes.append(entry)
    return UnreadyFindings(Unready(tuple(nodes), tuple(ending_machines), begun), tuple(steps), tuple(remarks))


def describe_unready(entry: UnreadyNode, policy: Policy, now: float) -> str:
    """Describe one node in a sentence: since when it has not been Ready, what it costs, and what gpuscaler does about it."""
    pool = next((pool for pool in policy.pools if pool.name == entry.offering.pool), None)
    price = next((offering.price for offering in (pool.offerings if pool is not None else ()) if offering.key == entry.offering), None)
    cost = f" and costs ${price:.2f}/h" if price is not None else ""
    since = f"{datetime.fromtimestamp(entry.since, UTC):%Y-%m-%d %H:%M:%S} UTC, for {_minutes(now - entry.since)}"
    text = f"node {entry.node} of pool {entry.offering.pool} has not been Ready since {since}{cost}"
    after = pool.unready_after if pool is not None else 0.0
    if entry.held:
        return f"{text}; its machine, {entry.instance}, is not ended: {entry.held}"
    if not after:
        return f"{text}; its machine, {entry.instance}, is never ended for that (unready_after is 0): check its kubelet, or end it"
    return f"{text}; its machine, {entry.instance}, is ended {_minutes(after)} after it stopped being Ready (unready_after)"


def ending(unready: Unready) -> tuple[Ending, ...]:
    """Return machines that still count for limits and cost because the cloud lists them, but not for the maximum of their pool."""
    return tuple(Ending(machine.node, machine.offering) for machine in unready.ending if machine.stopping)


def recalled(unready: Unready, now: float) -> Unready:
    """Return ``unready`` without timestamps after ``now``, which another clock has written."""
    nodes = tuple(replace(entry, since=min(entry.since, now), seen=min(entry.seen, now)) for entry in unready.nodes)
    return replace(unready, nodes=nodes, begun={pool: min(at, now) for pool, at in unready.begun.items()})


def _unready_nodes(index: MachineIndex, ledger: Ledger) -> list[Node]:
    """Return the nodes of ours that are not Ready, except for machines that are not open yet, which have their own time-outs."""
    if not index.unready:
        return []
    coming = {machine.node for machine in ledger.coming if machine.node}
    over = index.listed.over
    return [
        node
        for node in index.unready
        if node.provider_id and not node.deleted and not {node.name} & (coming | index.unlisted) and node.provider_id not in over
    ]


def _age(node: Node) -> tuple[float, str]:
    return node.unready_since, node.name


def _continued(before: UnreadyNode | None, node: Node, member: Member, now: float) -> UnreadyNode:
    """Return the entry of a node that is not Ready. A new one begins at the time in its condition, or now if that is not in the past."""
    if before is not None:
        return before
    offering = member.offering.key if member.offering is not None else OfferingKey(member.pool.name, "", "", "")
    since = max(node.unready_since, node.created)
    return UnreadyNode(node.name, node.provider_id, offering, since if 0.0 < since < now else now, now)


def _removal_of(entry: UnreadyNode, cluster: Cluster, after: float, now: float) -> Removal:
    pods = tuple(sorted(pod.key for pod in cluster.on_node.get(entry.node, {}).values()))
    reason = f"it has not been Ready for {_minutes(now - entry.since)}, and unready_after of its pool is {_minutes(after)}"
    fields = (entry.node, entry.instance, entry.offering, reason)
    return Removal(*fields, now, now, pods=pods, forced=True, unready=True, ends=now + DRAIN_SECONDS)


def _ending_machines(before: tuple[EndingMachine, ...], ledger: Ledger, index: MachineIndex) -> Iterator[EndingMachine]:
    """Yield the machines of ``before`` that still exist."""
    under_way = {removal.instance for removal in ledger.leaving if removal.unready and removal.step != CLEARING}
    for ending_machine in before:
        listed = index.listed.by_id.get(ending_machine.instance)
        if listed is not None and listed.state != TERMINATED and (ending_machine.instance in under_way or listed.state == STOPPING):
            yield replace(ending_machine, stopping=listed.state == STOPPING)
        elif listed is None and ending_machine.instance in under_way:
            yield ending_machine


class _Objections:
    """The reasons against ending machines whose nodes are not Ready, computed once for all machines."""

    def __init__(
        self, ledger: Ledger, cluster: Cluster, policy: Policy, *, announced: Announcements, index: MachineIndex, now: float
    ) -> None:
        self._cluster, self._announced, self._index, self._now = cluster, announced, index, now
        self._ledger, self._policy = ledger, policy
        self._zones: Mapping[str, tuple[int, int]] | None = None

    def objection(self, node: Node, begun: float | None) -> str:
        """Return why the machine of ``node`` is not ended, as text without times; empty if it may be ended."""
        if len(self._index.by_machine.get(node.provider_id, ())) > 1:
            return "another node has the same spec.providerID"
        if node.scale_down_disabled or node.do_not_disrupt:
            return "the node has a do-not-disrupt or scale-down-disabled annotation"
        if node.provider_id in self._announced.taken_away_at or self._is_repaired(node):
            return "the cloud has announced work on this machine"
        if is_halted(self._ledger, self._index, self._policy):
            return "too many nodes are not Ready at once"
        if (zone := self.dark_zone(node)) is not None:
            return f"most nodes of zone {zone} are not Ready"
        return "" if begun is None else "the removal of another such machine of the pool began less than 10 minutes before"

    def _is_repaired(self, node: Node) -> bool:
        at = self._announced.maintenance_at.get(node.provider_id)
        return at is not None and (not at or self._now < at + REPAIR_SECONDS)

    def dark_zone(self, node: Node) -> str | None:
        """Return the zone of ``node`` if most nodes of the zone are not Ready: then the zone or the connection to it has failed."""
        if self._zones is None:
            self._zones = count_unready_by_zone(self._index, self._ledger, self._policy)
        zone = zone_of(node)
        unready, nodes = self._zones.get(zone, (0, 0))
        return zone or "unknown" if nodes >= ZONE_NODES and 2 * unready > nodes else None


def count_unready_by_zone(index: MachineIndex, ledger: Ledger, policy: Policy) -> Mapping[str, tuple[int, int]]:
    """Return, by zone, how many nodes are not Ready, and how many there are, without nodes that are not open yet."""
    belonging = members(index.nodes, policy, index.unlisted)
    coming = {machine.node for machine in ledger.coming if machine.node}
    settled = [node for node in index.nodes.values() if node.name not in coming and not is_arriving(node, belonging.get(node.name))]
    nodes = Counter(zone_of(node) for node in settled)
    unready = Counter(zone_of(node) for node in settled if not node.ready)
    return {zone: (unready[zone], count) for zone, count in nodes.items()}


def zone_of(node: Node) -> str:
    return node.bought.zone if node.bought is not None and node.bought.zone else first_label(node, ZONE_LABELS)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f}m" if seconds >= 60.0 else f"{seconds:.0f}s"
