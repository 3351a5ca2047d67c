"""Conditions of the endpoint's AWS: delays that AWS does not publish, each with the source of its default."""

from typing import Literal

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
