"""The room: a working copy of a cluster's used capacity, with the rows that kube-scheduler's filters would admit a pod to.

A plan starts from the cluster as it is, appends upcoming and new machines as rows, and places pods one after the other. Data that a filter
needs beyond the node itself (topology counts, ports, volumes) is built when a pod first needs it, and kept current from then on.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from gpuscaler.model.accelerators import GPU_MILLI
from gpuscaler.model.cluster import Cluster, PeerKey
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import PodSpec, SpreadConstraint
from gpuscaler.model.selectors import LabelSelector
from gpuscaler.model.table import Array, Mask, NodeTable
from gpuscaler.planning.feasibility import ORDER, Passes
from gpuscaler.planning.feasibility.devices import Devices
from gpuscaler.planning.feasibility.effects import BoundParts, Effects
from gpuscaler.planning.feasibility.min_gpus import MIN_GPUS, OPEN, MinGpus, explain_min_gpus, with_closing_tolerations
from gpuscaler.planning.feasibility.nodes import explain_selector, explain_taint
from gpuscaler.planning.feasibility.pods.interpod import InterPod
from gpuscaler.planning.feasibility.pods.peers import PeerIndex, Peers, Query
from gpuscaler.planning.feasibility.pods.spread import Spread, SpreadCounts, hard
from gpuscaler.planning.feasibility.resources import UNBOUNDED, FreeResources, counted_requests
from gpuscaler.planning.feasibility.static import Rows, Static, intersect, unreadable_plugins
from gpuscaler.planning.feasibility.tallies import Tallies

__all__ = ["GPU_MILLI", "UNBOUNDED", "Room", "Rows", "SpreadCounts", "Verdict"]


class PlacedPods(NamedTuple):
    """Pods of one kind that a plan placed: how many on each row."""

    spec: PodSpec
    labels: LabelSet
    counts: Mapping[int, int]


class _Trace(NamedTuple):
    """One change of a room, linked to the changes before it; a room and its copies share these links."""

    before: "_Trace | None"
    spec: PodSpec
    labels: LabelSet
    rows: int | Array
    counts: int | Array

    def pairs(self) -> Iterable[tuple[int, int]]:
        if isinstance(self.rows, np.ndarray) and isinstance(self.counts, np.ndarray):
            return zip(self.rows.tolist(), self.counts.tolist(), strict=True)
        return ((int(self.rows), int(self.counts)),)


class Verdict:
    """The result of the filters for one pod: ``mask`` are the rows that all of them pass."""

    __slots__ = ("_passes", "mask")

    def __init__(self, mask: Mask, passes: Passes) -> None:
        self.mask = mask
        self._passes = passes

    @property
    def excluded(self) -> Mapping[str, Mask]:
        """The rows that each filter rejects on its own, by plug-in name; filters that do not apply to the pod are missing."""
        return {name: ~passes for name, passes in self._passes.items()}

    @property
    def passes(self) -> Mapping[str, Mask]:
        """The rows that each filter passes on its own, by plug-in name."""
        return self._passes


class _FixedFilters:
    """The data that placing pods cannot change, shared by a room and its copies."""

    def __init__(self, cluster: Cluster, rows: Rows) -> None:
        self.rows = rows
        self.spread = rows.spread
        self.bound = BoundParts(cluster, rows.nodes)
        self._with_volumes: dict[str, Static] = {}
        self._on_any_size: dict[tuple[str, bool], Static] = {}

    def verdict(self, spec: PodSpec) -> Static:
        """Like :meth:`Rows.verdict`, but also by the node affinity of volumes."""
        if not spec.volumes:
            return self.rows.verdict(spec)
        verdict = self._with_volumes.get(spec.digest)
        if verdict is None:
            passes = {**self.rows.verdict(spec)[1], **self.bound.facts.passes(spec)}
            verdict = self._with_volumes[spec.digest] = intersect(passes)
        return verdict

    def on_any_size(self, spec: PodSpec, *, promised: bool) -> Static:
        """Like :meth:`verdict`, on kept machines of any size of closed pools; for ``promised`` pods, on all kept machines."""
        mask, passes = self.verdict(spec)
        if MIN_GPUS not in passes or self.rows.min_gpus is None:
            return mask, passes
        verdict = self._on_any_size.get((spec.digest, promised))
        if verdict is None:
            lifted = self.rows.min_gpus.kept if promised else self.rows.min_gpus.by_size
            verdict = self._on_any_size[spec.digest, promised] = intersect({**passes, MIN_GPUS: passes[MIN_GPUS] | lifted})
        return verdict


class Room:
    """Rows of a node table with the used capacity of each. Mutable: :meth:`copy` it before trying placements.

    Finished pods are ignored. Terminating pods take room and count for affinity, but not for topology spread.
    """

    def __init__(self, cluster: Cluster, rows: Rows) -> None:
        table = rows.table
        self.cluster = cluster
        self.table = table
        self._fixed = _FixedFilters(cluster, rows)
        self._ledger = FreeResources(table, _requested(cluster, table))
        self._peers = Peers(Tallies(table), PeerIndex(table, cluster))
        self._effects = Effects(self._fixed.bound)
        self._devices = _devices(cluster, table)
        self.trace: _Trace | None = None
        #: Whether pods may go to machines of closed pools that are larger than the smallest that holds them.
        self.any_size = False

    @classmethod
    def of(cls, cluster: Cluster, table: NodeTable | None = None) -> "Room":
        """The room of ``cluster``, less what its bound, unfinished pods use; ``table``, if given, replaces its nodes."""
        return cls(cluster, Rows(cluster.table if table is None else table))

    def extended(self, templates: Sequence[Node], min_gpus: MinGpus | None = None) -> "Room":
        """This room with ``templates`` appended as empty rows. Every template must have its own name and hostname."""
        return self.over_more(self._fixed.rows.extended(templates, min_gpus))

    def over_more(self, rows: Rows) -> "Room":
        """This room over ``rows``, which have additional empty rows at the end."""
        new = object.__new__(Room)
        new.cluster = self.cluster
        new.table = table = rows.table
        new._fixed = _FixedFilters(self.cluster, rows)
        new._ledger = self._ledger.extended(table)
        new._peers = self._peers.extended(table, PeerIndex(table, self.cluster))
        new._effects = self._effects.extended(new._fixed.bound)
        new._devices = self._devices.extended(table) if self._devices else _devices(Cluster(), table)
        new.trace = self.trace
        new.any_size = self.any_size
        return new

    def copy(self) -> "Room":
        """An independent copy. Arrays are shared until one of the two changes them."""
        new = object.__new__(Room)
        new.__dict__.update(self.__dict__)
        new._ledger = self._ledger.copy()
        new._peers = self._peers.copy()
        new._effects = self._effects.copy()
        new._devices = self._devices.copy() if self._devices else None
        return new

    def __len__(self) -> int:
        return len(self.table)

    def free(self, resource: str) -> Array:
        """The free amount of ``resource`` by row, negative if overcommitted. Callers must not change it; placing may change it in place."""
        return self._ledger.free(resource)

    def used(self, resource: str) -> Array:
        """The used amount of ``resource`` by row."""
        return self.table.allocatable(resource) - self._ledger.free(resource)

    @property
    def found_volumes(self) -> Mapping[str, str]:
        """The claim, by key, that each free volume goes to because of the pods placed here, by the volume's name."""
        return self._effects.volumes.found

    def device_free(self, row: int) -> tuple[int, ...]:
        """The free amount of each shared device of ``row``, in thousandths; empty if the row offers none."""
        return self._devices.free(row) if self._devices else ()

    def static_mask(self, spec: PodSpec) -> Mask:
        """Rows that the filters independent of placements admit: selector, affinity, taints, cordons, the node affinity of volumes."""
        return self._static(spec)[0]

    def _static(self, spec: PodSpec, *, promised: bool = False) -> Static:
        return self._fixed.on_any_size(spec, promised=promised) if self.any_size or promised else self._fixed.verdict(spec)

    def selected(self, spec: PodSpec) -> Mask:
        """Rows that match selector and node affinity."""
        return self._fixed.verdict(spec)[1]["NodeAffinity"]

    def verdict(self, spec: PodSpec, labels: LabelSet) -> Verdict:
        """The rows that admit a pod with this spec and these labels now."""
        static, known = self._static(spec)
        passes = {**known, "NodeResourcesFit": self._resources_pass(spec), **self._others_pass(spec, labels, known)}
        mask = static.copy()
        for passing in passes.values():
            mask &= passing
        return Verdict(mask, passes)

    def admitting(self, spec: PodSpec, labels: LabelSet, rows: slice) -> Mask:
        """The mask of ``rows`` that admit a pod, as in :meth:`verdict`."""
        static, passes = self._static(spec)
        mask = self._resources_pass(spec, rows) & static[rows]
        for passing in self._others_pass(spec, labels, passes).values():
            mask &= passing[rows]
        return mask

    def _others_pass(self, spec: PodSpec, labels: LabelSet, passing: Passes) -> Passes:
        """Rows that pass by ports, volumes and affinity or spread rules of other pods; plug-ins that are in ``passing`` are left out."""
        passes: dict[str, Mask] = {}
        if spec.host_ports:
            passes["NodePorts"] = self._effects.ports.passes(spec)
        if spec.volumes:
            passes |= self._effects.volumes.passes(spec)
        if hard(spec) and "PodTopologySpread" not in passing:
            passes["PodTopologySpread"] = self._spread(spec, labels).passes()
        between = self._between(spec, labels)
        if between.applies and "InterPodAffinity" not in passing:
            passes["InterPodAffinity"] = between.passes()
        return passes

    def _resources_pass(self, spec: PodSpec, rows: slice = slice(None)) -> Mask:
        mask = self._ledger.passes(spec, rows)
        if self._devices and (amount := spec.requests.get(GPU_MILLI)):
            mask &= self._devices.passes(amount)[rows]
        return mask

    def _spread(self, spec: PodSpec, labels: LabelSet) -> Spread:
        return Spread(spec, PeerKey(spec.namespace, labels, False), self._fixed.spread, self._peers)

    def _between(self, spec: PodSpec, labels: LabelSet) -> InterPod:
        return InterPod(spec, PeerKey(spec.namespace, labels, False), self._peers, self._effects.repulsion)

    def reason(self, spec: PodSpec, labels: LabelSet, row: int) -> tuple[str, str]:
        """The first filter, in the scheduler's order, that rejects the pod on ``row``, and an explanation; both empty if none does."""
        passes = self.verdict(spec, labels).passes
        for name in (*ORDER, MIN_GPUS):
            if name in passes and not passes[name][row]:
                return name, self._explain(name, spec, labels, row)
        return "", ""

    def _explain(self, name: str, spec: PodSpec, labels: LabelSet, row: int) -> str:
        if name in unreadable_plugins(spec):
            return "a label selector of the pod cannot be read"
        node = self.table.nodes[row]
        explain: dict[str, Callable[[], str]] = {
            "NodeUnschedulable": lambda: "node is cordoned",
            "TaintToleration": lambda: explain_taint(spec if self._least_gpus(row) == OPEN else with_closing_tolerations(spec), node),
            MIN_GPUS: lambda: explain_min_gpus(spec, self._least_gpus(row)),
            "NodeAffinity": lambda: explain_selector(spec, node),
            "NodePorts": lambda: self._effects.ports.explain(spec, row),
            "NodeResourcesFit": lambda: self._explain_resources(spec, row),
            "PodTopologySpread": lambda: self._spread(spec, labels).explain(row),
            "InterPodAffinity": lambda: self._between(spec, labels).explain(row),
        }
        return explain[name]() if name in explain else self._effects.volumes.explain(name, spec, row)

    def _least_gpus(self, row: int) -> int:
        min_gpus = self._fixed.rows.min_gpus
        return OPEN if min_gpus is None else min_gpus.least_gpus(row)

    def _explain_resources(self, spec: PodSpec, row: int) -> str:
        short = self._ledger.explain(spec, row)
        if short:
            return short
        return f"node(s) had devices with {list(self.device_free(row))} free {GPU_MILLI}, {spec.requests[GPU_MILLI]} requested"

    def fits(self, spec: PodSpec) -> Array:
        """How many more copies fit on each row by resources and pod count alone."""
        fits = self._ledger.copies(spec)
        if self._devices and (amount := counted_requests(spec).get(GPU_MILLI)):
            np.minimum(fits, self._devices.copies(amount), out=fits)
        return fits

    def capacity(self, spec: PodSpec, labels: LabelSet, among: Mask | None = None, *, promised: bool = False) -> Array:
        """How many more copies fit on each row, if placed one after the other on that row alone; 0 if the next one is refused.

        Counts resources, pod count, host ports, disks and claims that two pods may not share, anti-affinity of the pod against itself,
        and spread over hostnames. Spread over larger domains is checked for the next copy only. Rows outside ``among`` are 0.

        Pods that are ``promised`` a kept machine keep it whatever their size: it was bought for them.
        """
        static, passes = self._static(spec, promised=promised)
        mask = static if among is None else static & among
        if not mask.any():
            return np.zeros(len(self.table), dtype=np.int64)
        fits = self.fits(spec)
        fits *= mask
        if spec.host_ports or (spec.volumes and self._effects.volumes.alone(spec)):
            np.minimum(fits, 1, out=fits)
        if hard(spec):
            np.minimum(fits, self._spread(spec, labels).copies_per_host(), out=fits)
        if spec.anti_affinity:
            fits[self._between(spec, labels).alone_on() & (fits > 1)] = 1
        if self._devices:
            fits *= self._resources_pass(spec)
        for passing in self._others_pass(spec, labels, passes).values():
            fits *= passing
        return fits

    def place(self, spec: PodSpec, labels: LabelSet, row: int, count: int = 1) -> None:
        """Put ``count`` copies onto ``row``, whether the filters admit them or not."""
        self._change(spec, labels, row, count, terminating=False)

    def place_all(self, spec: PodSpec, labels: LabelSet, rows: Array, counts: Array) -> None:
        """Like :meth:`place` for each of ``rows``, which must be distinct, with its own count."""
        self.trace = _Trace(self.trace, spec, labels, rows, counts)
        self._ledger.add(spec, rows, counts)
        pairs = list(zip(rows.tolist(), counts.tolist(), strict=True))
        self._peers.add_all(PeerKey(spec.namespace, labels, False), pairs)
        if self._devices or spec.volumes or spec.host_ports or spec.anti_affinity:
            for row, count in pairs:
                self._follow(spec, row, count)

    def remove(self, spec: PodSpec, labels: LabelSet, row: int, count: int = 1, *, terminating: bool = False) -> None:
        """Remove ``count`` copies from ``row``; ``terminating``: they were being deleted, so that spread did not count them."""
        self._change(spec, labels, row, -count, terminating=terminating)

    def _change(self, spec: PodSpec, labels: LabelSet, row: int, count: int, *, terminating: bool) -> None:
        if not terminating:
            self.trace = _Trace(self.trace, spec, labels, row, count)
        self._ledger.add(spec, row, count)
        self._peers.add(PeerKey(spec.namespace, labels, terminating), row, count)
        self._follow(spec, row, count)

    def placed_since(self, before: "Room") -> list[PlacedPods]:
        """The pods placed here since this room was made from ``before``, by kind of pod, in the order of placement.

        Only rows of ``before`` count, with their final counts. A pod that was terminating when it was removed is left out.
        """
        parts: list[_Trace] = []
        part = self.trace
        while part is not None and part is not before.trace:
            parts.append(part)
            part = part.before
        placed: dict[tuple[int, LabelSet], tuple[PodSpec, dict[int, int]]] = {}
        for part in reversed(parts):
            counts = placed.setdefault((id(part.spec), part.labels), (part.spec, {}))[1]
            for row, count in part.pairs():
                if row < len(before):
                    counts[row] = counts.get(row, 0) + count
        kept = ((spec, labels, {row: n for row, n in counts.items() if n}) for (_, labels), (spec, counts) in placed.items())
        return [PlacedPods(spec, labels, counts) for spec, labels, counts in kept if counts]

    def _follow(self, spec: PodSpec, row: int, count: int) -> None:
        """Keep shared devices, ports, volumes and anti-affinity current."""
        if self._devices and (amount := spec.requests.get(GPU_MILLI)):
            for _ in range(abs(count)):
                (self._devices.add if count > 0 else self._devices.remove)(row, amount)
        self._effects.add(spec, row, count)

    def spread_counts(self, spec: PodSpec, labels: LabelSet, constraint: SpreadConstraint) -> SpreadCounts:
        """Matching pods per domain of a spread constraint of ``spec``, as the plug-in counts them, and which domains are eligible.

        Callers must not change the arrays; placing may change them in place.
        """
        return self._spread(spec, labels).counts(constraint)

    def matching(
        self,
        namespaces: tuple[str, ...],
        namespace_selector: LabelSelector | None,
        selector: LabelSelector | None,
        *,
        exclude_terminating: bool = False,
    ) -> Array:
        """How many pods on each row are in these namespaces and match ``selector``.

        Callers must not change the array; placing may change it in place.
        """
        number = self._peers.count(Query(selector, namespaces, namespace_selector, exclude_terminating))
        return self._peers.tallies.rows(number)


def _requested(cluster: Cluster, table: NodeTable) -> Mapping[str, Array]:
    """The requested amounts per row of ``table``, which need not be the cluster's own."""
    if table is cluster.table or table.names[: len(cluster.table)] == cluster.table.names:
        # Rows after those of the cluster are empty.
        return cluster.requested
    pairs = [(row, cluster.table.row[name]) for name, row in table.row.items() if name in cluster.table.row]
    rows, sources = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    requested = {resource: np.zeros(len(table), dtype=np.int64) for resource in cluster.requested}
    for resource, array in requested.items():
        array[rows] = cluster.requested[resource][sources]
    return requested


def _devices(cluster: Cluster, table: NodeTable) -> Devices | None:
    """The shared devices of ``table`` with the bound pods packed onto them, or None if no row offers any."""
    offered = np.flatnonzero(table.allocatable(GPU_MILLI) >= 1)
    if not len(offered):
        return None
    devices = Devices(table)
    held = {int(row): cluster.on_node.get(table.names[row], {}).values() for row in offered}
    devices.pack({row: [a for pod in pods if (a := pod.spec.requests.get(GPU_MILLI))] for row, pods in held.items()})
    return devices
