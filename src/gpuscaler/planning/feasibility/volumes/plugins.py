"""The four volume plug-ins combined into one part of a room."""

from collections.abc import Mapping

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.table import Array, NodeTable
from gpuscaler.planning.feasibility import Passes
from gpuscaler.planning.feasibility.nodes import NodeMasks
from gpuscaler.planning.feasibility.volumes.attaching import Attached, AttachLimits
from gpuscaler.planning.feasibility.volumes.binding import VolumeBinding
from gpuscaler.planning.feasibility.volumes.claims import ClaimReader
from gpuscaler.planning.feasibility.volumes.disks import Disks, alone
from gpuscaler.planning.feasibility.volumes.reach import Reach


class VolumeFacts:
    """The volume data that placing pods does not change. Shared by copies of a room."""

    def __init__(self, cluster: Cluster, nodes: NodeMasks) -> None:
        self.table = nodes.table
        self.reader = ClaimReader(cluster)
        self.limits = AttachLimits(cluster, nodes.table)
        self.reach = Reach(cluster, nodes, self.limits)

    def passes(self, spec: PodSpec) -> Passes:
        """Rows that pass VolumeBinding for bound claims, and VolumeZone, by plug-in."""
        claims = self.reader.read(spec)
        return {"VolumeBinding": self.reach.bound(claims), "VolumeZone": self.reach.zones(claims)}


class Volumes:
    """The volumes in use, with the state of all four plug-ins."""

    def __init__(self, facts: VolumeFacts) -> None:
        self._facts = facts
        self._disks = Disks()
        self._attached = Attached(facts.table, facts.limits)
        self._binding = VolumeBinding(facts.reach)

    def add(self, spec: PodSpec, row: int, count: int) -> None:
        self._binding.settle(self._facts.reader.read(spec), row, self._facts.table.names[row], count)
        self._use(spec, row, count)

    def _use(self, spec: PodSpec, row: int, count: int) -> None:
        self._disks.add(spec, row, count)
        self._attached.add(self._facts.reader.read(spec), row, count)

    def fill(self, spec: PodSpec, rows: Array, counts: Array) -> None:
        """Add bound pods. The scheduler has settled their claims already, so only the volumes they use count."""
        for row, count in zip(rows.tolist(), counts.tolist(), strict=True):
            self._use(spec, row, count)

    def passes(self, spec: PodSpec) -> Passes:
        """Rows that pass, by plug-in, except VolumeZone, which placing pods does not change."""
        claims = self._facts.reader.read(spec)
        return {
            "VolumeRestrictions": self._disks.passes(spec, claims, len(self._facts.table)),
            "NodeVolumeLimits": self._attached.passes(claims),
            "VolumeBinding": self._binding.passes(claims),
        }

    @property
    def found(self) -> Mapping[str, str]:
        """The claim, by key, that each free volume goes to because of the pods placed, by the volume's name."""
        return self._binding.found

    def alone(self, spec: PodSpec) -> bool:
        """Whether a node takes at most one copy."""
        return alone(spec, self._facts.reader.read(spec))

    def explain(self, plugin: str, spec: PodSpec, row: int) -> str:
        claims = self._facts.reader.read(spec)
        match plugin:
            case "VolumeRestrictions":
                return self._disks.explain(spec, claims, row)
            case "NodeVolumeLimits":
                return self._attached.explain(claims, row)
            case "VolumeBinding":
                return self._binding.explain(claims, row, self._facts.table.names[row])
            case _:
                return claims.problems.get("VolumeZone", f"a volume is in another zone or region: {_describe_zones(dict(claims.zones))}")

    def copy(self) -> "Volumes":
        new = object.__new__(Volumes)
        new._facts = self._facts
        new._disks = self._disks.copy()
        new._attached = self._attached.copy()
        new._binding = self._binding.copy()
        return new

    def extended(self, table: NodeTable, facts: VolumeFacts) -> "Volumes":
        new = object.__new__(Volumes)
        new._facts = facts
        new._disks = self._disks.copy()
        new._attached = self._attached.extended(table, facts.limits)
        new._binding = self._binding.extended(facts.reach)
        return new


def _describe_zones(zones: Mapping[str, frozenset[str]]) -> str:
    return ", ".join(f"{key}={'|'.join(sorted(values))}" for key, values in zones.items())
