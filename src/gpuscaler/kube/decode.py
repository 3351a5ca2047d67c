"""Decodes the objects of one resource: their identity, and the small records of the model."""

from collections.abc import Sequence
from typing import Protocol

import msgspec
from msgspec import Struct, field

from gpuscaler.kube.resources import Resource
from gpuscaler.model.aside import Skipped
from gpuscaler.model.cluster import HOMES, Item
from gpuscaler.model.decoding.depth import without_depths
from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.decoding.kinds import reader_of
from gpuscaler.model.decoding.objects import Data, decode_with
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.workloads import DeviceObject, PodGroup, Workload

#: The annotation of the bookmark that ends the initial events of a watch (Kubernetes KEP-3157).
INITIAL_EVENTS_END = "k8s.io/initial-events-end"

_TYPES = {kind.__name__: kind for kind in (Pod, Node, *HOMES)}
#: Kinds that the model stores under another type, with the format of their keys there from ``namespace/name`` or the name alone.
_SHARED_TYPES: dict[tuple[str, str], tuple[type, str]] = {
    ("apps", "Deployment"): (Workload, "Deployment/{}"),
    ("apps", "ReplicaSet"): (Workload, "ReplicaSet/{}"),
    ("apps", "StatefulSet"): (Workload, "StatefulSet/{}"),
    ("apps", "DaemonSet"): (Workload, "DaemonSet/{}"),
    ("batch", "Job"): (Workload, "Job/{}"),
    ("resource.k8s.io", "ResourceClaim"): (DeviceObject, "ResourceClaim/{}"),
    ("resource.k8s.io", "ResourceSlice"): (DeviceObject, "ResourceSlice//{}"),
    ("resource.k8s.io", "DeviceClass"): (DeviceObject, "DeviceClass//{}"),
    ("scheduling.x-k8s.io", "PodGroup"): (PodGroup, "coscheduling/{}"),
    ("scheduling.sigs.k8s.io", "PodGroup"): (PodGroup, "coscheduling/{}"),
    ("scheduling.volcano.sh", "PodGroup"): (PodGroup, "volcano/{}"),
    ("scheduling.incubator.k8s.io", "PodGroup"): (PodGroup, "volcano/{}"),
    ("jobset.x-k8s.io", "JobSet"): (PodGroup, "jobset/{}"),
    # The groups of a Workload are separate records, keyed below its name; none of them has this key.
    ("scheduling.k8s.io", "Workload"): (PodGroup, "workload/{}/"),
    ("scheduling.k8s.io", "PodGroup"): (PodGroup, "workload/{}"),
}


class Annotations(Struct, gc=False):
    initial_events_end: str | None = field(default=None, name=INITIAL_EVENTS_END)


class HeaderMetadata(Struct, gc=False, rename="camel"):
    name: str | None = None
    namespace: str | None = None
    resource_version: str | None = None
    annotations: Annotations | None = None


class _Object(Struct, gc=False):
    metadata: HeaderMetadata | None = None


NO_HEADER = HeaderMetadata()
_object = msgspec.json.Decoder(_Object).decode


def header_of(data: Data) -> HeaderMetadata:
    """Name, namespace and resource version of an object; empty if it has none that can be read."""
    try:
        try:
            return _object(data).metadata or NO_HEADER
        except RecursionError:
            return _object(without_depths(data)).metadata or NO_HEADER
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return NO_HEADER


def identity_of(header: HeaderMetadata) -> str:
    """``namespace/name``, or the name alone for a cluster-scoped object; empty for an object without a name."""
    name = header.name or ""
    return f"{header.namespace}/{name}" if header.namespace and name else name


class Decoded(Struct, gc=False):
    """The result of decoding one object: ``keys`` is None if ``items`` is one record under the resource's plain key."""

    identity: str
    items: Sequence[Item] = ()
    keys: tuple[str, ...] | None = None
    aside: Skipped | None = None


class Decoder(Protocol):
    """Decodes the objects of one resource into records of ``model``. Never raises: an unreadable object is returned as set aside."""

    @property
    def model(self) -> type: ...

    def key(self, identity: str) -> str: ...

    def read(self, data: Data) -> Decoded: ...


class ObjectDecoder:
    """Decodes the objects of ``resource`` into records of the model; all decoders of one cluster share the interner."""

    def __init__(self, resource: Resource, interner: Interner) -> None:
        reader = reader_of(resource.api_version, resource.kind)
        if reader is None:
            raise ValueError(f"{resource.kind} of {resource.api_version}: the model has no reader for it")
        self._reader = reader
        self._interner = interner
        self._kind, self._api_version = resource.kind, resource.api_version
        self.model, self._key = _SHARED_TYPES.get((resource.group, resource.kind)) or (_TYPES[resource.kind], "")

    def key(self, identity: str) -> str:
        """The key under which the model stores the record of the object ``identity``."""
        return self._key.format(identity) if self._key else identity

    def read(self, data: Data) -> Decoded:
        """Decode ``data``, one object as JSON. Never raises: an object that cannot be read is returned as set aside."""
        result = decode_with(data, self._interner, self._reader, kind=self._kind, api_version=self._api_version)
        if isinstance(result, Pod):
            # Nearly all objects are pods, whose record has the identity, so the header need not be decoded.
            return Decoded(result.key, (result,))
        identity = identity_of(header_of(data))
        if isinstance(result, Skipped):
            return Decoded(identity, aside=result)
        items = tuple(result) if isinstance(result, Sequence) else () if result is None else (result,)
        keys = tuple(key_of(item) for item in items)
        return Decoded(identity, items, None if keys == (self.key(identity),) else keys)


def key_of(item: Item) -> str:
    """The key under which a cluster stores ``item``."""
    if isinstance(item, Pod):
        return item.key
    key: str = item.name if isinstance(item, Node) else getattr(item, HOMES[type(item)][1])
    return key
