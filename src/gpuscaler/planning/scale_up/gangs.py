"""Gangs: placed whole or not at all, by default in one zone on one GPU product."""

from dataclasses import dataclass

import numpy as np

from gpuscaler.model.accelerators import DIVISIBLE, is_device
from gpuscaler.model.nodes import first_label
from gpuscaler.model.table import Mask
from gpuscaler.model.well_known import INSTANCE_TYPE_LABELS, PRODUCT_LABELS, ZONE_LABELS
from gpuscaler.planning.capacity.gpu_products import product, products_of_types
from gpuscaler.planning.demand.pending import Gang, PodClass
from gpuscaler.planning.scale_up.draft.draft import Desk, usable_templates
from gpuscaler.planning.scale_up.draft.scoring import wished
from gpuscaler.planning.scale_up.groups.existing_first import settle
from gpuscaler.planning.scale_up.groups.groups import families
from gpuscaler.planning.scale_up.groups.spread_check import spreads
from gpuscaler.planning.scale_up.rounds import scale_up

#: How many domains that can hold a gang are priced before the cheapest of them is taken.
DOMAINS_PRICED = 4


@dataclass(frozen=True)
class UnplacedGang:
    """A gang that finds no whole place; ``detail`` says how near it came."""

    gang: Gang
    detail: str


def settle_gang(desk: Desk, gang: Gang) -> tuple[Desk, list[UnplacedGang]]:
    """The desk with the whole gang on it, or the desk as it is and why not."""
    missing = gang.size - gang.running - gang.count
    if missing > 0:
        return desk, [UnplacedGang(gang, f"{gang.running + gang.count} of {gang.size} members exist; it is bought for once all do")]
    placed, nearest = place_gang(desk, gang)
    if placed is not None:
        return placed, []
    where = "one zone on one GPU product" if gang.topology != "any" else "the pools together"
    return desk, [UnplacedGang(gang, f"at most {nearest} of {gang.count} members fit in {where}; it is placed whole or not at all")]


def place_gang(desk: Desk, gang: Gang) -> tuple[Desk | None, int]:
    """The cheapest desk with the whole gang on it, or None and the most members that any domain took.

    A machine that is idle costs what it costs, since it would go if the gang went elsewhere: an idle spot machine is no reason to buy
    the on-demand machine beside it where two new spot machines cost less.
    """
    if gang.topology == "any":
        return attempt(desk, gang, None)
    best: Desk | None = None
    nearest = priced = 0
    for domain in domains(desk, gang):
        trial, placed = attempt(desk, gang, domain)
        nearest = max(nearest, placed)
        if trial is None:
            continue
        priced += 1
        if best is None or outlay(desk, trial) < outlay(desk, best):
            best = trial
        if priced == DOMAINS_PRICED or trial.cost <= desk.cost + 1e-9:
            break
    return best, nearest


def outlay(desk: Desk, trial: Desk) -> tuple[float, float]:
    """What the machines cost by the hour that ``trial`` buys or takes out of idleness, to the cent of a cent; and those that it buys."""
    before = {entry.row for entry in desk.taken}
    idle = sum(desk.idle_price(row) for row in {entry.row for entry in trial.taken[len(desk.taken) :]} - before)
    return round(trial.cost + idle, 4), round(trial.cost, 4)


def attempt(desk: Desk, gang: Gang, only: Mask | None) -> tuple[Desk | None, int]:
    """A desk with the whole gang within ``only``, and how many members found a place.

    A gang that nodes take today as a whole goes there. Any other binds when its machines are there, which its spread counts.
    """
    trial = desk.copy()
    every = families(trial, gang.classes)
    if any(spreads(family) for family in every) and not waits(desk, gang):
        settle(trial, trial.stages[0], every, only)
        if not any(family.left for family in every):
            return trial, gang.count
        trial = desk.copy()
    queues = scale_up(trial, gang.classes, only, together=True)
    placed = sum(queue.taken for queue in queues)
    return (trial if placed == gang.count else None), placed


def waits(desk: Desk, gang: Gang) -> bool:
    """Whether a member was promised a machine that is not there yet, so that none binds today."""
    today = desk.stages[0].open_rows
    members = (entry for entry in desk.taken if f"{entry.one.spec.namespace}/{entry.one.options.gang}" == gang.name)
    return any(entry.row >= len(today) or not today[entry.row] for entry in members)


