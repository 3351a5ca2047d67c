"""Buying: passes purchase items to the optimiser, and turns its answer into machines."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from gpuscaler.model.pods import PodAffinityTerm
from gpuscaler.model.table import Mask
from gpuscaler.model.well_known import HOSTNAME
from gpuscaler.planning.demand.pending import PodClass
from gpuscaler.planning.demand.topology import host_rules, selects
from gpuscaler.planning.mix import Item, MixKind, Problem, Solution, resource_bound, solve
from gpuscaler.planning.scale_up.draft.draft import MachineContent, NewMachine, PlanDraft, Queue, Solved
from gpuscaler.planning.scale_up.draft.first_fit import first_fit
from gpuscaler.planning.scale_up.draft.purchase_items import PurchaseItem, distinct, request_of
from gpuscaler.planning.scale_up.draft.scoring import Favourites

#: More items than this, with rules between pods on one machine, are packed by first-fit instead of being optimised.
CROWD = 400
#: More different host ports than this are packed by first-fit, too.
PORTS = 64
#: The number of cached answers; at this size the cache is cleared.
ANSWERS = 1000


def starts_alone(draft: PlanDraft, pod_class: PodClass, terms: Sequence[PodAffinityTerm]) -> bool:
    """Whether a class with host affinity may open a new machine: all its terms match itself, and ``terms`` match no placed pod yet.

    This is the scheduler's rule for the first pod of a group.
    """
    return all(selects(draft.cluster, term, pod_class) for term in pod_class.spec.affinity) and not any(
        draft.room.matching(term.namespaces, term.namespace_selector, term.selector).any() for term in terms
    )


def wide_keys(pod_class: PodClass) -> list[str]:
    """Topology keys of the hard constraints of ``pod_class`` that are larger than a machine."""
    keys = {term.topology_key for term in pod_class.spec.affinity + pod_class.spec.anti_affinity}
    keys |= {constraint.topology_key for constraint in pod_class.spec.spread if constraint.hard}
    return sorted(keys - {HOSTNAME})


def within_reach(draft: PlanDraft, tier: int) -> Mask:
    """Kinds of pools with priority ``tier`` for which the limits admit one more machine."""
    mask: Mask = draft.templates.tiers == tier
    if draft.remaining.any() or draft.templates.scarce:
        mask = mask & draft.remaining.admitted(draft.templates)
    return mask


def choose_mix(draft: PlanDraft, items: Sequence[PurchaseItem], *, work: int) -> Solved:
    """The cheapest mix for ``items`` within what remains under the limits."""
    if has_many_rules(items):
        return Solved(first_fit(draft.cluster, draft.templates, draft.remaining, items))
    if any(item.announced for item in items):
        ahead = optimised(draft, items, work=work)
        if not ahead.solution.unplaced:
            return ahead
        # Limits apply: existing pods come before announced ones.
        items = [replace(item, announced=0) for item in items]
    return optimised(draft, items, work=work)


def has_many_rules(items: Sequence[PurchaseItem]) -> bool:
    """Whether there are more rules between pods on one machine than the optimiser can handle; each host port is a resource for it."""
    if len(items) > CROWD:
        return any(item.queue.shape.by_host for item in items)
    ports: set[tuple[int, str]] = set()
    for item in items:
        ports.update((port.port, port.protocol) for port in item.queue.pod_class.spec.host_ports)
        if len(ports) > PORTS:
            return True
    return False


def optimised(draft: PlanDraft, items: Sequence[PurchaseItem], *, work: int) -> Solved:
    rules = host_rules(draft.cluster, [item.queue.pod_class for item in items], [item.queue.shape for item in items])
    templates = draft.templates.after_purchases(draft.remaining.spent)
    problem = Problem(
        items=mix_items(items),
        kinds=templates.mix_kinds,
        shared_caps=rules.shared_caps,
        exclusive_pairs=rules.exclusive_pairs,
        limits=draft.remaining.for_mix(),
    )
    question = cache_key(problem, work) if templates is draft.templates else None
    if question is not None and question in templates.answers:
        return Solved(templates.answers[question], problem)
    solution = solve(problem, work=work, should_stop=draft.should_stop)
    # A unit of the optimiser is a quarter of a microsecond.
    draft.effort.spend(solution.work_used / 4)
    if question is not None and not solution.stopped_early:
        if len(templates.answers) >= ANSWERS:
            templates.answers.clear()
        templates.answers[question] = solution
    return Solved(solution, problem)


def cache_key(problem: Problem, work: int) -> tuple[object, ...] | None:
    """Cache key of a problem with one item, apart from its kinds; the answer does not depend on the item's key. None for more items."""
    if len(problem.items) > 1:
        return None
    (item,), limits = problem.items, problem.limits
    item_key = (item.count, tuple(sorted(item.request.items())), item.allowed, item.per_machine, item.priority)
    bounds = (limits.machines, limits.gpus, limits.dollars_per_hour, tuple(sorted(limits.pools.items())))
    return (item_key, problem.shared_caps, problem.exclusive_pairs, bounds, work)


