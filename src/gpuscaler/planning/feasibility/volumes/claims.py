"""Resolves the volumes of a pod: its claims, the volumes behind them, and problems that make it unschedulable everywhere."""

from collections.abc import Iterator
from typing import NamedTuple

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import PodSpec, VolumeUse
from gpuscaler.model.storage import PersistentVolume, PersistentVolumeClaim
from gpuscaler.planning.feasibility.volumes.migration import (
    KINDS,
    OLD_REGION,
    OLD_ZONE,
    PLUGINS,
    REGION,
    UNCOUNTED,
    ZONE,
    Attachment,
    attachment,
    is_csi,
    volume_attachment,
)

NO_PROVISIONER = "kubernetes.io/no-provisioner"
_UNCOUNTED_PLUGINS = frozenset(UNCOUNTED.values())


class Claims(NamedTuple):
    """The volumes of a pod spec.

    ``problems`` gives, by plug-in, the reason why no node is possible. ``bound`` are the volumes of bound claims, ``delayed`` the claims
    that wait for their first consumer, ``exclusive`` the keys of claims that only one pod may use at a time, ``attachments`` the volumes
    that count against driver limits, ``zones`` the (label, values) of bound volumes. ``stolen``: the claim of an ephemeral volume belongs
    to another pod; ``garbled``: a disk in the spec has a name that cannot be parsed.
    """

    problems: dict[str, str]
    bound: tuple[PersistentVolume, ...] = ()
    delayed: tuple[PersistentVolumeClaim, ...] = ()
    exclusive: tuple[str, ...] = ()
    attachments: tuple[Attachment, ...] = ()
    zones: tuple[tuple[str, frozenset[str]], ...] = ()
    stolen: bool = False
    garbled: bool = False


