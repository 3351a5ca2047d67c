"""The volumes of a pod that scheduling considers: claims, local storage, and disks of in-tree plug-ins."""

from collections.abc import Iterable

from msgspec import field

from gpuscaler.model.pods import VolumeUse
from gpuscaler.model.wire import Wire


class Claim(Wire):
    claim_name: str | None = None


class EmptyDir(Wire):
    medium: str | None = None


class Marker(Wire):
    """A volume source; only its presence matters."""


class Disk(Wire):
    """The fields by which in-tree plug-ins identify a disk, for all kinds."""

    volume_id: str | None = field(default=None, name="volumeID")
    pd_name: str | None = None
    disk_uri: str | None = field(default=None, name="diskURI")
    disk_name: str | None = None
    iqn: str | None = None
    monitors: list[str] | None = None
    pool: str | None = None
    image: str | None = None
    volume_path: str | None = None
    read_only: bool | None = None

    @property
    def handle(self) -> str:
        """The identifier of the disk: ``pool/image@monitor,monitor`` for an RBD image, else its only name."""
        if self.image is not None:
            return f"{self.pool or 'rbd'}/{self.image}@{','.join(sorted(self.monitors or ()))}"
        return self.volume_id or self.pd_name or self.disk_uri or self.disk_name or self.iqn or self.volume_path or ""


class InTreeSources(Wire):
    """The in-tree plug-ins that scheduling considers: those served by CSI drivers today, and those that do not share a disk."""

    gce_persistent_disk: Disk | None = None
    aws_elastic_block_store: Disk | None = None
    azure_disk: Disk | None = None
    cinder: Disk | None = None
    iscsi: Disk | None = None
    rbd: Disk | None = None
    portworx_volume: Disk | None = None
    vsphere_volume: Disk | None = None

    @property
    def disk(self) -> Disk | None:
        return (
            self.gce_persistent_disk
            or self.aws_elastic_block_store
            or self.azure_disk
            or self.cinder
            or self.iscsi
            or self.rbd
            or self.portworx_volume
            or self.vsphere_volume
        )

    @property
    def plugin(self) -> str:
        """The field name of the plug-in of :attr:`disk`; "" if there is none."""
        names = zip(InTreeSources.__struct_fields__, InTreeSources.__struct_encode_fields__, strict=True)
        return next((name for attribute, name in names if getattr(self, attribute) is not None), "")


class Volume(InTreeSources):
    name: str | None = None
    persistent_volume_claim: Claim | None = None
    ephemeral: Marker | None = None
    empty_dir: EmptyDir | None = None
    host_path: Marker | None = None

    @property
    def local(self) -> bool:
        """Whether its content is lost with the node (Cluster Autoscaler's rule: an emptyDir in memory is not storage)."""
        return self.host_path is not None or (self.empty_dir is not None and self.empty_dir.medium != "Memory")


def relevant_volumes(volumes: Iterable[Volume]) -> list[Volume]:
    """Return the volumes that matter to scheduling.

    Others are dropped: their generated names (``kube-api-access-x7k2p``) would make identical pods look different.
    """
    return [
        volume
        for volume in volumes
        if volume.persistent_volume_claim is not None or volume.local or volume.ephemeral is not None or volume.disk is not None
    ]


def volume_uses(volumes: Iterable[Volume], pod_name: str) -> tuple[VolumeUse, ...]:
    """Return the volumes of a pod, in the order of its specification. An ephemeral volume's claim is named after the pod and the volume."""
    uses = []
    for volume in volumes:
        if volume.persistent_volume_claim is not None:
            uses.append(VolumeUse(claim=volume.persistent_volume_claim.claim_name or ""))
        elif volume.ephemeral is not None:
            uses.append(VolumeUse(claim=f"{pod_name}-{volume.name or ''}", ephemeral=True))
        elif (disk := volume.disk) is not None:
            uses.append(VolumeUse(driver=volume.plugin, handle=disk.handle, read_only=bool(disk.read_only)))
    return tuple(uses)
