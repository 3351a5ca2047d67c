"""The exporter's own Node: the only object that it writes, and only one annotation of it."""

import msgspec

from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import NODES, PODS
from gpuscaler.model.scheduled_events import SCHEDULED_EVENT
from gpuscaler.model.well_known import LEAVING_TAINT

_MIRROR = "kubernetes.io/config.mirror"
_OVER = frozenset({"Succeeded", "Failed"})


class _Owner(msgspec.Struct):
    kind: str = ""
    controller: bool = False


class _PodMetadata(msgspec.Struct):
    annotations: dict[str, str] | None = None
    owners: list[_Owner] | None = msgspec.field(default=None, name="ownerReferences")


class _PodStatus(msgspec.Struct):
    phase: str = ""


class _Pod(msgspec.Struct):
    metadata: _PodMetadata
    status: _PodStatus = msgspec.field(default_factory=_PodStatus)


class _Taint(msgspec.Struct):
    key: str = ""


class _NodeSpec(msgspec.Struct):
    unschedulable: bool = False
    taints: list[_Taint] | None = None


class _Node(msgspec.Struct):
    spec: _NodeSpec = msgspec.field(default_factory=_NodeSpec)


class OwnNode:
    """The Node ``name``. Every call may raise ``ApiError`` and ``Unreachable``."""

    def __init__(self, client: Client, name: str) -> None:
        self._client, self._name = client, name

    async def annotate(self, value: str | None) -> None:
        """Set the annotation with the scheduled event, or remove it. Without a change, the server stores nothing."""
        await self._client.merge_patch(NODES, self._name, {"metadata": {"annotations": {SCHEDULED_EVENT: value}}})

    async def is_drained(self) -> bool:
        """Whether the node takes no new pods, and has none but those of DaemonSets, static pods, and pods that are over.

        A node or pod that cannot be read counts as not drained.
        """
        try:
            node = msgspec.json.decode(await self._client.get(NODES, self._name), type=_Node)
            if not (node.spec.unschedulable or any(taint.key == LEAVING_TAINT for taint in node.spec.taints or ())):
                return False
            listed = await self._client.list_all(PODS, query={"fieldSelector": f"spec.nodeName={self._name}"})
            return not any(_matters(msgspec.json.decode(raw, type=_Pod)) for raw in listed)
        except msgspec.DecodeError:
            return False


def _matters(pod: _Pod) -> bool:
    """Whether a pod would lose something: it is not over, and would not end with its machine in any case."""
    owned_by_daemon_set = any(owner.kind == "DaemonSet" and owner.controller for owner in pod.metadata.owners or ())
    return not (pod.status.phase in _OVER or owned_by_daemon_set or _MIRROR in (pod.metadata.annotations or {}))
