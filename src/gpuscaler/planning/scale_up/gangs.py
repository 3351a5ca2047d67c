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


def settle_gang(desk: PlanDraft, gang: Gang) -> tuple[PlanDraft, list[UnplacedGang]]:
    """Return the desk with the complete gang on it, or the unchanged desk and the reason."""
    missing = gang.size - gang.running - gang.count
    if missing > 0:
        return desk, [UnplacedGang(gang, f"{gang.running + gang.count} of {gang.size} members exist; machines are bought once all exist")]
    placed, nearest = place_gang(desk, gang)
    if placed is not None:
        return placed, []
    where = "one zone on one GPU product" if gang.topology != "any" else "all pools together"
    return desk, [
        UnplacedGang(gang, f"at most {nearest} of {gang.count} members fit in {where}; a gang is placed completely or not at all")
    ]


def place_gang(desk: PlanDraft, gang: Gang) -> tuple[PlanDraft | None, int]:
    """Return the cheapest desk with the complete gang on it, or None and the largest number of members that fit in any domain.

    An idle machine counts at its full price, because it would be removed if the gang went elsewhere: an idle spot machine does not
    justify an additional on-demand machine where two new spot machines cost less.
    """
    if gang.topology == "any":
        return attempt(desk, gang, None)
    best: PlanDraft | None = None
    nearest = priced = 0
    for domain in gang_domains(desk, gang):
        trial, placed = attempt(desk, gang, domain)
        nearest = max(nearest, placed)
        if trial is None:
            continue
        priced += 1
        if best is None or hourly_outlay(desk, trial) < hourly_outlay(desk, best):
            best = trial
        if priced == DOMAINS_PRICED or trial.cost <= desk.cost + 1e-9:
            break
    return best, nearest


def hourly_outlay(desk: PlanDraft, trial: PlanDraft) -> tuple[float, float]:
    """The hourly cost of the machines that ``trial`` buys or takes out of idleness, to a hundredth of a cent; then of the bought ones."""
    before = {entry.row for entry in desk.taken}
    idle = sum(desk.idle_price(row) for row in {entry.row for entry in trial.taken[len(desk.taken) :]} - before)
    return round(trial.cost + idle, 4), round(trial.cost, 4)


def attempt(desk: PlanDraft, gang: Gang, only: Mask | None) -> tuple[PlanDraft | None, int]:
    """Return a desk with the complete gang within ``only``, and the number of members that were placed.

    A gang that fits completely on existing nodes goes there. Any other gang binds when its machines are there; its topology spread
    counts them.
    """
    trial = desk.copy()
    every = families(trial, gang.classes)
    if any(spreads(family) for family in every) and not waits_for_machine(desk, gang):
        settle_on_existing(trial, trial.stages[0], every, only)
        if not any(family.left for family in every):
            return trial, gang.count
        trial = desk.copy()
    queues = scale_up(trial, gang.classes, only, together=True)
    placed = sum(queue.taken for queue in queues)
    return (trial if placed == gang.count else None), placed


def waits_for_machine(desk: PlanDraft, gang: Gang) -> bool:
    """Whether a member was promised a machine that does not exist yet, so that no member binds now."""
    today = desk.stages[0].open_rows
    members = (entry for entry in desk.taken if f"{entry.one.spec.namespace}/{entry.one.options.gang}" == gang.name)
    return any(entry.row >= len(today) or not today[entry.row] for entry in members)