def domains(desk: Desk, gang: Gang) -> list[Mask]:
    """Rows of one zone and one GPU product each, most promising first: those with running members, then by what the gang would cost.

    Machines without accelerators belong to every product of their zone: a launcher needs none.
    """
    desk.build()
    codes, others = by_domain(desk, gang)
    members = {desk.room.table.row[name] for name in gang.nodes if name in desk.room.table.row}
    # A member without a GPU says nothing about the product, unless no other runs.
    members = (members and members.difference(*others.values())) or members
    usable = [usable_templates(desk.templates, one) & suiting(desk, one)[desk.template_rows] for one in gang.classes]
    found = []
    for domain, rows in sorted(codes.items()):
        mask = np.zeros(len(desk.room), dtype=np.bool_)
        mask[rows] = mask[others.get(domain[0], [])] = True
        if members and not mask[list(members)].any():
            continue
        estimate = sum(
            one.count * share_price(desk, one, good & mask[desk.template_rows]) for one, good in zip(gang.classes, usable, strict=True)
        )
        machines = sum(one.count for one in gang.classes if not room_exists(desk, one, mask))
        found.append((min(estimate, 1e18) if machines else 0.0, domain, mask))
    return [mask for _, _, mask in sorted(found, key=lambda entry: entry[:2])]


def suiting(desk: Desk, one: PodClass) -> Mask:
    """Rows that a class admits and wishes, whatever is on them."""
    return desk.room.static_mask(one.spec) & wished(desk.room, one)


def by_domain(desk: Desk, gang: Gang) -> tuple[dict[tuple[str, str], list[int]], dict[str, list[int]]]:
    """Rows by zone and GPU product, and those without accelerators by zone. To a gang that needs none all rows of a zone are alike."""
    table = desk.room.table
    wanted = {name for one in gang.classes for name, amount in one.spec.requests.items() if amount > 0 and is_device(name)}
    keys = (*ZONE_LABELS, *((*PRODUCT_LABELS, *INSTANCE_TYPE_LABELS) if wanted else ()))
    devices = np.zeros(len(table), dtype=np.bool_)
    for name in wanted.union(DIVISIBLE) if wanted else ():
        devices |= table.allocatable(name) > 0
    looks = np.vstack([devices, *(table.column(key).codes for key in keys)])
    # Rows that look alike in all of this are looked at once.
    _, samples, group = np.unique(looks, axis=1, return_index=True, return_inverse=True)
    codes: dict[tuple[str, str], list[int]] = {}
    others: dict[str, list[int]] = {}
    products = products_of_types(desk.templates) if wanted else {}
    for number, sample in enumerate(samples.tolist()):
        node, rows = table.nodes[sample], np.flatnonzero(group.reshape(-1) == number).tolist()
        zone = first_label(node, ZONE_LABELS)
        if not zone:
            # Where the cloud has still to choose the zone, it is not the same one for two such machines.
            rows = [row for row in rows if row not in desk.undecided]
        if wanted and not devices[sample]:
            others.setdefault(zone, []).extend(rows)
        elif rows:
            codes.setdefault((zone, product(node, products) if wanted else ""), []).extend(rows)
    return codes, others


def room_exists(desk: Desk, one: PodClass, mask: Mask) -> bool:
    """Whether machines within ``mask`` hold the class already."""
    free = np.where(mask & desk.open_rows & ~desk.template_mask & wished(desk.room, one), desk.room.capacity(one.spec, one.labels), 0)
    return int(free.sum()) >= one.count


def share_price(desk: Desk, one: PodClass, good: Mask) -> float:
    """What one pod costs on the cheapest template of ``good``, by its largest share of a machine; infinite when none will do."""
    prices = np.array([offering.price for offering in desk.templates.offerings])
    share = np.zeros(len(prices))
    for resource, amount in one.spec.requests.items():
        offered = desk.templates.table.allocatable(resource)
        share = np.maximum(share, amount / np.maximum(offered, 1))
    return float(np.where(good, prices * share, np.inf).min(initial=np.inf))
