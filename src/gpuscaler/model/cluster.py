"""The snapshot of a cluster that planning reads: immutable, with derived indexes that are shared between versions.

:meth:`Cluster.apply` copies the changed parts and shares the rest, so the work is proportional to the change and not to the cluster.
The copies are shallow copies of dictionaries and arrays, which take microseconds with thousands of nodes.
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
from msgspec import Struct

from gpuscaler.model.aside import Skipped, merge_skipped, object_name
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Owner, Pod, PodOptions, PodSpec
from gpuscaler.model.requests import FULL
from gpuscaler.model.storage import (
    CSIDriver,
    CSINode,
    CSIStorageCapacity,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageClass,
    VolumeAttachment,
)
from gpuscaler.model.table import Array, NodeTable
from gpuscaler.model.workloads import (
    DeviceObject,
    Namespace,
    PodDisruptionBudget,
    PodGroup,
    PriorityClass,
    RuntimeClass,
    Workload,
)

#: All other kinds: the attribute of :class:`Cluster` that holds them, and the attribute of the object that is their key.
HOMES: Mapping[type, tuple[str, str]] = {
    PersistentVolume: ("volumes", "name"),
    PersistentVolumeClaim: ("claims", "key"),
    StorageClass: ("storage_classes", "name"),
    CSINode: ("csi_nodes", "name"),
    CSIDriver: ("csi_drivers", "name"),
    CSIStorageCapacity: ("csi_capacities", "key"),
    VolumeAttachment: ("attachments", "name"),
    Workload: ("workloads", "key"),
    PodDisruptionBudget: ("budgets", "key"),
    PriorityClass: ("priority_classes", "name"),
    Namespace: ("namespaces", "name"),
    RuntimeClass: ("runtime_classes", "name"),
    PodGroup: ("pod_groups", "key"),
    DeviceObject: ("devices", "key"),
}

#: Any object of a cluster.
Item = (
    Pod
    | Node
    | PersistentVolume
    | PersistentVolumeClaim
    | StorageClass
    | CSINode
    | CSIDriver
    | CSIStorageCapacity
    | VolumeAttachment
    | Workload
    | PodDisruptionBudget
    | PriorityClass
    | Namespace
    | RuntimeClass
    | PodGroup
    | DeviceObject
)


#: Kinds other than pods and nodes with annotations that are read.
_ANNOTATED = frozenset((Workload, Namespace))


class PeerKey(NamedTuple):
    """The properties of a bound pod that affinity and spread selectors can distinguish."""

    namespace: str
    labels: LabelSet
    terminating: bool


class ClassKey(NamedTuple):
    """The properties that distinguish unbound pods for planning. Pods with equal keys are one pod class."""

    spec: str
    labels: LabelSet
    options: PodOptions
    owner: Owner
    nominated: str
    unschedulable: bool | None
    terminating: bool


class Bucket:
    """The unbound pods of a class, by key. Immutable; ``keys`` are sorted once."""

    __slots__ = ("_keys", "pods")

    def __init__(self, pods: dict[str, Pod]) -> None:
        self.pods = pods
        self._keys: tuple[str, ...] | None = None

    @property
    def keys(self) -> tuple[str, ...]:
        if self._keys is None:
            self._keys = tuple(sorted(self.pods))
        return self._keys

    @property
    def sample(self) -> Pod:
        return next(iter(self.pods.values()))


class Users(NamedTuple):
    """A specification that affects other pods (anti-affinity, host ports, volumes), and the number of bound pods with it, by node."""

    spec: PodSpec
    nodes: dict[str, int]


class Delta(Struct, frozen=True):
    """A change: objects that are new or different, and (type, key) of deleted ones."""

    upserts: tuple[Item, ...] = ()
    deletes: tuple[tuple[type, str], ...] = ()


class Cluster:
    """A whole cluster. All attributes are read-only.

    ``nodes`` and ``pods`` (by ``namespace/name``) are the objects; ``table`` contains the nodes as arrays; ``requested[resource]`` are the
    requests of bound, unfinished pods, one int64 per row of ``table``; ``on_node`` contains those pods by node name; ``unbound`` other
    unfinished pods by class, ``finished`` the ended pods; ``peers`` and ``users`` count bound pods per node by labels and by effect
    on others. ``warned`` lists unreadable parts of nodes and unfinished pods that were parsed otherwise, by ``Kind namespace/name``.
    """

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.pods: dict[str, Pod] = {}
        self.volumes: dict[str, PersistentVolume] = {}
        self.claims: dict[str, PersistentVolumeClaim] = {}
        self.storage_classes: dict[str, StorageClass] = {}
        self.csi_nodes: dict[str, CSINode] = {}
        self.csi_drivers: dict[str, CSIDriver] = {}
        self.csi_capacities: dict[str, CSIStorageCapacity] = {}
        self.attachments: dict[str, VolumeAttachment] = {}
        self.workloads: dict[str, Workload] = {}
        self.budgets: dict[str, PodDisruptionBudget] = {}
        self.priority_classes: dict[str, PriorityClass] = {}
        self.namespaces: dict[str, Namespace] = {}
        self.runtime_classes: dict[str, RuntimeClass] = {}
        self.pod_groups: dict[str, PodGroup] = {}
        self.devices: dict[str, DeviceObject] = {}
        self.set_aside: tuple[Skipped, ...] = ()
        self.table = NodeTable(())
        self.on_node: dict[str, dict[str, Pod]] = {}
        self.requested: dict[str, Array] = {}
        self.unbound: dict[ClassKey, Bucket] = {}
        self.finished: dict[str, Pod] = {}
        self.peers: dict[PeerKey, dict[str, int]] = {}
        self.users: dict[str, Users] = {}
        self.warned: dict[str, tuple[str, ...]] = {}

    @classmethod
    def of(cls, items: Iterable[Item], set_aside: Iterable[Skipped] = ()) -> "Cluster":
        """Build a cluster of ``items``. Of two objects with the same identity the later wins, as in a watch."""
        return cls().apply(Delta(upserts=tuple(items)), set_aside=set_aside)

    def apply(self, delta: Delta, *, set_aside: Iterable[Skipped] = ()) -> "Cluster":
        """Return the cluster after ``delta``; this one is unchanged.

        ``set_aside`` are the objects of this change that could not be parsed. An earlier entry ends when its object is parsed or gone.
        """
        new = object.__new__(Cluster)
        new.__dict__.update(self.__dict__)
        new.set_aside = merge_skipped(self.set_aside, set_aside, object_names(delta) if self.set_aside else ())
        _Change(new).run(delta)
        return new

    @property
    def warnings(self) -> tuple[str, ...]:
        """The entries of ``warned`` as sentences that start with the object, in the order of names."""
        return tuple(f"{name}: {warning}" for name, warnings in sorted(self.warned.items()) for warning in warnings)


class _Change:
    """Application of a delta to a cluster that shares everything with its predecessor: each part is copied before its first change."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._owned: set[tuple[str, Any]] = set()

    def run(self, delta: Delta) -> None:
        nodes: dict[str, Node | None] = {}
        pods: list[tuple[str, Pod | None]] = []
        for kind, key in delta.deletes:
            if kind is Pod:
                pods.append((key, None))
            elif kind is not Node:
                self._own(HOMES[kind][0]).pop(key, None)
                if kind in _ANNOTATED:
                    self._warn(object_name(kind, key), ())
            elif key in self.cluster.nodes:
                del self._own("nodes")[key]
                nodes[key] = None
                self._warn(object_name(Node, key), ())
        for item in delta.upserts:
            if isinstance(item, Pod):
                pods.append((item.key, item))
            elif not isinstance(item, Node):
                home, key_name = HOMES[type(item)]
                key = getattr(item, key_name)
                self._own(home)[key] = item
                if isinstance(item, Workload | Namespace):
                    self._warn(object_name(type(item), key), item.warnings)
            elif self.cluster.nodes.get(item.name) != item:
                # Most updates of a node are heartbeats, with no change in what is read.
                self._own("nodes")[item.name] = item
                nodes[item.name] = item
                self._warn(object_name(Node, item.name), item.warnings)
        touched = self._change_pods(pods)
        if nodes:
            touched |= self._change_table(nodes)
        self._request_again(touched)

    def _change_table(self, nodes: Mapping[str, Node | None]) -> set[str]:
        """Apply changes of nodes to the rows and the requests per row; return the names of nodes that had no row before."""
        cluster, previous = self.cluster, self.cluster.table
        cluster.table, rows = previous.changed(nodes)
        if cluster.table.names is previous.names:
            return set()
        kept = rows >= 0
        for resource, array in self._own("requested").items():
            moved = np.zeros(len(rows), dtype=np.int64)
            moved[kept] = array[rows[kept]]
            cluster.requested[resource] = moved
        return nodes.keys() - previous.row.keys()

    def _own(self, name: str) -> dict[Any, Any]:
        """Return the dictionary attribute ``name``, copied before its first change."""
        if (name, None) not in self._owned:
            self._owned.add((name, None))
            # A dictionary with deleted entries is copied as it is by copy(), but rebuilt entry by entry by its constructor.
            setattr(self.cluster, name, getattr(self.cluster, name).copy())
        copied: dict[Any, Any] = getattr(self.cluster, name)
        return copied

    def _change_pods(self, changes: list[tuple[str, Pod | None]]) -> set[str]:
        """Apply changes of pods to the indexes; return the names of nodes with changed pods."""
        if not changes:
            return set()
        touched: set[str] = set()
        pods = self._own("pods")
        for key, new in changes:
            old = pods.get(key)
            if old is not None:
                self._index(key, old, -1, touched)
                del pods[key]
            if new is not None:
                pods[key] = new
                self._index(key, new, +1, touched)
            warnings = new.warnings if new is not None and not new.finished else ()
            if warnings or (old is not None and old.warnings):
                self._warn(object_name(Pod, key), warnings)
        return touched

    def _warn(self, name: str, warnings: tuple[str, ...]) -> None:
        if warnings:
            self._own("warned")[name] = warnings
        elif name in self.cluster.warned:
            del self._own("warned")[name]

    def _index(self, key: str, pod: Pod, sign: int, touched: set[str]) -> None:
        if pod.finished:
            finished = self._own("finished")
            if sign > 0:
                finished[key] = pod
            else:
                del finished[key]
            return
        if not pod.node_name:
            self._index_unbound(key, pod, sign)
            return
        touched.add(pod.node_name)
        here = self._inner("on_node", pod.node_name, dict)
        if sign > 0:
            here[key] = pod
        else:
            del here[key]
            if not here:
                del self.cluster.on_node[pod.node_name]
                self._owned.discard(("on_node", pod.node_name))
        peer = PeerKey(pod.namespace, pod.labels, pod.deleted > 0)
        self._count("peers", peer, pod.node_name, sign)
        spec = pod.spec
        if (
            spec.anti_affinity
            or spec.host_ports
            or spec.volumes
            or spec.affinity
            or spec.preferred_affinity
            or spec.preferred_anti_affinity
        ):
            self._count_user(spec, pod.node_name, sign)

    def _index_unbound(self, key: str, pod: Pod, sign: int) -> None:
        group = class_key(pod)
        unbound = self._own("unbound")
        bucket = unbound.get(group)
        if ("unbound", group) not in self._owned:
            self._owned.add(("unbound", group))
            bucket = unbound[group] = Bucket(dict(bucket.pods) if bucket else {})
        assert bucket is not None
        if sign > 0:
            bucket.pods[key] = pod
        else:
            del bucket.pods[key]
            if not bucket.pods:
                del unbound[group]
                self._owned.discard(("unbound", group))

    def _inner(self, name: str, key: Any, copy: Any) -> Any:
        outer = self._own(name)
        if (name, key) not in self._owned:
            self._owned.add((name, key))
            outer[key] = copy(outer.get(key, ()))
        return outer[key]

    def _count(self, name: str, key: Any, node: str, sign: int) -> None:
        counts = self._inner(name, key, dict)
        remaining = counts.get(node, 0) + sign
        if remaining:
            counts[node] = remaining
        else:
            del counts[node]
            if not counts:
                del getattr(self.cluster, name)[key]
                self._owned.discard((name, key))

    def _count_user(self, spec: PodSpec, node: str, sign: int) -> None:
        users = self._own("users")
        if ("users", spec.digest) not in self._owned:
            self._owned.add(("users", spec.digest))
            users[spec.digest] = Users(spec, dict(users[spec.digest].nodes) if spec.digest in users else {})
        counts = users[spec.digest].nodes
        remaining = counts.get(node, 0) + sign
        if remaining:
            counts[node] = remaining
        else:
            del counts[node]
            if not counts:
                del users[spec.digest]
                self._owned.discard(("users", spec.digest))

    def _request_again(self, touched: set[str]) -> None:
        cluster = self.cluster
        rows = {cluster.table.row[name]: cluster.on_node.get(name) for name in touched if name in cluster.table.row}
        if rows:
            requested = {name: array.copy() for name, array in cluster.requested.items()}
            for row, pods in rows.items():
                for array in requested.values():
                    array[row] = 0
                if pods:
                    add_requests(requested, row, pods.values(), len(cluster.table))
            cluster.requested = requested
        cluster.requested = {name: array for name, array in cluster.requested.items() if array.any()}


