"""The order of families: which are placed first, and which only after others have their machines."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain

from gpuscaler.model.pods import PodAffinityTerm
from gpuscaler.model.selector_index import LabelIndex
from gpuscaler.model.selectors import LabelSelector
from gpuscaler.model.well_known import HOSTNAME
from gpuscaler.planning.demand.topology import selects, spreads_over
from gpuscaler.planning.scale_up.draft.draft import PlanDraft
from gpuscaler.planning.scale_up.groups.existing_first import depends_on_others
from gpuscaler.planning.scale_up.groups.groups import Family


def waits_for_others(family: Family) -> bool:
    """Whether unplaced pods of a family may become placeable after others are placed."""
    return bool(family.model.spec.affinity or family.volumes)


def side_by_side(draft: PlanDraft, order: Sequence[Family]) -> list[Family]:
    """Families that may be placed in one round: only the first of those that share a volume or must share a machine."""
    busy: set[str] = set()
    later: set[int] = set()
    beside = neighbours(draft, order)
    families = []
    for family in order:
        if busy.isdisjoint(family.volumes) and id(family) not in later:
            families.append(family)
            busy |= family.volumes
            later |= beside.get(id(family), set())
    return families


def neighbours(draft: PlanDraft, order: Sequence[Family]) -> Mapping[int, set[int]]:
    """Pairs of families, by ``id``, that both have host affinity, one of them to the other: they must not start on two machines."""
    starting = [family for family in order if family.shape.host_affinity]
    index = _Index(starting)
    pairs: dict[int, set[int]] = {}
    for family in starting if len(starting) > 1 else ():
        for other in index.sought(draft, family.shape.host_affinity):
            if other is not family:
                pairs.setdefault(id(family), set()).add(id(other))
                pairs.setdefault(id(other), set()).add(id(family))
    return pairs


def affinity_targets(draft: PlanDraft, all_families: Sequence[Family]) -> list[Family]:
    """Families without rules about others that some family must be near, unless their priority is lower.

    They may land on a node at any time, and the families that must be near them follow.
    """
    seeking = [family for family in all_families if family.model.spec.affinity]
    index = _Index(all_families if seeking else ())
    sought_ids = {
        id(other)
        for family in seeking
        for other in index.sought(draft, family.model.spec.affinity)
        if not depends_on_others(other) and other.model.spec.priority >= family.model.spec.priority
    }
    return [family for family in all_families if id(family) in sought_ids]


def leaders(draft: PlanDraft, all_families: Sequence[Family]) -> list[Family]:
    """Families whose pods are counted by the rules of others, but that have no such rule themselves.

    They may go anywhere at any time, so families that count them (spread) must be decided after them. Where limits are set, they do not go
    before pods of higher priority. Families that keep away from them (anti-affinity) go first unless their priority is lower.
    Among the leaders, too, a counted family comes before those that count it, unless they count each other in a circle.
    """
    watchers = [family for family in all_families if family.shape.host_spread or family.shape.wide]
    index = _Index(all_families) if watchers else None
    bounded = draft.remaining.any()
    leader_ids: set[int] = set()
    counted: dict[int, list[Family]] = {}
    for family in watchers:
        assert index is not None
        own = family.model.spec.priority
        for constraint in (constraint for constraint in family.model.spec.spread if constraint.hard and constraint.selector is not None):
            for other in index.candidates(family.model.spec.namespace, constraint.selector):
                lower = bounded and other.model.spec.priority < own
                # A family that is counted by host and itself counts by zone is decided later.
                joint = constraint in other.model.spec.spread or (constraint.topology_key == HOSTNAME and other.shape.wide)
                if other is not family and not lower and not joint and spreads_over(constraint, family.model, other.model):
                    leader_ids.add(id(other))
                    counted.setdefault(id(family), []).append(other)
        for term in family.model.spec.anti_affinity:
            higher = (other for other in all_families if other.model.spec.priority > own and not other.shape.wide)
            leader_ids.update(id(other) for other in higher if selects(draft.cluster, term, other.model))
    return counted_first([family for family in all_families if id(family) in leader_ids], counted)


def counted_first(order: Sequence[Family], counted: Mapping[int, Sequence[Family]]) -> list[Family]:
    """``order`` with the families that a family counts, by its ``id``, ahead of it."""
    visited: set[int] = set()
    families = []
    for first in order:
        waiting = [(first, False)]
        while waiting:
            family, ready = waiting.pop()
            if ready:
                families.append(family)
            elif id(family) not in visited:
                visited.add(id(family))
                waiting.append((family, True))
                waiting += [(other, False) for other in reversed(counted.get(id(family), ()))]
    return families


def record_counting_rules(draft: PlanDraft, all_families: Sequence[Family]) -> None:
    """Record for every family the topology keys by which the rules of others see it, and one constraint that counts it by domain."""
    index = _Index(all_families)
    for family in (family for family in all_families if family.shape.wide):
        spec = family.model.spec
        for constraint in (constraint for constraint in spec.spread if constraint.hard and constraint.topology_key != HOSTNAME):
            for other in index.candidates(spec.namespace, constraint.selector):
                if constraint.topology_key not in other.counted_keys and spreads_over(constraint, family.model, other.model):
                    other.counted_keys |= {constraint.topology_key}
                    other.matched_keys |= other.counted_keys
                    other.counting_rule = other.counting_rule or (constraint, family.model)
        for term in (term for term in spec.affinity + spec.anti_affinity if term.topology_key != HOSTNAME):
            for other in index.sought(draft, (term,)):
                other.matched_keys |= {term.topology_key}


def pin_families(all_families: Sequence[Family], first: Sequence[Family]) -> list[Family]:
    """All families in one order, ``first`` ahead and bound to domains by the keys that others count them by.

    Used when nearly every family counts another: all families then share one mix, while placing them in turn would need many mixes.
    """
    keys = {constraint.topology_key for family in all_families for constraint in family.model.spec.spread if constraint.hard} - {HOSTNAME}
    ahead = {id(family) for family in first if not family.shape.wide}
    for family in all_families:
        family.pinned_keys = tuple(sorted(keys)) if id(family) in ahead else ()
    return [family for family in all_families if id(family) in ahead] + [family for family in all_families if id(family) not in ahead]


class _Index:
    """Index of families by namespace and label, to find those that a selector may match without checking all."""

    def __init__(self, all_families: Sequence[Family]) -> None:
        self._every = all_families
        self._index = LabelIndex((family.model.spec.namespace, family.model.labels) for family in all_families)

    def candidates(self, namespace: str, selector: LabelSelector | None) -> Iterator[Family]:
        return (self._every[number] for number in self._index.candidates(namespace, selector))

    def sought(self, draft: PlanDraft, terms: Iterable[PodAffinityTerm]) -> Iterator[Family]:
        """Families that any of ``terms`` matches; a family may occur more than once."""
        for term in terms:
            near = [self.candidates(namespace, term.selector) for namespace in term.namespaces]
            for other in self._every if term.namespace_selector is not None else chain(*near):
                if selects(draft.cluster, term, other.model):
                    yield other
