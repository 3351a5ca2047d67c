"""``preferences: respect``: preferences of pods are treated as requirements, and given up where they cannot be met.

The preference with the lowest weight is given up first.
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from itertools import count

import msgspec

from gpuscaler.model.pods import PodAffinityTerm, PodSpec
from gpuscaler.planning.demand.pending import Gang, PodClass
from gpuscaler.planning.scale_up.draft.draft import ClassPlacement, PlanDraft, Queue
from gpuscaler.planning.scale_up.gangs import UnplacedGang, settle_gang
from gpuscaler.planning.scale_up.rounds import scale_up

#: A preferred spread has no weight in Kubernetes; it weighs more than any preferred affinity here, and is given up last.
SPREAD_WEIGHT = 101


def preferences(spec: PodSpec) -> list[tuple[int, str, int]]:
    """All preferences of ``spec``, as (weight, field, index), the heaviest first."""
    weighted = [(weight, "preferred_nodes", index) for index, (weight, _) in enumerate(spec.preferred_nodes)]
    for name in ("preferred_affinity", "preferred_anti_affinity"):
        weighted += [(term.weight, name, index) for index, term in enumerate(getattr(spec, name))]
    weighted += [(SPREAD_WEIGHT, "spread", index) for index, constraint in enumerate(spec.spread) if not constraint.hard]
    return sorted(weighted, key=lambda entry: (-entry[0], entry[1:]))


#: More preferences than any pod has.
ALL = 1 << 30


def with_requirements(spec: PodSpec, kept: Set[tuple[str, int]]) -> PodSpec:
    """``spec`` with its ``kept`` preferences as requirements, except preferred node affinity.

    Node affinity decides which domains topology spread counts, so a preference must not become required node affinity.
    """

    def terms(name: str) -> tuple[PodAffinityTerm, ...]:
        return tuple(term for index, term in enumerate(getattr(spec, name)) if (name, index) in kept)

    return msgspec.structs.replace(
        spec,
        digest=f"{spec.digest}:prefers-{len(kept)}",
        affinity=spec.affinity + terms("preferred_affinity"),
        anti_affinity=spec.anti_affinity + terms("preferred_anti_affinity"),
        spread=tuple(
            msgspec.structs.replace(constraint, hard=True) if ("spread", index) in kept else constraint
            for index, constraint in enumerate(spec.spread)
        ),
    )


def place_classes_by_preference(draft: PlanDraft, classes: Sequence[PodClass]) -> list[Queue]:
    """Like :func:`~gpuscaler.planning.scale_up.rounds.scale_up`, with preferences respected; higher priorities are placed first."""
    queues: list[Queue] = []
    for priority in sorted({pod_class.spec.priority for pod_class in classes}, reverse=True):
        waiting = [pod_class for pod_class in classes if pod_class.spec.priority == priority]
        for given_up in count():
            pairs = [HardenedClass(hardened_class(pod_class, given_up if draft.effort.left else ALL), pod_class) for pod_class in waiting]
            taken, bought = len(draft.taken), len(draft.bought)
            hard_queues = scale_up(draft, [pair.hard for pair in pairs])
            soften(draft, pairs, taken=taken, bought=bought)
            if all(pair.hard is pair.plain for pair in pairs):
                queues += hard_queues
                break
            plain = {id(pair.hard): pair.plain for pair in pairs}
            waiting = [
                replace(plain[id(queue.pod_class)], keys=queue.pod_class.keys[queue.taken :], announced=0)
                for queue in hard_queues
                if queue.left
            ]
    return queues


def place_gang_by_preference(draft: PlanDraft, gang: Gang) -> tuple[PlanDraft, list[UnplacedGang]]:
    """Like :func:`~gpuscaler.planning.scale_up.gangs.settle_gang`, with preferences respected: all members give up equally many."""
    for given_up in count():
        pairs = [HardenedClass(hardened_class(pod_class, given_up if draft.effort.left else ALL), pod_class) for pod_class in gang.classes]
        placed, refused = settle_gang(draft, replace(gang, classes=tuple(pair.hard for pair in pairs)))
        if not refused:
            soften(placed, pairs, taken=len(draft.taken), bought=len(draft.bought))
        if not refused or all(pair.hard is pair.plain for pair in pairs):
            break
    return placed, refused


@dataclass(frozen=True)
class HardenedClass:
    """A class with its preferences as requirements, and the original class."""

    hard: PodClass
    plain: PodClass


def hardened_class(pod_class: PodClass, given_up: int) -> PodClass:
    """``pod_class`` with its preferences as requirements, except the ``given_up`` lightest ones."""
    weighted = preferences(pod_class.spec)
    kept = {(name, index) for _, name, index in weighted[: max(0, len(weighted) - given_up)]}
    if not kept:
        return pod_class
    wishes = tuple(term for index, (_, term) in enumerate(pod_class.spec.preferred_nodes) if ("preferred_nodes", index) in kept)
    return replace(pod_class, spec=with_requirements(pod_class.spec, kept), wishes=wishes)


def soften(draft: PlanDraft, pairs: Sequence[HardenedClass], *, taken: int, bought: int) -> None:
    """Replace the hardened classes by the original ones in all entries after the first ``taken`` and ``bought``.

    A preference of a placed pod must not keep other pods away from it.
    """
    plain = {id(pair.hard): pair.plain for pair in pairs if pair.hard is not pair.plain}
    if not plain:
        return
    for index in range(taken, len(draft.taken)):
        entry = draft.taken[index]
        pod_class = plain.get(id(entry.pod_class), entry.pod_class)
        exchange(draft, entry.pod_class, pod_class, row=entry.row, copies=len(entry.keys))
        draft.taken[index] = ClassPlacement(pod_class, entry.row, entry.keys)
    for index in range(bought, len(draft.bought)):
        machine = draft.bought[index]
        inside = tuple(replace(part, pod_class=plain.get(id(part.pod_class), part.pod_class)) for part in machine.contents)
        if index < draft.built:
            for part, now in zip(machine.contents, inside, strict=True):
                exchange(draft, part.pod_class, now.pod_class, row=machine.row, copies=len(part.keys))
        draft.bought[index] = replace(machine, contents=inside)
    for pair in pairs:
        if id(pair.hard) in draft.relaxed:
            draft.relaxed[id(pair.plain)] = draft.relaxed[id(pair.hard)]


def exchange(draft: PlanDraft, old: PodClass, new: PodClass, *, row: int, copies: int) -> None:
    if new is not old:
        draft.room.remove(old.spec, old.labels, row, copies)
        draft.room.place(new.spec, new.labels, row, copies)
