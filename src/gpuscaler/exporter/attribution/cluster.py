"""Data from the API server, if the exporter may ask it: names of pods by UID, which of them are finished, and the GPUs behind claims.

It is asked only for what the node itself does not show, since there is one exporter on every node of the cluster.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final, TypeVar

import msgspec

from gpuscaler.exporter.attribution.view import ApiView
from gpuscaler.exporter.parts import Owner
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, NotFound, Unreachable
from gpuscaler.kube.resources import PODS, Resource

#: Annotation with the hash that identifies a static pod on its node; on the server its mirror pod has another UID.
_CONFIG_HASH: Final = "kubernetes.io/config.hash"
#: Seconds between two requests. Slices change when GPUs are added or divided differently.
_PODS_PAUSE, _SLICES_PAUSE = 10.0, 60.0

_T = TypeVar("_T")


class _Metadata(msgspec.Struct):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    annotations: dict[str, str] | None = None


class _ContainerStatus(msgspec.Struct, rename={"id": "containerID"}):
    name: str = ""
    id: str = ""


class _Status(msgspec.Struct, rename="camel"):
    phase: str = ""
    container_statuses: list[_ContainerStatus] | None = None
    init_container_statuses: list[_ContainerStatus] | None = None


class _Pod(msgspec.Struct):
    metadata: _Metadata
    status: _Status = msgspec.field(default_factory=_Status)


class _Attribute(msgspec.Struct):
    string: str | None = None


class _Basic(msgspec.Struct):
    attributes: dict[str, _Attribute] | None = None


class _SliceDevice(msgspec.Struct):
    """A device of a slice. Version v1beta1 has its attributes in ``basic``, later versions at the top level."""

    name: str = ""
    attributes: dict[str, _Attribute] | None = None
    basic: _Basic | None = None


class _SlicePool(msgspec.Struct):
    name: str = ""


class _SliceSpec(msgspec.Struct):
    driver: str = ""
    pool: _SlicePool = msgspec.field(default_factory=_SlicePool)
    devices: list[_SliceDevice] | None = None


class _Slice(msgspec.Struct):
    spec: _SliceSpec


class ClusterNames:
    """Asks the API server about ``node``; ``clock`` is monotonic, in seconds. ``view`` has the answers so far."""

    def __init__(self, client: Client, node: str, *, clock: Callable[[], float]) -> None:
        self.view = ApiView()
        self._client, self._query, self._clock = client, {"fieldSelector": f"spec.nodeName={node}"}, clock
        self._asked_at: dict[Resource, float] = {}
        self._troubles: dict[Resource, str] = {}

    def due(self, resource: Resource) -> bool:
        """Whether enough time has passed since the last request for ``resource``."""
        asked_at = self._asked_at.get(resource)
        return asked_at is None or self._clock() - asked_at >= (_PODS_PAUSE if resource is PODS else _SLICES_PAUSE)

    async def refresh(self, resource: Resource) -> None:
        """Ask for the pods or the slices of the node. Errors are reported in ``view.trouble``, and earlier answers stay."""
        self._asked_at[resource] = self._clock()
        try:
            listed = await self._list(resource)
        except (ApiError, Unreachable, msgspec.DecodeError) as error:
            self._troubles[resource] = f"{resource.label} of this node cannot be listed: {error}"
        else:
            self._troubles.pop(resource, None)
            self.view = self._with_pods(listed) if resource is PODS else replace(self.view, slices=dict(_devices(listed)))
        self.view = replace(self.view, trouble="; ".join(self._troubles.values()))

    async def _list(self, resource: Resource) -> list[bytes]:
        for version in (resource.version, *resource.older):
            try:
                return await self._client.list_all(resource.at(version), query=self._query)
            except NotFound:
                continue
        return []

    def _with_pods(self, listed: list[bytes]) -> ApiView:
        pods: dict[str, tuple[str, str]] = {}
        containers: dict[str, Owner] = {}
        finished: set[str] = set()
        for pod in _read(listed, _Pod):
            metadata = pod.metadata
            uid = (metadata.annotations or {}).get(_CONFIG_HASH) or metadata.uid
            pods[uid] = metadata.namespace, metadata.name
            if pod.status.phase in {"Succeeded", "Failed"}:
                finished.add(uid)
            for status in (*(pod.status.container_statuses or ()), *(pod.status.init_container_statuses or ())):
                # A waiting container has no id yet.
                if container_id := status.id.rpartition("/")[2]:
                    containers[container_id] = Owner(metadata.namespace, metadata.name, status.name, uid)
        return replace(self.view, pods=pods, containers=containers, finished=frozenset(finished))


def _read(listed: list[bytes], kind: type[_T]) -> Iterator[_T]:
    # An object that cannot be parsed is skipped; the others are used.
    for raw in listed:
        try:
            yield msgspec.json.decode(raw, type=kind)
        except msgspec.DecodeError:
            continue


def _devices(listed: list[bytes]) -> Iterator[tuple[tuple[str, str, str], str]]:
    for resource_slice in _read(listed, _Slice):
        for device in resource_slice.spec.devices or ():
            attributes = device.attributes or (device.basic.attributes if device.basic else None) or {}
            for name, value in attributes.items():
                if name.rpartition("/")[2] == "uuid" and value.string:
                    yield (resource_slice.spec.driver, resource_slice.spec.pool.name, device.name), value.string
