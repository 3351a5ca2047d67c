"""Regions, their zones and subnets, by rules: names are derived, and not looked up."""

import re
from typing import Any, Final

_REGION: Final = re.compile(r"(?P<part>[a-z]+)-(?:(?P<gov>gov|iso)-)?(?P<where>[a-z]+)-(?P<number>\d)")
_SHORT: Final = {"northeast": "ne", "northwest": "nw", "southeast": "se", "southwest": "sw"}
VPC: Final = "vpc-0gpuscaler"


def zones_of(region: str, count: int) -> tuple[str, ...]:
    """The first ``count`` zones: us-east-1a, us-east-1b, …"""
    return tuple(f"{region}{letter}" for letter in "abcdef"[:count])


def zone_id(zone: str) -> str:
    """The zone id, the same for all accounts, as if names and ids had the same order: use1-az1 for us-east-1a."""
    match = _REGION.fullmatch(zone[:-1])
    number = ord(zone[-1]) - ord("a") + 1
    if match is None:
        return f"{zone[:-1]}-az{number}"
    where = _SHORT.get(match["where"], match["where"][:1])
    return f"{match['part']}{where}{match['number']}-az{number}"


def subnet_id(zone: str) -> str:
    """The one subnet of a zone."""
    return f"subnet-{zone.replace('-', '')}"


def subnet(zone: str, account: str) -> dict[str, Any]:
    """A zone's subnet as in DescribeSubnets."""
    number = ord(zone[-1]) - ord("a")
    return {
        "SubnetId": subnet_id(zone),
        "SubnetArn": f"arn:aws:ec2:{zone[:-1]}:{account}:subnet/{subnet_id(zone)}",
        "VpcId": VPC,
        "State": "available",
        "CidrBlock": f"10.{number}.0.0/16",
        "AvailableIpAddressCount": 65_531,
        "AvailabilityZone": zone,
        "AvailabilityZoneId": zone_id(zone),
        "DefaultForAz": False,
        "MapPublicIpOnLaunch": False,
        "OwnerId": account,
        "Tags": [{"Key": "Name", "Value": f"private-{zone}"}],
    }
