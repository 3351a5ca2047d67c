"""Declares nodes unreachable whose kubelets no longer renew their Leases, and evicts their pods; taints cordoned nodes.

Source: ``k8s.io/kubernetes/pkg/controller/nodelifecycle/node_lifecycle_controller.go`` and ``tainteviction``, Kubernetes 1.35, with the
default ``node-monitor-grace-period`` and without the lower eviction rate when most of a zone is unreachable. Nodes that never had a Lease
are ignored, as are conditions and taints that something else wrote: files and tests have such nodes.
"""

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from gpuscaler.embedded.nodes.leases import NAMESPACE
from gpuscaler.embedded.nodes.scheduling import timestamp
from gpuscaler.embedded.workloads.mirror import Mirror
from gpuscaler.embedded.workloads.steps import Object, is_finished, is_leaving, name_of
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import NotFound
from gpuscaler.kube.resources import LEASES, NODES, PODS
from gpuscaler.model.well_known import UNSCHEDULABLE

#: ``node-monitor-grace-period`` and ``node-monitor-period``, in seconds.
GRACE: Final = 50.0
PERIOD: Final = 5.0
UNREACHABLE: Final = "node.kubernetes.io/unreachable"
_SILENT: Final = {"status": "Unknown", "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting node status."}


class Lifecycle:
    """Checks one node after the other, with the nodes and pods in ``mirror``."""

    def __init__(self, client: Client, mirror: Mirror, *, now: Callable[[], float]) -> None:
        self._client, self._mirror, self._now = client, mirror, now
        #: Nodes that we have declared unreachable, and since when.
        self._silent: dict[str, float] = {}

    async def check(self, name: str) -> float | None:
        """Update the state of a node; returns when to check again, None if the node is gone."""
        node = self._mirror.get("Node", name)
        if node is None:
            self._silent.pop(name, None)
            return None
        # The mirror has every node, like an informer; a node is read again only before it is changed.
        if _is_tainted(node) != _is_cordoned(node):
            await self._cordoned(name)
        try:
            lease = msgspec.json.decode(await self._client.get(LEASES, name, namespace=NAMESPACE))
        except NotFound:
            return self._now() + GRACE
        renewed = datetime.fromisoformat(lease["spec"]["renewTime"]).timestamp()
        if self._now() < renewed + GRACE:
            if name in self._silent:
                await self._reachable(name)
            return renewed + GRACE + 0.1
        if name not in self._silent:
            await self._unreachable(name)
        await self._evict(name)
        return self._now() + PERIOD

    async def _cordoned(self, name: str) -> None:
        """Add the unschedulable taint to a cordoned node, and remove it after uncordoning."""
        node = msgspec.json.decode(await self._client.get(NODES, name))
        others = [taint for taint in node["spec"].get("taints") or () if taint["key"] != UNSCHEDULABLE]
        if _is_tainted(node) == _is_cordoned(node):
            return
        added = [{"key": UNSCHEDULABLE, "effect": "NoSchedule", "timeAdded": timestamp(self._now())}] if _is_cordoned(node) else []
        metadata = {"resourceVersion": node["metadata"]["resourceVersion"]}
        await self._client.merge_patch(NODES, name, {"metadata": metadata, "spec": {"taints": [*others, *added] or None}})

    async def _unreachable(self, name: str) -> None:
        now = self._now()
        node = msgspec.json.decode(await self._client.get(NODES, name))
        conditions = (node.get("status") or {}).get("conditions") or []
        updated = [{**condition, **_SILENT, "lastTransitionTime": timestamp(now)} for condition in conditions]
        status = {"metadata": {"uid": node["metadata"]["uid"]}, "status": {"conditions": updated}}
        await self._client.merge_patch(NODES, name, status, subresource="status")
        await self._taint(name, silent=True)
        self._silent[name] = now
        for pod in self._pods(name):
            kept = [item for item in (pod.get("status") or {}).get("conditions") or () if item.get("type") != "Ready"]
            unready = {"type": "Ready", "status": "False", "reason": "NodeNotReady", "lastTransitionTime": timestamp(now)}
            await self._patch_pod(pod, {"conditions": [*kept, unready]})

    async def _reachable(self, name: str) -> None:
        """The kubelet is back; it updates the conditions of its node itself."""
        await self._taint(name, silent=False)
        del self._silent[name]

    async def _taint(self, name: str, *, silent: bool) -> None:
        node = msgspec.json.decode(await self._client.get(NODES, name))
        others = [taint for taint in node["spec"].get("taints") or () if taint["key"] != UNREACHABLE]
        moment = timestamp(self._now())
        added = [{"key": UNREACHABLE, "effect": effect, "timeAdded": moment} for effect in ("NoSchedule", "NoExecute")]
        metadata = {"resourceVersion": node["metadata"]["resourceVersion"]}
        await self._client.merge_patch(
            NODES, name, {"metadata": metadata, "spec": {"taints": [*others, *(added if silent else ())] or None}}
        )

    async def _evict(self, name: str) -> None:
        for pod in self._pods(name):
            seconds = toleration_seconds(pod)
            if not is_leaving(pod) and seconds is not None and self._now() >= self._silent[name] + seconds:
                metadata = pod["metadata"]
                try:
                    await self._client.delete(PODS, metadata["name"], namespace=metadata["namespace"], uid=metadata["uid"])
                except NotFound:
                    continue

    def _pods(self, node: str) -> list[Object]:
        return [pod for pod in self._mirror.all("Pod") if pod["spec"].get("nodeName") == node and not is_finished(pod)]

    async def _patch_pod(self, pod: Object, status: Mapping[str, Any]) -> None:
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}
        try:
            await self._client.merge_patch(PODS, name_of(pod), body, namespace=pod["metadata"]["namespace"], subresource="status")
        except NotFound:
            return


def _is_cordoned(node: Mapping[str, Any]) -> bool:
    return bool(node["spec"].get("unschedulable"))


def _is_tainted(node: Mapping[str, Any]) -> bool:
    return any(taint["key"] == UNSCHEDULABLE for taint in node["spec"].get("taints") or ())


def toleration_seconds(pod: Mapping[str, Any]) -> float | None:
    """How many seconds a pod stays on an unreachable node; None if it stays forever."""
    tolerations = [toleration for toleration in pod["spec"].get("tolerations") or () if _matches(toleration)]
    if not tolerations:
        return 0.0
    return min(
        (float(toleration["tolerationSeconds"]) for toleration in tolerations if toleration.get("tolerationSeconds") is not None),
        default=None,
    )


def _matches(toleration: Mapping[str, Any]) -> bool:
    key, value = toleration.get("key") or "", toleration.get("value") or ""
    if toleration.get("effect") not in (None, "", "NoExecute"):
        return False
    return key in ("", UNREACHABLE) if toleration.get("operator") == "Exists" else (key, value) == (UNREACHABLE, "")
