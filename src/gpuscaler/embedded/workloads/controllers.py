"""Runs the workload controllers: reconciles whatever has changed, and carries out the decisions."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, Final

import msgspec

from gpuscaler.embedded.workloads import daemon_sets, deployments, jobs, replica_sets, revisions, stateful_sets
from gpuscaler.embedded.workloads.collecting import Collector
from gpuscaler.embedded.workloads.lifecycle import GRACE, Lifecycle
from gpuscaler.embedded.workloads.mirror import Key, Mirror, owner_of
from gpuscaler.embedded.workloads.revisions import CONTROLLER_REVISIONS
from gpuscaler.embedded.workloads.steps import Object, Steps, controller_of, identity, name_of
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Conflict, NotFound, Unreachable
from gpuscaler.kube.resources import (
    DAEMON_SETS,
    DEPLOYMENTS,
    JOBS,
    NODES,
    PERSISTENT_VOLUME_CLAIMS,
    PODS,
    REPLICA_SETS,
    STATEFUL_SETS,
    Resource,
)
from gpuscaler.model.decoding import Interner, decode_object
from gpuscaler.model.nodes import Node

#: The kinds of workloads.
WORKLOADS: Final = {resource.kind: resource for resource in (DEPLOYMENTS, REPLICA_SETS, STATEFUL_SETS, DAEMON_SETS, JOBS)}
#: How long changes are gathered, and how long a failed write waits for its retry, in seconds.
DEBOUNCE, AGAIN = 0.02, 1.0
#: Seconds until the next check while lists are incomplete.
LISTING = 0.1


class Workloads:
    """Controls the workloads of the cluster behind ``client`` while :meth:`run` runs.

    ``now`` is the wall clock in seconds since the epoch, of which ``speed`` seconds pass in a second of the event loop; ``clock`` is the
    loop's. There are at most ``abreast`` requests at once. It must not run beside Kubernetes' own controller manager.
    """

    def __init__(
        self,
        client: Client,
        *,
        now: Callable[[], float],
        clock: Callable[[], float],
        random: Random,
        speed: float = 1.0,
        abreast: int = 32,
    ) -> None:
        self._client, self._now, self._speed = client, now, speed
        resources = (*WORKLOADS.values(), CONTROLLER_REVISIONS, PERSISTENT_VOLUME_CLAIMS, NODES, PODS)
        self._mirror = Mirror(client, resources, clock=clock, random=random, touched=self._object_changed)
        self._collector = Collector(client, self._mirror, now=now)
        self._lifecycle = Lifecycle(client, self._mirror, now=now)
        self._jobs = jobs.Jobs()
        self._nodes: dict[str, Node] = {}
        self._due: dict[Key, float] = {}
        self._stirred = asyncio.Event()
        self._slots = asyncio.Semaphore(abreast)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            for reflector in self._mirror.reflectors:
                tasks.create_task(reflector.run())
            tasks.create_task(self._work())

    # Queue of workloads

    def _object_changed(self, kind: str, obj: Object) -> None:
        if kind in WORKLOADS:
            self._schedule(kind, identity(obj))
        if (owner := owner_of(obj)) is not None and owner[0] in WORKLOADS:
            self._schedule(*owner)
        if kind == "Node":
            self._node_changed(name_of(obj))
        if kind == "PersistentVolumeClaim":
            for stateful_set in self._mirror.all("StatefulSet"):
                if stateful_set["spec"].get("volumeClaimTemplates"):
                    self._schedule("StatefulSet", identity(stateful_set))
        if kind in {"Node", "Pod"} and (at := self._collector.touched(kind, obj)) is not None:
            self._schedule("", "", at)

    def _node_changed(self, name: str) -> None:
        obj = self._mirror.get("Node", name)
        node = None if obj is None else decode_object(obj, Interner())
        before = self._nodes.pop(name, None)
        if isinstance(node, Node):
            self._nodes[name] = node
            if before is None:
                self._schedule("Node", name, self._now() + GRACE)
            if node.unschedulable != (before is not None and before.unschedulable):
                self._schedule("Node", name)
        else:
            node = None
        if before is None or node is None or (before.labels, before.taints) != (node.labels, node.taints):
            for daemon_set in self._mirror.all("DaemonSet"):
                self._schedule("DaemonSet", identity(daemon_set))

    def _schedule(self, kind: str, name: str, at: float = 0.0) -> None:
        """Reconcile a workload ``at`` that time, or as soon as possible."""
        self._due[kind, name] = min(at, self._due.get((kind, name), at))
        self._stirred.set()

    async def _work(self) -> None:
        while True:
            self._stirred.clear()
            now = self._now()
            ready = [key for key, at in self._due.items() if at <= now + 0.001] if self._mirror.synced else []
            for key in ready:
                del self._due[key]
            await asyncio.gather(*(self._turn(key) for key in ready))
            if not ready:
                await self._wait(now)
            await asyncio.sleep(DEBOUNCE)

    async def _wait(self, now: float) -> None:
        # Until all lists are complete, check again after LISTING seconds: the last list may be empty, and then nothing wakes this.
        left = LISTING if not self._mirror.synced else max(0.001, (min(self._due.values()) - now) / self._speed) if self._due else None
        try:
            async with asyncio.timeout(left):
                await self._stirred.wait()
        except TimeoutError:
            return

    # Execution

    async def _turn(self, key: Key) -> None:
        try:
            if key == ("", ""):
                again = await self._collector.collect()
            elif key[0] == "Node":
                again = await self._lifecycle.check(key[1])
            else:
                again = await self._reconcile(key)
        except (ApiError, Unreachable):
            again = self._now() + AGAIN * self._speed
        if again is not None:
            self._schedule(*key, again)

    async def _reconcile(self, key: Key) -> float | None:
        workload = self._mirror.get(*key)
        owned = self._mirror.owned(key, "ReplicaSet" if key[0] == "Deployment" else "Pod")
        uid = workload["metadata"]["uid"] if workload is not None else ""
        orphans = [obj for obj in owned if (controller_of(obj) or {}).get("uid") != uid]
        if orphans:
            if key[0] == "Job":
                await self._apply_steps(JOBS, None, jobs.orphaned(orphans))
            await self._collector.without_owner(WORKLOADS[key[0]], orphans, REPLICA_SETS if key[0] == "Deployment" else PODS)
        await self._revise(key, workload, owned)
        if workload is None:
            self._jobs.forget(key[1])
            return None
        steps = self._decide(key[0], workload, [obj for obj in owned if obj not in orphans])
        await self._apply_steps(WORKLOADS[key[0]], workload, steps)
        return steps.again

    async def _revise(self, key: Key, workload: Object | None, pods: list[Object]) -> None:
        """Store the revisions of a StatefulSet or DaemonSet; delete them when their owner is gone."""
        if key[0] not in {"StatefulSet", "DaemonSet"}:
            return
        uid = workload["metadata"]["uid"] if workload is not None else ""
        existing = self._mirror.owned(key, CONTROLLER_REVISIONS.kind)
        if orphans := [revision for revision in existing if (controller_of(revision) or {}).get("uid") != uid]:
            await self._collector.without_owner(WORKLOADS[key[0]], orphans, CONTROLLER_REVISIONS)
        if workload is None:
            return
        labels = [(pod["metadata"].get("labels") or {}).get(stateful_sets.REVISION, "") for pod in pods]
        used = set(labels) if key[0] == "StatefulSet" else {f"{name_of(workload)}-{label}" for label in labels}
        steps = revisions.record(workload, WORKLOADS[key[0]], [revision for revision in existing if revision not in orphans], used)
        await self._apply_steps(WORKLOADS[key[0]], None, steps)

    def _decide(self, kind: str, workload: Object, owned: list[Object]) -> Steps:
        match kind:
            case "Deployment":
                return deployments.decide(workload, owned, self._now())
            case "ReplicaSet":
                return replica_sets.decide(workload, owned)
            case "StatefulSet":
                return stateful_sets.decide(workload, owned, lambda name: self._mirror.get("PersistentVolumeClaim", name))
            case "DaemonSet":
                return daemon_sets.decide(workload, owned, self._nodes.values())
            case _:
                return self._jobs.decide(workload, owned, self._now())

    async def _apply_steps(self, resource: Resource, workload: Object | None, steps: Steps) -> None:
        if workload is not None and (patch := difference(workload.get("status") or {}, steps.status)):
            await self._patch(resource, workload, {"metadata": {"uid": workload["metadata"]["uid"]}, "status": patch}, "status")
        await self._run_all(self._patch(*patch) for patch in steps.patches)
        await self._run_all(self._patch(resource, obj, {"status": status}, "status") for resource, obj, status in steps.statuses)
        await self._run_all(self._delete(*deletion) for deletion in steps.deletes)
        await self._run_all(self._create(*creation) for creation in steps.creates)

    async def _run_all(self, writes: Any) -> None:
        """Try every write; raise the first error at the end."""
        answers = await asyncio.gather(*map(self._with_slot, writes), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer

    async def _with_slot(self, write: Coroutine[Any, Any, None]) -> None:
        async with self._slots:
            await write

    async def _patch(self, resource: Resource, obj: Object, patch: Object, part: str = "") -> None:
        try:
            answer = await self._client.merge_patch(
                resource, name_of(obj), patch, namespace=obj["metadata"].get("namespace", ""), subresource=part
            )
        except NotFound:
            return
        self._remember(resource, answer)

    async def _delete(self, resource: Resource, obj: Object) -> None:
        metadata = obj["metadata"]
        try:
            await self._client.delete(
                resource, metadata["name"], namespace=metadata.get("namespace", ""), uid=metadata["uid"], propagation="Background"
            )
        except (NotFound, Conflict):
            # It is gone, or another has that name: the watch will show it.
            return
        # It counts as leaving until the watch shows its deletion.
        current = self._mirror.get(resource.kind, identity(obj))
        if current is not None and current["metadata"]["uid"] == metadata["uid"]:
            metadata_now = current["metadata"]
            metadata_now.setdefault("deletionTimestamp", metadata_now.get("creationTimestamp"))

    async def _create(self, resource: Resource, obj: Object) -> None:
        answer = await self._client.create(resource, obj, namespace=obj["metadata"].get("namespace", ""))
        self._remember(resource, answer)

    def _remember(self, resource: Resource, answer: bytes) -> None:
        obj = msgspec.json.decode(answer)
        # The last step of a deletion returns the object as it was.
        is_gone = obj["metadata"].get("deletionTimestamp") and not obj["metadata"].get("finalizers")
        if not is_gone and self._mirror.keeps(resource.kind):
            self._mirror.put(resource.kind, obj)


def difference(before: Object, wanted: Object) -> Object:
    """The merge patch that gives the fields of ``wanted`` in ``before`` these values; None stands for a missing field."""
    patch: Object = {}
    for name, value in wanted.items():
        current = before.get(name)
        if isinstance(value, dict) and isinstance(current, dict):
            inner = difference(current, {**dict.fromkeys(current), **value})
            if inner:
                patch[name] = inner
        elif current != value:
            patch[name] = value
    return patch
