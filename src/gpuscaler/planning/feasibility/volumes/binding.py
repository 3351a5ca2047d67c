"""The dynamic half of VolumeBinding: settles the claims that wait for their first consumer.

Placing a pod settles its unbound claims as kube-scheduler does before it binds the pod. A claim that found a volume keeps it, and a claim
that needs a new volume is pinned to the row (the annotation ``volume.kubernetes.io/selected-node``).
"""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from gpuscaler.model.storage import PersistentVolume, PersistentVolumeClaim
from gpuscaler.model.table import Mask
from gpuscaler.planning.feasibility.volumes.claims import Claims
from gpuscaler.planning.feasibility.volumes.reach import Reach


class _Settled(NamedTuple):
    """The outcome of placing for a claim: the volume it found, or the node where one is made; ``holders`` pods rely on it."""

    volume: str
    node: str
    holders: int


class VolumeBinding:
    """The claims that placements settled."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach
        self._settled: dict[str, _Settled] = {}
        self._promised: dict[str, str] = {}

    @property
    def found(self) -> Mapping[str, str]:
        """The claim that found each volume, by the volume's name."""
        return self._promised

    def passes(self, claims: Claims) -> Mask:
        """Rows from which bound volumes are reachable, and where every delayed claim finds a volume or can have one made."""
        mask = self._reach.bound(claims)
        if not claims.delayed or not mask.any():
            return mask
        matching = []
        for claim in claims.delayed:
            node = self._selected_node(claim)
            if node:
                mask &= self._reach.row_named(node) & self._reach.provisionable(claim)
            else:
                matching.append(claim)
        for group in _by_class(matching):
            mask &= self._rows_for_group(group)
        return mask

    def _selected_node(self, claim: PersistentVolumeClaim) -> str:
        settled = self._settled.get(claim.key)
        return claim.selected_node or (settled.node if settled else "")

    def _rows_for_group(self, group: list[PersistentVolumeClaim]) -> Mask:
        """Rows where every claim of ``group``, all of one class, finds a volume or can have one made."""
        candidates = {claim.key: self._candidates(claim) for claim in group}
        volumes = list({volume.name: volume for candidate in candidates.values() for volume, _ in candidate}.values())
        masks = {volume.name: self._reach.unbound(volume) for volume in volumes}
        if len(group) == 1:
            return self._rows_for_claim(group[0], candidates[group[0].key], masks)
        made = [self._reach.provisionable(claim) for claim in group]
        # Rows that reach the same volumes have the same choice.
        kinds, first, inverse = np.unique(np.array([*masks.values(), *made]), axis=1, return_index=True, return_inverse=True)
        fine = np.array([self._choose(group, candidates, masks, int(row)) is not None for row in first], dtype=np.bool_)
        return fine[inverse.reshape(-1)] if kinds.size else self._reach.bound(Claims({}))

    def _rows_for_claim(
        self, claim: PersistentVolumeClaim, candidates: list[tuple[PersistentVolume, bool]], masks: Mapping[str, Mask]
    ) -> Mask:
        mask = self._reach.provisionable(claim).copy()
        for volume, own in candidates:
            if own:
                # If a volume is already reserved for the claim, only that volume can be found.
                return mask | masks[volume.name]
        for volume, _ in candidates:
            mask |= masks[volume.name]
        return mask

    def _candidates(self, claim: PersistentVolumeClaim) -> list[tuple[PersistentVolume, bool]]:
        """The volumes that suit ``claim`` on some node, smallest first, and whether they are already meant for it."""
        candidates = []
        settled = self._settled.get(claim.key)
        for volume in self._reach.in_class(claim):
            own = _meant_for(volume, claim) or (settled is not None and settled.volume == volume.name)
            taken = (volume.claim and not own) or self._promised.get(volume.name, claim.key) != claim.key
            if not taken and _large_enough(volume, claim) and (own or _suits(volume, claim)):
                candidates.append((volume, own))
        return candidates

    def _choose(
        self,
        group: list[PersistentVolumeClaim],
        candidates: Mapping[str, list[tuple[PersistentVolume, bool]]],
        masks: Mapping[str, Mask],
        row: int,
    ) -> dict[str, str] | None:
        """The volume for each claim on ``row``, empty if one is made; None if a claim gets neither. Smaller claims choose first."""
        chosen: dict[str, str] = {}
        for claim in sorted(group, key=lambda c: c.request):
            free = [(volume, own) for volume, own in candidates[claim.key] if volume.name not in chosen.values()]
            own = next((volume for volume, is_meant in free if is_meant), None)
            options = [own] if own is not None else [volume for volume, _ in free]
            chosen[claim.key] = next((volume.name for volume in options if masks[volume.name][row]), "")
            if not chosen[claim.key] and not self._reach.provisionable(claim)[row]:
                return None
        return chosen

    def settle(self, claims: Claims, row: int, node: str, count: int) -> None:
        """Settle the delayed claims of ``count`` more pods on ``row``, if they fit there; release them if ``count`` is negative."""
        if not claims.delayed:
            return
        if count < 0:
            for claim in claims.delayed:
                self._release(claim.key, -count)
        elif self.passes(claims)[row]:
            for claim in claims.delayed:
                self._hold(claim, self._choice(claims, claim, row), node, count)

    def _choice(self, claims: Claims, claim: PersistentVolumeClaim, row: int) -> str:
        if self._selected_node(claim):
            return ""
        group = [c for c in claims.delayed if c.storage_class == claim.storage_class and not self._selected_node(c)]
        candidates = {c.key: self._candidates(c) for c in group}
        masks = {volume.name: self._reach.unbound(volume) for candidate in candidates.values() for volume, _ in candidate}
        return (self._choose(group, candidates, masks, row) or {}).get(claim.key, "")

    def _hold(self, claim: PersistentVolumeClaim, volume: str, node: str, count: int) -> None:
        settled = self._settled.get(claim.key)
        if settled is not None:
            self._settled[claim.key] = settled._replace(holders=settled.holders + count)
            return
        self._settled[claim.key] = _Settled(volume, "" if volume else node, count)
        if volume:
            self._promised[volume] = claim.key

    def _release(self, key: str, count: int) -> None:
        settled = self._settled.get(key)
        if settled is None:
            return
        if settled.holders > count:
            self._settled[key] = settled._replace(holders=settled.holders - count)
            return
        del self._settled[key]
        self._promised.pop(settled.volume, None)

    def explain(self, claims: Claims, row: int, name: str) -> str:
        if "VolumeBinding" in claims.problems:
            return claims.problems["VolumeBinding"]
        for volume in claims.bound:
            if not self._reach.volume(volume)[row]:
                return f"the node does not match the node affinity of volume {volume.name}"
        for claim in claims.delayed:
            node = self._selected_node(claim)
            if node and node != name:
                return f"claim {claim.key} is pinned to node {node}"
        keys = ", ".join(claim.key for claim in claims.delayed)
        return f"no volume was found for claim {keys} on the node, and none can be made there"

    def copy(self) -> "VolumeBinding":
        return self.extended(self._reach)

    def extended(self, reach: Reach) -> "VolumeBinding":
        new = VolumeBinding(reach)
        new._settled = dict(self._settled)
        new._promised = dict(self._promised)
        return new


def _by_class(claims: list[PersistentVolumeClaim]) -> list[list[PersistentVolumeClaim]]:
    groups: dict[str | None, list[PersistentVolumeClaim]] = {}
    for claim in claims:
        groups.setdefault(claim.storage_class, []).append(claim)
    return list(groups.values())


def _meant_for(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    return volume.claim == claim.key and volume.claim_uid in ("", claim.uid)


def _large_enough(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    """Whether ``volume`` meets the conditions that apply even if it is already meant for the claim."""
    return (
        volume.capacity >= claim.request
        and volume.volume_mode == claim.volume_mode
        and volume.attributes_class == claim.attributes_class
        and not volume.deleted
    )


def _suits(volume: PersistentVolume, claim: PersistentVolumeClaim) -> bool:
    if volume.phase != "Available" or not set(claim.access_modes) <= set(volume.access_modes):
        return False
    return claim.selector is None or claim.selector.matches(dict(volume.labels))