def object_names(delta: Delta) -> set[str]:
    """Return all objects in ``delta``, by their names in :class:`~gpuscaler.model.aside.Skipped`."""
    names = {object_name(kind, key) for kind, key in delta.deletes}
    for item in delta.upserts:
        key = item.key if isinstance(item, Pod) else item.name if isinstance(item, Node) else getattr(item, HOMES[type(item)][1])
        names.add(object_name(type(item), key))
    return names


def class_key(pod: Pod) -> ClassKey:
    """Return the class of an unbound pod."""
    return ClassKey(pod.spec.digest, pod.labels, pod.options, pod.owner, pod.nominated_node, pod.unschedulable, pod.deleted > 0)


def add_requests(requested: dict[str, Array], row: int, pods: Iterable[Pod], size: int) -> None:
    """Add the requests of ``pods`` to ``row``, up to ``FULL``. They are summed in Python first, because single array elements are slow."""
    total: dict[str, int] = {}
    count = 0
    for pod in pods:
        count += 1
        for resource, amount in pod.spec.requests.items():
            total[resource] = total.get(resource, 0) + amount
    total["pods"] = count
    for resource, amount in total.items():
        array = requested.get(resource)
        if array is None:
            array = requested[resource] = np.zeros(size, dtype=np.int64)
        array[row] = min(int(array[row]) + amount, FULL)
