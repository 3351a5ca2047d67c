"""Fills room with pods of one class, and respects topology at every step."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec
import numpy as np
from msgspec import Struct

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import PodSpec, SpreadConstraint
from gpuscaler.model.table import Array, Mask
from gpuscaler.model.well_known import HOSTNAME
from gpuscaler.planning.demand.pending import PodClass
from gpuscaler.planning.demand.topology import Shape, without_hosts
from gpuscaler.planning.feasibility.snapshot import Room

#: More copies than any class has.
PLENTY = 2**40


@dataclass(frozen=True)
class PlacementArea:
    """The rows that a class may go to. Rows of ``room`` are machines, or ``templates`` that stand for any number of machines.

    ``usable`` are the rows that are open to the class before the scheduler's filters (ready, of a wanted market, large enough when empty,
    …). ``rank`` orders the rows: lower first. ``limits`` is the number of pods that a template still takes, counted down here. ``scores``
    decides between otherwise equal rows: higher first. ``counting_rule`` is a pair, or None: a spread constraint that counts this class by
    domain, and the class that has this constraint.
    """

    cluster: Cluster
    room: Room
    templates: Mask
    usable: Mask
    rank: Array
    limits: Array
    scores: Array | None = None
    counting_rule: tuple[SpreadConstraint, PodClass] | None = None

    @property
    def has_templates(self) -> bool:
        return bool((self.usable & self.templates).any())

    @property
    def shares_hosts(self) -> bool:
        """Whether several machines share one host name, so that a pod on one may keep other pods off the next."""
        codes, values = self.room.table.column(HOSTNAME)
        return int(np.count_nonzero(codes >= 0)) > len(values)


class Share(Struct, frozen=True, gc=False):
    """``count`` pods on ``row``."""

    row: int
    count: int


def fill_rows(area: PlacementArea, pod_class: PodClass, shape: Shape, count: int) -> list[Share]:
    """Place up to ``count`` pods of ``pod_class`` on ``area`` and return their rows; the other pods found no room.

    Machines come before templates within every domain, so templates only take pods to buy for. Without constraints on larger domains,
    templates are not used at all, and the mix decides freely.
    """
    one_by_one = shape.by_host and area.shares_hosts
    if not shape.wide and not shape.host_affinity and not one_by_one:
        return _fill_by_rank(area, pod_class, count, _room_on_machines(area, pod_class))
    shares: dict[int, int] = {}
    left = count
    while left > 0:
        step = list(_place_batch(area, pod_class, shape, 1 if one_by_one else left))
        if not step:
            break
        for share in step:
            shares[share.row] = shares.get(share.row, 0) + share.count
            left -= share.count
    return [Share(row, number) for row, number in sorted(shares.items())]


def _room_on_machines(area: PlacementArea, pod_class: PodClass) -> Array:
    room = area.room.capacity(pod_class.spec, pod_class.labels, area.usable & ~area.templates)
    by_host = [constraint for constraint in pod_class.spec.spread if constraint.hard and constraint.topology_key == HOSTNAME]
    for constraint in by_host if area.has_templates else ():
        # A bought machine starts empty, regardless of the pods on its template, so the minimum counts as 0.
        selector = constraint.selector
        own_pods = area.room.matching((pod_class.spec.namespace,), None, selector, exclude_terminating=True)
        counted = selector is not None and selector.matches(pod_class.labels)
        room = np.minimum(
            room, np.maximum(constraint.max_skew - own_pods, 0) if counted else np.where(own_pods <= constraint.max_skew, room, 0)
        )
    return room


def _room_now(area: PlacementArea, pod_class: PodClass) -> Array:
    """How many pods each row takes now, if no other row takes any."""
    room = _room_on_machines(area, pod_class)
    if area.has_templates:
        allowed = area.room.verdict(without_hosts(pod_class.spec), pod_class.labels).mask & area.usable & area.templates
        room[allowed] = area.limits[allowed]
    return room


def _put(area: PlacementArea, pod_class: PodClass, row: int, count: int) -> Share:
    spec = without_hosts(pod_class.spec) if area.templates[row] else pod_class.spec
    area.limits[row] -= count
    area.room.place(spec, pod_class.labels, row, count)
    return Share(row, count)


def _fill_by_rank(area: PlacementArea, pod_class: PodClass, count: int, room: Array) -> list[Share]:
    """Fill rows in order of rank, the tightest first among equals, so that large rooms stay large."""
    order = _rows_by_rank(area, room, count)
    takes = np.minimum(room[order], count)
    before = np.cumsum(takes) - takes
    order, takes, before = order[before < count], takes[before < count], before[before < count]
    takes = np.minimum(takes, count - before)
    for part, spec in ((~area.templates[order], pod_class.spec), (area.templates[order], without_hosts(pod_class.spec))):
        if part.any():
            area.room.place_all(spec, pod_class.labels, order[part], takes[part])
    area.limits[order] -= takes
    return [Share(row, number) for row, number in zip(order.tolist(), takes.tolist(), strict=True)]


def _rows_by_rank(area: PlacementArea, room: Array, count: int) -> Array:
    """Rows with room in filling order; no more of them than ``count`` pods can need."""
    if area.scores is None and np.count_nonzero(room) > count > 0:
        # With thousands of rows with room for a few pods, finding the first few by one number per row is faster than sorting all by three.
        wide, deep = len(room).bit_length(), int(room.max()).bit_length()
        if int(area.rank.max()).bit_length() + deep + wide < 63:
            keys = (area.rank << deep | room) << wide | np.arange(len(room))
            first = np.partition(np.where(room, keys, np.iinfo(np.int64).max), count - 1)[:count]
            first.sort()
            return first & (1 << wide) - 1
    rows = np.flatnonzero(room)
    ties = (rows,) if area.scores is None else (rows, -area.scores[rows])
    return rows[np.lexsort((*ties, room[rows], area.rank[rows]))][:count]


def _place_batch(area: PlacementArea, pod_class: PodClass, shape: Shape, left: int) -> Iterator[Share]:
    """Place the largest batch of pods that do not change where the other pods of the batch may go."""
    hard = [constraint for constraint in pod_class.spec.spread if constraint.hard]
    alone = not (shape.self_wide_anti or shape.wide_affinity or shape.host_affinity)
    if alone and hard == list(shape.self_wide_spread) and len(hard) == 1:
        yield from _spread(area, pod_class, hard[0], left)
        return
    room = _room_now(area, pod_class) if shape.wide else _room_on_machines(area, pod_class)
    if not room.any():
        return
    if shape.host_affinity:
        # The first pod of a group determines the machine of the rest: the tightest row that holds them all, else the roomiest.
        home = _start_row(area, room, left)
        if area.templates[home]:
            # A machine bought for the group is in one domain, so the group is, too.
            area.usable[:] = False
            area.usable[home] = True
        yield _put(area, pod_class, home, 1)
        if left > 1 and not shape.wide:
            yield from _fill_by_rank(area, pod_class, left - 1, _room_on_machines(area, pod_class))
    elif not shape.moves_domains:
        yield from (
            _fill_by_rank(area, pod_class, left, room)
            if area.counting_rule is None
            else _spread_for_others(area, pod_class, left, room, area.counting_rule)
        )
    elif shape.wide_affinity and not shape.self_wide_spread and not shape.self_wide_anti:
        row = _best_domain(area, shape.wide_affinity[0].topology_key, room, left)
        yield _put(area, pod_class, row, 1)
        if left > 1:
            yield from _fill_by_rank(area, pod_class, left - 1, _room_now(area, pod_class))
    else:
        yield _put(area, pod_class, _least_crowded(area, pod_class, shape, room), 1)


def _start_row(area: PlacementArea, room: Array, left: int) -> int:
    rows = np.flatnonzero(room)
    return int(rows[np.lexsort((rows, np.abs(room[rows] - left), area.rank[rows], room[rows] < left))[0]])


def _best_domain(area: PlacementArea, key: str, room: Array, left: int) -> int:
    """The row to start on: in a domain whose machines hold all pods, else in one that can be bought in, else in the roomiest."""
    codes, values = area.room.table.column(key)
    inside = codes >= 0
    machines = np.zeros(len(values), dtype=np.float64)
    real = inside & ~area.templates
    np.add.at(machines, codes[real], np.minimum(room, left)[real])
    bought = np.zeros(len(values), dtype=np.bool_)
    bought[codes[inside & area.templates & (room > 0)]] = True
    rank = np.full(len(values), np.iinfo(np.int64).max, dtype=np.int64)
    open_rows = np.flatnonzero(inside & (room > 0))
    np.minimum.at(rank, codes[open_rows], area.rank[open_rows])
    order = sorted(set(codes[open_rows].tolist()), key=lambda d: (machines[d] < left, not bought[d], -machines[d], int(rank[d]), values[d]))
    candidates = open_rows[codes[open_rows] == order[0]]
    return int(candidates[np.lexsort((candidates, -np.minimum(room[candidates], left), area.rank[candidates]))[0]])


def _least_crowded(area: PlacementArea, pod_class: PodClass, shape: Shape, room: Array) -> int:
    """The allowed row whose domains have the fewest pods that the class's own spread constraints count."""
    crowding = np.zeros(len(room), dtype=np.int64)
    for constraint in shape.self_wide_spread:
        codes, counts, _ = area.room.spread_counts(pod_class.spec, pod_class.labels, constraint)
        crowding += np.where(codes >= 0, counts[np.maximum(codes, 0)], 0)
    rows = np.flatnonzero(room)
    return int(rows[np.lexsort((rows, room[rows], area.rank[rows], crowding[rows]))[0]])


