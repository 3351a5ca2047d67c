"""NodeVolumeLimits: how many volumes of each CSI driver a node takes.

Feature gates have their defaults of 1.35: without VolumeLimitScaling, a node without a CSINode, or without a limit for the driver, takes
any number.
"""

import numpy as np

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.table import Array, Mask, NodeTable
from gpuscaler.planning.feasibility.holdings import Holdings
from gpuscaler.planning.feasibility.resources import UNBOUNDED
from gpuscaler.planning.feasibility.tallies import Tallies
from gpuscaler.planning.feasibility.volumes.claims import Claims
from gpuscaler.planning.feasibility.volumes.migration import PORTWORX, Attachment, is_csi

#: Held for pods with the claim of another pod, or with a disk name that cannot be parsed: the scheduler cannot count volumes on their node.
_UNCOUNTABLE = "uncountable"


class AttachLimits:
    """Limits and attachments from CSINodes and VolumeAttachments, for the rows of one table. Shared by copies of a room."""

    def __init__(self, cluster: Cluster, table: NodeTable) -> None:
        self._table = table
        self._limits: dict[str, Array] = {}
        #: Rows with a limit for any driver.
        self.limited: set[int] = set()
        for node in cluster.csi_nodes.values():
            row = table.row.get(node.name)
            if row is not None:
                for driver, limit in node.limits:
                    if limit is not None:
                        self._limits.setdefault(driver, self._unlimited())[row] = limit
                        self.limited.add(row)
        #: The in-tree plug-ins that are migrated to CSI, for each row with a CSINode.
        self.migrated = {row: frozenset(n.migrated) for n in cluster.csi_nodes.values() if (row := table.row.get(n.name)) is not None}
        #: (row, driver, handle) of volumes that a VolumeAttachment keeps on a row.
        self.attached = frozenset(self._attached(cluster))

    def _unlimited(self) -> Array:
        return np.full(len(self._table), UNBOUNDED, dtype=np.int64)

    def _attached(self, cluster: Cluster) -> set[tuple[int, str, str]]:
        attachments = set()
        for item in cluster.attachments.values():
            row = self._table.row.get(item.node_name)
            volume = cluster.volumes.get(item.volume)
            if row is not None and item.attacher and volume is not None and is_csi(volume):
                attachments.add((row, item.attacher, volume.handle))
        return attachments

    def limit(self, driver: str) -> Array | None:
        """How many volumes of ``driver`` each row takes; None if no row has a limit."""
        return self._limits.get(driver)

    def migrated_rows(self, plugin: str) -> Mask:
        """Rows with a CSINode that lists ``plugin`` as migrated to CSI."""
        mask = np.zeros(len(self._table), dtype=np.bool_)
        mask[[row for row, plugins in self.migrated.items() if plugin in plugins]] = True
        return mask

    def counts(self, attachment: Attachment, row: int) -> bool:
        """Whether the scheduler counts ``attachment`` on ``row``."""
        return attachment.plugin != PORTWORX or PORTWORX in self.migrated.get(row, ())


class Attached:
    """The volumes that pods hold on each row, and the number of distinct ones per driver."""

    def __init__(self, table: NodeTable, limits: AttachLimits) -> None:
        self._limits = limits
        self._tallies = Tallies(table)
        self._numbers: dict[str, int] = {}
        self._held = Holdings()

    def add(self, claims: Claims, row: int, count: int) -> None:
        if claims.stolen or claims.garbled:
            self._held.add(_UNCOUNTABLE, row, count)
        for item in claims.attachments:
            if self._limits.counts(item, row):
                change = self._held.add(item[:2], row, count)
                if change and (row, item.driver, item.handle) not in self._limits.attached:
                    self._tallies.add(self._number(item.driver), row, change)

    def _number(self, driver: str) -> int:
        number = self._numbers.get(driver)
        if number is None:
            number = self._numbers[driver] = self._tallies.empty()
            self.count_attached(driver, number)
        return number

    def count_attached(self, driver: str, number: int, first: int = 0) -> None:
        """Count the volumes that VolumeAttachments keep on the rows from ``first`` on."""
        for row, attacher, _ in self._limits.attached:
            if attacher == driver and row >= first:
                self._tallies.add(number, row, 1)

    def passes(self, claims: Claims) -> Mask:
        """Rows that can attach those of the pod's volumes that they do not have yet."""
        mask = np.full(len(self._tallies.table), "NodeVolumeLimits" not in claims.problems, dtype=np.bool_)
        if claims.garbled:
            mask[list(self._limits.migrated)] = False
        for driver in {item.driver for item in claims.attachments}:
            limit = self._limits.limit(driver)
            if limit is not None:
                additional = self._more(driver, claims)
                # A row where the pod adds no new volume passes, even above its limit.
                mask &= (additional == 0) | (self._tallies.rows(self._number(driver)) + additional <= limit)
        for row in self._held.rows(_UNCOUNTABLE):
            # The scheduler fails to count existing volumes on such a row, if the pod has volumes to count for.
            if row in self._limits.limited and any(self._limits.counts(item, row) for item in claims.attachments):
                mask[row] = False
        return mask

    def _more(self, driver: str, claims: Claims) -> Array:
        """How many volumes of ``driver`` the pod would add to each row, including those that only a VolumeAttachment keeps there."""
        additional = np.zeros(len(self._tallies.table), dtype=np.int64)
        for item in claims.attachments:
            if item.driver == driver:
                if item.plugin == PORTWORX:
                    additional += self._limits.migrated_rows(PORTWORX)
                else:
                    additional += 1
                for row in self._held.rows(item[:2]):
                    additional[row] -= 1
        return additional

    def explain(self, claims: Claims, row: int) -> str:
        if "NodeVolumeLimits" in claims.problems:
            return claims.problems["NodeVolumeLimits"]
        if claims.garbled:
            return "a disk of the pod has a name that cannot be read"
        for driver in sorted({item.driver for item in claims.attachments}):
            limit = self._limits.limit(driver)
            if limit is not None:
                attached, additional = int(self._tallies.rows(self._number(driver))[row]), int(self._more(driver, claims)[row])
                if additional and attached + additional > limit[row]:
                    return f"node takes {limit[row]} volumes of {driver}, {attached} are attached and {additional} more are needed"
        return "volumes cannot be counted: a pod on the node uses the claim of another pod, or a disk with a name that cannot be read"

    def copy(self) -> "Attached":
        return self._with(self._limits, self._tallies.copy())

    def extended(self, table: NodeTable, limits: AttachLimits) -> "Attached":
        new = self._with(limits, self._tallies.extended(table))
        for driver, number in self._numbers.items():
            new.count_attached(driver, number, len(self._tallies.table))
        return new

    def _with(self, limits: AttachLimits, tallies: Tallies) -> "Attached":
        new = Attached(tallies.table, limits)
        new._tallies = tallies
        new._numbers = dict(self._numbers)
        new._held = self._held.copy()
        return new
