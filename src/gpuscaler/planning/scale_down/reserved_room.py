"""Reserves room for pods that are about to leave other machines, so that room promised by earlier plans is not promised again.

The leaving machines are known, but not where their pods were meant to go. So the pods get any room that admits them, on idle machines
first: a machine that was bought for them looks idle until they arrive.
"""

from collections.abc import Set
from dataclasses import replace
from itertools import chain

import numpy as np

from gpuscaler.model.pods import Pod
from gpuscaler.model.table import Array
from gpuscaler.planning.capacity.idle import is_idle, leaves_with_machine
from gpuscaler.planning.feasibility.snapshot import Room
from gpuscaler.planning.scale_down.blockers import is_arriving, promised_nodes
from gpuscaler.planning.scale_down.contract import Situation
from gpuscaler.planning.scale_down.moves.possible_rooms import without_pods


def reserve_room(situation: Situation, leaving: Set[str]) -> Situation:
    """``situation`` after the pods of ``leaving`` machines have left them, with room reserved for those that are recreated.

    The nodes with reserved room are added to ``taken``.
    """
    on_node = situation.cluster.on_node
    leaving_pods = [pod for name in leaving for pod in on_node.get(name, {}).values()]
    moving = pods_under_way(situation, leaving)
    if not leaving_pods and not moving:
        return situation
    room = without_pods(situation.room, leaving_pods)
    order = preferred_rows(situation, room, leaving)
    taken: set[int] = set()
    for pods in moving:
        capacity = room.capacity(pods[0].spec, pods[0].labels)[order]
        before = np.cumsum(capacity) - capacity
        counts = np.clip(len(pods) - before, 0, capacity)
        used = np.flatnonzero(counts)
        room.place_all(pods[0].spec, pods[0].labels, order[used], counts[used])
        taken.update(order[used].tolist())
    names = frozenset(room.table.names[row] for row in taken)
    return replace(situation, room=room, present=situation.present or situation.room, taken=situation.taken | names)


def pods_under_way(situation: Situation, leaving: Set[str]) -> list[list[Pod]]:
    """The pods on ``leaving`` machines that will need room elsewhere, identical ones together, in an order independent of arrival.

    They include recreated pods that the scheduler has not tried yet. A terminating pod has its successor among these and is not counted
    itself, except a StatefulSet's pod, which is recreated only when the old one is gone.
    """
    cluster, policy = situation.cluster, situation.policy
    alike: dict[tuple[str, object], list[Pod]] = {}
    leaving_pods = (pod for name in sorted(leaving) for pod in cluster.on_node.get(name, {}).values())
    moving = (pod for pod in leaving_pods if needs_other_room(pod, situation.now))
    for pod in chain(moving, situation.untried):
        if pod.spec.priority >= policy.priority_cutoff:
            alike.setdefault((pod.spec.digest, pod.labels), []).append(pod)
    return sorted(alike.values(), key=lambda pods: (pods[0].spec.digest, min(pod.key for pod in pods)))


def needs_other_room(pod: Pod, now: float) -> bool:
    """Whether ``pod``, which leaves its machine, will need room and has no recreated pod yet that stands for it."""
    if not pod.owner.kind or (pod.deleted and pod.owner.kind != "StatefulSet"):
        return False
    return not leaves_with_machine(pod, now)


def preferred_rows(situation: Situation, room: Room, leaving: Set[str]) -> Array:
    """Rows that are open: idle machines first, and then the newest first."""
    cluster, promised = situation.cluster, promised_nodes(situation)

    def preference(name: str) -> tuple[bool, float, str]:
        return not is_idle(cluster.on_node.get(name, {}).values(), situation.now), -cluster.nodes[name].created, name

    names = [
        node.name
        for node in cluster.nodes.values()
        if node.ready and node.name not in leaving and node.name not in promised and not is_arriving(node, situation.members.get(node.name))
    ]
    return np.array([room.table.row[name] for name in sorted(names, key=preference)], dtype=np.int64)
