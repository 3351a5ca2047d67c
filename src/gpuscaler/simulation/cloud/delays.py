"""Delays from purchase to usable machine, and faults, as seeded distributions with documented defaults."""

import random

from msgspec import Struct


class Delay(Struct, frozen=True, gc=False):
    """A triangular distribution in seconds: never below ``low`` or above ``high``, most often near ``mode``.

    Published figures are ranges with a typical value, which is what a triangle represents; more detail would be invented.
    """

    low: float
    mode: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.mode <= self.high < float("inf"):
            raise ValueError(f"a delay needs 0 <= low <= mode <= high, got {self.low}, {self.mode}, {self.high}")

    def sample(self, source: random.Random) -> float:
        """Draw one value, in seconds."""
        if self.low == self.high:
            return self.low
        return source.triangular(self.low, self.high, self.mode)

    def __str__(self) -> str:
        return f"triangular({self.low:g}, {self.mode:g}, {self.high:g}) s"


class Delays(Struct, frozen=True, gc=False):
    """Delays of a purchase, in order: the cloud's answer, the Ready node, the GPUs of the device plugin, the first pod's image.

    Together the defaults of ``boot`` and ``device_plugin`` take a GPU machine 3 to 5 minutes, typically a little over 4, from purchase to
    usable: Cluster Autoscaler's frequently asked questions report 3 to 5 minutes for GPU nodes. Machines without GPUs have no second delay.
    The split of those minutes between boot and device plugin is our assumption; decisions depend on their sum. An ``answer`` takes as long
    as EC2's CreateFleet takes for an instant request, capacity errors included: one to a few seconds. ``image_pull``, an assumption, is the
    time that the first pod of a machine waits for an image of several GB; later pods find the image there.
    """

    boot: Delay = Delay(150.0, 200.0, 240.0)
    device_plugin: Delay = Delay(30.0, 45.0, 60.0)
    answer: Delay = Delay(1.0, 1.5, 5.0)
    image_pull: Delay = Delay(10.0, 30.0, 90.0)


class MissingResource(Struct, frozen=True, gc=False):
    """The share ``share`` of machines of ``instance_type`` never shows ``resource``; an empty field matches everything."""

    resource: str = ""
    instance_type: str = ""
    share: float = 1.0

    def hits(self, resource: str, instance_type: str) -> bool:
        return self.resource in ("", resource) and self.instance_type in ("", instance_type)


class Faults(Struct, frozen=True, gc=False):
    """Faults of machines.

    ``never_registers`` is the share of granted machines that never join the cluster: an assumption, one in 200. ``partial_grants`` is the
    share of purchases of several spot machines that are granted only in part: an assumption, one in 20. ``gpu_hours_between_failures`` is
    the mean GPU-hours until a machine fails, exponentially distributed and shared by a machine's GPUs (a machine without any counts as
    one): 419 unexpected interruptions in 54 days on 16,384 GPUs, "The Llama 3 Herd of Models" (Meta, 2024, table 5). 0 means that none
    fails. When a spot market runs dry, each of its machines is reclaimed ``reclaim`` seconds later (92 of 100 interruptions of one market
    lie within 3 minutes, arXiv 2604.16457), with a notice ``notice_seconds`` before, AWS's two minutes; ``without_notice``, an assumption,
    is the share that gets no notice, since notices are best effort. ``never_visible`` is the share of machines with devices that never show
    them. ``impaired`` is the share of machines that never join for which the cloud itself reports a fault. With ``group_replaces``, the
    pool itself replaces a lost machine without an order, as Auto Scaling groups do; it also replaces a machine that is ended at the pool's
    minimum.

    ``absent`` are resources that machines are sold with and never show. The device plugins of a node restart once in ``plugin_hours`` and
    are away for ``plugin_seconds`` each time; its kubelet stops for good after ``kubelet_hours``. Both are means, exponentially
    distributed, and 0 means never.
    """

    never_registers: float = 0.005
    partial_grants: float = 0.05
    gpu_hours_between_failures: float = 50_700.0
    reclaim: Delay = Delay(0.0, 0.0, 180.0)
    notice_seconds: float = 120.0
    without_notice: float = 0.05
    never_visible: float = 0.0
    impaired: float = 0.0
    group_replaces: bool = False
    absent: tuple[MissingResource, ...] = ()
    plugin_hours: float = 0.0
    plugin_seconds: float = 45.0
    kubelet_hours: float = 0.0


#: A cloud in which nothing fails.
NO_FAULTS = Faults(never_registers=0.0, partial_grants=0.0, gpu_hours_between_failures=0.0)
