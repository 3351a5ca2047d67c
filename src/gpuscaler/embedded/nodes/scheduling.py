"""A scheduler for the embedded cluster: it binds pods like kube-scheduler, and reports failures in its words. There is no preemption."""

import asyncio
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, NamedTuple

from msgspec import Struct

from gpuscaler.embedded.nodes.binding import Binder
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Unreachable
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.resources import CORE_EVENTS, PODS
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import Pod

#: How long an unschedulable pod waits before it is tried again after a change, doubled each time, in seconds
#: (``podInitialBackoffSeconds``, ``podMaxBackoffSeconds``). It is tried again in any case after five minutes.
FIRST_BACKOFF, LONGEST_BACKOFF, FLUSH = 1.0, 10.0, 300.0


class SchedulingAttempt(Struct, gc=False):
    """How often no node was found for a pod, when last, and whether something has changed since that may help it."""

    many: int
    at: float
    moved: bool = False

    def due(self) -> float:
        """When it is tried again."""
        backoff = min(LONGEST_BACKOFF, FIRST_BACKOFF * 2.0 ** min(self.many - 1, 8))
        return self.at + (backoff if self.moved else FLUSH)


class FailedScheduling(NamedTuple):
    """The Event that says why no node was found for a pod, and how often."""

    event: str
    pod: str
    why: str
    times: int


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
        self._tries: dict[str, SchedulingAttempt] = {}
        self._said: dict[str, FailedScheduling] = {}
        #: Pods that we have bound and that the watch has not shown as bound yet.
        self._assumed: dict[str, str] = {}
        self._slots = asyncio.Semaphore(abreast)
        self._events = 0

    async def run(self) -> None:
        while True:
            await self._wait_for_change()
            taken = await self._picture.take()
            if taken.kinds:
                for attempt in self._tries.values():
                    attempt.moved = True
            await self.turn(taken.cluster)

    async def _wait_for_change(self) -> None:
        """Wait until something has changed, or until a pod is to be tried again."""
        due = min((attempt.due() for attempt in self._tries.values()), default=None)
        try:
            async with asyncio.timeout(None if due is None else max(0.001, (due - self._now()) / self._speed)):
                await self._picture.changed.wait()
        except TimeoutError:
            return

    async def turn(self, cluster: Cluster) -> None:
        """Try every pod that is due."""
        now = self._now()
        waiting = {pod.key: pod for pod in self._waiting(cluster)}
        self._tries = {key: attempt for key, attempt in self._tries.items() if key in waiting}
        self._said = {key: failure for key, failure in self._said.items() if key in waiting}
        self._assumed = {key: node for key, node in self._assumed.items() if key in waiting}
        queue = [pod for pod in waiting.values() if pod.key not in self._assumed and self._is_due(pod, now)]
        if not queue:
            return
        binder = Binder(cluster)
        for key, node in self._assumed.items():
            if node in cluster.nodes:
                binder.room.place(waiting[key].spec, waiting[key].labels, cluster.table.row[node])
        writes = []
        for pod in sorted(queue, key=lambda pod: (-pod.spec.priority, pod.created, pod.key)):
            chosen = binder.choose(pod)
            if chosen is not None:
                self._tries.pop(pod.key, None)
                self._assumed[pod.key] = chosen
                writes.append(self._bind(pod, chosen))
            else:
                before = self._tries.get(pod.key)
                self._tries[pod.key] = SchedulingAttempt(1 if before is None else before.many + 1, now)
                writes.append(self._refuse(pod, binder.why_not(pod)))
        await asyncio.gather(*writes)

    def _waiting(self, cluster: Cluster) -> Iterable[Pod]:
        for bucket in cluster.unbound.values():
            for pod in bucket.pods.values():
                if not pod.spec.gates and not pod.deleted and pod.spec.scheduler_name == self._name:
                    yield pod

    def _is_due(self, pod: Pod, now: float) -> bool:
        attempt = self._tries.get(pod.key)
        # Sums of times are rounded, and a loop that wakes a moment too early would wake again at once.
        return attempt is None or attempt.due() <= now + 0.001

    async def _bind(self, pod: Pod, node: str) -> None:
        async with self._slots:
            try:
                await self._client.bind(pod.namespace, pod.name, node, uid=pod.uid)
            except (ApiError, Unreachable):
                # It is tried again if the pod is still pending.
                self._assumed.pop(pod.key, None)
                self._tries[pod.key] = SchedulingAttempt(1, self._now(), moved=True)

    async def _refuse(self, pod: Pod, why: str) -> None:
        """Set the pod's condition to unschedulable, and clear a nomination that failed."""
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
                await self._record_event(pod, why, moment)
            except (ApiError, Unreachable):
                return

    async def _record_event(self, pod: Pod, why: str, moment: str) -> None:
        """Create the Event, or increase the count of an existing one: a pod that fails all day has one Event."""
        before = self._said.pop(pod.key, None)
        if before is not None and (before.pod, before.why) == (pod.uid, why):
            patch = {"count": before.times + 1, "lastTimestamp": moment}
            await self._client.merge_patch(CORE_EVENTS, before.event, patch, namespace=pod.namespace)
            self._said[pod.key] = before._replace(times=before.times + 1)
            return
        event = self._event(pod, why, moment)
        await self._client.create(CORE_EVENTS, event, namespace=pod.namespace)
        self._said[pod.key] = FailedScheduling(event["metadata"]["name"], pod.uid, why, 1)

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
    """A time as the API writes it."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
