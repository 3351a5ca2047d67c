"""Buying: lots of pods to the optimiser, its patterns to machines."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import PodAffinityTerm
from gpuscaler.model.table import Mask
from gpuscaler.planning.demand import PodClass
from gpuscaler.planning.desk import Bought, Content, Desk, Queue
from gpuscaler.planning.limits import gpus_in
from gpuscaler.planning.mix import Item, Limits, Pattern, Problem, Solution, solve
from gpuscaler.planning.mix import Kind as MixKind
from gpuscaler.planning.placing import Ground, Share
from gpuscaler.planning.templates import HOSTNAME, Kind
from gpuscaler.planning.topology import host_rules, selects, without_hosts


@dataclass(frozen=True)
class Lot:
    """``count`` pods of one class to buy for, and the kinds that may serve them; all on one machine when ``whole``."""

    queue: Queue
    count: int
    allowed: tuple[int, ...]
    whole: bool = False


@dataclass(frozen=True)
class Phantom:
    """Pods noted on a template until machines are bought for them."""

    one: PodClass
    share: Share


def lots_of(desk: Desk, queue: Queue, to_buy: Sequence[Share], ground: Ground) -> list[Lot]:
    """What of ``queue`` goes to the mix. Pods with constraints on larger domains are bound to the domains that filling chose."""
    whole = bool(queue.shape.host_affinity)
    if whole and not starts_alone(desk, queue.one, queue.shape.host_affinity):
        return []
    if not queue.shape.wide:
        return [Lot(queue, queue.left, kinds_within(desk, admitted(desk, ground, queue.one)), whole)] if queue.left else []
    columns = [desk.room.table.column(key).codes for key in wide_keys(queue.one)]
    by_domain: dict[tuple[int, ...], int] = {}
    for share in to_buy:
        domain = tuple(int(codes[share.row]) for codes in columns)
        by_domain[domain] = by_domain.get(domain, 0) + share.count
    base = admitted(desk, ground, queue.one, wide=False)
    lots = []
    for domain, count in sorted(by_domain.items()):
        inside = base.copy()
        for codes, value in zip(columns, domain, strict=True):
            inside &= codes[desk.template_rows] == value
        lots.append(Lot(queue, count, kinds_within(desk, inside), whole))
    return lots


def starts_alone(desk: Desk, one: PodClass, terms: Sequence[PodAffinityTerm]) -> bool:
    """Whether a class with affinity on one machine may open a new one: its terms match itself, and no other pod anywhere yet.

    That is the scheduler's rule for the first pod of a group.
    """
    return all(
        selects(desk.cluster, term, one) and not desk.room.matching(term.namespaces, term.namespace_selector, term.selector).any()
        for term in terms
    )


def wide_keys(one: PodClass) -> list[str]:
    """Topology keys larger than a machine that the hard constraints of ``one`` name."""
    keys = {term.topology_key for term in one.spec.affinity + one.spec.anti_affinity}
    keys |= {constraint.topology_key for constraint in one.spec.spread if constraint.hard}
    return sorted(keys - {HOSTNAME})


def admitted(desk: Desk, ground: Ground, one: PodClass, *, wide: bool = True) -> Mask:
    """Templates that admit ``one``; without ``wide``, constraints on larger domains are left out (the domain was chosen already)."""
    mask = ground.usable.copy()
    for name, passes in desk.room.verdict(without_hosts(one.spec), one.labels).passes.items():
        if wide or name not in ("PodTopologySpread", "InterPodAffinity"):
            mask &= passes
    return mask[desk.template_rows]


def kinds_within(desk: Desk, mask: Mask) -> tuple[int, ...]:
    """Kinds all of whose rows are in ``mask``."""
    return tuple(index for index, kind in enumerate(desk.templates.kinds) if all(mask[row] for row in kind.rows))


def narrowed(desk: Desk, lot: Lot, tier: int, count: int) -> Lot:
    """``lot`` with ``count`` pods and only the kinds of pools with priority ``tier``."""
    kinds = desk.templates.kinds
    return replace(lot, count=count, allowed=tuple(index for index in lot.allowed if kinds[index].pool.priority == tier))


def choose(desk: Desk, lots: Sequence[Lot], *, work: int) -> Solution:
    """The cheapest mix for ``lots`` within what remains under the limits."""
    rules = host_rules(desk.cluster, [lot.queue.one for lot in lots], [lot.queue.shape for lot in lots])
    problem = Problem(
        items=tuple(item_of(index, lot) for index, lot in enumerate(lots)),
        kinds=mix_kinds(desk),
        together=rules.together,
        apart=rules.apart,
        limits=desk.remaining.for_mix(),
    )
    return solve(problem, work=work, should_stop=desk.should_stop)


def bound(desk: Desk, lots: Sequence[Lot], *, work: int) -> Solution:
    """The mix for ``lots`` with every rule between pods and every limit left out: its lower bound holds for any plan."""
    problem = Problem(
        items=tuple(item_of(index, replace(lot, whole=False)) for index, lot in enumerate(lots)), kinds=mix_kinds(desk), limits=Limits()
    )
    return solve(problem, work=work, should_stop=desk.should_stop)


def mix_kinds(desk: Desk) -> tuple[MixKind, ...]:
    return tuple(
        MixKind(
            key=kind.key,
            capacity=desk.templates.capacity(kind),
            price=kind.price,
            pool=kind.pool.name,
            limit=kind.offering.count,
            gpus=gpus_in(kind.offering.allocatable),
        )
        for kind in desk.templates.kinds
    )


def item_of(index: int, lot: Lot) -> Item:
    one = lot.queue.one
    times = lot.count if lot.whole else 1
    request = {name: amount * times for name, amount in one.spec.requests.items()}
    return Item(
        key=f"{one.spec.digest}/{one.keys[0]}/{index}",
        count=1 if lot.whole else lot.count,
        request={**request, "pods": times},
        allowed=lot.allowed,
        priority=one.spec.priority,
    )


def buy(desk: Desk, solution: Solution, lots: Sequence[Lot]) -> None:
    """Turn the patterns of ``solution`` into machines with their pods, and give them rows so that later pods can use what is left."""
    desk.solutions.append(solution)
    nodes: list[Node] = []
    start = len(desk.room)
    for pattern in sorted(solution.machines, key=lambda p: (p.kind, sorted(p.pods.items()))):
        kind = desk.templates.kinds[pattern.kind]
        desk.remaining.spend(kind, pattern.times)
        for _ in range(pattern.times):
            row = start + len(nodes)
            desk.bought.append(Bought(kind, row, tuple(contents(pattern, lots))))
            nodes.append(new_node(desk, kind, row))
    desk.room = desk.room.extended(nodes)
    desk.open_rows = np.concatenate([desk.open_rows, np.ones(len(nodes), dtype=np.bool_)])
    for machine in desk.bought[len(desk.bought) - len(nodes) :]:
        for content in machine.contents:
            desk.room.place(content.one.spec, content.one.labels, machine.row, len(content.keys))


def contents(pattern: Pattern, lots: Sequence[Lot]) -> list[Content]:
    """The pods that go to one machine of ``pattern``, taken off their queues."""
    return [
        Content(lots[index].queue.one, lots[index].queue.take(lots[index].count if lots[index].whole else copies))
        for index, copies in sorted(pattern.pods.items())
    ]


def new_node(desk: Desk, kind: Kind, row: int) -> Node:
    """A machine to buy as a node: labels that all members of its kind share, the room of the smallest."""
    first, *others = (desk.templates.nodes[member] for member in kind.rows)
    labels = {key: value for key, value in first.labels.items() if all(other.labels.get(key) == value for other in others)}
    name = f"machine-{row}"
    return Node(name=name, labels={**labels, HOSTNAME: name}, allocatable=desk.templates.capacity(kind), taints=first.taints)


def unmet(solution: Solution, lots: Sequence[Lot]) -> Mapping[int, int]:
    """Pods that ``solution`` leaves out, by position in ``lots``."""
    return {index: count * (lots[index].count if lots[index].whole else 1) for index, count in solution.unmet.items()}
