"""What a person should know before anything is created: what runs at all times, what limits admit, what a region may not sell.

The versions of Kubernetes, 2026-11-26: the EKS user guide, "Understand the Kubernetes version lifecycle on EKS" (1.32 is in extended
support until 2027-03-23; 1.36 is the newest version that a stored copy names); Microsoft's page "Supported Kubernetes versions in AKS"
(1.34 until November 2026, 1.37 since October 2026; older ones with long-term support).
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from gpuscaler import catalogue
from gpuscaler.generating.description.choosing import listed_price, nearest
from gpuscaler.generating.description.limits import MANAGED_GROUPS
from gpuscaler.generating.description.resolved import Description, NodeGroup
from gpuscaler.generating.description.settings import KOPS
from gpuscaler.model.offerings import ON_DEMAND, SPOT
from gpuscaler.model.pools import DEFAULT_DOLLARS
from gpuscaler.model.quantities import format_count
from gpuscaler.model.reading.cursor import Cursor

#: The oldest and the newest minor version of Kubernetes 1 that new clusters can have, and the service. Sources above.
_VERSIONS: Final[Mapping[str, tuple[str, int, int]]] = {"aws": ("EKS", 32, 36), "azure": ("AKS", 34, 37)}
#: The command that knows it better.
_ASK_VERSIONS: Final = {"aws": "aws eks describe-cluster-versions", "azure": "az aks get-versions --location {region}"}
#: The regions with most zones have six, and letters from a to f (AWS Global Infrastructure, 2026-11-26).
_LETTERS: Final = "abcdef"
#: Zones in which a cluster of EKS cannot have subnets (EKS user guide, "networking requirements for VPC and subnets", 2026-11-26).
_NO_EKS: Final = frozenset({"use1-az3", "usw1-az2", "cac1-az3"})


def check_minimums(top: Cursor, description: Description) -> None:
    """Report minimums that exceed a limit that the description has."""
    groups, region, limits = description.groups, description.cluster.region, description.controller
    if not any(group.min for group in groups):
        return
    gpus = sum(group.min * group.gpus for group in groups)
    dollars = sum(group.min * listed_price(group, region) for group in groups)
    priced = f"{_number(dollars)} dollars an hour{_by_the_catalogue(groups, region)}"
    for key, limit, needed, words in (
        ("gpus", limits.gpus, gpus, format_count(gpus, "GPU")),
        ("dollars_per_hour", limits.dollars_per_hour, dollars, priced),
    ):
        if limit is not None and needed > limit:
            top.descend("controller", key).add_problem(
                f"saw {limit:g}, expected at least {math.ceil(needed)}: min is that of each group, so minimums keep "
                f"{format_count(sum(group.min for group in groups), 'machine')} running, with {words}; lower min, or raise the limit"
            )


def remarks(description: Description) -> Iterator[str]:
    """Yield whole sentences."""
    yield from _minimums(description)
    yield from _admitted(description)
    yield from _unsold(description)
    yield from _odd_zones(description)
    yield from _odd_version(description)
    groups = len(description.groups)
    if description.cloud == "aws" and description.managed and groups > MANAGED_GROUPS:
        yield (
            f"There are {groups} managed node groups (one for each type, market and zone), and EKS allows {MANAGED_GROUPS} in a cluster "
            "by default: raise the quota, or name fewer types or zones."
        )


def _by_the_catalogue(groups: Iterable[NodeGroup], region: str) -> str:
    """Return where prices are from."""
    regions = sorted({nearest(group.instance_type, region).region for group in groups})
    near = ", ".join(regions) if regions == [region] else f"{', '.join(regions)}, since not all of {region} are known"
    return f" by the catalogue's list prices of {near}"


def _minimums(description: Description) -> Iterator[str]:
    for pool, groups in _pools(description).items():
        least, region = sum(group.min for group in groups), description.cluster.region
        if least:
            dollars = sum(group.min * listed_price(group, region) for group in groups)
            yield (
                f"Pool {pool}: min: {groups[0].min} in {format_count(len(groups), 'group')} keeps {format_count(least, 'machine')} "
                f"({format_count(sum(group.min * group.gpus for group in groups), 'GPU')}) running from the first command on, for about "
                f"${_number(dollars)} an hour{_by_the_catalogue(groups, region)}. No limit of gpuscaler ends them."
            )


def _admitted(description: Description) -> Iterator[str]:
    """Say where ``dollars_per_hour`` admits fewer machines than groups can have, or fewer than teams have quotas for."""
    given, region = description.controller.dollars_per_hour, description.cluster.region
    limit = DEFAULT_DOLLARS if given is None else given
    for pool, groups in _pools(description).items():
        market = ON_DEMAND if any(group.market == ON_DEMAND for group in groups) else SPOT
        of_market = [group for group in groups if group.market == market]
        dollars = {group.instance_type.name: listed_price(group, region) for group in of_market}
        by_price = sorted(dollars, key=dollars.__getitem__)
        admitted, most = math.floor(limit / dollars[by_price[0]]), sum(group.max for group in groups)
        if admitted >= most and dollars[by_price[-1]] <= limit:
            continue
        shown = " or ".join(f"{math.floor(limit / dollars[name])} {name} (${_number(dollars[name])})" for name in _ends(by_price))
        gpus = _quotas(description, pool)
        machines = math.ceil(gpus / min(group.gpus for group in groups))
        needs = f", and the quotas of its teams ({gpus} GPUs) need {machines}, for which it must be "
        needs = f"{needs}{math.ceil(machines * dollars[by_price[0]])}" if machines > admitted else ""
        stated = f"{_number(limit)}{'' if given is not None else ' (the default)'}"
        yield (
            f"Pool {pool}: dollars_per_hour: {stated} admits {shown}. Its groups can have {format_count(most, 'machine')}{needs}. "
            f"Prices are those of {market} machines,{_by_the_catalogue(groups, region)}."
        )


def _quotas(description: Description, pool: str) -> int:
    """Return the GPUs of the quotas of the teams that may use the pool; 0 if one has no quota, which asks for no certain number."""
    names = description.pool_teams.get(pool, ())
    quotas = [team.gpus for team in description.teams if not names or team.name in names]
    return sum(quota or 0 for quota in quotas) if None not in quotas else 0


def _unsold(description: Description) -> Iterator[str]:
    """Name types that the region may not sell."""
    region = description.cluster.region
    types = {group.instance_type.name: group.instance_type for group in description.groups}.values()
    if not any(type_.gpus for type_ in catalogue.types(description.cloud, region)):
        yield (
            f"The catalogue knows no prices of GPUs in {region}: check the region's name, and that it sells "
            f"{', '.join(type_.name for type_ in types)}. Prices of other regions are used instead."
        )
    elif unsold := [type_.name for type_ in types if region not in type_.prices]:
        yield (
            f"The catalogue knows prices of other GPU types in {region}, but none of {', '.join(unsold)}: the region may not sell "
            f"{'it' if len(unsold) == 1 else 'them'}."
        )


def _odd_zones(description: Description) -> Iterator[str]:
    """Name types that only some zones sell. Which letter a zone's id has differs between accounts."""
    region = description.cluster.region
    if description.cloud != "aws":
        return
    zones = {zone for group in description.groups if (zone := group.zone)[-1:] not in _LETTERS}
    if zones:
        yield f"No region of AWS is known to have a zone {', '.join(sorted(zones))}: check it with `aws ec2 describe-availability-zones`."
    everywhere = {zone for type_ in catalogue.types("aws", region) for zone in type_.zone_ids.get(region, ())} - _NO_EKS
    some = {}
    for group in description.groups:
        ids = group.instance_type.zone_ids.get(region, ())
        if ids and not everywhere.issubset(ids):
            some[group.instance_type.name] = " ".join(ids)
    if some:
        listed = "; ".join(f"{name}: {ids}" for name, ids in some.items())
        yield (
            f"Not all zones of {region} sell these types ({listed}). Which letters these zone ids have in your account is shown by "
            "`aws ec2 describe-availability-zones`; choose zones accordingly."
        )


def _odd_version(description: Description) -> Iterator[str]:
    version, region = description.cluster.version, description.cluster.region
    service, oldest, newest = _VERSIONS[description.cloud]
    if description.cluster.create and description.tool != KOPS and not oldest <= int(version.partition(".")[2]) <= newest:
        command = _ASK_VERSIONS[description.cloud].format(region=region)
        yield (
            f"version: {version} is not one that new clusters of {service} could have in November 2026, which are 1.{oldest} to "
            f"1.{newest}: check it with `{command}`."
        )


def _pools(description: Description) -> Mapping[str, Sequence[NodeGroup]]:
    pools = dict[str, list[NodeGroup]]()
    for group in description.groups:
        pools.setdefault(group.pool, []).append(group)
    return pools


def _ends(names: Sequence[str]) -> tuple[str, ...]:
    """Return the first and the last."""
    return tuple(dict.fromkeys((names[0], names[-1])))


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.2f}"
