"""Families: classes that differ only in their requests, so that topology is decided once for all of them."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from operator import attrgetter

import msgspec
import numpy as np

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import PodSpec, SpreadConstraint
from gpuscaler.model.table import Array, Codes, Mask
from gpuscaler.planning.demand.pending import PodClass
from gpuscaler.planning.demand.topology import Shape, shape, without_hosts, without_peer_rules
from gpuscaler.planning.scale_up.draft.buying import starts_alone, wide_keys
from gpuscaler.planning.scale_up.draft.draft import ClassPlacement, PlanDraft, Queue, row_ranks, wanted_templates
from gpuscaler.planning.scale_up.draft.effort import PLACING, ROW
from gpuscaler.planning.scale_up.draft.placing import PLENTY, PlacementArea, Share, fill_rows
from gpuscaler.planning.scale_up.draft.purchase_items import PurchaseItem
from gpuscaler.planning.scale_up.draft.scoring import preference_scores, rows_with_wishes

#: Domains up to this factor more expensive than the cheapest count as equally cheap.
TIE = 1.02
#: All fields of a specification except its requests, as a lookup key.
IDENTITY = attrgetter(*(name for name in PodSpec.__struct_fields__ if name not in ("digest", "requests")))


@dataclass
class Family:
    """Queues of one kind of pod in all sizes. ``model`` is a pod of the family that requests the maximum of each resource.

    ``volumes`` are volumes whose use by one pod restricts the next pod: with any, one pod is placed at a time. ``domain_caps`` limits the
    pods for which machines may be bought in a domain, for domains that got too few machines because of limits. ``pinned_keys`` are topology
    keys by which other families count these pods: the domains of these pods are chosen before the other families are placed, and not by the
    mix. ``matched_keys`` are topology keys by which rules of other families count or match these pods, used if these pods have wide rules
    themselves: a pod that was counted in one domain must not be bought for in another. ``counting_rule`` is a spread constraint by which
    another family counts these pods, and that family's model. ``counted_keys`` are the topology keys of all such constraints: the pods may
    only go where their domain of these keys is certain.
    """

    model: PodClass
    shape: Shape
    queues: list[Queue]
    volumes: frozenset[str] = frozenset()
    phantoms: list[tuple[PodSpec, Share]] = field(default_factory=list)
    domain_caps: dict[tuple[int, ...], int] = field(default_factory=dict)
    pinned_keys: tuple[str, ...] = ()
    matched_keys: frozenset[str] = frozenset()
    counting_rule: tuple[SpreadConstraint, PodClass] | None = None
    counted_keys: frozenset[str] = frozenset()

    @property
    def keys(self) -> tuple[str, ...]:
        """Topology keys of the domains that purchases for its pods are bound to; none when the mix decides freely."""
        return tuple(sorted({*wide_keys(self.model), *self.matched_keys})) if self.shape.wide else self.pinned_keys

    @property
    def left(self) -> int:
        return sum(len(queue.pod_class.keys) - queue.taken for queue in self.queues)

    def at_once(self, count: int) -> int:
        """How many of ``count`` pods may be placed before the rules have to be evaluated again."""
        if self.shape.host_affinity and self.shape.per_host is not None:
            count = min(count, self.shape.per_host)
        return min(count, 1) if self.volumes else count


def families(draft: PlanDraft, classes: Sequence[PodClass]) -> list[Family]:
    """Group ``classes`` into families: by priority, then those with constraints on larger domains first, then by size."""
    groups: dict[tuple[object, ...], list[PodClass]] = {}
    for pod_class in classes:
        rank = draft.templates.rank_of(pod_class.spec)
        group_key = (
            IDENTITY(pod_class.spec),
            frozenset(pod_class.spec.requests),
            pod_class.labels,
            pod_class.options,
            pod_class.wishes,
            pod_class.paused,
            rank,
        )
        groups.setdefault(group_key, []).append(pod_class)
    families = []
    unclaimed_classes = frozenset(volume.storage_class for volume in draft.cluster.volumes.values() if not volume.claim)
    for members in groups.values():
        ordered = sorted(members, key=lambda pod_class: pod_class.order)
        constraints = shape(draft.cluster, ordered[0])
        volumes = shared_volumes(draft.cluster, ordered[0].spec, unclaimed_classes)
        families.append(Family(largest(ordered), constraints, [Queue(pod_class, constraints) for pod_class in ordered], volumes))
    return sorted(families, key=lambda family: (-family.model.spec.priority, not family.shape.wide, family.queues[0].pod_class.order))


def largest(members: Sequence[PodClass]) -> PodClass:
    """A class that requests the maximum of each resource over ``members``."""
    first = members[0]
    if len(members) == 1:
        return first
    requests = {name: max(pod_class.spec.requests[name] for pod_class in members) for name in first.spec.requests}
    return replace(first, spec=msgspec.structs.replace(first.spec, digest=f"{first.spec.digest}:family", requests=requests))


def assign(draft: PlanDraft, family: Family, only: Mask | None) -> list[PurchaseItem]:
    """Place the family on machines as far as possible; return the items to buy for, with the kinds that may serve them."""
    draft.effort.spend((PLACING + ROW * len(draft.room)) * len(family.queues))
    usable = wanted_templates(draft.templates, family.model)
    machines = draft.open_rows & ~machines_outside(draft, usable)
    if family.model.wishes:
        preferred = rows_with_wishes(draft.room, family.model)
        usable, machines = usable & preferred[draft.template_rows], machines & preferred
    if only is not None:
        usable = usable & only[draft.template_rows]
        machines = machines & padded(only, len(machines))
    by_others = admitted_by_others(draft, family.model)
    if family.counted_keys:
        certain = certain_templates(draft, family.counted_keys)
        usable, by_others = usable & certain, by_others & certain
    machines = machines & ~uncertain_machines(draft, family.model, by_others)
    admitted = usable & by_others
    before, whole = family.left, bool(family.shape.host_affinity)
    alone = whole and starts_alone(draft, family.model, family.shape.host_affinity)
    to_buy: dict[int, list[Share]] = {}
    if machines.any() or (family.shape.wide and not fills_as_one(draft, family, usable)):
        for number, queue in enumerate(family.queues):
            to_buy[number] = place_class(draft, family, queue.pod_class, queue, machines=machines, usable=usable)
    elif family.shape.wide:
        shares = place_class(draft, family, family.model, None, machines=machines, usable=usable)
        to_buy = deal_to_queues(family, shares)
    elif family.pinned_keys:
        to_buy = deal_to_queues(family, spread_evenly(draft, family, admitted))
    if not family.left or (whole and not alone) or (family.left < before and (whole or family.volumes)):
        # Pods that are not bought for after all must not be counted.
        forget(draft, family)
        return []
    items = purchase_items(draft, family, to_buy, admitted)
    # If pods share one machine or a volume, pods of another size can only follow the first ones.
    return items[:1] if whole or family.volumes else items


def certain_templates(draft: PlanDraft, keys: Iterable[str]) -> Mask:
    """Templates for which the cloud cannot choose another template with a different value of one of ``keys``."""
    kinds, count = draft.templates.kinds, len(draft.templates.nodes)
    mask = np.ones(count, dtype=np.bool_)
    for kind in (kind for kind in kinds if len(kind.rows) > 1) if len(kinds) < count else ():
        rows = list(kind.rows)
        labels = [draft.templates.nodes[row].labels for row in rows]
        mask[rows] = all(len({label.get(key) for label in labels}) == 1 for key in keys)
    return mask


def admitted_by_others(draft: PlanDraft, pod_class: PodClass) -> Mask:
    """Templates that admit a class if its own rules about other pods are ignored."""
    return draft.room.admitting(without_peer_rules(pod_class.spec), pod_class.labels, draft.template_rows)


def shared_volumes(cluster: Cluster, spec: PodSpec, unclaimed_classes: Container[str]) -> frozenset[str]:
    """The volumes of ``spec`` whose use by one pod restricts the next pod.

    These are claims that one pod may use at a time, claims whose volume the first pod chooses, and disks that no two pods may mount.
    Claims of a storage class in ``unclaimed_classes``, which has free volumes, compete for these, also claims of ephemeral volumes.
    """
    volumes = set()
    for use in spec.volumes:
        claim = cluster.claims.get(f"{spec.namespace}/{use.claim}") if use.claim else None
        if claim is not None and not use.ephemeral and ("ReadWriteOncePod" in claim.access_modes or not claim.volume):
            volumes.add(claim.key)
        if claim is not None and not claim.volume and (claim.storage_class or "") in unclaimed_classes:
            volumes.add(f"class {claim.storage_class}")
        if use.driver:
            volumes.add(f"{use.driver} {use.handle.partition('@')[0]}")
    return frozenset(volumes)


def machines_outside(draft: PlanDraft, wanted: Mask) -> Mask:
    """Machines bought by this plan that may turn out to be outside of ``wanted``, which flags templates."""
    mask = np.zeros(len(draft.open_rows), dtype=np.bool_)
    if not wanted.all():
        for machine in draft.bought[: draft.built]:
            mask[machine.row] = not wanted[list(machine.kind.rows)].all()
    return mask


def uncertain_machines(draft: PlanDraft, pod_class: PodClass, admitted: Mask) -> Mask:
    """Machines that the cloud has not chosen yet and that might turn out not to take a class. ``admitted`` flags templates."""
    mask = np.zeros(len(draft.open_rows), dtype=np.bool_)
    apart = {term.topology_key for term in pod_class.spec.anti_affinity}
    for row, templates in draft.undecided.items():
        mask[row] = not admitted[list(templates)].all() or not apart <= draft.room.table.nodes[row].labels.keys()
    return mask


def padded(mask: Mask, length: int) -> Mask:
    """``mask`` extended with False for a room that has grown."""
    return np.concatenate([mask, np.zeros(length - len(mask), dtype=np.bool_)])


def place_class(draft: PlanDraft, family: Family, pod_class: PodClass, queue: Queue | None, *, machines: Mask, usable: Mask) -> list[Share]:
    """Place one class, or the family represented by its model. Return the shares on templates, which are recorded as phantoms."""
    area_rows = machines.copy()
    area_rows[draft.template_rows] = usable & draft.templates.holds_one(pod_class.spec)
    limits = most_to_buy(draft, family, area_rows)
    scores = preference_scores(draft.room, pod_class)
    area = PlacementArea(
        draft.cluster, draft.room, draft.template_mask, area_rows, row_ranks(draft, pod_class.spec), limits, scores, family.counting_rule
    )
    shares = fill_rows(area, pod_class, family.shape, family.at_once(family.left if queue is None else queue.left))
    templates = range(*draft.template_rows.indices(len(draft.room)))
    to_buy = [share for share in shares if share.row in templates]
    family.phantoms += [(without_hosts(pod_class.spec), share) for share in to_buy]
    if queue is not None:
        draft.taken += [ClassPlacement(pod_class, share.row, queue.take(share.count)) for share in shares if share.row not in templates]
    return to_buy


def most_to_buy(draft: PlanDraft, family: Family, usable: Mask) -> Array:
    """How many pods each template may stand for; in a domain with a cap, one template takes all that the cap leaves."""
    limits = np.full(len(draft.room), PLENTY, dtype=np.int64)
    if not family.domain_caps:
        return limits
    suitable = np.flatnonzero(usable & draft.template_mask & draft.room.static_mask(family.model.spec))
    columns = [draft.room.table.column(key).codes for key in family.keys]
    for domain, cap in family.domain_caps.items():
        inside = suitable[np.logical_and.reduce([codes[suitable] == value for codes, value in zip(columns, domain, strict=True)])]
        bound = sum(share.count for _, share in family.phantoms if tuple(int(codes[share.row]) for codes in columns) == domain)
        limits[inside] = 0
        limits[inside[:1]] = max(0, cap - bound)
    return limits


def fills_as_one(draft: PlanDraft, family: Family, usable: Mask) -> bool:
    """Whether the model, the largest size of the family, can be bought for in every domain in which any size can be."""
    fits_any: Mask = np.logical_or.reduce([draft.templates.holds_one(queue.pod_class.spec) for queue in family.queues])
    all_of_them = draft.templates.holds_one(family.model.spec)
    by_domain = draft.templates.by_domain
    return by_domain(family.keys, usable & fits_any).keys() == by_domain(family.keys, usable & all_of_them).keys()


def spread_evenly(draft: PlanDraft, family: Family, admitted: Mask) -> list[Share]:
    """Spread pods without rules of their own evenly, as other families count them, over the cheapest domains."""
    cheapest = draft.templates.by_domain(family.keys, admitted & draft.templates.holds_one(family.model.spec)).values()
    if not cheapest:
        return []
    price = {row: draft.templates.offerings[row].price for row in cheapest}
    lowest = min(price.values())
    chosen = sorted(row for row in cheapest if price[row] <= lowest * TIE)
    first = draft.first_template
    present = [0] * len(chosen)
    if family.counting_rule is not None:
        constraint, owner = family.counting_rule
        spread_counts = draft.room.spread_counts(owner.spec, owner.labels, constraint)
        present = [int(spread_counts.counts[spread_counts.codes[first + row]]) for row in chosen]
    wanted = even_additions(present, family.left)
    shares = [Share(first + row, count) for row, count in zip(chosen, wanted, strict=True) if count]
    spec = without_hosts(family.model.spec)
    for share in shares:
        draft.room.place(spec, family.model.labels, share.row, share.count)
        family.phantoms.append((spec, share))
    return shares


def even_additions(present: Sequence[int], count: int) -> list[int]:
    """How many of ``count`` go to each place so that the sums with ``present`` are as even as possible; the first get the remainder."""
    level = list(present)
    for _ in range(count):
        level[level.index(min(level))] += 1
    return [after - before for before, after in zip(present, level, strict=True)]


def deal_to_queues(family: Family, shares: Sequence[Share]) -> dict[int, list[Share]]:
    """Shares of the whole family dealt to its queues, each from the largest remaining share.

    This way few queues are in more than one domain, and every domain has pods of all sizes.
    """
    rest = {share.row: share.count for share in shares}
    shares_by_queue: dict[int, list[Share]] = {}
    for number, queue in enumerate(family.queues):
        need = queue.left
        while need and rest:
            row = max(rest, key=rest.__getitem__)
            count = min(need, rest[row])
            shares_by_queue.setdefault(number, []).append(Share(row, count))
            need -= count
            rest[row] -= count
            if not rest[row]:
                del rest[row]
    return shares_by_queue


def purchase_items(draft: PlanDraft, family: Family, to_buy: dict[int, list[Share]], admitted: Mask) -> list[PurchaseItem]:
    """The items of the family for the mix. Pods with constraints on larger domains are bound to the domains that filling chose.

    ``admitted`` are templates that admit the family if its own rules about other pods are ignored.
    """
    whole, keys = bool(family.shape.host_affinity), family.keys
    columns = [draft.room.table.column(key).codes for key in keys]
    domains = {share.row: tuple(int(codes[share.row]) for codes in columns) for shares in to_buy.values() for share in shares}
    everywhere, inside = (
        _KindCache(draft, admitted),
        {domain: _KindCache(draft, admitted & in_domain(draft, columns, domain)) for domain in set(domains.values())},
    )
    items = []
    for number, queue in enumerate(family.queues):
        fits = draft.templates.holds_one(queue.pod_class.spec)
        anywhere = everywhere.kinds(fits)
        if not keys:
            if queue.left:
                announced = 0 if whole or family.volumes else queue.pod_class.announced
                items.append(PurchaseItem(queue, family.at_once(queue.left), anywhere, anywhere, whole, announced))
            continue
        by_domain: dict[tuple[int, ...], int] = {}
        for share in to_buy.get(number, ()):
            domain = domains[share.row]
            by_domain[domain] = by_domain.get(domain, 0) + share.count
        for domain, count in sorted(by_domain.items()):
            items.append(PurchaseItem(queue, count, inside[domain].kinds(fits), anywhere, whole, domain=domain))
    return items


def in_domain(draft: PlanDraft, columns: Sequence[Codes], domain: tuple[int, ...]) -> Mask:
    """Templates with the values ``domain`` in ``columns``."""
    mask: Mask = np.logical_and.reduce([codes[draft.template_rows] == value for codes, value in zip(columns, domain, strict=True)])
    return mask


class _KindCache:
    """The kinds ``among`` some templates that serve a size of pods, cached for all families that may go to the same templates."""

    def __init__(self, draft: PlanDraft, among: Mask) -> None:
        self._templates = draft.templates
        self._among = among
        self._cache = draft.reach.setdefault(among.tobytes(), {})

    def kinds(self, fits: Mask) -> Mask:
        """``fits`` are templates as :meth:`Templates.holds_one` gives them, one object for each size."""
        kinds = self._cache.get(id(fits))
        if kinds is None:
            kinds = self._cache[id(fits)] = self._templates.kinds_within(fits & self._among)
            kinds.setflags(write=False)
        return kinds


def forget(draft: PlanDraft, family: Family) -> None:
    """Remove the phantoms of a family from the templates: machines stand for them now."""
    for spec, share in family.phantoms:
        draft.room.remove(spec, family.model.labels, share.row, share.count)
    family.phantoms.clear()