def gang_domains(desk: PlanDraft, gang: Gang) -> list[Mask]:
    """Row masks of one zone and one GPU product each, the most promising first: domains with running members, then by estimated cost.

    Machines without accelerators belong to every product of their zone, because a launcher needs no accelerator.
    """
    desk.build()
    codes, others = rows_by_domain(desk, gang)
    members = {desk.room.table.row[name] for name in gang.nodes if name in desk.room.table.row}
    # A running member without a GPU does not determine the product, unless only such members run.
    members = (members and members.difference(*others.values())) or members
    usable = [
        usable_templates(desk.templates, pod_class) & suitable_rows(desk, pod_class)[desk.template_rows] for pod_class in gang.classes
    ]
    masks = []
    for domain, rows in sorted(codes.items()):
        mask = np.zeros(len(desk.room), dtype=np.bool_)
        mask[rows] = mask[others.get(domain[0], [])] = True
        if members and not mask[list(members)].any():
            continue
        estimate = sum(
            pod_class.count * share_price(desk, pod_class, good & mask[desk.template_rows])
            for pod_class, good in zip(gang.classes, usable, strict=True)
        )
        machines = sum(pod_class.count for pod_class in gang.classes if not room_exists(desk, pod_class, mask))
        masks.append((min(estimate, 1e18) if machines else 0.0, domain, mask))
    return [mask for _, _, mask in sorted(masks, key=lambda entry: entry[:2])]


def suitable_rows(desk: PlanDraft, pod_class: PodClass) -> Mask:
    """Rows that the pods of a class can go to and prefer, regardless of the pods already there."""
    return desk.room.static_mask(pod_class.spec) & rows_with_wishes(desk.room, pod_class)


def rows_by_domain(desk: PlanDraft, gang: Gang) -> tuple[dict[tuple[str, str], list[int]], dict[str, list[int]]]:
    """Rows by zone and GPU product, and rows without accelerators by zone. A gang that needs no accelerators has one domain per zone."""
    table = desk.room.table
    wanted = {name for pod_class in gang.classes for name, amount in pod_class.spec.requests.items() if amount > 0 and is_device(name)}
    keys = (*ZONE_LABELS, *((*PRODUCT_LABELS, *INSTANCE_TYPE_LABELS) if wanted else ()))
    devices = np.zeros(len(table), dtype=np.bool_)
    for name in wanted.union(DIVISIBLE) if wanted else ():
        devices |= table.allocatable(name) > 0
    looks = np.vstack([devices, *(table.column(key).codes for key in keys)])
    # Rows that are equal in all of this are examined once.
    _, samples, group = np.unique(looks, axis=1, return_index=True, return_inverse=True)
    codes: dict[tuple[str, str], list[int]] = {}
    others: dict[str, list[int]] = {}
    products = products_of_types(desk.templates) if wanted else {}
    for number, sample in enumerate(samples.tolist()):
        node, rows = table.nodes[sample], np.flatnonzero(group.reshape(-1) == number).tolist()
        zone = first_label(node, ZONE_LABELS)
        if not zone:
            # The cloud has not chosen the zone of these machines yet, and may choose a different one for each.
            rows = [row for row in rows if row not in desk.undecided]
        if wanted and not devices[sample]:
            others.setdefault(zone, []).extend(rows)
        elif rows:
            codes.setdefault((zone, product(node, products) if wanted else ""), []).extend(rows)
    return codes, others


def room_exists(desk: PlanDraft, pod_class: PodClass, mask: Mask) -> bool:
    """Whether existing or ordered machines within ``mask`` have room for all pods of the class."""
    free = np.where(
        mask & desk.open_rows & ~desk.template_mask & rows_with_wishes(desk.room, pod_class),
        desk.room.capacity(pod_class.spec, pod_class.labels),
        0,
    )
    return int(free.sum()) >= pod_class.count


def share_price(desk: PlanDraft, pod_class: PodClass, good: Mask) -> float:
    """The price of one pod on the cheapest template of ``good``, by its largest share of a machine; infinite when there is none."""
    prices = np.array([offering.price for offering in desk.templates.offerings])
    share = np.zeros(len(prices))
    for resource, amount in pod_class.spec.requests.items():
        offered = desk.templates.table.allocatable(resource)
        share = np.maximum(share, amount / np.maximum(offered, 1))
    return float(np.where(good, prices * share, np.inf).min(initial=np.inf))
