"""Gangs: placed completely or not at all, by default in one zone and on one GPU product."""

from dataclasses import dataclass

import numpy as np

from gpuscaler.model.accelerators import DIVISIBLE, is_device
from gpuscaler.model.nodes import first_label
from gpuscaler.model.table import Mask
from gpuscaler.model.well_known import INSTANCE_TYPE_LABELS, PRODUCT_LABELS, ZONE_LABELS
from gpuscaler.planning.capacity.gpu_products import product, products_of_types
from gpuscaler.planning.demand.pending import Gang, PodClass
from gpuscaler.planning.scale_up.draft.draft import PlanDraft, usable_templates
from gpuscaler.planning.scale_up.draft.scoring import rows_with_wishes
from gpuscaler.planning.scale_up.groups.existing_first import settle_on_existing
from gpuscaler.planning.scale_up.groups.groups import families
from gpuscaler.planning.scale_up.groups.spread_check import spreads
from gpuscaler.planning.scale_up.rounds import scale_up

#: The number of domains that can hold a gang that are priced before the cheapest of them is chosen.
DOMAINS_PRICED = 4


@dataclass(frozen=True)
class UnplacedGang:
    """A gang that could not be placed completely; ``detail`` says how many members could be."""

    gang: Gang
    detail: str


def settle_gang(draft: PlanDraft, gang: Gang) -> tuple[PlanDraft, list[UnplacedGang]]:
    """Return the draft with the complete gang on it, or the unchanged draft and the reason."""
    missing = gang.size - gang.running - gang.count
    if missing > 0:
        return draft, [UnplacedGang(gang, f"{gang.running + gang.count} of {gang.size} members exist; machines are bought once all exist")]
    placed, nearest = place_gang(draft, gang)
    if placed is not None:
        return placed, []
    scope = "one zone on one GPU product" if gang.topology != "any" else "all pools together"
    return draft, [
        UnplacedGang(gang, f"at most {nearest} of {gang.count} members fit in {scope}; a gang is placed completely or not at all")
    ]


def place_gang(draft: PlanDraft, gang: Gang) -> tuple[PlanDraft | None, int]:
    """Return the cheapest draft with the complete gang on it, or None and the largest number of members that fit in any domain.

    An idle machine counts at its full price, because it would be removed if the gang went elsewhere: an idle spot machine does not
    justify an additional on-demand machine where two new spot machines cost less.
    """
    if gang.topology == "any":
        return attempt(draft, gang, None)
    best: PlanDraft | None = None
    nearest = priced = 0
    for domain in gang_domains(draft, gang):
        trial, placed = attempt(draft, gang, domain)
        nearest = max(nearest, placed)
        if trial is None:
            continue
        priced += 1
        if best is None or hourly_outlay(draft, trial) < hourly_outlay(draft, best):
            best = trial
        if priced == DOMAINS_PRICED or trial.cost <= draft.cost + 1e-9:
            break
    return best, nearest


def hourly_outlay(draft: PlanDraft, trial: PlanDraft) -> tuple[float, float]:
    """Sort key, to a hundredth of a cent: the hourly cost of bought and reused idle machines, then that of the bought ones."""
    before = {entry.row for entry in draft.taken}
    idle = sum(draft.idle_price(row) for row in {entry.row for entry in trial.taken[len(draft.taken) :]} - before)
    return round(trial.cost + idle, 4), round(trial.cost, 4)


def attempt(draft: PlanDraft, gang: Gang, only: Mask | None) -> tuple[PlanDraft | None, int]:
    """Return a draft with the complete gang within ``only``, and the number of members that were placed.

    A gang that fits completely on existing nodes goes there. Any other gang binds when its machines are there; its topology spread
    counts them.
    """
    trial = draft.copy()
    all_families = families(trial, gang.classes)
    if any(spreads(family) for family in all_families) and not waits_for_machine(draft, gang):
        settle_on_existing(trial, trial.stages[0], all_families, only)
        if not any(family.left for family in all_families):
            return trial, gang.count
        trial = draft.copy()
    queues = scale_up(trial, gang.classes, only, bind_at_once=True)
    placed = sum(queue.taken for queue in queues)
    return (trial if placed == gang.count else None), placed


def waits_for_machine(draft: PlanDraft, gang: Gang) -> bool:
    """Whether a member was promised a machine that does not exist yet, so that no member binds now."""
    today = draft.stages[0].open_rows
    members = (entry for entry in draft.taken if f"{entry.pod_class.spec.namespace}/{entry.pod_class.options.gang}" == gang.name)
    return any(entry.row >= len(today) or not today[entry.row] for entry in members)


