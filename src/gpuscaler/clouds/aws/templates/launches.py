"""Decodes launch template versions and launch configurations, their predecessors."""

import base64
import binascii
import hashlib
import re
from collections.abc import Mapping
from typing import Any, TypedDict

import msgspec
from msgspec import Struct

from gpuscaler.clouds.aws.api.groups import Reply
from gpuscaler.clouds.aws.api.spelling import is_same_word, respelled
from gpuscaler.clouds.aws.templates.user_data import UnreadableUserDataError, UserDataError, kubelet_of
from gpuscaler.model.taints import Taint
from gpuscaler.model.well_known import ARRIVING_TAINT

#: Names of the disk that holds pods' files: Amazon Linux, Ubuntu, Bottlerocket's second one.
_ROOTS = ("/dev/xvda", "/dev/sda1", "/dev/xvdb")
_EFA = ("efa", "efa-only")
#: How nodeadm (``localStorage.strategy``) and the older bootstrap.sh request one file system on all local disks.
_RAID0 = re.compile(rb"strategy[\"']?:\s*[\"']?RAID0|--local-disks[ =]raid0", re.IGNORECASE)
#: The same in Bottlerocket's bootstrap commands (``apiclient ephemeral-storage init``, then ``bind``).
_BOTTLEROCKET = b"ephemeral-storage"
#: ``MarketType`` of a launch template.
_MARKETS = ("spot", "capacity-block")


class Registration(TypedDict):
    """Fields of :class:`Launch` that come from user data."""

    arriving: bool
    taints: tuple[Taint, ...] | None
    unusable: str
    pods: int


class Launch(Struct, frozen=True):
    """One version of a launch template. Fields that the template leaves open are empty.

    ``market`` comes from InstanceMarketOptions; ``disk`` is in GiB; ``efa`` counts interfaces. ``arriving`` means that user data registers
    the node with our startup taint. ``taints`` are those of a flag in user data, None without such a flag, and ``unusable`` is why the
    kubelet would not start with this user data. ``outdated`` marks a launch configuration. ``digest`` changes with any part of the data,
    whether or not it is understood here. ``source`` is its name for users; ``kept_disks`` are the devices whose disks outlive the machine,
    and ``undecided_disks`` those for which that is not specified. ``pods`` is the kubelet's pod limit, 0 if user data does not set it, and
    ``local_disks`` means that user data puts pods' files on all local disks as one. ``disk_keys`` are the KMS keys of encrypted disks; with
    ``default_key`` one of them has the region's default key, and with ``root_has_key`` the first disk has one of its own.
    ``metadata_hops`` is the hop limit of the metadata service: 0 if that is off, None if the template does not say.
    """

    image: str = ""
    instance_type: str = ""
    requirements: Mapping[str, Any] | None = None
    market: str = "on-demand"
    spot_max_price: float | None = None
    efa: int = 0
    disk: int = 0
    reservations: tuple[str, ...] = ()
    reservation_groups: tuple[str, ...] = ()
    arriving: bool = False
    taints: tuple[Taint, ...] | None = None
    unusable: str = ""
    outdated: bool = False
    digest: str = ""
    source: str = "launch template"
    kept_disks: tuple[str, ...] = ()
    undecided_disks: tuple[str, ...] = ()
    pods: int = 0
    local_disks: bool = False
    disk_keys: tuple[str, ...] = ()
    default_key: bool = False
    root_has_key: bool = False
    metadata_hops: int | None = None


