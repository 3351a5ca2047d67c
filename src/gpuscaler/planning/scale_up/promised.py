"""Pods that wait for a machine of the ledger: they keep it, unless an open machine has room for them sooner."""

import math
from collections.abc import Mapping, Sequence, Set
from dataclasses import replace
from itertools import islice

import numpy as np

from gpuscaler.model.pods import PodSpec
from gpuscaler.model.table import Mask
from gpuscaler.planning.capacity.existing import CapacitySnapshot
from gpuscaler.planning.demand.pending import Demand, PodClass
from gpuscaler.planning.demand.topology import shape
from gpuscaler.planning.scale_up.draft.draft import ClassPlacement, PlanDraft, row_ranks
from gpuscaler.planning.scale_up.draft.placing import PLENTY, PlacementArea, fill_rows
from gpuscaler.planning.scale_up.draft.scoring import has_preferences
from gpuscaler.planning.scale_up.groups.groups import admitted_by_others, uncertain_machines
from gpuscaler.planning.state import State


def place_promised(draft: PlanDraft, capacity: CapacitySnapshot, state: State, demand: Demand, late: Set[str] = frozenset()) -> Demand:
    """Place pods on the machine of the ledger that was bought for them, as long as they fit; return the rest of the demand.

    The rest includes the ``late`` pods, which are placed after all others, and gangs without a running member in which some member has
    no promised machine.
    """
    promised = {key: row for key, row in promised_rows(capacity, state).items() if key not in late}
    if promised:
        demand = place_sooner(draft, capacity, state, demand, promised.keys())
    while promised:
        since = len(draft.taken)
        demand = place_admitted(draft, demand, promised)
        classes = (*demand.classes, *(pod_class for gang in demand.gangs for pod_class in gang.classes)) if len(draft.taken) > since else ()
        promised = {key: promised[key] for pod_class in classes for key in pod_class.keys if key in promised}
    return demand


def place_late(draft: PlanDraft, capacity: CapacitySnapshot, state: State, demand: Demand) -> Demand:
    """Place late pods on the machine of a closed pool that was bought for them, if it still has room; return the rest of the demand.

    By the size of the machine alone they might not get it: since it was ordered, a cheaper type may have come within reach, and another
    machine would be bought with each such change.
    """
    min_gpus = capacity.inventory.rows.min_gpus
    if min_gpus is None:
        return demand
    promised = {key: row for key, row in promised_rows(capacity, state).items() if min_gpus.by_size[row]}
    left = [place_promised_of_class(draft, pod_class, promised) for pod_class in demand.classes]
    return replace(demand, classes=tuple(pod_class for pod_class in left if pod_class.count))


def promised_rows(capacity: CapacitySnapshot, state: State) -> dict[str, int]:
    """The row of the machine of the ledger that each pod waits for, by the pod's key."""
    rows = capacity.row_of
    return {key: rows[machine.id] for machine in state.upcoming if machine.id in rows for key in machine.pods}


def place_sooner(draft: PlanDraft, capacity: CapacitySnapshot, state: State, demand: Demand, promised: Set[str]) -> Demand:
    """Place ``promised`` pods on open machines of closed pools that have room for them now; return the rest of the demand.

    Where machines are open to all pods, kube-scheduler does that by itself. The machines that these pods waited for then have room for
    others. Pods with rules about other pods or places keep their machine, and so do pods while more important ones have none.
    """
    min_gpus = capacity.inventory.rows.min_gpus
    if min_gpus is None:
        return demand
    sooner = capacity.open_rows & min_gpus.kept
    sooner[[capacity.row_of[machine.id] for machine in state.upcoming if machine.id in capacity.row_of]] = False
    if not sooner.any():
        return demand
    rows, others = np.flatnonzero(sooner), len(draft.room) - len(sooner)
    sooner = np.concatenate((sooner, np.zeros(others, dtype=np.bool_)))
    important = most_important(demand, promised)
    left = []
    for pod_class in demand.classes:
        may = pod_class.spec.priority >= important and may_change_machines(pod_class, state)
        keys = [key for key in pod_class.keys if key in promised] if may else []
        if keys and draft.room.fits(pod_class.spec)[rows].any():
            pod_class = place_on(draft, pod_class, keys, sooner)
        left.append(pod_class)
    return replace(demand, classes=tuple(pod_class for pod_class in left if pod_class.count))


def most_important(demand: Demand, promised: Set[str]) -> float:
    """The least priority that no pod without a promised machine exceeds; pods of gangs come before others of their priority."""
    waiting = [pod_class.spec.priority for pod_class in demand.classes if not promised >= set(pod_class.keys)]
    gangs = [gang.priority + 1 for gang in demand.gangs if any(not promised >= set(pod_class.keys) for pod_class in gang.classes)]
    return max((*waiting, *gangs), default=-math.inf)


