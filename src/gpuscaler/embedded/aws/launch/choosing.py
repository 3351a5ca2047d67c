"""What a group launches: market, types in order of preference, zones."""

from collections.abc import Iterator, Mapping, Sequence
from math import ceil
from typing import Any

from msgspec import Struct

from gpuscaler.embedded.aws.hardware import instance_types
from gpuscaler.embedded.aws.hardware.hardware import RESERVED
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.state import Group, Template
from gpuscaler.embedded.aws.wire.errors import AwsError


class Choice(Struct, frozen=True, gc=False):
    """One instance type that a group may launch, with its weight and template."""

    instance_type: str
    weight: int
    template: Mapping[str, str]
    data: Mapping[str, Any]


def choices(region: Region, group: Group) -> list[Choice]:
    """The types that a group may launch, in the order of its overrides."""
    policy = group.settings.get("MixedInstancesPolicy")
    if policy is None:
        if name := group.settings.get("LaunchConfigurationName"):
            data = region.configurations[name]
            return [Choice(data["InstanceType"], 1, {}, data)]
        template, data = resolve_template(region, group.settings["LaunchTemplate"])
        return [Choice(name, 1, template, data) for name in _types(region, data)]
    launch_template = policy["LaunchTemplate"]
    choices = []
    for override in launch_template.get("Overrides") or [{}]:
        template, data = resolve_template(
            region, override.get("LaunchTemplateSpecification") or launch_template["LaunchTemplateSpecification"]
        )
        weight = int(override.get("WeightedCapacity", "1"))
        choices += [Choice(name, weight, template, data) for name in _types(region, {**data, **override})]
    return choices


def resolve_template(region: Region, specification: Mapping[str, str]) -> tuple[dict[str, str], dict[str, Any]]:
    """The current version of a template specification: as instances name it, and its data."""
    template: Template | None = region.templates.get(specification["LaunchTemplateId"])
    if template is None:
        raise AwsError("InvalidLaunchTemplateId.NotFound", f"The launch template {specification['LaunchTemplateName']} does not exist.")
    number = template.version(specification.get("Version", "$Default"))
    spec = {"LaunchTemplateId": template.id, "LaunchTemplateName": template.name, "Version": str(number)}
    return spec, template.versions[number - 1]


def _types(region: Region, data: Mapping[str, Any]) -> Sequence[str]:
    if requirements := data.get("InstanceRequirements"):
        return instance_types.satisfying(requirements, region.name, ("x86_64", "arm64"))
    return [data["InstanceType"]] if "InstanceType" in data else []


def split_by_market(region: Region, group: Group, units: int) -> Iterator[tuple[str, int]]:
    """How many of ``units`` more belong to which market, by the distribution over the whole group."""
    distribution = group.settings.get("MixedInstancesPolicy", {}).get("InstancesDistribution")
    if distribution is None:
        first = next(iter(choices(region, group)), None)
        yield market_of({**first.data, **group.settings} if first else {}), units
        return
    base, percent = distribution["OnDemandBaseCapacity"], distribution["OnDemandPercentageAboveBaseCapacity"]
    total = group.has + units
    wanted = min(total, base + ceil(max(0, total - base) * percent / 100))
    present = sum(
        instance.weight for instance in group.members.values() if instance.counted and instance.machine.offering.market == "on-demand"
    )
    on_demand = min(units, max(0, wanted - present))
    if on_demand:
        yield "on-demand", on_demand
    if units > on_demand:
        yield "spot", units - on_demand


def market_of(data: Mapping[str, Any]) -> str:
    """The market of a template, or of a group's own settings on top of it."""
    if data.get("InstanceMarketOptions", {}).get("MarketType") == "spot" or data.get("SpotPrice"):
        return "spot"
    target = data.get("CapacityReservationSpecification", {}).get("CapacityReservationTarget", {})
    return RESERVED if target.get("CapacityReservationId") or target.get("CapacityReservationIds") else "on-demand"


def ordered_choices(region: Region, group: Group, market: str, zone: str) -> list[Choice]:
    """The types in the order in which a market's allocation strategy tries them."""
    candidates = choices(region, group)
    distribution = group.settings.get("MixedInstancesPolicy", {}).get("InstancesDistribution", {})
    strategy = distribution.get("SpotAllocationStrategy" if market == "spot" else "OnDemandAllocationStrategy", "prioritized")
    if strategy in {"prioritized", "capacity-optimized-prioritized"}:
        return candidates
    # EC2 knows the depth of its pools; here all pools with machines are equally deep, and the cheapest comes first.
    return sorted(candidates, key=lambda choice: region.hardware.price(market, choice.instance_type, zone, region.now) / choice.weight)


def maximum_price(group: Group) -> float | None:
    """The group's maximum price for spot, in US dollars per hour; None means the on-demand price."""
    max_price = group.settings.get("MixedInstancesPolicy", {}).get("InstancesDistribution", {}).get("SpotMaxPrice")
    return float(max_price) if max_price else None


def balance_over_zones(group: Group, units: int, zones: Sequence[str]) -> dict[str, int]:
    """Distribute ``units`` over ``zones``, so that they have equal numbers in the end."""
    load = dict.fromkeys(zones, 0)
    for instance in group.members.values():
        if instance.counted and instance.machine.offering.zone in load:
            load[instance.machine.offering.zone] += instance.weight
    shares = dict.fromkeys(zones, 0)
    for _ in range(units):
        zone = min(zones, key=lambda zone: load[zone] + shares[zone])
        shares[zone] += 1
    return {zone: share for zone, share in shares.items() if share}
