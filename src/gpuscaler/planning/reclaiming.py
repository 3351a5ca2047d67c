"""Machines that the cloud takes away: with notice they are emptied in time, without it their offerings are ones to be careful with."""

from collections.abc import Iterable, Iterator

from msgspec import Struct

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import Instance
from gpuscaler.model.pools import Policy
from gpuscaler.planning.membership import members
from gpuscaler.planning.state import events, ledger
from gpuscaler.planning.state.ledger import Leaving, Ledger

SPOT = "spot"


class Remark(Struct, frozen=True, gc=False):
    """Something about a machine, and its ``node`` where it has one, that is worth telling and that nothing is done about."""

    machine: str
    node: str
    text: str


class Taken(Struct, frozen=True, gc=False):
    """``steps`` change the ledger, ``fates`` are for breakers."""

    steps: tuple[ledger.Event, ...] = ()
    fates: tuple[events.Event, ...] = ()


def taken(book: Ledger, cluster: Cluster, policy: Policy, going: frozenset[str], now: float) -> Taken:
    """Machines of ``going``, by id, leave whatever stands against it; once begun it is not begun again."""
    under_way = {one.instance for one in book.leaving if one.forced}
    nodes = {node.name: node for node in cluster.nodes.values() if node.provider_id in going and node.provider_id not in under_way}
    steps: list[ledger.Event] = []
    fates: list[events.Event] = []
    for name, member in members(nodes, policy).items() if nodes else ():
        instance = nodes[name].provider_id
        coming = next((one for one in book.coming if one.instance == instance), None)
        if coming is not None:
            offering = coming.key
            steps.append(ledger.Lost(coming.id))
        else:
            offering = member.offering.key if member.offering is not None else (member.pool.name, "", "", "")
        pods = tuple(pod.key for pod in cluster.on_node.get(name, {}).values())
        steps.append(ledger.Left(Leaving(name, instance, offering, "the cloud takes it back", now, now, pods=pods, forced=True)))
        fates.append(events.Reclaimed(offering, now))
    return Taken(tuple(steps), tuple(fates))


def unexpected(book: Ledger, vanished: Iterable[Instance]) -> tuple[Instance, ...]:
    """Those machines that the cloud lists no more which were open, and which nobody here has ended."""
    known = {one.instance for one in book.leaving} | {one.instance for one in book.coming} | book.past
    return tuple(one for one in vanished if one.id not in known)


def reclaimed(gone: Iterable[Instance], now: float) -> tuple[events.Event, ...]:
    """What it means to breakers that open machines are gone: spot is taken back in waves; of others one says nothing of the next."""
    return tuple(events.Reclaimed(one.key, now) for one in gone if one.market == SPOT)


def remarks(cluster: Cluster, gone: Iterable[Instance], announced: Iterable[tuple[str, str]]) -> Iterator[Remark]:
    """Open machines that are ``gone``, and what the cloud has ``announced`` (a word) about machines, by id."""
    by_instance = {node.provider_id: node.name for node in cluster.nodes.values()}
    for one in gone:
        node = by_instance.get(one.id, "")
        left = f"; its node {node} is left to the cloud's controller" if node else ""
        where = f"{one.market} {one.instance_type} {one.zone}".rstrip()
        yield Remark(one.id, node, f"machine {one.id} ({where}) is gone, and no notice of it was seen{left}")
    for instance, word in announced:
        yield Remark(instance, by_instance.get(instance, ""), f"the cloud announces {word} of machine {instance}; nothing is done about it")
