"""Conditions of the endpoint's AWS: delays that AWS does not publish, each with the source of its default."""

from collections.abc import Mapping
from typing import Any, Literal

import msgspec
from msgspec import Struct

from gpuscaler.simulation.cloud.delays import NO_FAULTS, Delays, Faults


class Conditions(Struct, frozen=True, gc=False):
    """Values are in seconds unless noted otherwise. Unpublished figures are assumptions.

    ``reaction`` passes between a changed desired capacity and the group's attempt to launch, ``retry`` between a failed attempt and the
    next, ``activity`` until a scaling activity appears, ``pending`` from a launch to InService, ``terminating`` from the call to the end of
    an instance. ``answer`` is how long LaunchInstances and CreateFleet take to answer. With ``read_lag`` Auto Scaling's Describe calls show
    a state that is so old. ``machines`` and ``boot`` are about the instances themselves: failures, reclaims, notices, boot times.
    ``ebs_csi`` says that the EBS CSI driver's DaemonSet runs on nodes, as on most clusters, ``gpu_feature_discovery`` that NVIDIA's does:
    both label nodes. ``spelling`` is how free words of replies are spelt, see :mod:`~gpuscaler.embedded.aws.wire.spellings`.
    """

    reaction: float = 1.0
    retry: float = 60.0
    activity: float = 0.0
    pending: float = 10.0
    terminating: float = 30.0
    answer: float = 0.0
    read_lag: float = 0.0
    machines: Faults = NO_FAULTS
    boot: Delays = Delays()
    ebs_csi: bool = True
    gpu_feature_discovery: bool = False
    spelling: Literal["reference", "guide", "random"] = "reference"


#: Conditions that can be changed by name: all but those of the instances themselves, which are fixed when the account is made.
CHANGEABLE = tuple(name for name in Conditions.__struct_fields__ if name not in {"machines", "boot"})


def with_changes(before: Conditions, changes: Mapping[str, Any]) -> Conditions:
    """``before`` with the changes in ``changes``, by name. Raises ValueError for an unknown name or value."""
    if unknown := sorted(changes.keys() - set(CHANGEABLE)):
        raise ValueError(f"saw {unknown[0]!r}, expected one of {', '.join(CHANGEABLE)}")
    kept = {name: getattr(before, name) for name in CHANGEABLE}
    try:
        checked = msgspec.convert({**kept, **changes}, _Changed, strict=False)
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from error
    return msgspec.structs.replace(before, **msgspec.structs.asdict(checked))


_Changed = msgspec.defstruct(
    "_Changed",
    [
        (field_info.name, field_info.type, field_info.default)
        for field_info in msgspec.structs.fields(Conditions)
        if field_info.name in CHANGEABLE
    ],
    frozen=True,
)
