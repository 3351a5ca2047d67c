"""Machines that the cloud takes away: with notice they are emptied in time, without it their offerings are ones to be careful with."""

from collections.abc import Iterable, Iterator, Mapping

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.lifecycle.observed.machine_index import Listed, Roll
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import Instance
from gpuscaler.model.offerings import SPOT, OfferingKey
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Policy
from gpuscaler.planning.capacity.expiring import EMPTY_SECONDS, SAVE_SECONDS, WHY
from gpuscaler.planning.capacity.pool_membership import members
from gpuscaler.planning.state import offering_events
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.entries import CLEARING, ENDING, Leaving
from gpuscaler.planning.state.ledger.ledger import Ledger

#: A machine that is taken away at a moment that is not said lasts this long: the shortest notice that a cloud gives.
NOTICE_SECONDS = 30.0
#: A machine that is worked on is emptied from this long before.
AHEAD_SECONDS = 3600.0
TAKEN, WORKED_ON, ENDED = "the cloud takes it back", "the cloud is about to work on it", "the cloud lists its machine as terminated"


class Remark(Struct, frozen=True, gc=False):
    """Something about a machine, and its ``node`` where it has one, that is worth telling and that nothing is done about."""

    machine: str
    node: str
    text: str


class Interrupted(Struct, frozen=True, gc=False):
    """``steps`` change the ledger, ``fates`` are for breakers."""

    steps: tuple[ledger.Event, ...] = ()
    fates: tuple[offering_events.Event, ...] = ()


class Announced(Struct, frozen=True, gc=False):
    """When machines, by id, are taken away, and when they are worked on; 0 where that is not known.

    ``ends`` is when their reserved time does. ``why`` is why some are taken away, where that is not the cloud's usual reason.
    """

    going: Mapping[str, float] = {}
    worked_on: Mapping[str, float] = {}
    ends: Mapping[str, float] = {}
    why: Mapping[str, str] = {}


def taken(book: Ledger, cluster: Cluster, policy: Policy, announced: Announced, now: float, *, roll: Roll | None = None) -> Interrupted:
    """Machines that are about to vanish leave whatever stands against it, by then; once begun it is not begun again.

    So do those that the cloud works on at a moment that is near, or whose reserved time ends, since what runs there does not outlast it,
    and those that their group ends by itself. ``roll`` is that of ``cluster``, where it is known.
    """
    roll = roll or Roll.of(cluster, None)
    soon = {name: at for name, at in announced.worked_on.items() if now < at <= now + AHEAD_SECONDS}
    over = {name: max(at, now + NOTICE_SECONDS) for name, at in announced.ends.items() if at <= now + EMPTY_SECONDS + SAVE_SECONDS}
    ended = {one.id: max(one.until, now + NOTICE_SECONDS) for one in roll.listed.ended}
    ends = {**over, **soon, **ended, **{name: at or now + NOTICE_SECONDS for name, at in announced.going.items()}}
    under_way = {one.instance for one in book.leaving if one.forced or one.step in (ENDING, CLEARING)}
    early = over.keys() - soon.keys() - ended.keys() - announced.going.keys()
    if not ends:
        return Interrupted()
    nodes = {
        node.name: node
        for instance in ends
        if instance not in under_way
        for node in roll.by_machine.get(instance, ())
        if instance not in early or is_due(over[instance], cluster.on_node.get(node.name, {}).values(), now)
    }
    steps: list[ledger.Event] = list(_explained(book, roll))
    fates: list[offering_events.Event] = []
    for name, member in members(nodes, policy).items() if nodes else ():
        instance = nodes[name].provider_id
        coming = next((one for one in book.coming if one.instance == instance), None)
        if coming is not None:
            offering = coming.key
            steps.append(ledger.Lost(coming.id))
        else:
            offering = member.offering.key if member.offering is not None else OfferingKey(member.pool.name, "", "", "")
        pods = tuple(pod.key for pod in cluster.on_node.get(name, {}).values())
        machine = roll.listed.by_id.get(instance)
        held = machine.held if machine is not None and instance in ended else 0.0
        known = next((one.evictions for one in book.leaving if one.instance == instance), ())
        why = _why(instance, announced, soon=soon, ended=machine.cause if machine is not None and instance in ended else "")
        one = Leaving(name, instance, offering, why, now, now, pods=pods, forced=True, ends=ends[instance], evictions=known, held=held)
        steps.append(ledger.Left(one))
        # What a group ends of its own accord says nothing of the spot market.
        if instance in announced.going and instance not in ended:
            fates += reclaimed((offering,), now)
    return Interrupted(tuple(steps), tuple(fates))


