"""Arrival check: whether pods still find their places when they bind in the order in which their machines arrive.

A draft may decide a pod on a machine to come before a pod on a node that exists, but the pod on the node binds first.
"""

from collections.abc import Sequence

from gpuscaler.planning.scale_up.draft.draft import ClassPlacement, PlanDraft, Stage
from gpuscaler.planning.scale_up.groups.spread_check import gang_of, pods_breaking_skew


def pods_shut_out(draft: PlanDraft, *, spread_checked: bool) -> frozenset[str]:
    """Keys of pods that lose their places to pods that bind before them; without those by topology spread if that is checked already."""
    return pods_losing_volumes(draft).union(() if spread_checked else pods_breaking_skew(draft))


def pods_losing_volumes(draft: PlanDraft) -> frozenset[str]:
    """Keys of pods on machines to come whose claims rely on a free volume that a pod on a node or an earlier machine takes.

    A claim that waits for its first consumer gets the smallest suitable volume that is free when its pod binds.
    """
    if not any(entry.pod_class.spec.volumes for entry in draft.taken) or not draft.room.found_volumes:
        return frozenset()
    later = list(draft.taken)
    later += [ClassPlacement(part.pod_class, machine.row, part.keys) for machine in draft.bought for part in machine.contents]
    room = draft.stages[-1].room.copy()
    losing: set[str] = set()
    for stage in draft.stages:
        binding, later = split_by_arrival(later, stage)
        for entry in binding:
            if entry.pod_class.spec.volumes:
                room.place(entry.pod_class.spec, entry.pod_class.labels, entry.row, len(entry.keys))
        found = room.found_volumes
        if found and later:
            draft.build()
            lost = {claim for volume, claim in draft.room.found_volumes.items() if found.get(volume, claim) != claim}
            losing.update(key for entry in later if not lost.isdisjoint(claim_keys(entry)) for key in entry.keys)
    return frozenset(losing)


def split_by_arrival(entries: Sequence[ClassPlacement], stage: Stage) -> tuple[list[ClassPlacement], list[ClassPlacement]]:
    """The entries that bind on the machines of ``stage``, and the rest. A gang binds when all its machines are there."""

    def is_there(row: int) -> bool:
        return row < len(stage.open_rows) and bool(stage.open_rows[row])

    waiting = {gang_of(entry.pod_class) for entry in entries if entry.pod_class.options.gang and not is_there(entry.row)}
    binding: list[ClassPlacement] = []
    rest: list[ClassPlacement] = []
    for entry in entries:
        (binding if is_there(entry.row) and gang_of(entry.pod_class) not in waiting else rest).append(entry)
    return binding, rest


def claim_keys(entry: ClassPlacement) -> set[str]:
    spec = entry.pod_class.spec
    return {f"{spec.namespace}/{use.claim}" for use in spec.volumes if use.claim}