def _spread(area: PlacementArea, pod_class: PodClass, constraint: SpreadConstraint, left: int) -> Iterator[Share]:
    """Water-fill the domains of one constraint: always the emptiest domain that has room, as long as the skew allows it."""
    codes, counts, eligible = area.room.spread_counts(pod_class.spec, pod_class.labels, constraint)
    room = _room_but_spread(area, pod_class)
    room[codes < 0] = 0
    if not room.any():
        return
    held = np.zeros(len(counts), dtype=np.int64)
    inside = codes >= 0
    np.add.at(held, codes[inside], np.minimum(room[inside], left))
    wanted = balance_domains(counts, held, eligible, constraint, left)
    for domain in np.flatnonzero(wanted):
        yield from _fill_by_rank(area, pod_class, int(wanted[domain]), np.where(codes == domain, room, 0))


def _spread_for_others(
    area: PlacementArea, pod_class: PodClass, left: int, room: Array, counting_rule: tuple[SpreadConstraint, PodClass]
) -> Iterator[Share]:
    """Fill machines, then buy in the domains where ``counting_rule`` counts the fewest pods, so that they are spread evenly at any time."""
    machines = np.where(area.templates, 0, room)
    if machines.any():
        yield from _fill_by_rank(area, pod_class, left, machines)
        return
    constraint, owner = counting_rule
    codes, counts, _ = area.room.spread_counts(owner.spec, owner.labels, constraint)
    free = np.where(codes >= 0, room, 0)
    if not free.any():
        yield from _fill_by_rank(area, pod_class, left, room)
        return
    held = np.zeros(len(counts), dtype=np.int64)
    np.add.at(held, codes[free > 0], np.minimum(free[free > 0], left))
    # The constraint belongs to another class, so its skew does not restrict these pods.
    wanted = balance_domains(counts, held, held > 0, msgspec.structs.replace(constraint, max_skew=PLENTY, min_domains=1), left)
    for domain in np.flatnonzero(wanted):
        yield from _fill_by_rank(area, pod_class, int(wanted[domain]), np.where(codes == domain, free, 0))


