"""VolumeRestrictions: disks that two pods on a node may not share, and claims that only one pod may use at a time."""

from collections.abc import Iterator

import numpy as np

from gpuscaler.model.pods import PodSpec, VolumeUse
from gpuscaler.model.table import Mask
from gpuscaler.planning.feasibility.holdings import Holdings
from gpuscaler.planning.feasibility.volumes.claims import Claims, claim_uses

_CONFLICTING = ("gcePersistentDisk", "awsElasticBlockStore", "iscsi", "rbd")
_Disk = tuple[str, str]


class Disks:
    """The disks that are mounted and the claims that are used on each row."""

    def __init__(self) -> None:
        self._held = Holdings()

    def add(self, spec: PodSpec, row: int, count: int) -> None:
        for disk, shared in _disks(spec):
            self._held.add((disk, shared), row, count)
        for use in claim_uses(spec):
            if not use.ephemeral:
                self._held.add(f"{spec.namespace}/{use.claim}", row, count)

    def passes(self, spec: PodSpec, claims: Claims, size: int) -> Mask:
        """Rows without a conflicting mount of a disk of this pod; no rows while another pod uses a ReadWriteOncePod claim of this pod."""
        refused = "VolumeRestrictions" in claims.problems or self._taken(claims) is not None
        mask = np.full(size, not refused, dtype=np.bool_)
        for disk, shared in _disks(spec):
            mask[list(self._meeting(disk, shared=shared))] = False
        return mask

    def _taken(self, claims: Claims) -> str | None:
        return next((key for key in claims.exclusive if self._held.rows(key)), None)

    def _meeting(self, disk: _Disk, *, shared: bool) -> Iterator[int]:
        """Rows that mount ``disk`` for writing, or in any way if this pod mounts it for writing."""
        yield from self._held.rows((disk, False))
        if not shared:
            yield from self._held.rows((disk, True))

    def explain(self, spec: PodSpec, claims: Claims, row: int) -> str:
        if "VolumeRestrictions" in claims.problems:
            return claims.problems["VolumeRestrictions"]
        taken = self._taken(claims)
        if taken is not None:
            return f"claim {taken} is ReadWriteOncePod and another pod uses it"
        for disk, shared in _disks(spec):
            if row in self._meeting(disk, shared=shared):
                return f"disk {disk[1]} ({disk[0]}) is mounted by another pod on the node"
        return "disks are free"

    def copy(self) -> "Disks":
        new = Disks()
        new._held = self._held.copy()
        return new


def alone(spec: PodSpec, claims: Claims) -> bool:
    """Whether a node takes at most one copy of the pod, because a second one conflicts with the first."""
    return bool(claims.exclusive) or any(not shared for _, shared in _disks(spec))


def _disks(spec: PodSpec) -> Iterator[tuple[_Disk, bool]]:
    """The disks that can conflict, and whether this pod's mount can be shared (read-only)."""
    for use in spec.volumes:
        if use.driver in _CONFLICTING:
            # An EBS disk is never shared, not even read-only.
            shared = use.read_only and use.driver != "awsElasticBlockStore"
            for name in _names(use):
                yield (use.driver, name), shared


def _names(use: VolumeUse) -> Iterator[str]:
    """The names of a disk; disks with a name in common are the same. An RBD image has one name for each of its monitors."""
    image, _, monitors = use.handle.rpartition("@")
    if use.driver != "rbd":
        yield use.handle
    elif monitors:
        for monitor in monitors.split(","):
            yield f"{image}@{monitor}"
