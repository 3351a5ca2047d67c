"""The result of a benchmark, and the clusters and policies that several of them share."""

import gc
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from gpuscaler import catalogue
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.pods import Pod, PodSpec
from gpuscaler.model.pools import Policy
from gpuscaler.settings import parse_policy

GIB = 2**30
REGION = "us-east-1"
T = TypeVar("T")


@dataclass(frozen=True)
class Figure:
    """One row of the table: the measured quantity, the peers' value, the target, our value, and whether it reaches the target."""

    what: str
    peers: str
    reach: str
    measured: str
    reached: bool
    values: Mapping[str, float]


def time_calls(call: Callable[[], T], runs: int = 3) -> tuple[T, float]:
    """The result of ``call`` and the median wall time of ``runs`` calls in seconds, without garbage collection of earlier objects."""
    seconds = []
    gc.collect()
    gc.freeze()
    try:
        for _ in range(runs):
            began = time.perf_counter()
            result = call()
            seconds.append(time.perf_counter() - began)
    finally:
        gc.unfreeze()
    return result, sorted(seconds)[len(seconds) // 2]


def make_pods(
    prefix: str, count: int, *, gpus: int = 0, cpu: float, gib: float, labels: Mapping[str, str] | None = None, **spec: object
) -> list[Pod]:
    """``count`` equal pods; ``cpu`` in cores."""
    requests = {"cpu": round(cpu * 1000), "memory": round(gib * GIB)}
    if gpus:
        requests["nvidia.com/gpu"] = gpus
    shape = PodSpec(digest=prefix, namespace="bench", requests=requests, **spec)  # type: ignore[arg-type]  # keyword arguments of PodSpec
    own = LabelSet(labels or {"app": prefix})
    return [Pod(namespace="bench", name=f"{prefix}-{number:06}", spec=shape, labels=own) for number in range(count)]


def catalogue_policy(names: Iterable[str], *, markets: Iterable[str] = ("on-demand",), zones: Iterable[str] = ("us-east-1a",)) -> Policy:
    """One pool of catalogue types in one region; types without a price in one of ``markets`` are left out of that market."""
    pools = []
    for market in markets:
        priced = [name for name in names if price(name, market) is not None]
        pools.append(f"  - {{name: {market}, types: [{', '.join(priced)}], zones: [{', '.join(zones)}], markets: [{market}]}}")
    return parse_policy(f"region: {REGION}\npools:\n" + "\n".join(pools) + "\n", "benchmark")


def price(name: str, market: str) -> float | None:
    instance_type = catalogue.lookup(name, REGION)
    if instance_type is None:
        return None
    return instance_type.prices[REGION].spot if market == "spot" else instance_type.prices[REGION].on_demand


def types_of_families(*prefixes: str) -> list[str]:
    """AWS types of these families, such as ``g5``."""
    return [
        instance_type.name
        for instance_type in catalogue.types("aws", REGION)
        if instance_type.name.split(".")[0] in prefixes and instance_type.arch == "amd64"
    ]


def region_types() -> list[str]:
    """Every AWS type of the region for amd64 that has GPUs, or belongs to a common CPU family."""
    return [instance_type.name for instance_type in catalogue.types("aws", REGION) if instance_type.arch == "amd64"]