def _why(instance: str, announced: Announced, *, soon: Mapping[str, float], ended: str) -> str:
    """Why a machine goes, in words; ``ended`` is what its group ends it for."""
    if instance in announced.going and not ended:
        return announced.why.get(instance, TAKEN)
    return ended or (WORKED_ON if instance in soon else WHY)


def _explained(book: Ledger, roll: Roll) -> Iterator[ledger.Event]:
    """Removals whose reason has become known since: a group's activities tell late."""
    for one in book.leaving:
        machine = roll.listed.by_id.get(one.instance)
        if one.held and machine is not None and machine.cause not in ("", one.reason):
            yield ledger.Left(replace(one, reason=machine.cause))


def dead(book: Ledger, roll: Roll, now: float) -> tuple[ledger.Event, ...]:
    """Removals of Nodes of which nothing is left but the Node: nobody here ended their machines, and these are over.

    A machine that is just not listed any more may have lost its tag and go on, so that says nothing (I4). One that is terminated never
    comes back; that its Node is not Ready says the same from another side. Until the Node goes, its StatefulSets' pods are not replaced.
    """
    over = roll.listed.over
    if not over:
        return ()
    known = {one.node for one in book.leaving} | {one.node for one in book.coming}
    # To clear the Node of a machine that several say to be would be to guess which of them it was.
    nodes = (found[0] for name in over if len(found := roll.by_machine.get(name, ())) == 1)
    left = (node for node in nodes if not (node.ready or node.deleted or node.name in known))
    return tuple(
        ledger.Left(Leaving(one.name, one.provider_id, over[one.provider_id].key, ENDED, now, now, step=CLEARING, forced=True))
        for one in left
    )


def unexpected(book: Ledger, vanished: Iterable[Instance], roll: Roll | None = None) -> tuple[Instance, ...]:
    """Those machines that the cloud lists no more which were open, and which neither we nor their groups have ended."""
    known = {one.instance for one in book.leaving} | {one.instance for one in book.coming} | book.past
    known |= {one.id for one in roll.listed.ended} if roll is not None else set()
    return tuple(one for one in vanished if one.id not in known)


def reclaimed(offerings: Iterable[OfferingKey], now: float) -> tuple[offering_events.Event, ...]:
    """What it means to breakers that machines go, or are gone: spot is taken back in waves; of others one says nothing of the next."""
    return tuple(offering_events.Reclaimed(key, now) for key in offerings if key.market == SPOT)


def remarks(
    roll: Roll, gone: Iterable[Instance], announced: Iterable[tuple[str, str]], worked_on: Mapping[str, float] | None = None
) -> Iterator[Remark]:
    """Open machines that are ``gone``, and what the cloud has ``announced`` (a word) about machines, by id.

    Those that it has said of when they are ``worked_on`` are emptied before. Of those that are over the Node is deleted.
    """

    def name_of(instance: str) -> str:
        return next((node.name for node in roll.by_machine.get(instance, ())), "")

    for one in gone:
        node = name_of(one.id)
        done = "is deleted when it is not Ready" if one.id in roll.listed.over else "is left to the cloud's controller"
        left = f"; its node {node} {done}" if node else ""
        where = f"{one.market} {one.instance_type} {one.zone}".rstrip()
        yield Remark(one.id, node, f"machine {one.id} ({where}) is gone, and no notice of it was seen{left}")
    for instance, word in announced:
        done = "it is emptied before" if (worked_on or {}).get(instance) else "nothing is done about it"
        yield Remark(instance, name_of(instance), f"the cloud announces {word} of machine {instance}; {done}")


def remembered(known: Mapping[str, float], listed: Listed) -> Mapping[str, float]:
    """When machines end, by id, as far as the cloud has ever said so of those that it lists: what its group reserves later says no more."""
    if listed.instances is None or not (known or listed.ends):
        return known
    return {**{name: at for name, at in known.items() if name in listed.by_id}, **listed.ends}


def is_due(ends: float, pods: Iterable[Pod], now: float) -> bool:
    """Whether a machine that ends at ``ends`` is to be emptied of ``pods`` from ``now`` on."""
    saving = max(((pod.options.grace or 0.0) + pod.spec.grace_seconds for pod in pods), default=0.0)
    return now >= ends - EMPTY_SECONDS - min(saving, SAVE_SECONDS)
