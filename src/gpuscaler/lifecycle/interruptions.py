"""Machines that the cloud takes away: they are drained in time if the cloud announces it; reclaimed spot also affects its breaker."""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.lifecycle.observed.machine_index import Listed, MachineIndex
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import Instance
from gpuscaler.model.offerings import SPOT, OfferingKey
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Policy
from gpuscaler.planning.capacity.expiring import EMPTY_SECONDS, SAVE_SECONDS, WHY
from gpuscaler.planning.capacity.pool_membership import members
from gpuscaler.planning.state import offering_events
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.entries import CLEARING, ENDING, Removal
from gpuscaler.planning.state.ledger.ledger import Ledger

#: How long a machine is assumed to exist if the cloud announces no time for taking it away: the shortest notice that clouds give.
NOTICE_SECONDS = 30.0
#: How long before its scheduled maintenance a machine is drained, in seconds.
AHEAD_SECONDS = 3600.0
TAKEN, WORKED_ON, ENDED = "the cloud takes it back", "the cloud is about to work on it", "the cloud lists its machine as terminated"


class Remark(Struct, frozen=True, gc=False):
    """A fact about a machine, and about its ``node`` if it has one, that is worth reporting and needs no action."""

    machine: str
    node: str
    text: str


class InterruptionFindings(Struct, frozen=True, gc=False):
    """The result: ``steps`` are events for the ledger, ``breaker_events`` for breakers."""

    steps: tuple[ledger.Event, ...] = ()
    breaker_events: tuple[offering_events.Event, ...] = ()


class Announcements(Struct, frozen=True, gc=False):
    """When the cloud takes machines away and when it works on machines, by id; 0 if the time is unknown.

    ``ends`` is when the reserved time of machines ends. ``why`` is the announced reason, where it is not the cloud's usual one.
    """

    taken_away_at: Mapping[str, float] = {}
    maintenance_at: Mapping[str, float] = {}
    ends: Mapping[str, float] = {}
    why: Mapping[str, str] = {}


def remove_interrupted(
    current: Ledger, cluster: Cluster, policy: Policy, announced: Announcements, now: float, *, index: MachineIndex | None = None
) -> InterruptionFindings:
    """Return the removals of machines that will end in any case. No blocker applies to them, and each is begun only once.

    These are the machines that the cloud takes away, will work on soon, or whose reserved time ends before their pods do, and the machines
    that their group ends by itself. ``index`` is the machine index of ``cluster``, if the caller has one.
    """
    index = index or MachineIndex.of(cluster, None)
    soon = {name: at for name, at in announced.maintenance_at.items() if now < at <= now + AHEAD_SECONDS}
    over = {name: max(at, now + NOTICE_SECONDS) for name, at in announced.ends.items() if at <= now + EMPTY_SECONDS + SAVE_SECONDS}
    ended = {instance.id: max(instance.until, now + NOTICE_SECONDS) for instance in index.listed.ended}
    ends = {**over, **soon, **ended, **{name: at or now + NOTICE_SECONDS for name, at in announced.taken_away_at.items()}}
    under_way = {removal.instance for removal in current.leaving if removal.forced or removal.step in (ENDING, CLEARING)}
    early = over.keys() - soon.keys() - ended.keys() - announced.taken_away_at.keys()
    if not ends:
        return InterruptionFindings()
    nodes = {
        node.name: node
        for instance in ends
        if instance not in under_way
        for node in index.by_machine.get(instance, ())
        if instance not in early or is_due(over[instance], cluster.on_node.get(node.name, {}).values(), now)
    }
    steps: list[ledger.Event] = list(_update_reasons(current, index))
    breaker_events: list[offering_events.Event] = []
    # Announcements about machines of others do not get here, and a machine that was just ordered may not be listed yet.
    for name, member in members(nodes, policy, frozenset()).items() if nodes else ():
        instance = nodes[name].provider_id
        coming = next((machine for machine in current.coming if machine.instance == instance), None)
        if coming is not None:
            offering = coming.key
            steps.append(ledger.Lost(coming.id))
        else:
            offering = member.offering.key if member.offering is not None else OfferingKey(member.pool.name, "", "", "")
        pods = tuple(pod.key for pod in cluster.on_node.get(name, {}).values())
        machine = index.listed.by_id.get(instance)
        held = machine.held if machine is not None and instance in ended else 0.0
        evictions = next((removal.evictions for removal in current.leaving if removal.instance == instance), ())
        why = _reason(instance, announced, soon=soon, ended=machine.cause if machine is not None and instance in ended else "")
        removal = Removal(
            name, instance, offering, why, now, now, pods=pods, forced=True, ends=ends[instance], evictions=evictions, held=held
        )
        steps.append(ledger.RemovalUpdated(removal))
        # A machine that its group ends by itself says nothing about the spot market.
        if instance in announced.taken_away_at and instance not in ended:
            breaker_events += reclaim_events((offering,), now)
    return InterruptionFindings(tuple(steps), tuple(breaker_events))


