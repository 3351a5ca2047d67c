"""Deletes pods that nothing else would delete: those whose node is gone, and those whose owner is gone.

Source: ``k8s.io/kubernetes/pkg/controller/podgc/gc_controller.go`` and ``garbagecollector``, Kubernetes 1.35.
"""

from collections.abc import Callable, Sequence

import msgspec

from gpuscaler.embedded.nodes.scheduling import timestamp
from gpuscaler.embedded.workloads.mirror import Mirror
from gpuscaler.embedded.workloads.steps import Object, is_finished, name_of
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import NotFound
from gpuscaler.kube.resources import NODES, PODS, Resource

#: Seconds that a node must be gone before its pods are deleted.
QUARANTINE = 40.0


class Collector:
    """Finds pods of missing nodes in ``mirror``."""

    def __init__(self, client: Client, mirror: Mirror, *, now: Callable[[], float]) -> None:
        self._client, self._mirror, self._now = client, mirror, now
        #: Missing nodes that pods are bound to, and since when they are missing.
        self._missing: dict[str, float] = {}

    def touched(self, kind: str, obj: Object) -> float | None:
        """When to :meth:`collect` after this change."""
        node = name_of(obj) if kind == "Node" else (obj.get("spec") or {}).get("nodeName")
        if not node:
            return None
        if self._mirror.get("Node", node) is not None:
            self._missing.pop(node, None)
            return None
        return self._missing.setdefault(node, self._now()) + QUARANTINE

    async def collect(self) -> float | None:
        """Fail and delete the pods of nodes that have been missing long enough; returns when to check again."""
        now = self._now()
        due = {node for node, since in self._missing.items() if now >= since + QUARANTINE - 0.001}
        pods = [pod for pod in self._mirror.all("Pod") if pod["spec"].get("nodeName") in due] if due else []
        for node in sorted(due):
            if not await self._exists(NODES, node):
                for pod in [pod for pod in pods if pod["spec"]["nodeName"] == node]:
                    await self._end(pod, now)
            del self._missing[node]
        return min((since + QUARANTINE for since in self._missing.values()), default=None)

    async def without_owner(self, owners: Resource, objects: Sequence[Object], resource: Resource) -> None:
        """Delete those of ``objects``, of ``resource``, whose controller, one of ``owners``, really does not exist any more."""
        for obj in objects:
            owner = next(reference for reference in obj["metadata"]["ownerReferences"] if reference.get("controller"))
            namespace = obj["metadata"].get("namespace", "")
            if not obj["metadata"].get("deletionTimestamp") and not await self._exists(owners, owner["name"], namespace, owner["uid"]):
                await self._delete(resource, obj, None)

    async def _exists(self, resource: Resource, name: str, namespace: str = "", uid: str = "") -> bool:
        try:
            current = msgspec.json.decode(await self._client.get(resource, name, namespace=namespace))
        except NotFound:
            return False
        return not uid or current["metadata"]["uid"] == uid

    async def _end(self, pod: Object, now: float) -> None:
        if not is_finished(pod):
            condition = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC", "lastTransitionTime": timestamp(now)}
            kept = [item for item in (pod.get("status") or {}).get("conditions") or () if item.get("type") != condition["type"]]
            status = {"phase": "Failed", "conditions": [*kept, {**condition, "message": "PodGC: node no longer exists"}]}
            body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
            try:
                await self._client.merge_patch(PODS, name_of(pod), body, namespace=pod["metadata"]["namespace"], subresource="status")
            except NotFound:
                return
        await self._delete(PODS, pod, 0)

    async def _delete(self, resource: Resource, obj: Object, grace: int | None) -> None:
        metadata = obj["metadata"]
        try:
            await self._client.delete(resource, metadata["name"], namespace=metadata["namespace"], uid=metadata["uid"], grace=grace)
        except NotFound:
            return
