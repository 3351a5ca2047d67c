"""Room for pods that are about to leave other machines: what earlier plans promised must not be promised again.

Who is leaving is known, but not where its pods were meant to go, so they get any room that admits them, on machines that would otherwise
look idle first: a machine that was bought to take them looks so until they come.
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


def reserved(situation: Situation, leaving: Set[str]) -> Situation:
    """``situation`` once the pods of ``leaving`` machines have left them, with room taken for those that come back.

    The nodes that give it are ``taken``.
    """
    on_node = situation.cluster.on_node
    here = [pod for name in leaving for pod in on_node.get(name, {}).values()]
    moving = pods_under_way(situation, leaving)
    if not here and not moving:
        return situation
    room = without_pods(situation.room, here)
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
    """The pods on ``leaving`` machines that will need another home, alike ones together, in an order that does not depend on arrival.

    With them are those that have come back and that the scheduler has not tried yet; whoever ends is among these, but for a StatefulSet's
    pod, which comes back only when the old one is gone.
    """
    cluster, policy = situation.cluster, situation.policy
    alike: dict[tuple[str, object], list[Pod]] = {}
    here = (pod for name in sorted(leaving) for pod in cluster.on_node.get(name, {}).values())
    moving = (pod for pod in here if comes_back(pod, situation.now))
    for pod in chain(moving, situation.untried):
        if pod.spec.priority >= policy.priority_cutoff:
            alike.setdefault((pod.spec.digest, pod.labels), []).append(pod)
    return sorted(alike.values(), key=lambda pods: (pods[0].spec.digest, min(pod.key for pod in pods)))


def comes_back(pod: Pod, now: float) -> bool:
    """Whether ``pod``, which leaves, will need room that nothing else stands for yet."""
    if not pod.owner.kind or (pod.deleted and pod.owner.kind != "StatefulSet"):
        return False
    return not leaves_with_machine(pod, now)


def preferred_rows(situation: Situation, room: Room, leaving: Set[str]) -> Array:
    """Open rows: idle machines first, of those the newest."""
    cluster, promised = situation.cluster, promised_nodes(situation)

    def preference(name: str) -> tuple[bool, float, str]:
        return not is_idle(cluster.on_node.get(name, {}).values(), situation.now), -cluster.nodes[name].created, name

    names = [
        node.name
        for node in cluster.nodes.values()
        if node.ready and node.name not in leaving and node.name not in promised and not is_arriving(node, situation.members.get(node.name))
    ]
    return np.array([room.table.row[name] for name in sorted(names, key=preference)], dtype=np.int64)