def _reason(instance: str, announced: Announcements, *, soon: Mapping[str, float], ended: str) -> str:
    """Return why a machine is removed, as text; ``ended`` is the reason for which its group ends it, or empty."""
    if instance in announced.taken_away_at and not ended:
        return announced.why.get(instance, TAKEN)
    return ended or (WORKED_ON if instance in soon else WHY)


def _update_reasons(current: Ledger, index: MachineIndex) -> Iterator[ledger.Event]:
    """Update removals whose reason became known later: a group reports its activities with a delay."""
    for removal in current.leaving:
        machine = index.listed.by_id.get(removal.instance)
        if removal.held and machine is not None and machine.cause not in ("", removal.reason):
            yield ledger.RemovalUpdated(replace(removal, reason=machine.cause))


def remove_terminated(current: Ledger, index: MachineIndex, now: float) -> tuple[ledger.Event, ...]:
    """Return removals of Nodes without a machine: the cloud lists the machine as terminated, and nothing here ended it.

    A machine that is only missing from the list may have lost its tag and still run (I4). But a terminated machine never comes back, and
    its Node is not Ready either. Until the Node is deleted, pods of StatefulSets that ran there are not replaced.
    """
    over = index.listed.over
    if not over:
        return ()
    in_ledger = {removal.node for removal in current.leaving} | {machine.node for machine in current.coming}
    # If several Nodes have the same provider ID, it is unknown which of them belongs to the machine.
    nodes = (machine_nodes[0] for name in over if len(machine_nodes := index.by_machine.get(name, ())) == 1)
    to_clear = (node for node in nodes if not (node.ready or node.deleted or node.name in in_ledger))
    return tuple(
        ledger.RemovalUpdated(Removal(node.name, node.provider_id, over[node.provider_id].key, ENDED, now, now, step=CLEARING, forced=True))
        for node in to_clear
    )


def unexpectedly_gone(ledger: Ledger, vanished: Iterable[Instance], index: MachineIndex | None = None) -> tuple[Instance, ...]:
    """Return the open machines that the cloud no longer lists, and that neither gpuscaler nor their groups have ended."""
    expected = {removal.instance for removal in ledger.leaving} | {machine.instance for machine in ledger.coming} | ledger.departed_ids
    expected |= {instance.id for instance in index.listed.ended} if index is not None else set()
    return tuple(instance for instance in vanished if instance.id not in expected)


def reclaim_events(offerings: Iterable[OfferingKey], now: float) -> tuple[offering_events.Event, ...]:
    """Return the breaker events of reclaimed spot: it is reclaimed in waves. In other markets, one machine predicts nothing."""
    return tuple(offering_events.Reclaimed(key, now) for key in offerings if key.market == SPOT)


def describe_changes(
    index: MachineIndex,
    vanished: Iterable[Instance],
    announced: Iterable[tuple[str, str]],
    maintenance_at: Mapping[str, float] | None = None,
) -> Iterator[Remark]:
    """Report open machines that are no longer listed, ``vanished``, and the cloud's announcements: pairs of an id and one word.

    Machines with a known time in ``maintenance_at`` are drained before that time. The Node of a terminated machine is deleted.
    """

    def name_of(instance: str) -> str:
        return next((node.name for node in index.by_machine.get(instance, ())), "")

    for machine in vanished:
        node = name_of(machine.id)
        done = "is deleted when it is not Ready" if machine.id in index.listed.over else "is left to the cloud's controller"
        node_text = f"; its node {node} {done}" if node else ""
        where = f"{machine.market} {machine.instance_type} {machine.zone}".rstrip()
        yield Remark(machine.id, node, f"machine {machine.id} ({where}) is gone without any notice{node_text}")
    for instance, word in announced:
        done = "it is drained before that" if (maintenance_at or {}).get(instance) else "no action is taken"
        yield Remark(instance, name_of(instance), f"the cloud announces {word} of machine {instance}; {done}")


def update_ends(maintenance_at: Mapping[str, float], listed: Listed) -> Mapping[str, float]:
    """Return when listed machines end, by id, as last reported: the cloud stops reporting it once the group has another reservation."""
    if listed.instances is None or not (maintenance_at or listed.ends):
        return maintenance_at
    return {**{name: at for name, at in maintenance_at.items() if name in listed.by_id}, **listed.ends}


def is_due(ends: float, pods: Iterable[Pod], now: float) -> bool:
    """Whether ``pods`` have to be moved from ``now`` on, off a machine that ends at ``ends``."""
    saving = max(((pod.options.grace or 0.0) + pod.spec.grace_seconds for pod in pods), default=0.0)
    return now >= ends - EMPTY_SECONDS - min(saving, SAVE_SECONDS)