def may_change_machines(pod_class: PodClass, state: State) -> bool:
    """Whether pods of a class may go to another machine than promised: they have no rules, and no node refused such pods."""
    spec = pod_class.spec
    return not (has_rules(spec) or has_preferences(spec) or spec.digest in state.refusing)


def has_rules(spec: PodSpec) -> bool:
    """Whether the place of a pod restricts other pods, or theirs restricts it, by more than resources."""
    return bool(spec.spread or spec.affinity or spec.anti_affinity or spec.host_ports or spec.volumes)


def place_on(draft: PlanDraft, pod_class: PodClass, keys: Sequence[str], rows: Mask) -> PodClass:
    """Place as many pods of ``keys`` as possible on ``rows``, the oldest first; return the class without these."""
    keys = sorted(keys, key=lambda key: (draft.cluster.pods[key].created, key))
    nowhere, limits = np.zeros(len(rows), dtype=np.bool_), np.full(len(rows), PLENTY, dtype=np.int64)
    area = PlacementArea(draft.cluster, draft.room, nowhere, rows, row_ranks(draft, pod_class.spec), limits)
    queue = iter(keys)
    placed: set[str] = set()
    for share in fill_rows(area, pod_class, shape(draft.cluster, pod_class), len(keys)):
        first = tuple(islice(queue, share.count))
        draft.taken.append(ClassPlacement(pod_class, share.row, first))
        placed.update(first)
    return replace(pod_class, keys=tuple(key for key in pod_class.keys if key not in placed)) if placed else pod_class


def place_admitted(draft: PlanDraft, demand: Demand, promised: Mapping[str, int]) -> Demand:
    """Place pods on the machine that was promised to them, if the filters admit them now; return the rest of the demand.

    Some pods become admissible only after others are placed (spread, affinity), so the caller repeats this.
    """
    gangs = []
    for gang in demand.gangs:
        if not gang.nodes and any(key not in promised for pod_class in gang.classes for key in pod_class.keys):
            # The machine of a member was lost or refused before any member was placed: another zone may be better for the gang now.
            gangs.append(gang)
            continue
        classes = tuple(place_promised_of_class(draft, pod_class, promised) for pod_class in gang.classes)
        waiting = {key for pod_class in classes for key in pod_class.keys}
        kept = [key for pod_class in gang.classes for key in pod_class.keys if key not in waiting]
        nodes = gang.nodes + tuple(draft.room.table.names[promised[key]] for key in kept)
        if waiting:
            gangs.append(replace(gang, classes=tuple(pod_class for pod_class in classes if pod_class.count), nodes=nodes))
    left = [place_promised_of_class(draft, pod_class, promised) for pod_class in demand.classes]
    return replace(demand, classes=tuple(pod_class for pod_class in left if pod_class.count), gangs=tuple(gangs))


def place_promised_of_class(draft: PlanDraft, pod_class: PodClass, promised: Mapping[str, int]) -> PodClass:
    """Place the promised pods of a class; return the class without them."""
    by_row: dict[int, list[str]] = {}
    for key in pod_class.keys:
        if key in promised:
            by_row.setdefault(promised[key], []).append(key)
    if not by_row:
        return pod_class
    # If the cloud has not chosen the machine yet, a place that was certain when it was ordered may not be certain now.
    unsure = uncertain_machines(draft, pod_class, admitted_by_others(draft, pod_class)) if by_row.keys() & draft.undecided.keys() else None
    kept: set[str] = set()
    spec = pod_class.spec
    # Pods without such rules leave the room on other machines unchanged.
    alone = not has_rules(spec)
    room = draft.room.capacity(spec, pod_class.labels, promised=True)
    counts: dict[int, int] = {}
    for row, keys in sorted(by_row.items()):
        if unsure is not None and unsure[row]:
            continue
        room = room if alone else draft.room.capacity(spec, pod_class.labels, promised=True)
        fitting = tuple(keys[: int(room[row])])
        if fitting:
            counts[row] = len(fitting)
            if not alone:
                draft.room.place(pod_class.spec, pod_class.labels, row, len(fitting))
            draft.taken.append(ClassPlacement(pod_class, row, fitting))
            kept.update(fitting)
    if alone and counts:
        draft.room.place_all(
            pod_class.spec, pod_class.labels, np.array(list(counts), dtype=np.int64), np.array(list(counts.values()), dtype=np.int64)
        )
    return replace(pod_class, keys=tuple(key for key in pod_class.keys if key not in kept)) if kept else pod_class
