"""Cluster Autoscaler's expanders, which choose among node groups that would help.

Source: kubernetes/autoscaler, ``cluster-autoscaler/expander``. Ties are broken at random there, and by a seed here.
"""

import math
import random
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Offering

RANDOM, LEAST_WASTE, PRIORITY, PRICE = EXPANDERS = ("random", "least-waste", "priority", "price")

#: US dollars per hour of one CPU, one GiB and one GPU, as the price expander values pods (``cloudprovider/gce/gce_price_model.go``).
CPU_PRICE, MEMORY_PRICE, GPU_PRICE = 0.033174, 0.004446, 0.700
GIB = 1024.0**3
#: The price expander adds the price of a pod of half a CPU and 500 MiB on both sides, so that tiny pods do not decide alone.
STABILISING = 0.5 * CPU_PRICE + 500 / 1024 * MEMORY_PRICE
#: Penalties of the price expander for a machine with GPUs and pods without, and for any other mismatch in size.
GPU_UNFITNESS, DAMPING = 1000.0, 15.0


class Option(Struct, frozen=True, gc=False):
    """A node group that would help: how many machines, for which pods (specifications with their number)."""

    offering: Offering
    count: int
    pods: tuple[tuple[PodSpec, int], ...]

    def requested(self, resource: str) -> int:
        """The total request of its pods for a resource."""
        return sum(spec.requests.get(resource, 0) * number for spec, number in self.pods)


Expander = Callable[[Sequence[Option]], Option]


def expander_by_name(name: str, *, seed: int, tiers: Mapping[str, int] | None = None) -> Expander:
    """Return the expander of that name. ``tiers`` are the priorities of markets for ``priority``; by default spot before on-demand.

    Raises ValueError for a name that Cluster Autoscaler does not have.
    """
    luck = random.Random(f"{seed}/expander")
    of_market = dict(tiers or {"reserved": 30, "spot": 20, "on-demand": 10})
    scores: dict[str, Callable[[Option], float]] = {
        RANDOM: lambda _: 0.0,
        LEAST_WASTE: waste,
        PRIORITY: lambda option: float(-of_market.get(option.offering.market, 0)),
        PRICE: price_score,
    }
    if name not in scores:
        raise ValueError(f"unknown expander {name!r}: expected one of {', '.join(EXPANDERS)}")

    def choose(options: Sequence[Option]) -> Option:
        scored = [(scores[name](option), option) for option in options]
        best = min(score for score, _ in scored)
        return luck.choice([option for score, option in scored if score == best])

    return choose


def waste(option: Option) -> float:
    """The sum of the shares of CPU and of memory that the option's machines would leave unused."""
    total = 0.0
    for resource in ("cpu", "memory"):
        allocatable = option.offering.allocatable.get(resource, 0) * option.count
        total += (allocatable - option.requested(resource)) / allocatable if allocatable else 0.0
    return total


def price_score(option: Option) -> float:
    """The machines' cost relative to the pods' value, with a penalty for an unfit machine size that shrinks with their number."""
    worth = STABILISING + option.requested("cpu") / 1000 * CPU_PRICE + option.requested("memory") / GIB * MEMORY_PRICE
    devices = [name for name in option.offering.allocatable if "/" in name]
    requested_devices = sum(option.requested(name) for name in devices)
    worth += requested_devices * GPU_PRICE
    unfit = GPU_UNFITNESS if devices and not requested_devices else 1.0
    damped = (unfit - 1.0) * (1.0 - math.tanh((option.count - 1) / DAMPING)) + 1.0
    return damped * (option.offering.price * option.count + STABILISING) / worth
