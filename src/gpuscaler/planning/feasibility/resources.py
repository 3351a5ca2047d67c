"""NodeResourcesFit: the free amount of each resource on each row. GPUs that are shared in thousandths are in :mod:`.devices`."""

from collections.abc import Mapping

import numpy as np

from gpuscaler.model.pods import PodSpec
from gpuscaler.model.requests import FULL
from gpuscaler.model.table import Array, Mask, NodeTable

PODS = "pods"
#: More copies than any row can take: the result if nothing bounds them.
UNBOUNDED = 2**62
#: Offered by rows for checks that are not about resources: the filters only need the resource to exist.
BOUNDLESS = 2**60
#: Resources shown in binary units.
_BYTES = ("memory", "ephemeral-storage")


#: Sums of requests of at most this size stay within int64 for any number of pods.
_ORDINARY = 2**40


class FreeResources:
    """Free amounts per resource and row, built on first use of a resource; copies share each array until one changes it."""

    def __init__(self, table: NodeTable, used: Mapping[str, Array]) -> None:
        self.table = table
        self._used = used
        self._free: dict[str, Array] = {}
        self._owned: set[str] = set()

    def free(self, resource: str) -> Array:
        """The free amount by row, negative for an overcommitted row. Callers must not change it."""
        array = self._free.get(resource)
        if array is None:
            array = self.table.allocatable(resource).copy()
            used = self._used.get(resource)
            if used is not None:
                array[: len(used)] -= used
            self._free[resource] = array
            self._owned.add(resource)
        return array

    def add(self, spec: PodSpec, row: int | Array, count: int | Array) -> None:
        """Subtract ``count`` copies of ``spec`` from ``row``, or from each of several distinct rows; add them if negative."""
        self._own(PODS)[row] -= count
        for resource, amount in spec.requests.items():
            if amount and resource != PODS:
                self._take(resource, row, amount, count)

    def _take(self, resource: str, row: int | Array, amount: int, count: int | Array) -> None:
        free = self._own(resource)
        if amount <= _ORDINARY:
            free[row] -= amount * count
        else:
            free[row] = _subtract(free[row], amount, count)

    def _own(self, resource: str) -> Array:
        array = self.free(resource)
        if resource not in self._owned:
            array = self._free[resource] = array.copy()
            self._owned.add(resource)
        return array

    def passes(self, spec: PodSpec, rows: slice = slice(None)) -> Mask:
        """The mask of ``rows`` with room for one more pod and for every request above zero."""
        mask = self.free(PODS)[rows] >= 1
        for resource, amount in counted_requests(spec).items():
            mask &= self.free(resource)[rows] >= amount
        return mask

    def copies(self, spec: PodSpec) -> Array:
        """How many more copies fit on each row, by requests and pod count."""
        fits = self.free(PODS).copy()
        for resource, amount in counted_requests(spec).items():
            np.minimum(fits, self.free(resource) // amount, out=fits)
        return np.maximum(fits, 0, out=fits)

    def copy(self) -> "FreeResources":
        new = FreeResources(self.table, self._used)
        new._free = dict(self._free)
        self._owned = set()
        return new

    def extended(self, table: NodeTable) -> "FreeResources":
        """The same use over ``table``, which has additional rows at the end."""
        new = FreeResources(table, self._used)
        for resource, array in self._free.items():
            new._free[resource] = np.concatenate((array, table.allocatable(resource)[len(array) :]))
        new._owned = set(new._free)
        return new

    def explain(self, spec: PodSpec, row: int) -> str:
        """Every resource that ``row`` is short of."""
        short = []
        if self.free(PODS)[row] < 1:
            short.append(f"node(s) had room for {self.table.allocatable(PODS)[row]} pods, all taken")
        for resource, amount in counted_requests(spec).items():
            left = int(self.free(resource)[row])
            if left < amount:
                short.append(
                    f"node(s) had {format_amount(resource, max(left, 0))} free {resource}, {format_amount(resource, amount)} requested"
                )
        return "; ".join(short)


def _subtract(free: Array, amount: int, count: int | Array) -> Array:
    """``free`` less ``count`` times ``amount``. A row that is overcommitted beyond ``FULL`` stays so, whatever is freed on it."""
    copies, cap = np.asarray(count, dtype=np.int64), FULL // amount - 1
    left = np.maximum(free - amount * np.clip(copies, -cap, cap), -FULL)
    return np.where((free <= -FULL) | (copies > cap), -FULL, left)


def counted_requests(spec: PodSpec) -> dict[str, int]:
    """The requests that the scheduler compares: those above zero for resources that it counts."""
    return {resource: amount for resource, amount in spec.requests.items() if amount > 0 and counted(resource)}


def counted(resource: str) -> bool:
    """Whether the scheduler counts ``resource``.

    It counts cpu, memory, ephemeral-storage, huge pages, attachable volumes, and names with a domain. It ignores other names and quota
    names (``requests.…``). The pod count is not a request. Source: ``IsScalarResourceName`` in ``pkg/scheduler/util``.
    """
    if resource in ("cpu", "memory", "ephemeral-storage"):
        return True
    if resource.startswith(("hugepages-", "attachable-volumes-")) or "kubernetes.io/" in resource:
        return True
    return "/" in resource and not resource.startswith("requests.")


def format_amount(resource: str, amount: int) -> str:
    """``amount`` for display: in cores, in Gi, or as a plain number."""
    if resource == "cpu":
        return f"{amount / 1000:g}"
    if resource in _BYTES:
        return f"{amount / 2**30:.4g}Gi"
    return str(amount)
