"""Consolidation by replacement: replaces m machines with n cheaper ones, merged or split, bought as one cheapest mix.

The mix for all pods that could move gives each pod a price; a machine is worth replacing when its pods cost less than it does. The pods
of those machines first fill the free room; then the cheapest mix for the rest is solved and must pay.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gpuscaler.model.table import Array
from gpuscaler.planning.capacity.node_templates import Templates
from gpuscaler.planning.mix import Item, Limits, Problem, SharedCap, Solution, solve
from gpuscaler.planning.plans import PlannedMachine
from gpuscaler.planning.scale_down.candidates import Candidate
from gpuscaler.planning.scale_down.consolidation.back_to_spot import SpotReturns
from gpuscaler.planning.scale_down.consolidation.delete import Deletion
from gpuscaler.planning.scale_down.consolidation.replacement_choices import PurchaseItems, ReplacementKinds, purchase_items
from gpuscaler.planning.scale_down.consolidation.replacement_mix import ReplacementPlan, bought_machines, left_by_item, replacement_plan
from gpuscaler.planning.scale_down.moves.bulk import Emptied
from gpuscaler.planning.scale_down.moves.bulk_affinity import EXCLUSIVE
from gpuscaler.planning.scale_down.moves.candidate_arrays import CandidateArrays
from gpuscaler.planning.scale_down.moves.packing import pack
from gpuscaler.planning.scale_down.savings import NOTHING, net_saving, pays, restart_loss

#: Seconds in which old and new machines are both paid for, while the new ones boot and pods move; counted as a cost of the new ones.
OVERLAP = 300.0
#: Mixes that are solved for one tier of pools before giving up on it.
TRIES = 5
#: The share of the policy's work budget that one mix may use.
WORK_SHARE = 4


@dataclass
class Replacing:
    """The search for one tier of pools. ``limits`` and ``templates`` are what may still be bought after the purchases of earlier tiers."""

    deletion: Deletion
    arrays: CandidateArrays
    emptied: Emptied
    purchases: PurchaseItems
    limits: Limits
    templates: Templates
    returns: SpotReturns

    def mix(self, counts: Array, limits: Limits) -> Solution:
        """The cheapest machines for ``counts[item]`` pods."""
        sizes, resources = self.arrays.sizes, self.arrays.resources
        items = []
        for index, count in enumerate(counts.tolist()):
            wanted = zip(resources, sizes.requests[self.purchases.size[index]].tolist(), strict=True)
            request = {name: amount for name, amount in wanted if amount and not name.startswith(EXCLUSIVE)}
            items.append(Item(f"{index:06}", count, request, self.purchases.allowed[index]))
        groups = sorted(set(self.purchases.exclusive_groups) - {""})
        shared_caps = tuple(
            SharedCap(tuple(i for i, group in enumerate(self.purchases.exclusive_groups) if group == name), 1) for name in groups
        )
        problem = Problem(tuple(items), self.templates.mix_kinds, shared_caps=shared_caps, limits=limits)
        work = max(1, self.deletion.situation.policy.work_budget // WORK_SHARE)
        return solve(problem, work=work, should_stop=self.deletion.situation.should_stop)

    def plan_replacement(self, candidates: Sequence[Candidate]) -> ReplacementPlan | None:
        """Place the pods of ``candidates`` into free room and onto new machines for the rest; None if limits leave some pods out."""
        deletion, arrays = self.deletion, self.arrays
        mine = set(candidates)
        chosen = np.array([candidate in mine for candidate in arrays.candidates], dtype=np.bool_)
        rows = deletion.destinations.targets.copy()
        rows[arrays.rows[self.emptied.leaving | chosen]] = False
        packed = pack(arrays.sizes, arrays.total(chosen), self.emptied.packed.free, rows)
        solution = self.mix(left_by_item(self.purchases, self.purchases.counts(candidates), packed), self.limits)
        if any(solution.unplaced.values()):
            return None
        deletion.decisions.stopped_early |= solution.stopped_early
        bought = bought_machines(solution, self.templates, len(deletion.decisions.machines))
        return replacement_plan(arrays, self.purchases, candidates, bought=bought, packed=packed, names=deletion.situation.room.table.names)


def replace_machines(deletion: Deletion, arrays: CandidateArrays, emptied: Emptied) -> None:
    """Search cheaper machines for the pods of candidates that stay, pools of the highest priority first."""
    templates = deletion.situation.templates
    replacement_kinds = ReplacementKinds(templates)
    receiving = emptied.receiving
    limits, returns = deletion.situation.limits, SpotReturns(deletion.situation)
    numbers = np.flatnonzero(~emptied.leaving).tolist()
    staying = [arrays.candidates[number] for number in numbers]
    unpinned = [
        candidate
        for candidate in staying
        if candidate not in deletion.steps and candidate.row not in receiving and candidate.row not in deletion.pinned
    ]
    for tier in sorted({candidate.member.pool.priority for candidate in unpinned}, reverse=True):
        promising_ones = promising(deletion, arrays, [candidate for candidate in unpinned if candidate.member.pool.priority == tier], tier)
        if promising_ones and not deletion.stopped:
            purchases = purchase_items(arrays, replacement_kinds, promising_ones, tier=tier)
            machines = replace_tier(Replacing(deletion, arrays, emptied, purchases, limits, templates, returns), promising_ones)
            limits, templates = (
                limits_after(limits, machines, templates),
                templates.after_purchases(Counter(machine.key for machine in machines)),
            )


def promising(deletion: Deletion, arrays: CandidateArrays, candidates: Sequence[Candidate], tier: int) -> list[Candidate]:
    """Candidates that cost more than their pods do at the price of the scarcest resource.

    The price of a resource is the lowest of any kind: replacements can never cost less than what the pods use of one resource at that
    price. If all gains together are too small there is nothing to find, and no mix is solved.
    """
    kinds = [kind for kind in deletion.situation.templates.kinds if kind.pool.priority >= tier]
    if not kinds or not candidates:
        return []
    position = {candidate: number for number, candidate in enumerate(arrays.candidates)}
    load = arrays.load[[position[candidate] for candidate in candidates]].astype(np.float64)
    capacity = [deletion.situation.templates.capacity(kind) for kind in kinds]
    price = np.array(
        [min((k.price / c[name] for k, c in zip(kinds, capacity, strict=True) if c.get(name)), default=0.0) for name in arrays.resources]
    )
    scarcest = int(np.argmax(load.sum(axis=0) * price))
    cost = load[:, scarcest] * price[scarcest] * (1 + OVERLAP / 3600)
    gain = np.array([candidate.price for candidate in candidates]) - cost
    if gain[gain > 0].sum() <= max(NOTHING, deletion.situation.policy.min_saving):
        return []
    return [candidate for candidate, saving in zip(candidates, gain, strict=True) if saving > 0]


def replace_tier(search: Replacing, candidates: Sequence[Candidate]) -> tuple[PlannedMachine, ...]:
    """Replace those of ``candidates`` for which it pays; returns the machines to buy."""
    deletion = search.deletion
    booked = [candidate for candidate in worth_replacing(search, candidates) if reserve_or_block(deletion, candidate)]
    for _ in range(TRIES):
        if not booked or deletion.stopped:
            break
        replacement = search.plan_replacement(booked)
        keep = booked[: len(booked) // 2]
        late = search.returns.blockers(booked, replacement.machines, replacement.needs) if replacement is not None else {}
        if late:
            keep = [candidate for candidate in booked if candidate not in late]
            deletion.decisions.blocked.update({candidate.name: why for candidate, why in late.items()})
        elif replacement is not None:
            paying = [candidate for candidate in booked if net_saving(replacement.saving_of(candidate), restart_loss(candidate)) > NOTHING]
            if len(paying) == len(booked) and pays_in_all(deletion, replacement, booked):
                record_replacements(search, replacement, booked)
                return replacement.machines
            keep = paying if len(paying) < len(booked) else keep
        for candidate in set(booked) - set(keep):
            deletion.release(candidate)
        booked = keep
    for candidate in booked:
        deletion.release(candidate)
    return ()


def reserve_or_block(deletion: Deletion, candidate: Candidate) -> bool:
    blocker = deletion.reserve(candidate)
    if blocker is not None:
        deletion.decisions.blocked[candidate.name] = blocker
    return blocker is None


def pays_in_all(deletion: Deletion, replacement: ReplacementPlan, candidates: Sequence[Candidate]) -> bool:
    """Whether the whole replacement is worth the work it loses and the time in which old and new machines are both paid for."""
    saving = sum(replacement.saving_of(candidate) for candidate in candidates)
    loss = sum(restart_loss(candidate) for candidate in candidates) + replacement.cost * OVERLAP / 3600
    return pays(saving, loss, deletion.situation.policy)


def record_replacements(search: Replacing, replacement: ReplacementPlan, candidates: Sequence[Candidate]) -> None:
    """Record the removals and the machines they need."""
    deletion, arrays = search.deletion, search.arrays
    removed = set(candidates)
    search.emptied.leaving |= np.array([candidate in removed for candidate in arrays.candidates], dtype=np.bool_)
    for candidate in candidates:
        saving = replacement.saving_of(candidate)
        reason = f"{describe_moves(replacement, candidate)}, which saves ${saving:.4f} per hour"
        deletion.decisions.remove(candidate, reason, saving=saving, moves=replacement.moves[candidate], needs=replacement.needs[candidate])
    deletion.decisions.machines += replacement.machines
    search.emptied.packed.placed += replacement.packed.placed
    search.emptied.packed.free = replacement.packed.free


def describe_moves(replacement: ReplacementPlan, candidate: Candidate) -> str:
    """Where the pods go, in words."""
    needed = set(replacement.needs[candidate])
    kinds = Counter(f"{m.instance_type} ({m.market}, {m.zone})" for m in replacement.machines if m.id in needed)
    new = ", ".join(f"{count} x {name}" for name, count in sorted(kinds.items()))
    count = len(replacement.moves[candidate])
    pods, fit, run = (f"its {count} pods", "fit", "run") if count != 1 else ("its pod", "fits", "runs")
    kept = sum(move.to not in needed for move in replacement.moves[candidate])
    if not needed:
        return f"{pods} {fit} on other nodes after other machines are replaced"
    return f"{pods} {run} cheaper on {new}" + (f" and on other nodes ({kept})" if kept else "")


def limits_after(limits: Limits, machines: Sequence[PlannedMachine], templates: Templates) -> Limits:
    """The limits that remain after buying ``machines``."""
    gpus = {offering.key: offering.gpus for offering in templates.offerings}
    pools = dict(limits.pools)
    for machine in machines:
        if machine.pool in pools:
            pools[machine.pool] -= 1
    spent = sum(machine.price_per_hour for machine in machines)
    taken = sum(gpus[machine.key] for machine in machines)
    return Limits(
        machines=None if limits.machines is None else limits.machines - len(machines),
        gpus=None if limits.gpus is None else limits.gpus - taken,
        dollars_per_hour=None if limits.dollars_per_hour is None else limits.dollars_per_hour - spent,
        pools=pools,
    )


def worth_replacing(search: Replacing, candidates: Sequence[Candidate]) -> list[Candidate]:
    """Candidates that cost more than their pods do in the cheapest mix for the pods of all; those that save the largest share first."""
    counts = search.purchases.counts(candidates)
    solution = search.mix(counts, Limits())
    value = np.array(solution.duals.items)
    ranked = []
    for candidate in candidates:
        own_counts = search.purchases.counts([candidate])
        if any(solution.unplaced.get(int(item)) for item in np.flatnonzero(own_counts)):
            continue
        gain = candidate.price - float(own_counts @ value) * (1 + OVERLAP / 3600) - restart_loss(candidate)
        if gain > NOTHING:
            ranked.append((-gain / candidate.price, candidate.name, candidate))
    return [candidate for _, _, candidate in sorted(ranked, key=lambda entry: entry[:2])]
