"""What groups launch: shapes, markets, prices."""

from collections.abc import Iterable, Iterator

from gpuscaler.doctor.checks.aws.account import AwsGroup, aws_check, scaled_groups
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import WARNING, Finding, Fix

#: Pools of spot capacity, (type, zone), below which one shortage takes all.
_FEW_POOLS = 3
_STRATEGY = "price-capacity-optimized"


def find_unequal_shapes(evidence: Evidence) -> Iterable[Finding]:
    """D15: machines of several shapes, among which AWS chooses."""
    for group in scaled_groups(evidence):
        known = [option for option in group.options if option.known]
        counts = sorted({option.gpus for option in known})
        models = sorted({option.model for option in known if option.model})
        if len(counts) > 1 or len(models) > 1:
            many = len(counts) > 1
            yield Finding(
                "D15",
                WARNING,
                group.title,
                "MixedInstancesPolicy.LaunchTemplate.Overrides",
                f"types with {', '.join(map(str, counts))} GPUs" if many else f"types with the GPUs {', '.join(models)}",
                "one number and one model of GPUs in a group",
                "AWS chooses the type, so a pod may get a machine that it does not fit, or one GPU of a machine with eight",
                Fix(advice="make a group for each shape"),
            )


def find_low_ceilings(evidence: Evidence) -> Iterable[Finding]:
    """D18: a maximum spot price below the price."""
    for group in scaled_groups(evidence):
        for ceiling, mixed in [(_ceiling(group), True), *((option.document.number("SpotMaxPrice"), False) for option in group.options)]:
            highest = max(_spot_prices(group), default=0.0)
            if not _is_low(group, ceiling):
                continue
            yield Finding(
                "D18",
                WARNING,
                group.title,
                "MixedInstancesPolicy.InstancesDistribution.SpotMaxPrice" if mixed else "InstanceMarketOptions.SpotOptions.MaxPrice",
                f"${ceiling:g}",
                f"no maximum: the spot price is up to ${highest:g}",
                "no spot machine is granted above the maximum; without one, the price is never above that on demand",
                _corrected(group) if mixed else Fix(advice="make a version of the launch template without a maximum price"),
            )
            break


def _ceiling(group: AwsGroup) -> float | None:
    return _price(group.document.text("MixedInstancesPolicy", "InstancesDistribution", "SpotMaxPrice"))


def _is_low(group: AwsGroup, ceiling: float | None) -> bool:
    return ceiling is not None and 0.0 < ceiling < max(_spot_prices(group), default=0.0)


def _buys_cheapest(group: AwsGroup) -> bool:
    return group.document.text("MixedInstancesPolicy", "InstancesDistribution", "SpotAllocationStrategy") == "lowest-price"


def _corrected(group: AwsGroup) -> Fix:
    """The command that corrects the distribution of a mixed group. AWS takes only whole ones, so it corrects all mistakes in it at once."""
    changes: dict[str, str | None] = {}
    if _is_low(group, _ceiling(group)):
        changes["SpotMaxPrice"] = ""
    if _buys_cheapest(group):
        changes |= {"SpotAllocationStrategy": _STRATEGY, "SpotInstancePools": None}
    return Fix((group.mixed_command(changes),))


def _price(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _spot_prices(group: AwsGroup) -> Iterator[float]:
    for option in group.options:
        prices = option.document.part("SpotPrices")
        yield from (price for zone in group.zones if (price := prices.number(zone)) is not None)


def find_narrow_spot(evidence: Evidence) -> Iterator[Finding]:
    """D19: a strategy that buys what is interrupted most, and few pools of spot capacity."""
    groups = [group for group in scaled_groups(evidence) if "spot" in group.markets]
    for group in groups:
        if _buys_cheapest(group):
            yield Finding(
                "D19",
                WARNING,
                group.title,
                "MixedInstancesPolicy.InstancesDistribution.SpotAllocationStrategy",
                "lowest-price",
                _STRATEGY,
                "the cheapest pools of spot capacity are those whose machines are interrupted most",
                _corrected(group),
            )
    # gpuscaler chooses among all groups, so the pools of all of them count.
    pools = {(group.region, zone, option.instance_type) for group in groups for option in group.options for zone in group.zones}
    if groups and len(pools) < _FEW_POOLS and not any(group.incomplete for group in groups):
        for group in groups:
            yield Finding(
                "D19",
                WARNING,
                group.title,
                "instance types and zones",
                f"{len(pools)} {'pool' if len(pools) == 1 else 'pools'} of spot capacity in all groups",
                f"at least {_FEW_POOLS}",
                "a shortage of one type in one zone leaves no spot machine to buy, and interruptions come together",
                Fix(advice="add groups with other types of the same shape, or in other zones"),
            )


def find_mixed_markets(evidence: Evidence) -> Iterable[Finding]:
    """D20: on demand and spot in one group."""
    for group in scaled_groups(evidence):
        if len(group.markets) > 1:
            distribution = group.document.part("MixedInstancesPolicy", "InstancesDistribution")
            base = distribution.number("OnDemandBaseCapacity") or 0
            percent = distribution.number("OnDemandPercentageAboveBaseCapacity") or 0
            yield Finding(
                "D20",
                WARNING,
                group.title,
                "MixedInstancesPolicy.InstancesDistribution",
                f"the first {base:g} on demand, then {percent:g} %",
                "one market in each group: 0 or 100 %, and for 0 no base",
                "AWS divides machines between the markets: if spot is dry, it launches no more on demand, and LaunchInstances is refused",
                Fix(advice="make one group on demand and one of spot; gpuscaler goes over from one to the other"),
            )


def find_configurations(evidence: Evidence) -> Iterable[Finding]:
    """D21: launch configurations."""
    for group in scaled_groups(evidence):
        if name := group.document.text("LaunchConfigurationName"):
            yield Finding(
                "D21",
                WARNING,
                group.title,
                "LaunchConfigurationName",
                name,
                "a launch template",
                "AWS adds no instance types to launch configurations since 2023, and LaunchInstances is refused",
                Fix(
                    advice="copy it to a launch template (in the console: Launch configurations, Copy to launch template), and set that "
                    f"in the group: {group.command('update-auto-scaling-group', '--launch-template', 'LaunchTemplateName=NAME')}"
                ),
            )


CHECKS = (
    aws_check("D15", "shapes of machines in one group", (), find_unequal_shapes, types=True),
    aws_check("D18", "maximum spot prices", ("aws/SpotPrice",), find_low_ceilings, types=True),
    aws_check("D19", "spot capacity", (), find_narrow_spot, types=True),
    aws_check("D20", "markets of groups", (), find_mixed_markets, types=True),
    aws_check("D21", "launch configurations", (), find_configurations),
)