def launch_of(data: Reply, source: str = "launch template") -> Launch:
    """Decode ``LaunchTemplateData`` of ``source``. Raises ValueError or TypeError if it is malformed."""
    options = data.get("InstanceMarketOptions") or {}
    target = (data.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget") or {}
    group = target.get("CapacityReservationResourceGroupArn")
    return Launch(
        image=data.get("ImageId") or "",
        instance_type=data.get("InstanceType") or "",
        requirements=data.get("InstanceRequirements") or None,
        market=respelled(options.get("MarketType"), _MARKETS) or "on-demand",
        spot_max_price=_parse_price((options.get("SpotOptions") or {}).get("MaxPrice")),
        efa=sum(respelled(interface.get("InterfaceType"), _EFA) in _EFA for interface in data.get("NetworkInterfaces") or ()),
        disk=_largest_root_disk(data),
        reservations=tuple(filter(None, [target.get("CapacityReservationId")])),
        reservation_groups=(group,) if group else (),
        **_registration(data.get("UserData")),
        local_disks=_local_disks(data.get("UserData")),
        digest=_digest(data),
        source=source,
        kept_disks=_disks_with_deletion(data, setting=False),
        undecided_disks=tuple(device for device in _disks_with_deletion(data, setting=None) if device not in _ROOTS),
        **_disk_keys(data),
        metadata_hops=_metadata_hops(data),
    )


def configuration_of(data: Reply) -> Launch:
    """Decode an entry of ``LaunchConfigurations``. Accounts made since 2023 cannot have one, so it always counts as outdated.

    Disks without DeleteOnTermination are deleted with the machine: EC2 Auto Scaling's API, "Ebs".
    """
    price = data.get("SpotPrice")
    return Launch(
        image=data.get("ImageId") or "",
        instance_type=data.get("InstanceType") or "",
        market="spot" if price else "on-demand",
        spot_max_price=_parse_price(price),
        disk=_largest_root_disk(data),
        **_registration(data.get("UserData")),
        local_disks=_local_disks(data.get("UserData")),
        outdated=True,
        default_key=_disk_keys(data)["default_key"],
        digest=_digest(data),
        source=f"launch configuration {data.get('LaunchConfigurationName') or ''}",
        kept_disks=_disks_with_deletion(data, setting=False),
    )


def _digest(data: Reply) -> str:
    return hashlib.sha256(msgspec.json.encode(data, order="deterministic")).hexdigest()[:16]


def _parse_price(text: str | None) -> float | None:
    return float(text) if text else None


def _largest_root_disk(data: Reply) -> int:
    """The largest of the disks that can hold pods' files, in GiB; 0 if the image decides."""
    roots = (mapping for mapping in data.get("BlockDeviceMappings") or () if mapping.get("DeviceName") in _ROOTS)
    sizes = [int((root.get("Ebs") or {}).get("VolumeSize") or 0) for root in roots]
    return max(sizes, default=0)


def _disks_with_deletion(data: Reply, *, setting: bool | None) -> tuple[str, ...]:
    """Devices of EBS disks whose DeleteOnTermination is ``setting``, None: not given.

    For a disk of the image, the image's value applies. For others, AWS's pages contradict each other: according to "Block device mappings
    for volumes on Amazon EC2 instances" EC2 keeps them, according to "Preserve data when an instance is terminated" only those of the
    console (November 2026).
    """
    mappings = (
        mapping
        for mapping in data.get("BlockDeviceMappings") or ()
        if mapping.get("NoDevice") in (None, False) and mapping.get("Ebs") is not None
    )
    return tuple(mapping.get("DeviceName") or "a disk" for mapping in mappings if mapping["Ebs"].get("DeleteOnTermination") is setting)


def _disk_keys(data: Reply) -> dict[str, Any]:
    disks = [(mapping.get("DeviceName"), mapping.get("Ebs") or {}) for mapping in data.get("BlockDeviceMappings") or ()]
    return {
        "disk_keys": tuple(dict.fromkeys(str(disk["KmsKeyId"]) for _, disk in disks if disk.get("KmsKeyId"))),
        "default_key": any(disk.get("Encrypted") is True and not disk.get("KmsKeyId") for _, disk in disks),
        "root_has_key": any(device in _ROOTS and bool(disk.get("KmsKeyId")) for device, disk in disks),
    }


def _metadata_hops(data: Reply) -> int | None:
    options = data.get("MetadataOptions") or {}
    if is_same_word(options.get("HttpEndpoint"), "disabled"):
        return 0
    hops = options.get("HttpPutResponseHopLimit")
    return int(hops) if hops else None


def _registration(user_data: str | None) -> Registration:
    """The node registration that user data configures."""
    try:
        kubelet = kubelet_of(user_data or "")
    except UnreadableUserDataError:
        return {"arriving": False, "taints": None, "unusable": "", "pods": 0}
    except UserDataError as error:
        return {"arriving": False, "taints": None, "unusable": str(error), "pods": 0}
    arriving = any(taint.key == ARRIVING_TAINT for taint in kubelet.taints)
    return {"arriving": arriving, "taints": kubelet.taints if kubelet.replaces else None, "unusable": "", "pods": kubelet.max_pods}


def _local_disks(user_data: str | None) -> bool:
    """Whether pods' files are on all local disks as one: nodeadm's and bootstrap.sh's RAID0, Bottlerocket's ``ephemeral-storage``."""
    try:
        text = base64.b64decode(user_data or "", validate=True)
    except (binascii.Error, ValueError):
        return False
    return bool(_RAID0.search(text)) or (_BOTTLEROCKET in text and b"bind" in text)
