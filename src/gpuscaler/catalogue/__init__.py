"""Instance types of AWS, Azure and GCP: sizes, allocatable resources, list prices with their date. A data package.

The files in ``data/`` are made by ``tools/make_catalogue.py``. Every figure names its source; computed figures are marked ``DERIVED``.
List prices contain no discounts: a ``price`` in the pools file always takes precedence.
"""

import csv
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import resources
from types import MappingProxyType

from msgspec import Struct

from gpuscaler.model.pods import Resources

MIB = 2**20
#: The clouds of the catalogue, as in :attr:`InstanceType.cloud`.
CLOUDS = ("aws", "azure", "gcp")


class Price(Struct, frozen=True, gc=False):
    """US dollars per hour in a region. ``spot`` is None if no figure is known; most spot figures are estimates, see their source."""

    on_demand: float
    spot: float | None
    source: str
    spot_source: str = ""


class InstanceType(Struct, frozen=True, gc=False):
    """An instance type.

    ``memory_mib`` is the advertised memory; ``allocatable`` are the resources left for pods, in the units of
    :data:`~gpuscaler.model.pods.Resources`, under the assumptions in ``allocatable_source``. ``gpu_product`` is the value of
    ``nvidia.com/gpu.product`` ("" if it is unknown), ``gpu_karpenter_name`` Karpenter's name of the GPU. ``gpu_memory_mib`` is
    the board's memory per GPU, ``gpu_visible_memory_mib`` the memory that the driver reports. ``efa`` counts Elastic Fabric Adapters.
    ``instance_store`` is the size of all local disks in bytes, 0 if there are none or their size is unknown.
    ``prices`` is by region; ``zone_ids`` lists, by region, the AWS zone ids that offer a GPU type.
    """

    name: str
    cloud: str
    arch: str
    vcpu: int
    memory_mib: int
    gpus: int
    gpu_product: str
    gpu_karpenter_name: str
    gpu_manufacturer: str
    gpu_memory_mib: int
    gpu_visible_memory_mib: int
    efa: int
    allocatable: Resources
    prices: Mapping[str, Price]
    zone_ids: Mapping[str, tuple[str, ...]]
    source: str
    allocatable_source: str
    instance_store: int = 0


def lookup(instance_type: str, region: str = "") -> InstanceType | None:
    """Return the type of that exact name, or None; with ``region``, also None if its price there is unknown."""
    instance = _by_name().get(instance_type)
    if instance is None or (region and region not in instance.prices):
        return None
    return instance


def types(cloud: str | None = None, region: str | None = None) -> tuple[InstanceType, ...]:
    """Return all types, sorted by name; if given, only those of ``cloud``, and only those with a price in ``region``."""
    return tuple(
        instance_type
        for instance_type in _by_name().values()
        if (cloud is None or instance_type.cloud == cloud) and (region is None or region in instance_type.prices)
    )


@cache
def regions() -> Mapping[str, str]:
    """Return all regions with a price, and their clouds."""
    clouds = {region: type_.cloud for type_ in _by_name().values() for region in type_.prices}
    return MappingProxyType(dict(sorted(clouds.items())))


@cache
def _by_name() -> Mapping[str, InstanceType]:
    sources = {row[0]: row[1] for row in _rows("sources.csv")}
    prices: dict[str, dict[str, Price]] = {}
    for name, region, on_demand, spot, source, spot_source in _rows("prices.csv"):
        by_region = prices.setdefault(name, {})
        by_region[region] = Price(float(on_demand), float(spot) if spot else None, sources[source], sources.get(spot_source, ""))
    zone_ids: dict[str, dict[str, tuple[str, ...]]] = {}
    for name, region, ids in _rows("zones.csv"):
        zone_ids.setdefault(name, {})[region] = tuple(ids.split())
    instance_types = {row[0]: _type(row, sources, prices[row[0]], zone_ids.get(row[0], {})) for row in _rows("types.csv")}
    return MappingProxyType(instance_types)


def _rows(name: str) -> Iterator[list[str]]:
    text = resources.files(__name__).joinpath("data", name).read_text(encoding="utf-8")
    rows = csv.reader(text.splitlines())
    next(rows)
    return rows


def _type(row: list[str], sources: Mapping[str, str], prices: Mapping[str, Price], zone_ids: Mapping[str, tuple[str, ...]]) -> InstanceType:
    name, cloud, arch, product, karpenter_name, manufacturer, source, allocatable_source = row[:8]
    vcpu, memory, gpus, gpu_memory, visible, efa, cpu, allocatable_memory, ephemeral, pods = map(int, row[8:])
    allocatable = {"cpu": cpu, "memory": allocatable_memory * MIB, "ephemeral-storage": ephemeral * MIB, "pods": pods}
    if gpus:
        allocatable[f"{manufacturer}.com/gpu"] = gpus
    if efa:
        allocatable["vpc.amazonaws.com/efa"] = efa
    return InstanceType(
        name=name,
        cloud=cloud,
        arch=arch,
        vcpu=vcpu,
        memory_mib=memory,
        gpus=gpus,
        gpu_product=product,
        gpu_karpenter_name=karpenter_name,
        gpu_manufacturer=manufacturer,
        gpu_memory_mib=gpu_memory,
        gpu_visible_memory_mib=visible,
        efa=efa,
        allocatable=allocatable,
        prices=prices,
        zone_ids=zone_ids,
        source=sources[source],
        allocatable_source=sources[allocatable_source],
    )