class ClaimReader:
    """Reads the volumes of pod specs, using the storage objects of a cluster. Shared by copies of a room."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._known: dict[str, Claims] = {}

    def read(self, spec: PodSpec) -> Claims:
        claims = self._known.get(spec.digest)
        if claims is None:
            claims = self._known[spec.digest] = self._read(spec)
        return claims

    def _read(self, spec: PodSpec) -> Claims:
        problems: dict[str, str] = {}
        bound: list[PersistentVolume] = []
        delayed: list[PersistentVolumeClaim] = []
        exclusive: list[str] = []
        zones: list[tuple[str, frozenset[str]]] = []
        stolen = False
        for use in claim_uses(spec):
            claim = self.claim(spec, use)
            if claim is None:
                _missing(problems, f"claim {spec.namespace}/{use.claim} does not exist", use)
                continue
            if use.ephemeral and not self._owned(spec, use, claim):
                stolen = True
                for plugin in ("VolumeBinding", "NodeVolumeLimits"):
                    problems.setdefault(plugin, f"claim {claim.key} belongs to another pod")
            if not use.ephemeral:
                if "ReadWriteOncePod" in claim.access_modes:
                    exclusive.append(claim.key)
                self._read_zones(claim, zones, problems)
            self._read_binding(claim, bound, delayed, problems)
        # A volume counts once, whatever it is called; a CSI name takes precedence, since it counts on every node.
        attached = {item[:2]: item for item in sorted(self.attachments(spec), key=lambda item: item.plugin, reverse=True)}
        garbled = any(use.driver in KINDS and attachment(use.driver, use.handle) is None for use in spec.volumes)
        return Claims(problems, tuple(bound), tuple(delayed), tuple(exclusive), tuple(attached.values()), tuple(zones), stolen, garbled)

    def claim(self, spec: PodSpec, use: VolumeUse) -> PersistentVolumeClaim | None:
        return self.cluster.claims.get(f"{spec.namespace}/{use.claim}")

    def _owned(self, spec: PodSpec, use: VolumeUse, claim: PersistentVolumeClaim) -> bool:
        """Whether the claim of an ephemeral volume was made for a pod with this spec: its name starts with the pod's name."""
        if not claim.owner_uid:
            return False
        parts = use.claim.split("-")
        names = ("-".join(parts[:end]) for end in range(1, len(parts)))
        pods = [pod for name in names if (pod := self.cluster.pods.get(f"{spec.namespace}/{name}"))]
        # A spec that planning derives from the pod's spec has a digest that starts with that of the pod's spec.
        owners = [pod.uid for pod in pods if spec.digest.startswith(pod.spec.digest) and pod.uid]
        return not owners or claim.owner_uid in owners

    def _read_zones(self, claim: PersistentVolumeClaim, zones: list[tuple[str, frozenset[str]]], problems: dict[str, str]) -> None:
        """Read what VolumeZone needs. It gets the volume by name, even if the binding is not complete."""
        if claim.volume:
            volume = self.cluster.volumes.get(claim.volume)
            if volume is None:
                problems.setdefault("VolumeZone", f"volume {claim.volume} of claim {claim.key} does not exist")
            else:
                zones += zone_labels(volume)
            return
        storage_class = self.cluster.storage_classes.get(claim.storage_class or "")
        if storage_class is None:
            problems.setdefault("VolumeZone", f"claim {claim.key} has no volume, and its storage class does not exist")
        elif not storage_class.wait_for_first_consumer:
            problems.setdefault("VolumeZone", f"claim {claim.key} has no volume yet")

    def _read_binding(
        self,
        claim: PersistentVolumeClaim,
        bound: list[PersistentVolume],
        delayed: list[PersistentVolumeClaim],
        problems: dict[str, str],
    ) -> None:
        storage_class = self.cluster.storage_classes.get(claim.storage_class or "")
        if claim.phase == "Lost":
            problems.setdefault("VolumeBinding", f"claim {claim.key} has lost its volume {claim.volume}")
        elif claim.deleted:
            problems.setdefault("VolumeBinding", f"claim {claim.key} is being deleted")
        elif claim.volume and claim.bound:
            volume = self.cluster.volumes.get(claim.volume)
            if volume is None:
                problems.setdefault("VolumeBinding", f"volume {claim.volume} of claim {claim.key} does not exist")
            else:
                bound.append(volume)
        elif not claim.volume and storage_class is not None and storage_class.wait_for_first_consumer:
            delayed.append(claim)
        else:
            problems.setdefault("VolumeBinding", f"claim {claim.key} is not bound, and does not wait for its first consumer")

    def attachments(self, spec: PodSpec) -> Iterator[Attachment]:
        """The volumes that count against the limits of CSI drivers on the pod's node; claims that do not exist do not count."""
        for use in spec.volumes:
            if use.driver:
                in_tree = attachment(use.driver, use.handle)
            else:
                claim = self.claim(spec, use)
                in_tree = None if claim is None else self._attachment(claim)
            if in_tree is not None and in_tree.driver and in_tree.handle:
                yield in_tree

    def _attachment(self, claim: PersistentVolumeClaim) -> Attachment | None:
        volume = self.cluster.volumes.get(claim.volume) if claim.volume else None
        if volume is not None:
            return Attachment(volume.driver, volume.handle) if is_csi(volume) else volume_attachment(volume)
        storage_class = self.cluster.storage_classes.get(claim.storage_class or "")
        if storage_class is None or storage_class.provisioner in _UNCOUNTED_PLUGINS:
            return None
        # A volume that does not exist yet has no handle; the scheduler makes one up from the claim.
        handle = f"\0{claim.key}"
        in_tree = PLUGINS.get(storage_class.provisioner)
        return Attachment(in_tree.driver, handle, in_tree.plugin) if in_tree else Attachment(storage_class.provisioner, handle)


def claim_uses(spec: PodSpec) -> Iterator[VolumeUse]:
    return (use for use in spec.volumes if not use.driver)


def zone_labels(volume: PersistentVolume) -> list[tuple[str, frozenset[str]]]:
    """The zone and region labels of a volume with the values they admit; a label with an empty part in its value is ignored."""
    zones = []
    labels = dict(volume.labels)
    for key in (OLD_ZONE, OLD_REGION, ZONE, REGION):
        if key in labels:
            values = frozenset(value.strip(" ") for value in labels[key].split("__"))
            if "" not in values:
                zones.append((key, values))
    return zones


def _missing(problems: dict[str, str], message: str, use: VolumeUse) -> None:
    plugins = ["VolumeBinding", "NodeVolumeLimits"]
    if not use.ephemeral:
        plugins += ["VolumeRestrictions", "VolumeZone"]
    for plugin in plugins:
        problems.setdefault(plugin, message)
