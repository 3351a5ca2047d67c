"""A model of kube-scheduler: chooses the open node that a pod is bound to.

It has the filters that affect pods of traces (node affinity, node selector, taints, resources, pod count, and the devices behind parts of
GPUs) and the default scores that distinguish their nodes: NodeResourcesFit and NodeResourcesBalancedAllocation, weight 1 each, over cpu and
memory (``pkg/scheduler/framework/plugins/noderesources``). NodeResourcesFit uses the configured strategy: LeastAllocated, the default,
spreads pods and so keeps machines from becoming idle; MostAllocated fills one machine before the next. TaintToleration, weight 3, is added
if an autoscaler marks its machines with soft taints (:mod:`gpuscaler.lifecycle.node_marks.soft_taints`). Of equal nodes kube-scheduler
takes a random one; this model takes the oldest, so that a run can be repeated.
"""

from collections.abc import Collection, Sequence

import numpy as np
from msgspec import Struct

from gpuscaler.lifecycle.node_marks.soft_taints import MEASURED, shares_used, taints_due
from gpuscaler.model.accelerators import GPU_MILLI
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Offering
from gpuscaler.model.table import Array, Mask
from gpuscaler.simulation.cloud.machines import KUBELET_RESOURCES
from gpuscaler.simulation.world.scoring import TAINT_WEIGHT, resource_scores, taint_scores

#: Scoring strategies of NodeResourcesFit (``scoringStrategy`` of a KubeSchedulerConfiguration); the first is kube-scheduler's default.
LEAST_ALLOCATED, MOST_ALLOCATED = SCORINGS = ("least-allocated", "most-allocated")


class Seat(Struct, frozen=True, gc=False):
    """A pod's place: a node, and (device, thousandths) it takes there."""

    node: str
    devices: tuple[tuple[int, int], ...] = ()


