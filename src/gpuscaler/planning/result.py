"""Turns a draft into a plan: ids, purchases, bounds and the order in which machines open."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from gpuscaler.model.aside import Skipped
from gpuscaler.model.pods import PodAffinityTerm
from gpuscaler.model.pools import BY_SIZE
from gpuscaler.planning.capacity.node_templates import MachineKind
from gpuscaler.planning.demand.pending import PodClass
from gpuscaler.planning.demand.topology import selects, shape
from gpuscaler.planning.plans import BlockedNode, Choice, Ignored, Placement, Plan, PlannedMachine, Purchase, Unplaced
from gpuscaler.planning.scale_down import ScaleDownResult
from gpuscaler.planning.scale_up.draft.buying import relaxed_mix
from gpuscaler.planning.scale_up.draft.draft import NewMachine, PlanDraft, Solved

#: The blocker of nodes that would be removed without the hold.
HOLD = "hold"
#: The warning of a plan whose removals were left out.
REMOVALS_WITHHELD = "no nodes are removed now: the known state of the cluster or of the cloud is old or incomplete"


@dataclass(frozen=True)
class PlanDecisions:
    """All decisions of a plan, before they are written as a :class:`Plan`."""

    draft: PlanDraft
    names: tuple[str, ...]
    spares: tuple[NewMachine, ...]
    unplaced: tuple[Unplaced, ...]
    ignored: tuple[Ignored, ...]
    scale_down_result: ScaleDownResult
    set_aside: tuple[Skipped, ...]
    warnings: tuple[str, ...]


def write_plan(decisions: PlanDecisions) -> tuple[Plan, Solved | None]:
    """Return the plan of a draft, and the proof of its lower bound.

    Machines are numbered ``new-1``, ``new-2``, … in an order that depends only on their content.
    """
    draft = decisions.draft
    pods = pods_by_row(draft)
    ordered = sorted(draft.bought, key=lambda machine: (machine.kind.key, pods[machine.row]))
    ids = {machine.row: f"new-{number}" for number, machine in enumerate(ordered, 1)}
    after = opening_order(draft, ids)
    machines = [planned_machine(ids[machine.row], machine.kind, pods[machine.row], after.get(machine.row, ())) for machine in ordered]
    for spare in decisions.spares:
        machines.append(planned_machine(f"new-{len(machines) + 1}", spare.kind, (), (), purpose="spare"))
    scale_down_result, machines = with_replacements(decisions.scale_down_result, machines)
    cost = math.fsum(machine.price_per_hour for machine in machines if machine.purpose == "demand")
    proof = lower_bound(draft)
    floor = min(proof.solution.lower_bound, cost) if proof is not None else 0.0
    stopped_early = any(solved.solution.stopped_early for solved in (*draft.solved, *([proof] if proof else [])))
    plan = Plan(
        machines=tuple(machines),
        purchases=purchases(machines),
        placements=placements(draft, decisions.names),
        removals=scale_down_result.removals,
        cost_per_hour=cost,
        lower_bound_per_hour=floor,
        lower_bound_kind=proof.solution.lower_bound_kind if proof is not None else "resource-lp",
        gap=cost / floor - 1 if floor > 0 else 0.0,
        unplaced=decisions.unplaced,
        ignored=decisions.ignored,
        blocked_nodes=scale_down_result.blocked,
        set_aside=decisions.set_aside,
        warnings=(
            *decisions.warnings,
            *guessed_price_warnings([*(machine.kind for machine in ordered), *(spare.kind for spare in decisions.spares)]),
        ),
        brake=stopped_early or scale_down_result.stopped_early,
    )
    return plan, proof


def guessed_price_warnings(kinds: Sequence[MachineKind]) -> tuple[str, ...]:
    """Warnings about machines that are bought at guessed prices."""
    warnings: dict[str, None] = {}
    for offering in (member for kind in kinds for member in kind.members or (kind.offering,)):
        if offering.price_from == BY_SIZE:
            warnings[f"prices unknown: the price of {offering.instance_type} ({offering.market}) is guessed from its size"] = None
        elif offering.price_from:
            warnings[
                f"the price of {offering.instance_type} ({offering.market}) in {offering.zone or 'its zone'} is guessed "
                f"from {offering.price_from}"
            ] = None
    return tuple(sorted(warnings))


def without_removals(plan: Plan, held: str = "") -> Plan:
    """``plan`` without removals and their replacement machines, and with a warning, for a time when no node may be removed.

    ``held`` is the reason of a hold on removals: each node that would be removed is then listed as blocked.
    """
    if not plan.removals:
        return plan
    machines = tuple(machine for machine in plan.machines if machine.purpose != "replacement")
    blocked = (
        [BlockedNode(removal.node, HOLD, f"{held}; it would be removed: {removal.reason}") for removal in plan.removals] if held else []
    )
    return msgspec.structs.replace(
        plan,
        machines=machines,
        purchases=purchases(machines),
        removals=(),
        blocked_nodes=tuple(sorted((*plan.blocked_nodes, *blocked), key=lambda entry: entry.node)),
        warnings=(*plan.warnings, held or REMOVALS_WITHHELD),
    )


def pods_by_row(draft: PlanDraft) -> Mapping[int, tuple[str, ...]]:
    """The pods of each bought machine, sorted: those it was bought for, and those that also fit on it."""
    pods: dict[int, list[str]] = {machine.row: [key for part in machine.contents for key in part.keys] for machine in draft.bought}
    for entry in draft.taken:
        if entry.row in pods:
            pods[entry.row] += entry.keys
    return {row: tuple(sorted(keys)) for row, keys in pods.items()}


def planned_machine(
    name: str, kind: MachineKind, pods: tuple[str, ...], after: tuple[str, ...], *, purpose: str = "demand"
) -> PlannedMachine:
    offering = kind.offering
    return PlannedMachine(
        id=name,
        pool=offering.pool,
        instance_type=offering.instance_type,
        market=offering.market,
        zone=offering.zone,
        price_per_hour=offering.price,
        purpose=purpose,
        pods=pods,
        choices=choices_of(kind),
        opens_after=after,
    )


def choices_of(kind: MachineKind) -> tuple[Choice, ...]:
    """The set that the cloud chooses from; empty where the purchase names the offering."""
    return tuple(Choice(o.instance_type, o.market, o.zone, o.price) for o in sorted(kind.members, key=lambda o: (o.price, o.key)))


def opening_order(draft: PlanDraft, ids: Mapping[int, str]) -> Mapping[int, tuple[str, ...]]:
    """The machines that must be open before each machine, by row: for a pod that must be near others, one machine that has such a pod.

    A machine does not wait if such a pod is on the machine itself or on an existing one. Machines never wait for each other in a circle.
    """
    after: dict[int, list[int]] = {}
    for machine in draft.bought:
        for part in machine.contents:
            for term in part.pod_class.spec.affinity:
                if not selects(draft.cluster, term, part.pod_class) and (matching_rows := rows_matching_term(draft, machine, term)):
                    free = (row for row in matching_rows if not depends_on(after, row, machine.row))
                    after.setdefault(machine.row, []).extend(row for row in [next(free, None)] if row is not None)
    return {row: tuple(sorted({ids[other] for other in others}, key=machine_number)) for row, others in after.items()}


def machine_number(name: str) -> int:
    return int(name.removeprefix("new-"))


def rows_matching_term(draft: PlanDraft, machine: NewMachine, term: PodAffinityTerm) -> list[int]:
    """Rows of machines to buy that have pods of ``term`` in the domain of ``machine``; none when such a pod is already there."""
    draft.build()
    codes = draft.room.table.column(term.topology_key).codes
    beside = codes == codes[machine.row]
    if any(selects(draft.cluster, term, part.pod_class) for part in machine.contents):
        return []
    matching = draft.room.matching(term.namespaces, term.namespace_selector, term.selector)
    if matching[: draft.first_template][beside[: draft.first_template]].any():
        return []
    others = [other for other in draft.bought if other.row != machine.row and beside[other.row]]
    return [other.row for other in others if any(selects(draft.cluster, term, held.pod_class) for held in other.contents)]


def depends_on(after: Mapping[int, Sequence[int]], start: int, goal: int) -> bool:
    """Whether ``start`` waits for ``goal``, directly or through others."""
    visited, waiting = {start}, [start]
    while waiting:
        row = waiting.pop()
        if row == goal:
            return True
        fresh = [other for other in after.get(row, ()) if other not in visited]
        visited.update(fresh)
        waiting += fresh
    return False


def with_replacements(scale_down_result: ScaleDownResult, machines: list[PlannedMachine]) -> tuple[ScaleDownResult, list[PlannedMachine]]:
    """Add replacement machines to the list of machines, with ids that continue its numbering."""
    names = {machine.id: f"new-{len(machines) + number}" for number, machine in enumerate(scale_down_result.machines, 1)}
    if not names:
        return scale_down_result, machines
    joined = [*machines, *(msgspec.structs.replace(machine, id=names[machine.id]) for machine in scale_down_result.machines)]
    removals = tuple(
        msgspec.structs.replace(
            removal,
            needs=tuple(names.get(need, need) for need in removal.needs),
            moves=tuple(msgspec.structs.replace(move, to=names.get(move.to, move.to)) for move in removal.moves),
        )
        for removal in scale_down_result.removals
    )
    return replace(scale_down_result, removals=removals), joined


def purchases(machines: Sequence[PlannedMachine]) -> tuple[Purchase, ...]:
    counts = Counter((m.pool, m.instance_type, m.market, m.zone, m.price_per_hour) for m in machines)
    return tuple(
        Purchase(pool=pool, instance_type=instance_type, market=market, zone=zone, count=count, price_per_hour=price)
        for (pool, instance_type, market, zone, price), count in sorted(counts.items())
    )


def placements(draft: PlanDraft, names: Sequence[str]) -> tuple[Placement, ...]:
    """Placements on existing and ordered machines, sorted by pod."""
    node_by_pod = {key: names[entry.row] for entry in draft.taken if entry.row < len(names) for key in entry.keys}
    return tuple([Placement(pod, node_by_pod[pod]) for pod in sorted(node_by_pod)])


def lower_bound(draft: PlanDraft) -> Solved | None:
    """The mix whose lower bound no plan for the same pods can undercut; None when nothing is bought.

    A single mix without rules between pods is its own bound. Otherwise (gangs, pools by priority, pods bound to a zone) the bound is
    computed for the same pods without those rules.
    """
    if not draft.bought:
        return None
    counts: dict[int, int] = {}
    classes: dict[int, PodClass] = {}
    for machine in draft.bought:
        for part in machine.contents:
            classes[id(part.pod_class)] = part.pod_class
            counts[id(part.pod_class)] = counts.get(id(part.pod_class), 0) + len(part.keys)
    only = draft.solved[0]
    if len(draft.solved) == 1 and only.problem is not None and all(bound_to_machines(draft, pod_class) for pod_class in classes.values()):
        return only
    return relaxed_mix(draft, counts, classes)


def bound_to_machines(draft: PlanDraft, pod_class: PodClass) -> bool:
    """Whether the optimiser got exactly the constraints of a class: no domains, no affinity on one host, no announced pods."""
    constraints = shape(draft.cluster, pod_class)
    return not constraints.wide and not constraints.host_affinity and not pod_class.announced
