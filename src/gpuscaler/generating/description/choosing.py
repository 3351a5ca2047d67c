"""The instance types of a pool: those that it names, or the cheapest of each GPU model with the GPUs that it asks for."""

from collections.abc import Iterable
from itertools import starmap

from gpuscaler import catalogue
from gpuscaler.catalogue import InstanceType
from gpuscaler.catalogue.nearby import NearbyPrice, nearest_price
from gpuscaler.generating.description.naming import group_names
from gpuscaler.generating.description.resolved import POOL_TAINT, NodeGroup
from gpuscaler.generating.description.settings import AMD64, GIB, GpuPoolSettings
from gpuscaler.model.offerings import SPOT
from gpuscaler.model.quantities import format_count
from gpuscaler.model.reading.cursor import Cursor, did_you_mean
from gpuscaler.model.taints import Taint


def types_of(at: Cursor, pool: GpuPoolSettings, cloud: str, region: str, notes: list[str]) -> list[InstanceType]:
    """Return the types of a pool. Where GPUs are asked for, these are the cheapest of each GPU model that the region sells."""
    if pool.types:
        named = [item for item in at.descend("types").items() if item.entry.value in pool.types]
        return [found for item in named if (found := _known_type(item, cloud)) is not None]
    if not pool.gpus:
        return []
    sold = [type_ for type_ in catalogue.types(cloud, region) if type_.gpus] or [type_ for type_ in catalogue.types(cloud) if type_.gpus]
    counted = [type_ for type_ in sold if type_.gpus == pool.gpus and type_.gpu_manufacturer == "nvidia"]
    fitting = [type_ for type_ in counted if _has_memory(type_, pool.gpu_memory) and type_.arch == pool.arch]
    cheapest = dict[str, InstanceType]()
    for type_ in sorted(fitting, key=lambda type_: (nearest(type_, region).price.on_demand, type_.name)):
        cheapest.setdefault(type_.gpu_product or type_.gpu_karpenter_name, type_)
    if not cheapest:
        at.add_problem(_nothing_fits(pool, sold, counted, region or "any region"))
    elif len(fitting) > len(cheapest):
        chosen = ", ".join(type_.name for type_ in cheapest.values())
        notes.append(
            f"Pool {pool.name}: of {len(fitting)} types with {format_count(pool.gpus, 'GPU')}, the cheapest of each GPU model are used: "
            f"{chosen}. To choose others, name them in types."
        )
    return list(cheapest.values())


def groups_of(cloud: str, pool: GpuPoolSettings, types: list[InstanceType], zones: tuple[str, ...]) -> Iterable[NodeGroup]:
    """Yield a group for each type, market and zone."""
    reserved = (Taint(POOL_TAINT, pool.name, "NoSchedule"),) if pool.teams else ()

    def group(type_: InstanceType, market: str, zone: str, name: str) -> NodeGroup:
        return NodeGroup(
            name=name,
            pool=pool.name,
            instance_type=type_,
            market=market,
            zone=zone,
            min=pool.min,
            max=pool.max,
            labels=pool.labels,
            taints=(*pool.taints, *reserved),
            disk_gib=-(-pool.disk // GIB),
        )

    return starmap(group, group_names(cloud, pool.name, types, pool.markets, zones))


def _nothing_fits(pool: GpuPoolSettings, sold: list[InstanceType], counted: list[InstanceType], region: str) -> str:
    memory = f" of at least {pool.gpu_memory / 1e9:g} GB each" if pool.gpu_memory else ""
    built = f", on {pool.arch}" if pool.arch != AMD64 else ""
    seen = f"saw {format_count(pool.gpus, 'GPU')}{memory}{built}, for which no type is known in {region}"
    if not counted:
        counts = ", ".join(map(str, sorted({type_.gpus for type_ in sold if type_.gpu_manufacturer == "nvidia"})))
        return f"{seen}; known are types with {counts} GPUs of NVIDIA"
    of_arch = [type_ for type_ in counted if type_.arch == pool.arch]
    if not of_arch:
        return f"{seen}; those that there are have arch: {counted[0].arch}"
    largest = max(of_arch, key=lambda type_: type_.gpu_memory_mib)
    return (
        f"{seen}; the largest memory of {format_count(pool.gpus, 'GPU')} there is {_gigabytes(largest.gpu_memory_mib)} GB each, of "
        f"{largest.name}; lower gpu_memory, or choose another region"
    )


def _gigabytes(mib: int) -> int:
    """Return the size as makers state it, who count some memories in GiB: 40,960 MiB are 40, and 22,888 are 24."""
    return round(mib * 2**20 / 10**9) if mib % 1024 else mib // 1024


def _has_memory(type_: InstanceType, least: int) -> bool:
    """Whether each GPU has ``least`` bytes: the catalogue's sizes are rounded down to whole MiB (24 GB are 22,888)."""
    return (type_.gpu_memory_mib + 1) * 2**20 > least


def nearest(type_: InstanceType, region: str) -> NearbyPrice:
    """Return the list price of a type in the region, or near it."""
    found = nearest_price(type_.name, region)
    assert found is not None, type_.name  # The catalogue has a price of each type somewhere.
    return found


def listed_price(group: NodeGroup, region: str) -> float:
    """Return the list price of a machine in dollars per hour, near the region if it is not known there; of spot, an estimate."""
    listed = nearest(group.instance_type, region).price
    return listed.spot if group.market == SPOT and listed.spot is not None else listed.on_demand


def _known_type(at: Cursor, cloud: str) -> InstanceType | None:
    name = str(at.entry.value)
    known = catalogue.lookup(name)
    if known is None:
        near = did_you_mean(name, [type_.name for type_ in catalogue.types(cloud) if type_.gpus])
        advice = near if near.startswith("did") else "docs/reference/catalogue.md lists them"
        at.wrong(f"a GPU instance type of {cloud} that the catalogue has; {advice}")
    elif known.cloud != cloud or not known.gpus:
        at.wrong(f"an instance type of {cloud} with GPUs", seen=f"{name}, with {known.gpus} GPUs on {known.cloud}")
    else:
        return known
    return None