class Scheduler:
    """Open nodes and the room left on them. Rows of the arrays are nodes; a row is used again after its node is gone.

    Nodes of the pools ``kept`` are closed to the scheduler: they take only pods that are placed on them explicitly. A node has a soft
    taint for each of the ``soft_taint_shares`` that its utilization does not exceed, at any moment: the seconds until a controller's
    next pass are left out. An autoscaler that sets such taints individually uses :meth:`mark`.
    """

    def __init__(
        self,
        offerings: Sequence[Offering],
        *,
        scoring: str = LEAST_ALLOCATED,
        kept: Collection[str] = (),
        soft_taint_shares: Sequence[float] = (),
    ) -> None:
        names = sorted({name for offering in offerings for name in offering.allocatable} | {"cpu", "memory", "pods"})
        self._column = {name: number for number, name in enumerate(names)}
        self._kubelet: Array = np.array([name in KUBELET_RESOURCES for name in names], dtype=np.int64)
        self._offerings = tuple(offerings)
        self._unsteered: Mask = np.array([offering.pool not in kept for offering in offerings], dtype=np.bool_)
        self._fill = scoring == MOST_ALLOCATED
        self._discourages = soft_taint_shares
        self._measured = [name for name in MEASURED if name in self._column]
        self._kind_of_offering = {offering.key: number for number, offering in enumerate(offerings)}
        self._devices = max((offering.allocatable.get(GPU_MILLI, 0) // 1000 for offering in offerings), default=0)
        self._row: dict[str, int] = {}
        self._names: list[str] = []
        self._vacant: list[int] = []
        self._capacity: Array = np.zeros((0, len(names)), dtype=np.int64)
        self._free: Array = np.zeros((0, len(names)), dtype=np.int64)
        self._device_room: Array = np.zeros((0, self._devices), dtype=np.int64)
        self._kind: Array = np.zeros(0, dtype=np.int64)
        self._age: Array = np.zeros(0, dtype=np.int64)
        self._open: Mask = np.zeros(0, dtype=np.bool_)
        self._marked: Mask = np.zeros(0, dtype=np.bool_)
        self._added = 0
        self._requests: dict[str, Array | None] = {}
        #: A pod's request, by column: devices first, since few nodes have any left.
        self._asked: dict[str, list[tuple[int, int]]] = {}
        self._eligible: dict[str, Mask] = {}

    def copy(self) -> "Scheduler":
        """Return a copy to try something on."""
        twin = object.__new__(Scheduler)
        twin.__dict__.update(self.__dict__)
        for name in ("_capacity", "_free", "_device_room", "_kind", "_age", "_open", "_marked"):
            setattr(twin, name, getattr(self, name).copy())
        twin._row, twin._names, twin._vacant = dict(self._row), list(self._names), list(self._vacant)
        return twin

    def add(self, name: str, offering: Offering, *, devices: bool = True) -> None:
        """Add an opened, empty node; without ``devices`` it offers only the resources that the kubelet reports so far."""
        if not self._vacant:
            self._grow()
        row = self._vacant.pop()
        self._names[row] = name
        self._row[name] = row
        self._capacity[row] = [offering.allocatable.get(resource, 0) for resource in self._column]
        self._free[row] = self._capacity[row]
        self._device_room[row] = self._whole_devices(offering)
        self._kind[row] = self._kind_of_offering[offering.key]
        self._added += 1
        self._age[row] = self._added
        self._open[row] = True
        self._marked[row] = False
        if not devices:
            self._free[row] *= self._kubelet
            self._device_room[row] = 0

    def complete(self, name: str, offering: Offering) -> None:
        """Add a node's remaining resources, since its device plugin has registered."""
        row = self._row[name]
        self._free[row] += self._capacity[row] * (1 - self._kubelet)
        self._device_room[row] = self._whole_devices(offering)

    def open(self, name: str) -> None:
        """Let a closed node take pods again."""
        self._open[self._row[name]] = True

    def close(self, name: str) -> None:
        """Bind no more pods to a node."""
        self._open[self._row[name]] = False

    def mark(self, name: str, *, unneeded: bool) -> None:
        """Set or lift a soft taint (PreferNoSchedule) on a node."""
        self._marked[self._row[name]] = unneeded

    def remove(self, name: str) -> None:
        """Remove a node."""
        row = self._row.pop(name)
        self._open[row] = False
        self._vacant.append(row)

    def best(self, spec: PodSpec) -> str | None:
        """The node that the next pod of ``spec`` is bound to, or None if it fits nowhere."""
        request = self._request(spec)
        if request is None:
            return None
        rows = self._fitting(spec, self._unsteered)
        if not rows.size:
            return None
        scores = self._scores(rows, request)
        ties = rows[scores == scores.max()]
        return self._names[int(ties[np.argmin(self._age[ties])])]

    def best_for_all(self, specs: Sequence[PodSpec]) -> list[str] | None:
        """The nodes that pods are bound to one after the other, or None if they do not all fit."""
        trial = self.copy()
        nodes: list[str] = []
        for spec in specs:
            node = trial.best(spec)
            if node is None:
                return None
            trial.place(spec, node)
            nodes.append(node)
        return nodes

    def first(self, spec: PodSpec) -> str | None:
        """The oldest node on which a pod of ``spec`` fits, as a first-fit packer chooses. None if it fits nowhere."""
        if self._request(spec) is None:
            return None
        rows = self._fitting(spec)
        return self._names[int(rows[np.argmin(self._age[rows])])] if rows.size else None

    def fits(self, spec: PodSpec, name: str) -> bool:
        """Whether a pod of ``spec`` fits on that node now."""
        row = self._row.get(name)
        return row is not None and self._request(spec) is not None and row in self._fitting(spec)

    def place(self, spec: PodSpec, name: str) -> Seat:
        """Take room on a node where the pod fits."""
        row = self._row[name]
        request = self._request(spec)
        assert request is not None, "placed pods were found to fit"
        self._free[row] -= request
        devices = self._take_devices(row, spec.requests.get(GPU_MILLI, 0))
        return Seat(name, devices)

    def leave(self, spec: PodSpec, seat: Seat) -> None:
        """Release the room of a pod."""
        row = self._row[seat.node]
        request = self._request(spec)
        assert request is not None, "a seated pod had a request"
        self._free[row] += request
        for device, amount in seat.devices:
            self._device_room[row, device] += amount

    def _whole_devices(self, offering: Offering) -> list[int]:
        """The devices of a new machine, of which pods may take parts: thousandths of each."""
        devices = offering.allocatable.get(GPU_MILLI, 0) // 1000
        return [1000 if number < devices else 0 for number in range(self._devices)]

    def _grow(self) -> None:
        old = len(self._names)
        new = max(16, old)
        self._names.extend([""] * new)
        self._vacant.extend(range(old + new - 1, old - 1, -1))
        self._capacity, self._free, self._device_room = (
            np.concatenate((array, np.zeros((new, array.shape[1]), dtype=np.int64)))
            for array in (self._capacity, self._free, self._device_room)
        )
        self._kind = np.concatenate((self._kind, np.zeros(new, dtype=np.int64)))
        self._age = np.concatenate((self._age, np.zeros(new, dtype=np.int64)))
        self._open = np.concatenate((self._open, np.zeros(new, dtype=np.bool_)))
        self._marked = np.concatenate((self._marked, np.zeros(new, dtype=np.bool_)))

    def _request(self, spec: PodSpec) -> Array | None:
        """The request of a pod, by column; None if it asks for something that no offering has."""
        if spec.digest not in self._requests:
            offered = all(name in self._column for name in spec.requests)
            requests = {**spec.requests, "pods": 1}
            request = np.array([requests.get(name, 0) for name in self._column], dtype=np.int64)
            self._requests[spec.digest] = request if offered else None
            columns = np.flatnonzero(request)
            columns = columns[np.argsort(self._kubelet[columns], kind="stable")]
            self._asked[spec.digest] = list(zip(columns.tolist(), request[columns].tolist(), strict=True))
        return self._requests[spec.digest]

    def _fitting(self, spec: PodSpec, offerings: Mask | None = None) -> Array:
        """Rows of open nodes, of ``offerings`` if given, on which a pod of ``spec`` fits. Its request must be known."""
        eligible = self._eligible.get(spec.digest)
        if eligible is None:
            eligible = np.array([offering.admits(spec) for offering in self._offerings], dtype=np.bool_)
            self._eligible[spec.digest] = eligible
        rows = (self._open & (eligible if offerings is None else eligible & offerings)[self._kind]).nonzero()[0]
        # A column that is not requested is no obstacle, even if it is overcommitted.
        for column, amount in self._asked[spec.digest]:
            if not rows.size:
                return rows
            rows = rows[self._free[rows, column] >= amount]
        milli = spec.requests.get(GPU_MILLI, 0)
        if milli and rows.size:
            room = self._device_room[rows]
            rows = rows[room.max(axis=1) >= milli if milli <= 1000 else (room == 1000).sum(axis=1) * 1000 >= milli]
        return rows

    def _scores(self, rows: Array, request: Array) -> Array:
        columns = [self._column["cpu"], self._column["memory"]]
        scores = resource_scores(self._capacity[rows][:, columns], self._free[rows][:, columns], request[columns], fill=self._fill)
        return scores + TAINT_WEIGHT * self._taint_scores(rows) if self._discourages or self._marked[rows].any() else scores

    def _taint_scores(self, rows: Array) -> Array:
        capacity = {name: self._capacity[rows, self._column[name]] for name in self._measured}
        used = {name: amount - self._free[rows, self._column[name]] for name, amount in capacity.items()}
        return taint_scores(taints_due(shares_used(used, capacity), self._discourages) + self._marked[rows])

    def _take_devices(self, row: int, milli: int) -> tuple[tuple[int, int], ...]:
        if not milli:
            return ()
        room = self._device_room[row]
        if milli <= 1000:
            # The fullest device that still has room, as GPU-sharing schedulers pack.
            device = min((free, number) for number, free in enumerate(room.tolist()) if free >= milli)[1]
            devices: tuple[tuple[int, int], ...] = ((device, milli),)
        else:
            free_devices = np.flatnonzero(room == 1000)[: milli // 1000]
            devices = tuple((int(device), 1000) for device in free_devices)
        for device, amount in devices:
            room[device] -= amount
        return devices
