"""A scheduler for the embedded cluster: binds pods as kube-scheduler does, and says in its words why it cannot.

The filters are those of planning, which are checked against kube-scheduler's own. Scores are NodeResourcesFit (LeastAllocated) and
NodeResourcesBalancedAllocation over cpu and memory; of equal nodes the first by name is taken, so that a run can be repeated. A nominated
node is tried first, and room that pods of at least the same priority are nominated to is left to them
(``pkg/scheduler/schedule_one.go``, ``RunFilterPluginsWithNominatedPods``; Kubernetes 1.35). Nobody is preempted.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import numpy as np
from msgspec import Struct

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Unreachable
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.resources import CORE_EVENTS, PODS
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import Pod
from gpuscaler.model.table import Array
from gpuscaler.model.taints import untolerated
from gpuscaler.planning.filters import ORDER
from gpuscaler.planning.room import Room

#: A pod that found no node waits so long before it is tried again once something changes, doubled each time, in seconds
#: (``podInitialBackoffSeconds``, ``podMaxBackoffSeconds``), and is tried again in any case after five minutes.
FIRST_BACKOFF, LONGEST_BACKOFF, FLUSH = 1.0, 10.0, 300.0
#: What a pod without requests counts as when nodes are scored: millicores and bytes.
SCORED_CPU, SCORED_MEMORY = 100, 200 * 1024 * 1024
#: What the plug-ins say of a node that they reject.
WORDS = {
    "NodeUnschedulable": "node(s) were unschedulable",
    "NodeAffinity": "node(s) didn't match Pod's node affinity/selector",
    "NodePorts": "node(s) didn't have free ports for the requested pod ports",
    "VolumeRestrictions": "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s) or in use by another pod",
    "NodeVolumeLimits": "node(s) exceed max volume count",
    "VolumeBinding": "node(s) didn't find available persistent volumes to bind",
    "VolumeZone": "node(s) had no available volume zone",
    "PodTopologySpread": "node(s) didn't match pod topology spread constraints",
    "InterPodAffinity": "node(s) didn't match pod affinity/anti-affinity rules",
}


class Try(Struct, gc=False):
    """How often a pod found no node, when last, and whether something has changed since that may help it."""

    many: int
    at: float
    moved: bool = False

    def due(self) -> float:
        """When it is tried again."""
        backoff = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2.0 ** min(self.many - 1, 8))
        return self.at + (backoff if self.moved else FLUSH)


class Binder:
    """Decides where pods of ``cluster`` go, one after the other; nothing is written."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.room = Room.of(cluster)
        self._rows = cluster.table.row
        self._nominated = {
            key: pod for bucket in cluster.unbound.values() for key, pod in bucket.pods.items() if pod.nominated_node in self._rows
        }
        for pod in self._nominated.values():
            self._place(pod, pod.nominated_node)

    def choose(self, pod: Pod) -> str | None:
        """The node for ``pod``, which is taken from then on; None when it fits nowhere."""
        own = self._nominated.pop(pod.key, None)
        if own is not None:
            self._leave(own, own.nominated_node)
        weaker = [other for other in self._nominated.values() if other.spec.priority < pod.spec.priority]
        for other in weaker:
            self._leave(other, other.nominated_node)
        verdict = self.room.verdict(pod.spec, pod.labels)
        rows = np.flatnonzero(verdict.mask)
        found: str | None = None
        if own is not None and verdict.mask[self._rows[own.nominated_node]]:
            found = own.nominated_node
        elif rows.size:
            found = self._best(pod, rows)
        for other in weaker:
            self._place(other, other.nominated_node)
        if found is not None:
            self._place(pod, found)
        return found

    def _best(self, pod: Pod, rows: Array) -> str:
        scores = self._scores(pod, rows)
        names = self.room.table.names
        return min(names[int(row)] for row in rows[scores == scores.max()])

    def _scores(self, pod: Pod, rows: Array) -> Array:
        requests = pod.spec.requests
        wanted = np.array([requests.get("cpu") or SCORED_CPU, requests.get("memory") or SCORED_MEMORY], dtype=np.int64)
        capacity = np.stack([self.room.table.allocatable(name)[rows] for name in ("cpu", "memory")], axis=1)
        free = np.stack([self.room.free(name)[rows] for name in ("cpu", "memory")], axis=1)
        left = np.maximum(0, free - wanted)
        safe = np.maximum(1, capacity)
        fit = (left * 100 // safe).sum(axis=1) // 2
        shares = 1.0 - left / safe
        balanced = ((1.0 - np.abs(shares[:, 0] - shares[:, 1]) / 2.0) * 100.0).astype(np.int64)
        scores: Array = fit + balanced
        return scores

    def _place(self, pod: Pod, node: str) -> None:
        self.room.place(pod.spec, pod.labels, self._rows[node])

    def _leave(self, pod: Pod, node: str) -> None:
        self.room.remove(pod.spec, pod.labels, self._rows[node])

    def why_not(self, pod: Pod) -> str:
        """Why no node takes ``pod``, in kube-scheduler's words."""
        nodes = self.room.table.nodes
        if not nodes:
            return "no nodes available to schedule pods"
        passes = self.room.verdict(pod.spec, pod.labels).passes
        counts: Counter[str] = Counter()
        for row, node in enumerate(nodes):
            name = next((name for name in ORDER if name in passes and not passes[name][row]), "")
            if name == "NodeResourcesFit":
                counts.update(self._short(pod, row))
            elif name == "TaintToleration":
                taint = untolerated(node.taints, pod.spec.tolerations)
                shown = f"{{{taint.key}: {taint.value}}}" if taint is not None else "{}"
                counts[f"node(s) had untolerated taint(s) {shown}" if taint is None else f"node(s) had untolerated taint {shown}"] += 1
            else:
                counts[WORDS.get(name, "node(s) were held by pods that are nominated to them")] += 1
        reasons = ", ".join(sorted(f"{many} {words}" for words, many in counts.items()))
        total = len(nodes)
        helpless = f"preemption: 0/{total} nodes are available: {total} Preemption is not helpful for scheduling."
        return f"0/{total} nodes are available: {reasons}. {helpless}"

    def _short(self, pod: Pod, row: int) -> list[str]:
        """The resources that a node has too little of."""
        short = [
            f"Insufficient {name}" for name, amount in sorted(pod.spec.requests.items()) if amount and self.room.free(name)[row] < amount
        ]
        return ["Too many pods", *short] if self.room.free("pods")[row] < 1 else short or ["Insufficient devices"]


class Scheduler:
    """Binds the pods that name ``scheduler`` and have no node, for as long as :meth:`run` runs.

    ``picture`` must be running; ``now`` is the wall clock in seconds since the epoch, of which ``speed`` seconds pass in a second of the
    event loop.
    """

    def __init__(
        self,
        client: Client,
        picture: Picture,
        *,
        now: Callable[[], float],
        speed: float = 1.0,
        scheduler: str = "default-scheduler",
        abreast: int = 32,
    ) -> None:
        self._client, self._picture, self._now, self._speed, self._name = client, picture, now, speed, scheduler
        self._tries: dict[str, Try] = {}
        #: Bound by us, and not seen bound yet.
        self._assumed: dict[str, str] = {}
        self._slots = asyncio.Semaphore(abreast)
        self._events = 0

    async def run(self) -> None:
        while True:
            await self._changed()
            taken = await self._picture.take()
            if taken.news.kinds:
                for one in self._tries.values():
                    one.moved = True
            await self.turn(taken.cluster)

    async def _changed(self) -> None:
        """Until something changed, or a pod is to be tried again."""
        due = min((one.due() for one in self._tries.values()), default=None)
        try:
            async with asyncio.timeout(None if due is None else max(0.001, (due - self._now()) / self._speed)):
                await self._picture.changed.wait()
        except TimeoutError:
            return

    async def turn(self, cluster: Cluster) -> None:
        """Try every pod whose time has come."""
        now = self._now()
        waiting = {pod.key: pod for pod in self._waiting(cluster)}
        self._tries = {key: one for key, one in self._tries.items() if key in waiting}
        self._assumed = {key: node for key, node in self._assumed.items() if key in waiting}
        queue = [pod for pod in waiting.values() if pod.key not in self._assumed and self._is_due(pod, now)]
        if not queue:
            return
        binder = Binder(cluster)
        for key, node in self._assumed.items():
            if node in cluster.nodes:
                binder.room.place(waiting[key].spec, waiting[key].labels, cluster.table.row[node])
        writes = []
        for pod in sorted(queue, key=lambda one: (-one.spec.priority, one.created, one.key)):
            chosen = binder.choose(pod)
            if chosen is not None:
                self._tries.pop(pod.key, None)
                self._assumed[pod.key] = chosen
                writes.append(self._bind(pod, chosen))
            else:
                before = self._tries.get(pod.key)
                self._tries[pod.key] = Try(1 if before is None else before.many + 1, now)
                writes.append(self._refuse(pod, binder.why_not(pod)))
        await asyncio.gather(*writes)

    def _waiting(self, cluster: Cluster) -> Iterable[Pod]:
        for bucket in cluster.unbound.values():
            for pod in bucket.pods.values():
                if not pod.spec.gates and not pod.deleted and pod.spec.scheduler_name == self._name:
                    yield pod

    def _is_due(self, pod: Pod, now: float) -> bool:
        known = self._tries.get(pod.key)
        # Sums of times are rounded, and a loop that comes a moment too early would come again at once.
        return known is None or known.due() <= now + 0.001

    async def _bind(self, pod: Pod, node: str) -> None:
        async with self._slots:
            try:
                await self._client.bind(pod.namespace, pod.name, node, uid=pod.uid)
            except (ApiError, Unreachable):
                # Tried again when the pod still waits.
                self._assumed.pop(pod.key, None)
                self._tries[pod.key] = Try(1, self._now(), moved=True)

    async def _refuse(self, pod: Pod, why: str) -> None:
        """Say on the pod that it cannot be scheduled, and clear a nomination that led nowhere."""
        moment = timestamp(self._now())
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": why,
            "lastTransitionTime": moment if not pod.unschedulable else timestamp(pod.unschedulable_since or self._now()),
        }
        status: dict[str, Any] = {"conditions": [condition]}
        if pod.nominated_node:
            status["nominatedNodeName"] = None
        async with self._slots:
            try:
                await self._client.merge_patch(
                    PODS, pod.name, {"metadata": {"uid": pod.uid}, "status": status}, namespace=pod.namespace, subresource="status"
                )
                await self._client.create(CORE_EVENTS, self._event(pod, why, moment), namespace=pod.namespace)
            except (ApiError, Unreachable):
                return

    def _event(self, pod: Pod, why: str, moment: str) -> dict[str, Any]:
        self._events += 1
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": f"{pod.name}.{int(self._now() * 1e6):x}.{self._events:x}", "namespace": pod.namespace},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
            "reason": "FailedScheduling",
            "message": why,
            "type": "Warning",
            "source": {"component": self._name},
            "reportingComponent": self._name,
            "firstTimestamp": moment,
            "lastTimestamp": moment,
            "count": 1,
        }


def timestamp(seconds: float) -> str:
    """A moment as the API writes it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
