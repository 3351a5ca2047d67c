"""Nodes that stay not Ready: they are reported, and after a time their machines are ended, carefully.

A kubelet that is gone for good (a hung kernel, a GPU off the bus, a full disk) passes a cloud's status checks. Such a machine costs money,
serves nothing and fills its pool. But when many fall silent together, the network or the control plane is more likely at fault than the
machines: then nothing is ended. Cluster Autoscaler waits 20 minutes (``--scale-down-unready-time``), EKS' node auto repair 30.
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

#: When a node is reported as not Ready. Its machine is not ended before this program itself has seen it so for as long: clocks differ.
REPORT_SECONDS = 300.0
#: Minimum time between the starts of two such removals in one pool.
PACE_SECONDS = 600.0
#: How long a machine that its cloud repairs or reboots gets to come back after the announced moment.
REPAIR_SECONDS = 3600.0
#: How long the pods of such a machine have until it is ended: its kubelet most likely does not answer requests to stop them.
DRAIN_SECONDS = 120.0
#: Minimum number of nodes in a zone for a judgement about the zone.
ZONE_NODES = 3


class SilentNode(Struct, frozen=True, gc=False):
    """A node of a managed pool that has not been Ready since ``since``; this program has seen it so since ``seen``, by its own clock.

    ``reported`` is whether it has been reported to people. ``held`` is why its machine is not ended although it is overdue, as text.
    """

    node: str
    instance: str
    offering: OfferingKey
    since: float
    seen: float
    reported: bool = False
    held: str = ""


class EndingMachine(Struct, frozen=True, gc=False):
    """A machine that is ended because its node was not Ready. ``stopping`` means that its cloud has accepted that and still lists it."""

    node: str
    instance: str
    offering: OfferingKey
    stopping: bool = False


class Unready(Struct, frozen=True, gc=False):
    """``nodes`` are those that are not Ready, ``fading`` machines whose removal has begun for that reason.

    ``begun`` is when such a removal last began in each pool, in seconds since the epoch.
    """

    nodes: tuple[SilentNode, ...] = ()
    fading: tuple[EndingMachine, ...] = ()
    begun: Mapping[str, float] = {}


class UnreadyFindings(Struct, frozen=True, gc=False):
    """``unready`` is the new memory, ``steps`` change the ledger, ``remarks`` are worth reporting."""

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
    """Find the nodes that are not Ready now, and the machines to end for that. Without ``fresh`` data none is ended (I4).

    ``stopped`` is the reason if a person has stopped all removals; otherwise it is empty.
    """
    silent = _unready_nodes(index, current)
    if not (silent or before.nodes or before.fading):
        return UnreadyFindings(before)
    belonging = members({node.name: node for node in silent}, policy)
    silences = {(silence.node, silence.instance): silence for silence in before.nodes}
    leaving = {removal.node for removal in current.leaving}
    begun = {pool: at for pool, at in before.begun.items() if now < at + PACE_SECONDS}
    guard = _Objections(current, cluster, policy, announced=announced, index=index, now=now)
    nodes: list[SilentNode] = []
    steps: list[ledger.Event] = []
    remarks: list[Remark] = []
    fading = list(_ending_machines(before.fading, current, index))
    for node, member in sorted(((node, belonging[node.name]) for node in silent if node.name in belonging), key=lambda pair: _age(pair[0])):
        silence = _continued(silences.get((node.name, node.provider_id)), node, member, now)
        after = member.pool.unready_after
        if node.name not in leaving and after and now >= max(silence.since + after, silence.seen + min(after, REPORT_SECONDS)):
            held = stopped or guard.objection(node, begun.get(member.pool.name)) if fresh else silence.held
            silence = replace(silence, held=held)
            if fresh and not held:
                begun[member.pool.name] = now
                steps.append(ledger.RemovalUpdated(_removal_of(silence, cluster, after, now)))
                fading.append(EndingMachine(node.name, node.provider_id, silence.offering))
        if not silence.reported and now >= silence.since + REPORT_SECONDS:
            silence = replace(silence, reported=True)
            remarks.append(Remark(node.provider_id, node.name, describe_unready(silence, policy, now)))
        nodes.append(silence)
    return UnreadyFindings(Unready(tuple(nodes), tuple(fading), begun), tuple(steps), tuple(remarks))


def describe_unready(silence: SilentNode, policy: Policy, now: float) -> str:
    """Describe one node in a sentence: since when it is not Ready, what it costs, and what happens to it."""
    pool = next((pool for pool in policy.pools if pool.name == silence.offering.pool), None)
    price = next((offering.price for offering in (pool.offerings if pool is not None else ()) if offering.key == silence.offering), None)
    cost = f" and costs ${price:.2f}/h" if price is not None else ""
    since = f"{datetime.fromtimestamp(silence.since, UTC):%Y-%m-%d %H:%M:%S} UTC, for {_minutes(now - silence.since)}"
    text = f"node {silence.node} of pool {silence.offering.pool} has not been Ready since {since}{cost}"
    after = pool.unready_after if pool is not None else 0.0
    if silence.held:
        return f"{text}; its machine, {silence.instance}, is not ended: {silence.held}"
    if not after:
        return f"{text}; its machine, {silence.instance}, is never ended for that (unready_after is 0): check its kubelet, or end it"
    return f"{text}; its machine, {silence.instance}, is ended {_minutes(after)} after it stopped being Ready (unready_after)"


def ending(unready: Unready) -> tuple[Ending, ...]:
    """Return machines that count for limits and cost until their cloud lists them as gone; their place in the pool is already free."""
    return tuple(Ending(fading.node, fading.offering) for fading in unready.fading if fading.stopping)


def recalled(unready: Unready, now: float) -> Unready:
    """Return ``unready`` without timestamps after ``now``, which another clock has written."""
    nodes = tuple(replace(silence, since=min(silence.since, now), seen=min(silence.seen, now)) for silence in unready.nodes)
    return replace(unready, nodes=nodes, begun={pool: min(at, now) for pool, at in unready.begun.items()})


def _unready_nodes(index: MachineIndex, ledger: Ledger) -> list[Node]:
    """Return the nodes that are not Ready and that are ours to judge. Machines that are not open yet have their own time-outs."""
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


def _continued(before: SilentNode | None, node: Node, member: Member, now: float) -> SilentNode:
    """Start or continue the silence of a node: since its condition says, or since it was first seen, because another clock may be ahead."""
    if before is not None:
        return before
    offering = member.offering.key if member.offering is not None else OfferingKey(member.pool.name, "", "", "")
    since = max(node.unready_since, node.created)
    return SilentNode(node.name, node.provider_id, offering, since if 0.0 < since < now else now, now)


def _removal_of(silence: SilentNode, cluster: Cluster, after: float, now: float) -> Removal:
    pods = tuple(sorted(pod.key for pod in cluster.on_node.get(silence.node, {}).values()))
    reason = f"it has not been Ready for {_minutes(now - silence.since)}, and unready_after of its pool is {_minutes(after)}"
    fields = (silence.node, silence.instance, silence.offering, reason)
    return Removal(*fields, now, now, pods=pods, forced=True, unready=True, ends=now + DRAIN_SECONDS)


def _ending_machines(before: tuple[EndingMachine, ...], ledger: Ledger, index: MachineIndex) -> Iterator[EndingMachine]:
    """Yield machines that are still being ended or not gone yet; without a list of the cloud nothing is known, and all stay."""
    under_way = {removal.instance for removal in ledger.leaving if removal.unready and removal.step != CLEARING}
    for fading in before:
        machine = index.listed.by_id.get(fading.instance)
        if index.listed.instances is None:
            yield fading
        elif machine is not None and machine.state != TERMINATED and (fading.instance in under_way or machine.state == STOPPING):
            yield replace(fading, stopping=machine.state == STOPPING)
        elif machine is None and fading.instance in under_way:
            yield fading


class _Objections:
    """The reasons against ending a machine whose node is not Ready, computed once for all of them."""

    def __init__(
        self, ledger: Ledger, cluster: Cluster, policy: Policy, *, announced: Announcements, index: MachineIndex, now: float
    ) -> None:
        self._cluster, self._announced, self._index, self._now = cluster, announced, index, now
        self._ledger, self._policy = ledger, policy
        self._zones: Mapping[str, tuple[int, int]] | None = None

    def objection(self, node: Node, begun: float | None) -> str:
        """Return why the machine of ``node`` stays, as text without times; empty if nothing prevents its end."""
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
        """Return the zone of ``node`` if most of its nodes are not Ready: then the zone, or the connection to it, is at fault."""
        if self._zones is None:
            self._zones = count_unready_by_zone(self._index, self._ledger, self._policy)
        zone = zone_of(node)
        unready, nodes = self._zones.get(zone, (0, 0))
        return zone or "unknown" if nodes >= ZONE_NODES and 2 * unready > nodes else None


def count_unready_by_zone(index: MachineIndex, ledger: Ledger, policy: Policy) -> Mapping[str, tuple[int, int]]:
    """Count, by zone, the nodes that are not Ready and all nodes. Those that are still arriving do not count."""
    belonging = members(index.nodes, policy)
    coming = {machine.node for machine in ledger.coming if machine.node}
    settled = [node for node in index.nodes.values() if node.name not in coming and not is_arriving(node, belonging.get(node.name))]
    nodes = Counter(zone_of(node) for node in settled)
    unready = Counter(zone_of(node) for node in settled if not node.ready)
    return {zone: (unready[zone], count) for zone, count in nodes.items()}


def zone_of(node: Node) -> str:
    return node.bought.zone if node.bought is not None and node.bought.zone else first_label(node, ZONE_LABELS)


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f}m" if seconds >= 60.0 else f"{seconds:.0f}s"
