"""Rooms in all of which a move must be possible, since the order of events is unknown.

A plan includes pods that are not there yet: it places pending pods, and reserves room for pods that are about to leave other machines.
Machines that leave also take pods with them that are not recreated. Such pods are assumed to occupy room and to keep others away, but no
other pod may rely on their presence. For the same reason kube-scheduler filters twice when pods are nominated to a node, with them and
without (``RunFilterPluginsWithNominatedPods`` in ``pkg/scheduler/framework/runtime``).
"""

from collections.abc import Iterable, Iterator, Set

from gpuscaler.model.labels import LabelSet
from gpuscaler.model.pods import Pod, PodSpec
from gpuscaler.planning.capacity.idle import leaves_with_machine
from gpuscaler.planning.feasibility.pods.peers import PeerIndex
from gpuscaler.planning.feasibility.snapshot import Room, Verdict
from gpuscaler.planning.scale_down.contract import Situation
from gpuscaler.planning.scale_down.moves.rules import rules_of
from gpuscaler.planning.scale_down.pod_classes import RunningClass


class PossibleRooms:
    """Rooms over the same rows that change together. In the first, ``planned``, all expected pods and machines have arrived."""

    def __init__(self, planned: Room, others: Iterable[Room] = ()) -> None:
        self._rooms = (planned, *others)

    @classmethod
    def of(cls, situation: Situation, classes: Iterable[RunningClass], leaving: Set[str]) -> "PossibleRooms":
        """The rooms for pods of ``classes``; ``leaving`` are the nodes that this plan may remove."""
        others = [] if situation.present is None else [situation.present]
        lost = list(lost_peers(situation, classes, leaving))
        if lost:
            others.append(without_pods(situation.room, lost))
        return cls(situation.room, others)

    def __len__(self) -> int:
        return len(self._rooms)

    @property
    def planned(self) -> Room:
        return self._rooms[0]

    def copy(self) -> "PossibleRooms":
        planned, *others = [room.copy() for room in self._rooms]
        return PossibleRooms(planned, others)

    def verdict(self, spec: PodSpec, labels: LabelSet) -> Verdict:
        """The rows that admit a pod in every room; a filter passes a row only if it does so in all of them."""
        first, *others = [room.verdict(spec, labels) for room in self._rooms]
        mask, passes = first.mask, dict(first.passes)
        for other in others:
            mask = mask & other.mask
            for name, passing in other.passes.items():
                passes[name] = passes[name] & passing if name in passes else passing
        return Verdict(mask, passes)

    def place(self, spec: PodSpec, labels: LabelSet, row: int) -> None:
        for room in self._rooms:
            room.place(spec, labels, row)

    def remove(self, spec: PodSpec, labels: LabelSet, row: int) -> None:
        for room in self._rooms:
            room.remove(spec, labels, row)


def without_pods(room: Room, pods: Iterable[Pod]) -> Room:
    """A copy of ``room`` without ``pods``, all of them bound."""
    room = room.copy()
    for pod in pods:
        if not pod.finished:
            room.remove(pod.spec, pod.labels, room.table.row[pod.node_name], terminating=pod.deleted > 0)
    return room


def lost_peers(situation: Situation, classes: Iterable[RunningClass], leaving: Set[str]) -> Iterator[Pod]:
    """Pods that leave with ``leaving`` nodes and are not replaced, and that affinity or spread rules of ``classes`` rely on."""
    cluster, policy = situation.cluster, situation.policy
    queries = {
        peer_rule.query for running_class in classes for peer_rule in rules_of(running_class.spec, pending=False) if not peer_rule.repels
    }
    if not queries:
        return
    index = PeerIndex(situation.room.table, cluster)
    peers = {peer for query in queries for peer in index.candidates(query) if index.match((query,), peer)}
    nodes = {name for peer in peers for name in cluster.peers[peer]} & leaving
    wanted = {(peer.namespace, peer.labels) for peer in peers}
    for name in nodes:
        for pod in cluster.on_node.get(name, {}).values():
            goes = pod.spec.priority < policy.priority_cutoff or leaves_with_machine(pod, situation.now)
            if goes and (pod.namespace, pod.labels) in wanted:
                yield pod
