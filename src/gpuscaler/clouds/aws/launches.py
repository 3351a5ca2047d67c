"""What machines are made from: launch template versions, and launch configurations, their predecessors."""

import base64
import binascii
import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import Struct

from gpuscaler.clouds.aws.groups import Reply

ARRIVING = "gpuscaler.io/arriving"
#: Names of the disk that pods' files are on: Amazon Linux, Ubuntu, Bottlerocket's second one.
_ROOTS = ("/dev/xvda", "/dev/sda1", "/dev/xvdb")
_EFA = ("efa", "efa-only")


class Launch(Struct, frozen=True):
    """One version of a launch template. What it leaves open is empty.

    ``market`` is what InstanceMarketOptions ask for; ``disk`` is in GiB; ``efa`` counts interfaces; ``arriving`` says that user data
    registers the node with our start-up taint. ``outdated`` marks a launch configuration. ``digest`` is another one where anything is,
    understood here or not.
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
    outdated: bool = False
    digest: str = ""


def launch_of(data: Reply) -> Launch:
    """From ``LaunchTemplateData``. Raises ValueError or TypeError where it is not what it should be."""
    options = data.get("InstanceMarketOptions") or {}
    target = (data.get("CapacityReservationSpecification") or {}).get("CapacityReservationTarget") or {}
    group = target.get("CapacityReservationResourceGroupArn")
    return Launch(
        image=data.get("ImageId") or "",
        instance_type=data.get("InstanceType") or "",
        requirements=data.get("InstanceRequirements") or None,
        market=options.get("MarketType") or "on-demand",
        spot_max_price=_dollars((options.get("SpotOptions") or {}).get("MaxPrice")),
        efa=sum(one.get("InterfaceType") in _EFA for one in data.get("NetworkInterfaces") or ()),
        disk=_disk(data),
        reservations=tuple(filter(None, [target.get("CapacityReservationId")])),
        reservation_groups=(group,) if group else (),
        arriving=_arriving(data.get("UserData")),
        digest=_digest(data),
    )


def configuration_of(data: Reply) -> Launch:
    """From an entry of ``LaunchConfigurations``: accounts made since 2023 cannot have one, so it is outdated wherever it is met."""
    price = data.get("SpotPrice")
    return Launch(
        image=data.get("ImageId") or "",
        instance_type=data.get("InstanceType") or "",
        market="spot" if price else "on-demand",
        spot_max_price=_dollars(price),
        disk=_disk(data),
        arriving=_arriving(data.get("UserData")),
        outdated=True,
        digest=_digest(data),
    )


def _digest(data: Reply) -> str:
    return hashlib.sha256(msgspec.json.encode(data, order="deterministic")).hexdigest()[:16]


def _dollars(text: str | None) -> float | None:
    return float(text) if text else None


def _disk(data: Reply) -> int:
    """The larger of the disks that can hold pods' files, in GiB; 0 where the image decides."""
    roots = (one for one in data.get("BlockDeviceMappings") or () if one.get("DeviceName") in _ROOTS)
    sizes = [int((one.get("Ebs") or {}).get("VolumeSize") or 0) for one in roots]
    return max(sizes, default=0)


def _arriving(user_data: str | None) -> bool:
    """Whether the node registers with our taint, wherever in the user data that is said."""
    try:
        return ARRIVING.encode() in base64.b64decode(user_data or "", validate=True)
    except (binascii.Error, ValueError):
        return False