def gang_domains(draft: PlanDraft, gang: Gang) -> list[Mask]:
    """Row masks of one zone and one GPU product each, the most promising first: domains with running members, then by estimated cost.

    Machines without accelerators belong to every product of their zone, because some members (launchers) need no accelerator.
    """
    draft.build()
    codes, others = rows_by_domain(draft, gang)
    members = {draft.room.table.row[name] for name in gang.nodes if name in draft.room.table.row}
    # A running member without a GPU does not determine the product, unless only such members run.
    members = (members and members.difference(*others.values())) or members
    usable = [
        usable_templates(draft.templates, pod_class) & suitable_rows(draft, pod_class)[draft.template_rows] for pod_class in gang.classes
    ]
    masks = []
    for domain, rows in sorted(codes.items()):
        mask = np.zeros(len(draft.room), dtype=np.bool_)
        mask[rows] = mask[others.get(domain[0], [])] = True
        if members and not mask[list(members)].any():
            continue
        estimate = sum(
            pod_class.count * share_price(draft, pod_class, good & mask[draft.template_rows])
            for pod_class, good in zip(gang.classes, usable, strict=True)
        )
        machines = sum(pod_class.count for pod_class in gang.classes if not room_exists(draft, pod_class, mask))
        masks.append((min(estimate, 1e18) if machines else 0.0, domain, mask))
    return [mask for _, _, mask in sorted(masks, key=lambda entry: entry[:2])]


def suitable_rows(draft: PlanDraft, pod_class: PodClass) -> Mask:
    """Rows that the pods of a class can go to and prefer, regardless of the pods already there."""
    return draft.room.static_mask(pod_class.spec) & rows_with_wishes(draft.room, pod_class)


def rows_by_domain(draft: PlanDraft, gang: Gang) -> tuple[dict[tuple[str, str], list[int]], dict[str, list[int]]]:
    """Rows by zone and GPU product, and rows without accelerators by zone. A gang that needs no accelerators has one domain per zone."""
    table = draft.room.table
    wanted = {name for pod_class in gang.classes for name, amount in pod_class.spec.requests.items() if amount > 0 and is_device(name)}
    keys = (*ZONE_LABELS, *((*PRODUCT_LABELS, *INSTANCE_TYPE_LABELS) if wanted else ()))
    devices = np.zeros(len(table), dtype=np.bool_)
    for name in wanted.union(DIVISIBLE) if wanted else ():
        devices |= table.allocatable(name) > 0
    node_codes = np.vstack([devices, *(table.column(key).codes for key in keys)])
    # Rows that are equal in all of this are examined once.
    _, samples, group = np.unique(node_codes, axis=1, return_index=True, return_inverse=True)
    codes: dict[tuple[str, str], list[int]] = {}
    others: dict[str, list[int]] = {}
    products = products_of_types(draft.templates) if wanted else {}
    for number, sample in enumerate(samples.tolist()):
        node, rows = table.nodes[sample], np.flatnonzero(group.reshape(-1) == number).tolist()
        zone = first_label(node, ZONE_LABELS)
        if not zone:
            # The cloud has not chosen the zone of these machines yet, and may choose a different one for each.
            rows = [row for row in rows if row not in draft.undecided]
        if wanted and not devices[sample]:
            others.setdefault(zone, []).extend(rows)
        elif rows:
            codes.setdefault((zone, product(node, products) if wanted else ""), []).extend(rows)
    return codes, others


def room_exists(draft: PlanDraft, pod_class: PodClass, mask: Mask) -> bool:
    """Whether existing or ordered machines within ``mask`` have room for all pods of the class."""
    free = np.where(
        mask & draft.open_rows & ~draft.template_mask & rows_with_wishes(draft.room, pod_class),
        draft.room.capacity(pod_class.spec, pod_class.labels),
        0,
    )
    return int(free.sum()) >= pod_class.count


def share_price(draft: PlanDraft, pod_class: PodClass, usable: Mask) -> float:
    """The price of one pod on the cheapest template of ``usable``, by its largest share of a machine; infinite when there is none."""
    prices = np.array([offering.price for offering in draft.templates.offerings])
    share = np.zeros(len(prices))
    for resource, amount in pod_class.spec.requests.items():
        offered = draft.templates.table.allocatable(resource)
        share = np.maximum(share, amount / np.maximum(offered, 1))
    return float(np.where(usable, prices * share, np.inf).min(initial=np.inf))
