"""Effects of placed pods on others through their spec: host ports, anti-affinity, volumes.

Most pods use none of these, so each part is built from the cluster on first use, once for a room and its copies.
"""

from collections.abc import Callable
from typing import Protocol, TypeVar

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.table import Array
from gpuscaler.planning.feasibility.nodes import NodeMasks
from gpuscaler.planning.feasibility.pods.interpod import Repulsion
from gpuscaler.planning.feasibility.pods.peers import by_row
from gpuscaler.planning.feasibility.ports import PortUse
from gpuscaler.planning.feasibility.volumes.plugins import VolumeFacts, Volumes


class _Part(Protocol):
    def fill(self, spec: PodSpec, rows: Array, counts: Array) -> None: ...


_P = TypeVar("_P", bound=_Part)
_Wanted = Callable[[PodSpec], bool]


class BoundParts:
    """The parts with only the bound pods of the cluster, shared by a room and its copies."""

    def __init__(self, cluster: Cluster, nodes: NodeMasks) -> None:
        self.cluster = cluster
        self.table = nodes.table
        self._nodes = nodes
        self._facts: VolumeFacts | None = None
        self._ports: PortUse | None = None
        self._repulsion: Repulsion | None = None
        self._volumes: Volumes | None = None

    @property
    def facts(self) -> VolumeFacts:
        if self._facts is None:
            self._facts = VolumeFacts(self.cluster, self._nodes)
        return self._facts

    @property
    def ports(self) -> PortUse:
        if self._ports is None:
            self._ports = self._filled(PortUse(self.table), _has_ports)
        return self._ports

    @property
    def repulsion(self) -> Repulsion:
        if self._repulsion is None:
            self._repulsion = self._filled(Repulsion(self.table, self.cluster.namespaces), _repels)
        return self._repulsion

    @property
    def volumes(self) -> Volumes:
        if self._volumes is None:
            self._volumes = self._filled(Volumes(self.facts), _has_volumes)
        return self._volumes

    def _filled(self, part: _P, wanted: _Wanted) -> _P:
        for user in self.cluster.users.values():
            if wanted(user.spec):
                part.fill(user.spec, *by_row(self.table, user.nodes.items()))
        return part


class Effects:
    """The parts with the bound pods and all pods placed since."""

    def __init__(self, bound: BoundParts) -> None:
        self._bound = bound
        self._ports: PortUse | None = None
        self._repulsion: Repulsion | None = None
        self._volumes: Volumes | None = None

    @property
    def ports(self) -> PortUse:
        if self._ports is None:
            self._ports = self._bound.ports.copy()
        return self._ports

    @property
    def repulsion(self) -> Repulsion:
        if self._repulsion is None:
            self._repulsion = self._bound.repulsion.copy()
        return self._repulsion

    @property
    def volumes(self) -> Volumes:
        if self._volumes is None:
            self._volumes = self._bound.volumes.copy()
        return self._volumes

    def add(self, spec: PodSpec, row: int, count: int) -> None:
        """Place ``count`` copies of ``spec`` on ``row``, or remove them if it is negative."""
        if _has_volumes(spec):
            self.volumes.add(spec, row, count)
        if _has_ports(spec):
            self.ports.add(spec, row, count)
        if _repels(spec):
            self.repulsion.add(spec, row, count)

    def copy(self) -> "Effects":
        new = Effects(self._bound)
        new._ports = None if self._ports is None else self._ports.copy()
        new._repulsion = None if self._repulsion is None else self._repulsion.copy()
        new._volumes = None if self._volumes is None else self._volumes.copy()
        return new

    def extended(self, bound: BoundParts) -> "Effects":
        """The same over the table of ``bound``, which has additional rows at the end."""
        new = Effects(bound)
        new._ports = None if self._ports is None else self._ports.extended(bound.table)
        new._repulsion = None if self._repulsion is None else self._repulsion.extended(bound.table)
        new._volumes = None if self._volumes is None else self._volumes.extended(bound.table, bound.facts)
        return new


def _has_ports(spec: PodSpec) -> bool:
    return bool(spec.host_ports)


def _repels(spec: PodSpec) -> bool:
    return bool(spec.anti_affinity)


def _has_volumes(spec: PodSpec) -> bool:
    return bool(spec.volumes)
