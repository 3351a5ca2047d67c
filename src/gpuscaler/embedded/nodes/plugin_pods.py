"""Pods of device plugins, as seen in a watch."""

from typing import cast

import msgspec
from msgspec import Struct, field

from gpuscaler.embedded.nodes.plugins import is_plugin
from gpuscaler.kube.decode import Decoded
from gpuscaler.model.cluster import Item
from gpuscaler.model.decoding.objects import Data


class PluginPod(Struct, frozen=True):
    """A pod of a device plugin's DaemonSet, on a node."""

    uid: str
    plugin: str
    node: str
    running: bool


class PluginPods:
    """Decodes only pods of device plugins that are bound to a node."""

    model = PluginPod

    def key(self, identity: str) -> str:
        return identity

    def read(self, data: Data) -> Decoded:
        """The pod, if it is one of these; else None. Never raises."""
        try:
            pod = _pod(data)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return Decoded("")
        metadata, identity = pod.metadata, f"{pod.metadata.namespace}/{pod.metadata.name}"
        owner = next((owner.name for owner in metadata.owners if owner.kind == "DaemonSet"), "")
        if not pod.spec.node or not is_plugin(metadata.namespace, owner):
            return Decoded(identity, (), ())
        plugin_pod = PluginPod(metadata.uid, owner, pod.spec.node, pod.status.phase == "Running")
        return Decoded(identity, (cast(Item, plugin_pod),))


class _Owner(Struct, frozen=True):
    kind: str = ""
    name: str = ""


class _Metadata(Struct, frozen=True):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    owners: tuple[_Owner, ...] = field(default=(), name="ownerReferences")


class _Spec(Struct, frozen=True):
    node: str = field(default="", name="nodeName")


class _Status(Struct, frozen=True):
    phase: str = ""


class _Pod(Struct, frozen=True):
    metadata: _Metadata = _Metadata()
    spec: _Spec = _Spec()
    status: _Status = _Status()


_pod = msgspec.json.Decoder(_Pod).decode
