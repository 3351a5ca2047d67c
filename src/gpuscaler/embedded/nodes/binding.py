"""Chooses nodes for pods as kube-scheduler does, one pod after the other; nothing is written.

The filters are those of planning, which are checked against kube-scheduler's own. The scores are those of the simulation's model of it,
and NodeAffinity's; of equal nodes the first by name is taken, so that a run can be repeated. A nominated node is tried first, and room
for nominated pods of at least the same priority is left to them (``pkg/scheduler/schedule_one.go``,
``RunFilterPluginsWithNominatedPods``). The message for a pod that fits nowhere has the form of Kubernetes 1.35.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

import numpy as np

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import Pod, PodSpec
from gpuscaler.model.table import Array, Mask
from gpuscaler.planning.feasibility import ORDER
from gpuscaler.planning.feasibility.snapshot import Room
from gpuscaler.simulation.world.scoring import AFFINITY_WEIGHT, TAINT_WEIGHT, affinity_scores, resource_scores, taint_scores

#: The effect of taints that only lower a score.
SOFT: Final = "PreferNoSchedule"
#: The plug-ins' messages for a node that they reject.
WORDS: Final = {
    "NodeUnschedulable": "node(s) were unschedulable",
    "TaintToleration": "node(s) had untolerated taint(s)",
    "NodeAffinity": "node(s) didn't match Pod's node affinity/selector",
    "NodePorts": "node(s) didn't have free ports for the requested pod ports",
    "VolumeRestrictions": "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s) or in use by another pod",
    "NodeVolumeLimits": "node(s) exceed max volume count",
    "VolumeBinding": "node(s) didn't find available persistent volumes to bind",
    "VolumeZone": "node(s) had no available volume zone",
    "PodTopologySpread": "node(s) didn't match pod topology spread constraints",
    "InterPodAffinity": "node(s) didn't match pod affinity/anti-affinity rules",
}
HELD: Final = "node(s) were held by pods that are nominated to them"
#: Filters whose rejection no eviction can change (``UnschedulableAndUnresolvable``).
UNRESOLVABLE: Final = frozenset({"NodeUnschedulable", "TaintToleration", "NodeAffinity", "VolumeBinding", "VolumeZone"})
HELPLESS: Final = "Preemption is not helpful for scheduling"
NO_VICTIMS: Final = "No preemption victims found for incoming pod"


class Binder:
    """Chooses nodes for the pods of ``cluster``, one pod after the other; nothing is written."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.room = Room.of(cluster)
        self._rows = cluster.table.row
        self._nominated = {
            key: pod for bucket in cluster.unbound.values() for key, pod in bucket.pods.items() if pod.nominated_node in self._rows
        }
        for pod in self._nominated.values():
            self._place(pod, pod.nominated_node)
        soft = ((row, tuple(taint for taint in node.taints if taint.effect == SOFT)) for row, node in enumerate(self.room.table.nodes))
        self._softly_tainted = {row: taints for row, taints in soft if taints}

    def choose(self, pod: Pod) -> str | None:
        """The node for ``pod``, whose resources are used from then on; None if it fits nowhere."""
        own = self._nominated.pop(pod.key, None)
        if own is not None:
            self._unplace(own, own.nominated_node)
        weaker = [other for other in self._nominated.values() if other.spec.priority < pod.spec.priority]
        for other in weaker:
            self._unplace(other, other.nominated_node)
        verdict = self.room.verdict(pod.spec, pod.labels)
        chosen: str | None = None
        if own is not None and verdict.mask[self._rows[own.nominated_node]]:
            chosen = own.nominated_node
        elif verdict.mask.any():
            chosen = min(self._best(pod, verdict.mask))
        for other in weaker:
            self._place(other, other.nominated_node)
        if chosen is not None:
            self._place(pod, chosen)
        return chosen

    def best(self, pod: Pod) -> list[str]:
        """The nodes with the best score for ``pod``, of which kube-scheduler draws one; empty if it fits nowhere. No resources are used up.

        The room of nominated pods counts as used, whatever their priority.
        """
        mask = self.room.verdict(pod.spec, pod.labels).mask
        return self._best(pod, mask) if mask.any() else []

    def _best(self, pod: Pod, mask: Mask) -> list[str]:
        rows = np.flatnonzero(mask)
        scores = self._scores(pod, rows)
        names = self.room.table.names
        return [names[int(row)] for row in rows[scores == scores.max()]]

    def _scores(self, pod: Pod, rows: Array) -> Array:
        spec, table = pod.spec, self.room.table
        capacity = np.stack([table.allocatable(name)[rows] for name in ("cpu", "memory")], axis=1)
        free = np.stack([self.room.free(name)[rows] for name in ("cpu", "memory")], axis=1)
        request = np.array([spec.requests.get("cpu", 0), spec.requests.get("memory", 0)], dtype=np.int64)
        scores = resource_scores(capacity, free, request)
        if self._softly_tainted:
            scores = scores + TAINT_WEIGHT * taint_scores(np.array([self._soft_taints(spec, int(row)) for row in rows], dtype=np.int64))
        if spec.preferred_nodes:
            nodes = [table.nodes[int(row)] for row in rows]
            met = [sum(weight for weight, term in spec.preferred_nodes if term.matches(node.labels, node.name)) for node in nodes]
            scores = scores + AFFINITY_WEIGHT * affinity_scores(np.array(met, dtype=np.int64))
        return scores

    def _soft_taints(self, spec: PodSpec, row: int) -> int:
        """The number of soft taints of a node that a pod does not tolerate."""
        taints = self._softly_tainted.get(row, ())
        return sum(not any(toleration.tolerates(taint) for toleration in spec.tolerations) for taint in taints)

    def _place(self, pod: Pod, node: str) -> None:
        self.room.place(pod.spec, pod.labels, self._rows[node])

    def _unplace(self, pod: Pod, node: str) -> None:
        self.room.remove(pod.spec, pod.labels, self._rows[node])

    def why_not(self, pod: Pod) -> str:
        """Why no node takes ``pod``, in kube-scheduler's words."""
        nodes = self.room.table.nodes
        if not nodes:
            return "no nodes available to schedule pods"
        passes = self.room.verdict(pod.spec, pod.labels).passes
        counts: Counter[str] = Counter()
        preemption: Counter[str] = Counter()
        too_small = self._too_small(pod)
        for row in range(len(nodes)):
            name = next((name for name in ORDER if name in passes and not passes[name][row]), "")
            if name == "NodeResourcesFit":
                counts.update(self._short(pod, row))
            else:
                counts[WORDS.get(name, HELD)] += 1
            preemption[HELPLESS if name in UNRESOLVABLE or too_small[row] else NO_VICTIMS] += 1
        available = f"0/{len(nodes)} nodes are available"
        return f"{available}: {_listed(counts)}. no new claims to deallocate, preemption: {available}: {_listed(preemption)}."

    def _too_small(self, pod: Pod) -> Mask:
        """Nodes that could not take a pod even if they were empty."""
        table = self.room.table
        short: Mask = np.zeros(len(table), dtype=np.bool_)
        for name, amount in pod.spec.requests.items():
            short |= table.allocatable(name) < amount
        return short

    def _short(self, pod: Pod, row: int) -> list[str]:
        """The resources that a node has too little of."""
        short = [
            f"Insufficient {name}" for name, amount in sorted(pod.spec.requests.items()) if amount and self.room.free(name)[row] < amount
        ]
        return ["Too many pods", *short] if self.room.free("pods")[row] < 1 else short or ["Insufficient devices"]


def _listed(counts: Mapping[str, int]) -> str:
    return ", ".join(sorted(f"{many} {words}" for words, many in counts.items()))
