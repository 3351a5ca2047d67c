"""What a region has for a group: types by zone, quotas, addresses."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from gpuscaler.doctor.checks.aws.account import OFFERING, TYPE, AwsGroup, Option, aws, aws_check, scaled_groups
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding, Fix

_NAMED = 3
_OVERRIDES = "instance types"


def find_not_offered(evidence: Evidence) -> Iterator[Finding]:
    """D16: types that no zone of the group has, and zones that have none of its types."""
    if TYPE in evidence.unread or OFFERING in evidence.unread:
        # The catalogue then says what exists, not what the region has.
        return
    subnets = {subnet.text("SubnetId"): subnet.text("AvailabilityZone") for subnet in evidence.of("aws/Subnet")}
    for group in scaled_groups(evidence):
        zones = frozenset(group.zones)
        gone = [option for option in group.options if not option.known or (option.zones is not None and not option.zones & zones)]
        if gone:
            yield _gone(group, gone)
        if len(gone) == len(group.options):
            continue
        empty = sorted(zone for zone in zones if all(option.zones is not None and zone not in option.zones for option in group.options))
        if empty:
            kept = [ident for ident in _subnets(group) if subnets.get(ident) not in empty]
            known = kept and all(ident in subnets for ident in _subnets(group))
            command = group.command("update-auto-scaling-group", "--vpc-zone-identifier", ",".join(kept))
            yield Finding(
                "D16",
                WARNING,
                group.title,
                "VPCZoneIdentifier",
                f"subnets in {', '.join(empty)}, where none of its types is offered",
                "subnets in zones that offer its types",
                "launches that AWS tries there fail",
                Fix((command,)) if known else Fix(advice=f"leave out the subnets in {', '.join(empty)}"),
            )


def _gone(group: AwsGroup, gone: list[Option]) -> Finding:
    names = ", ".join(dict.fromkeys(option.instance_type for option in gone[:_NAMED]))
    unknown = all(not option.known for option in gone)
    where = f"region {group.region}" if unknown else f"the zones {', '.join(group.zones)}"
    every = len(gone) == len(group.options)
    offers = aws("ec2", "describe-instance-type-offerings", "--location-type", "availability-zone", region=group.region)
    return Finding(
        "D16",
        CRITICAL if every else WARNING,
        group.title,
        _OVERRIDES,
        f"{names}{' and more' if len(gone) > _NAMED else ''}, which {where} {'does' if unknown else 'do'} not offer",
        "types that are offered there",
        "no machine can be launched in the group" if every else "these types are never launched, so there is less to choose from",
        Fix(advice=f"replace the type: {offers}"),
    )


def _subnets(group: AwsGroup) -> list[str]:
    return [ident.strip() for ident in group.document.text("VPCZoneIdentifier").split(",") if ident.strip()]


def find_quotas(evidence: Evidence) -> Iterator[Finding]:
    """D17: quotas of vCPUs that allow no machine, not as many as a group may have, or none of its larger types."""
    groups: dict[tuple[str, str], list[tuple[AwsGroup, Option]]] = defaultdict(list)
    for group in scaled_groups(evidence):
        for option in group.options:
            for market in option.markets if option.known else ():
                groups[group.region, f"{option.instance_type}/{market}"].append((group, option))
    for quota in evidence.of("aws/ServiceQuota"):
        value = quota.number("Value")
        needs: dict[tuple[str, str], _Need] = {}
        for subject in quota.texts("Counts"):
            for group, option in groups[quota.text("Region"), subject]:
                needs.setdefault(group.key, _Need(group, [])).options.append(option)
        if value is not None and needs:
            yield from _quota(quota, value, tuple(needs.values()))


class _Need(NamedTuple):
    """What a quota counts of a group."""

    group: AwsGroup
    options: list[Option]

    @property
    def least(self) -> int:
        """The vCPUs of its smallest machine."""
        return min(option.vcpus for option in self.options)

    def beyond(self, value: float) -> list[str]:
        """The types of which ``value`` vCPUs allow not one machine."""
        return list(dict.fromkeys(option.instance_type for option in self.options if option.vcpus > value))


def _quota(quota: Document, value: float, needs: tuple[_Need, ...]) -> Iterator[Finding]:
    """A finding if ``value`` is less than the groups need."""
    region, code = quota.text("Region"), quota.text("QuotaCode")
    largest = max(option.vcpus for need in needs for option in need.options)
    wanted = max(largest, *(max(need.group.size("MaxSize"), 1) * need.least for need in needs))
    if value >= wanted:
        return
    none = [need for need in needs if value < need.least or value < need.group.size("MinSize") * need.least]
    few = [need for need in needs if value < need.group.size("MaxSize") * need.least]
    types = list(dict.fromkeys(name for need in needs for name in need.beyond(value)))
    options = ("--service-code", "ec2", "--quota-code", code, "--desired-value", str(math.ceil(wanted)))
    yield Finding(
        "D17",
        CRITICAL if none else WARNING,
        f"ServiceQuota {region}/{code}",
        quota.text("QuotaName") or "vCPUs",
        f"{value:g} vCPUs",
        f"at least {wanted}, for the maximum sizes of groups and one machine of each of their types",
        f"{_named(need.group.name for need in none)}: not even the smallest size is possible"
        if none
        else f"{_named(need.group.name for need in few)}: the maximum size cannot be reached"
        if few
        else f"no machine of {_named(types)} can be launched",
        Fix((aws("service-quotas", "request-service-quota-increase", *options, region=region),)),
    )


def _named(names: Iterable[str]) -> str:
    every = tuple(names)
    return ", ".join(every[:_NAMED]) + (f" and {len(every) - _NAMED} more" if len(every) > _NAMED else "")


def find_full_subnets(evidence: Evidence) -> Iterable[Finding]:
    """D24: fewer free addresses than machines that may come."""
    free: dict[str, float] = {}
    for subnet in evidence.of("aws/Subnet"):
        count = subnet.number("AvailableIpAddressCount")
        if count is not None:
            free[subnet.text("SubnetId")] = count
    for group in scaled_groups(evidence):
        idents = _subnets(group)
        if not idents or not all(ident in free for ident in idents):
            continue
        coming, left = group.size("MaxSize") - len(group.document.parts("Instances")), sum(free[ident] for ident in idents)
        if left < coming:
            yield Finding(
                "D24",
                WARNING,
                group.title,
                "VPCZoneIdentifier",
                f"{left:g} free addresses in {', '.join(idents)}",
                f"at least {coming}, the machines that may still come, and as many as their pods need",
                "launches fail (InsufficientFreeAddressesInSubnet), or pods get no address",
                Fix(advice="add larger subnets to the group, or turn on prefix delegation of the VPC CNI"),
            )


CHECKS = (
    aws_check("D16", "types that zones offer", (OFFERING, "aws/Subnet"), find_not_offered, types=True),
    aws_check("D17", "quotas of vCPUs", ("aws/ServiceQuota",), find_quotas, types=True),
    aws_check("D24", "free addresses of subnets", ("aws/Subnet",), find_full_subnets),
)