def relaxed_mix(draft: PlanDraft, counts: Mapping[int, int], classes: Mapping[int, PodClass]) -> Solved:
    """The mix for classes by id without any rules between pods and without limits: its lower bound holds for any plan."""
    places, masks = distinct([draft.relaxed[key] for key in classes])
    alike: dict[tuple[tuple[tuple[str, int], ...], int], tuple[PodClass, int]] = {}
    for (key, pod_class), place in zip(classes.items(), places, strict=True):
        request = (tuple(sorted(pod_class.spec.requests.items())), place)
        first, number = alike.get(request, (pod_class, 0))
        alike[request] = (first, number + counts[key])
    kinds = draft.templates.mix_kinds
    kept = distinct_kinds(kinds, masks)
    allowed = [tuple(np.flatnonzero(mask[kept]).tolist()) for mask in masks]
    entries = sorted(((pod_class, count, place) for (_, place), (pod_class, count) in alike.items()), key=lambda entry: entry[0].order)
    items = tuple(
        Item(key=str(number), count=count, request={**pod_class.spec.requests, "pods": 1}, allowed=allowed[place])
        for number, (pod_class, count, place) in enumerate(entries)
    )
    problem = Problem(items=items, kinds=tuple(kinds[index] for index in kept))
    # If a mix was packed without optimising, only the quick bound by resources is computed.
    if any(solved.problem is None for solved in draft.solved):
        return Solved(resource_bound(problem), problem)
    return Solved(solve(problem, work=draft.work, should_stop=draft.should_stop), problem)


def distinct_kinds(kinds: Sequence[MixKind], masks: Sequence[Mask]) -> list[int]:
    """Indices of ``kinds`` with one of each group that serves the same pods, with the same room, at the same price."""
    first: dict[tuple[object, ...], int] = {}
    serves = np.array(masks).T
    for index, kind in enumerate(kinds):
        alone = index if kind.available is not None else None
        first.setdefault((kind.price, tuple(sorted(kind.capacity.items())), serves[index].tobytes(), alone), index)
    return list(first.values())


def mix_items(items: Sequence[PurchaseItem]) -> tuple[Item, ...]:
    places, masks = distinct([item.allowed for item in items])
    allowed = [tuple(np.flatnonzero(mask).tolist()) for mask in masks]
    return tuple(
        Item(
            key=f"{item.queue.pod_class.spec.digest}/{item.queue.pod_class.keys[0]}/{index}",
            count=1 if item.on_one_machine else item.count + item.announced,
            request=request_of(item),
            allowed=allowed[place],
            priority=item.queue.pod_class.spec.priority,
        )
        for index, (item, place) in enumerate(zip(items, places, strict=True))
    )


def buy(draft: PlanDraft, solved: Solved, items: Sequence[PurchaseItem]) -> None:
    """Turn the machine groups of a mix into machines with their pods."""
    draft.solved.append(solved)
    draft.relaxed.update((id(item.queue.pod_class), item.allowed_in_any_domain) for item in items)
    row = draft.next_row
    favourites = Favourites(draft, items)
    for group in sorted(solved.solution.groups, key=lambda p: (p.kind, sorted(p.pods.items()))):
        wanted = [
            (items[index].queue, items[index].count if items[index].on_one_machine else copies)
            for index, copies in sorted(group.pods.items())
        ]
        for _ in range(group.times):
            kind = draft.templates.kinds[favourites.best(group)]
            inside = take_contents(wanted)
            # A machine only for announced pods is not bought until they exist.
            if inside:
                draft.remaining.spend(kind, 1)
                draft.bought.append(NewMachine(kind, row, inside))
                row += 1


def take_contents(wanted: Iterable[tuple[Queue, int]]) -> tuple[MachineContent, ...]:
    """The pods that go to one machine, removed from their queues; announced pods come last and are left out."""
    return tuple(MachineContent(queue.pod_class, keys) for queue, copies in wanted if (keys := queue.take(copies)))


def unmet_by_item(solution: Solution, items: Sequence[PurchaseItem]) -> Mapping[int, int]:
    """The number of pods that ``solution`` leaves out, by position in ``items``."""
    return {index: count * (items[index].count if items[index].on_one_machine else 1) for index, count in solution.unplaced.items()}
