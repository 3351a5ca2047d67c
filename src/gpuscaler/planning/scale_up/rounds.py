"""Rounds of scale-up: fill existing and ordered machines, then buy the cheapest mix for the rest."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from itertools import count

from gpuscaler.model.table import Mask
from gpuscaler.planning.demand.pending import PodClass
from gpuscaler.planning.scale_up.draft.buying import CROWD, buy, choose_mix, unmet_by_item, within_reach
from gpuscaler.planning.scale_up.draft.draft import PlanDraft, Queue
from gpuscaler.planning.scale_up.draft.purchase_items import PurchaseItem
from gpuscaler.planning.scale_up.groups.existing_first import settle_on_existing
from gpuscaler.planning.scale_up.groups.groups import Family, assign, families, forget
from gpuscaler.planning.scale_up.groups.ordering import (
    affinity_targets,
    leaders,
    pin_families,
    record_counting_rules,
    side_by_side,
    waits_for_others,
)
from gpuscaler.planning.scale_up.groups.spread_check import families_over_skew, rows_of, spreads

#: How often a round is decided again because limits left a domain short, before families are left out of it.
TRIES = 8


def scale_up(draft: PlanDraft, classes: Sequence[PodClass], only: Mask | None = None, *, bind_at_once: bool = False) -> list[Queue]:
    """Place every pod of ``classes`` that can be placed, on machines that exist, are ordered, or are bought here; return the queues.

    Classes are ordered by priority; within one priority, classes with constraints on larger domains come first, because they have fewer
    choices. Pods that the rules of other pods count are placed before those other pods. Pods that must be near others may fit only after
    the others have machines, so they are tried again as long as that helps. ``only``, one flag per row of the room, restricts where they
    may go (a gang's zone). Pods are first placed on nodes as the scheduler sees them now, unless they all bind at once when all their
    machines are there (``bind_at_once``).
    """
    all_families = families(draft, classes)
    record_counting_rules(draft, all_families)
    ahead = leaders(draft, all_families)
    order = unique([*ahead, *affinity_targets(draft, all_families), *all_families])
    if not bind_at_once:
        settle_on_existing(draft, draft.stages[0], order, only)
    if bind_at_once or not settle_ahead(draft, order, all_families, ahead, only):
        on_all_machines(draft, all_families, ahead, only)
    return [queue for family in all_families for queue in family.queues]


def settle_ahead(
    draft: PlanDraft, order: Sequence[Family], all_families: Sequence[Family], ahead: Sequence[Family], only: Mask | None
) -> bool:
    """Place all pods, ordered machines first, before any new machine is considered; return whether the result holds.

    A bought machine might become ready first, while it is still empty. Families whose spread it would violate are not placed here. If the
    cloud has not chosen the zone of some machine yet, nothing is placed here.
    """
    for stage in draft.stages[1:]:
        if any(row < len(stage.room) for row in draft.undecided):
            break
        turns = list(order)
        while turns:
            saved, since = RoundSnapshot.of(draft, all_families), len(draft.taken)
            settle_on_existing(draft, stage, turns, only)
            early = draft.taken[since:]
            if not early:
                break
            on_all_machines(draft, all_families, ahead, only)
            draft.build()
            late = families_over_skew(draft.room, turns, rows_of(turns, early), draft.template_mask, bought=True)
            if not late:
                return True
            saved.restore(draft)
            for family in all_families:
                family.domain_caps.clear()
            last = {id(family) for family in late}
            turns = [family for family in turns if id(family) not in last]
    return False


def on_all_machines(draft: PlanDraft, all_families: Sequence[Family], ahead: Sequence[Family], only: Mask | None) -> None:
    """Place all remaining pods on machines that exist, are ordered, or are bought here."""
    if sum(len(family.queues) for family in all_families) > CROWD:
        all_families, ahead = pin_families(all_families, ahead), []
    first = {id(family) for family in ahead}
    in_rounds(draft, ahead, only)
    in_rounds(draft, [family for family in all_families if id(family) not in first or (family.left and waits_for_others(family))], only)
    in_rounds(draft, uncertain_families(draft, all_families), only)


def uncertain_families(draft: PlanDraft, all_families: Sequence[Family]) -> list[Family]:
    """Families with unplaced pods that were not placed on machines without a known zone: such a machine is better than none."""
    if not (draft.undecided or draft.templates.cloud_chooses):
        return []
    families = [family for family in all_families if family.left and family.counted_keys]
    for family in families:
        family.counted_keys = frozenset()
    return families


def unique(order: Iterable[Family]) -> list[Family]:
    """``order`` with only the first occurrence of each family."""
    return list({id(family): family for family in order}.values())


def in_rounds(draft: PlanDraft, order: Sequence[Family], only: Mask | None) -> None:
    """Run rounds until no family is left that may be placed after others have been."""
    while order:
        before = sum(family.left for family in order)
        one_round(draft, side_by_side(draft, order), only)
        order = [family for family in order if family.left and waits_for_others(family)]
        if sum(family.left for family in order) == before or not draft.effort.left:
            break


def one_round(draft: PlanDraft, order: Sequence[Family], only: Mask | None) -> None:
    """Assign pods to machines and domains, and buy.

    If limits leave too few machines in a domain, pods may have been placed because of other pods that now have no place (spread, affinity).
    The whole round is then decided again, with at most as many pods in that domain as got a place. A family that still lacks places after
    several tries is left out. A family whose spread is violated by pods placed later is decided after them.
    """
    draft.build()
    order = list(order)
    rivals = len(order) > 1 and any(map(spreads, order))
    for attempt in count():
        saved = RoundSnapshot.of(draft, order) if rivals or draft.remaining.any() or draft.templates.scarce else None
        since = len(draft.taken)
        pairs = [(family, item) for family in order for item in assign(draft, family, only)]
        late = families_over_skew(draft.room, order, rows_of(order, draft.taken[since:]), draft.template_mask) if rivals else []
        for family in order:
            forget(draft, family)
        if late and saved is not None:
            saved.restore(draft)
            last = {id(family) for family in late}
            repeated = (late if attempt < TRIES else late[1:]) if draft.effort.left else []
            order = [family for family in order if id(family) not in last] + repeated
            continue
        left = buy_for(draft, [item for _, item in pairs])
        short = [family for (family, item), missing in zip(pairs, left, strict=True) if missing and item.domain is not None]
        if not short or saved is None:
            break
        lower_caps(short, pairs, left)
        saved.restore(draft)
        # Leave out more families with each try: many families under a limit may leave hundreds short.
        dropped = {id(family) for family in (short[: max(0, attempt + 1 - TRIES)] if draft.effort.left else short)}
        order = [family for family in order if id(family) not in dropped]


@dataclass(frozen=True)
class RoundSnapshot:
    """A copy of the draft, the queues and the families' ``counted_keys`` keys, to return to."""

    draft: PlanDraft
    queues: tuple[tuple[Queue, int], ...]
    counted_keys: tuple[tuple[Family, frozenset[str]], ...]

    @classmethod
    def of(cls, draft: PlanDraft, order: Sequence[Family]) -> "RoundSnapshot":
        queues = tuple((queue, queue.taken) for family in order for queue in family.queues)
        return cls(draft.copy(), queues, tuple((family, family.counted_keys) for family in order))

    def restore(self, draft: PlanDraft) -> None:
        for name in (entry.name for entry in fields(PlanDraft)):
            setattr(draft, name, getattr(self.draft, name))
        for queue, taken in self.queues:
            queue.taken = taken
        for family, counted in self.counted_keys:
            family.counted_keys = counted


def lower_caps(short: Sequence[Family], pairs: Sequence[tuple[Family, PurchaseItem]], left: Sequence[int]) -> None:
    """Limit each family, in every domain that left it short, to the number of pods it got there."""
    for family in short:
        met: dict[tuple[int, ...], list[int]] = {}
        for (other, item), missing in zip(pairs, left, strict=True):
            if other is family and item.domain is not None:
                met.setdefault(item.domain, [0, 0])
                met[item.domain][0] += item.count - missing
                met[item.domain][1] += missing
        family.domain_caps.update({domain: got for domain, (got, missing) in met.items() if missing})


def buy_for(draft: PlanDraft, items: Sequence[PurchaseItem]) -> list[int]:
    """Buy for ``items``, pools of the highest priority first; the next tier gets the rest. Return the rest of each item."""
    left = [item.count for item in items]
    for tier in sorted(set(draft.templates.tiers.tolist()), reverse=True):
        reach = within_reach(draft, tier)
        near = items if reach.all() else [replace(item, allowed=item.allowed & reach) for item in items]
        open_items = [(index, replace(item, count=left[index])) for index, item in enumerate(near) if left[index] and item.allowed.any()]
        if not open_items:
            continue
        tier_items = [item for _, item in open_items]
        solved = choose_mix(draft, tier_items, work=draft.work)
        buy(draft, solved, tier_items)
        missing = unmet_by_item(solved.solution, tier_items)
        for position, (index, _) in enumerate(open_items):
            left[index] = missing.get(position, 0)
    return left
