"""Rows where volumes can be reached and made: VolumeZone, and the half of VolumeBinding that placing pods does not change."""

import numpy as np

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.selectors import NodeSelector
from gpuscaler.model.storage import CSIStorageCapacity, PersistentVolume, PersistentVolumeClaim, StorageClass
from gpuscaler.model.table import Mask
from gpuscaler.planning.feasibility.nodes import NodeMasks
from gpuscaler.planning.feasibility.volumes.attaching import AttachLimits
from gpuscaler.planning.feasibility.volumes.claims import NO_PROVISIONER, Claims
from gpuscaler.planning.feasibility.volumes.migration import KINDS, OLD_REGION, OLD_ZONE, REGION, ZONE, translated, volume_attachment


class Reach:
    """Masks of the rows of one table. Shared by copies of a room."""

    def __init__(self, cluster: Cluster, nodes: NodeMasks, limits: AttachLimits) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._limits = limits
        self._volumes: dict[str, Mask] = {}
        self._made: dict[str, Mask] = {}
        self._by_class: dict[str, list[PersistentVolume]] | None = None

    def _all(self, value: bool) -> Mask:
        return np.full(len(self._nodes.table), value, dtype=np.bool_)

    def bound(self, claims: Claims) -> Mask:
        """VolumeBinding for bound claims: rows from which every bound volume is reachable."""
        mask = self._all("VolumeBinding" not in claims.problems)
        for volume in claims.bound:
            mask &= self.volume(volume)
        return mask

    def volume(self, volume: PersistentVolume) -> Mask:
        """Rows that the node affinity of ``volume`` admits; on rows where CSI serves an in-tree volume, its translated affinity."""
        mask = self._volumes.get(volume.name)
        if mask is None:
            mask = self._selected(volume.node_affinity)
            if volume.driver in KINDS:
                served = self._limits.migrated_rows(KINDS[volume.driver].plugin)
                elsewhere = self._all(False) if volume_attachment(volume) is None else self._selected(translated(volume))
                mask = np.where(served, elsewhere, mask)
            self._volumes[volume.name] = mask
        return mask

    def unbound(self, volume: PersistentVolume) -> Mask:
        """Rows that the node affinity of a volume without a claim admits, without translation."""
        return self._selected(volume.node_affinity)

    def _selected(self, selector: NodeSelector | None) -> Mask:
        # The scheduler matches only the labels of the node, not its name, so requirements on fields always hold.
        if selector is None:
            return self._all(True)
        mask = self._all(False)
        for term in selector.terms:
            if term.expressions or term.fields:
                mask |= self._nodes.requirements(term.expressions)
        return mask

    def zones(self, claims: Claims) -> Mask:
        """VolumeZone: rows in the zone and region that the labels of bound volumes give; rows without any such label pass."""
        mask = self._all("VolumeZone" not in claims.problems)
        if claims.zones:
            columns = [self._nodes.table.column(key).codes for key in (OLD_ZONE, OLD_REGION, ZONE, REGION)]
            unlabelled = np.logical_and.reduce([codes < 0 for codes in columns])
            for key, values in claims.zones:
                mask &= unlabelled | self._in(key, values)
        return mask

    def _in(self, key: str, values: frozenset[str]) -> Mask:
        """Rows with one of ``values`` in the label ``key``; for a row without it, the current name of the label counts."""
        codes, values_by_code = self._nodes.table.column(key)
        mask: Mask = np.array([*(value in values for value in values_by_code), False], dtype=np.bool_)[codes]
        newer = {OLD_ZONE: ZONE, OLD_REGION: REGION}.get(key)
        return mask if newer is None else np.where(codes < 0, self._in(newer, values), mask)

    def provisionable(self, claim: PersistentVolumeClaim) -> Mask:
        """Rows where a volume for ``claim`` could be provisioned, judging by its storage class's provisioner, topology and capacity."""
        mask = self._made.get(claim.key)
        if mask is None:
            storage_class = self._cluster.storage_classes.get(claim.storage_class or "")
            if storage_class is None or storage_class.provisioner in ("", NO_PROVISIONER):
                mask = self._all(False)
            else:
                mask = self._topologies(storage_class) & self._capacity(claim, storage_class)
            self._made[claim.key] = mask
        return mask

    def _topologies(self, storage_class: StorageClass) -> Mask:
        mask = self._all(not storage_class.allowed_topologies)
        for term in storage_class.allowed_topologies:
            if term.expressions:
                mask |= self._nodes.requirements(term.expressions)
        return mask

    def _capacity(self, claim: PersistentVolumeClaim, storage_class: StorageClass) -> Mask:
        driver = self._cluster.csi_drivers.get(storage_class.provisioner)
        if not claim.request or driver is None or not driver.storage_capacity:
            return self._all(True)
        mask = self._all(False)
        for capacity in self._cluster.csi_capacities.values():
            if capacity.storage_class == storage_class.name and capacity.node_topology is not None and _largest(capacity) >= claim.request:
                mask |= self._nodes.requirements(capacity.node_topology.requirements)
        return mask

    def in_class(self, claim: PersistentVolumeClaim) -> list[PersistentVolume]:
        """The volumes of the claim's storage class, smallest first."""
        if self._by_class is None:
            self._by_class = {}
            for volume in sorted(self._cluster.volumes.values(), key=lambda v: (v.capacity, v.name)):
                self._by_class.setdefault(volume.storage_class, []).append(volume)
        return self._by_class.get(claim.storage_class or "", [])

    def row_named(self, name: str) -> Mask:
        mask = self._all(False)
        row = self._nodes.table.row.get(name)
        if row is not None:
            mask[row] = True
        return mask


def _largest(capacity: CSIStorageCapacity) -> int:
    """The size of the largest volume that can be made, 0 if unknown."""
    return (capacity.capacity if capacity.maximum_volume_size is None else capacity.maximum_volume_size) or 0