def _room_but_spread(area: PlacementArea, pod_class: PodClass) -> Array:
    """Like :func:`_room_now`, without the spread filter: domains that are too full now become available as the others fill."""
    fits = area.room.fits(pod_class.spec)
    if pod_class.spec.host_ports or pod_class.spec.anti_affinity:
        fits = np.minimum(fits, 1)
    room = np.where(area.usable & ~area.templates & ~_excluded_rows(area.room, pod_class.spec, pod_class), fits, 0)
    if area.has_templates:
        allowed = area.usable & area.templates & ~_excluded_rows(area.room, without_hosts(pod_class.spec), pod_class)
        room[allowed] = area.limits[allowed]
    return room


def _excluded_rows(room: Room, spec: PodSpec, pod_class: PodClass) -> Mask:
    """Rows that a filter other than the spread constraints excludes."""
    excluded = np.zeros(len(room.table), dtype=np.bool_)
    for name, mask in room.verdict(spec, pod_class.labels).excluded.items():
        if name != "PodTopologySpread":
            excluded |= mask
    return excluded


def balance_domains(counts: Array, held: Array, eligible: Mask, constraint: SpreadConstraint, left: int) -> Array:
    """How many of ``left`` pods each domain gets. ``counts``: matching pods there now; ``held``: how many more it can take.

    As in the scheduler, the minimum is taken over the ``eligible`` domains, and is 0 when there are fewer than ``minDomains`` of them.
    """
    given = [0] * len(counts)
    now = [int(count) for count in counts]
    domains = [int(domain) for domain in np.flatnonzero(eligible)]
    below_minimum = len(domains) < constraint.min_domains
    for _ in range(left):
        open_domains = [domain for domain in domains if given[domain] < held[domain]]
        if not open_domains:
            break
        lowest = 0 if below_minimum else min(now[domain] for domain in domains)
        domain = min(open_domains, key=now.__getitem__)
        if now[domain] + 1 - lowest > constraint.max_skew:
            break
        given[domain] += 1
        now[domain] += 1
    return np.array(given, dtype=np.int64)


def total_count(shares: Sequence[Share]) -> int:
    return sum(share.count for share in shares)
