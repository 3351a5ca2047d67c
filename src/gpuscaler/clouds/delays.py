"""How long a bought machine takes until pods can use it, as seeded distributions with documented defaults."""

import random

from msgspec import Struct


class Delay(Struct, frozen=True, gc=False):
    """A triangular distribution in seconds: never below ``low`` or above ``high``, most often near ``mode``.

    Published figures are ranges with a typical value, which is exactly what a triangle holds; anything finer would be invented.
    """

    low: float
    mode: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.mode <= self.high < float("inf"):
            raise ValueError(f"a delay needs 0 <= low <= mode <= high, got {self.low}, {self.mode}, {self.high}")

    def sample(self, source: random.Random) -> float:
        """One draw, in seconds."""
        if self.low == self.high:
            return self.low
        return source.triangular(self.low, self.high, self.mode)

    def __str__(self) -> str:
        return f"triangular({self.low:g}, {self.mode:g}, {self.high:g}) s"


class Delays(Struct, frozen=True, gc=False):
    """Delays of a machine: from the purchase to a Ready node, and from there until the device plugin shows its GPUs.

    Together the defaults take a GPU machine 3 to 5 minutes, typically a little over 4, from purchase to usable: Cluster Autoscaler's
    frequently asked questions report 3 to 5 minutes for GPU nodes. Machines without GPUs have no second delay. How those minutes divide
    between boot and device plugin is an assumption of ours; decisions depend on their sum.
    """

    boot: Delay = Delay(150.0, 200.0, 240.0)
    device_plugin: Delay = Delay(30.0, 45.0, 60.0)
