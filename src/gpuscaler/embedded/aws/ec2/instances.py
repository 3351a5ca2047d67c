"""EC2's instances, spot prices and capacity reservations."""

from collections.abc import Iterable
from functools import partial
from typing import Any, Final

from gpuscaler.embedded.aws.autoscaling import lifecycle
from gpuscaler.embedded.aws.hardware import instance_types
from gpuscaler.embedded.aws.hardware.refusals import reason_text
from gpuscaler.embedded.aws.hardware.zones import VPC, subnet_id, zone_id
from gpuscaler.embedded.aws.launch import volumes
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.state import Instance
from gpuscaler.embedded.aws.wire.errors import AwsError
from gpuscaler.embedded.aws.wire.filters import matches
from gpuscaler.embedded.aws.wire.pages import page
from gpuscaler.embedded.aws.wire.writing import to_datetime
from gpuscaler.simulation.cloud.machines import CloudMachine

_CODES: Final = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopped": 80}
#: The maximum number of hourly entries in a spot price history.
HOURS: Final = 24


def address(machine: CloudMachine) -> str:
    """The private address, from the number in the instance's id."""
    number = int(machine.id[-6:], 16)
    return f"10.{ord(machine.offering.zone[-1]) - ord('a')}.{number // 250 % 256}.{number % 250 + 4}"


def private_name(machine: CloudMachine) -> str:
    """The private DNS name, which is also the name of its Node."""
    region = machine.offering.zone[:-1]
    domain = "ec2.internal" if region == "us-east-1" else f"{region}.compute.internal"
    return f"ip-{address(machine).replace('.', '-')}.{domain}"


def _describe_instance(instance: Instance) -> dict[str, Any]:
    offering = instance.machine.offering
    reply: dict[str, Any] = {
        "InstanceId": instance.id,
        "InstanceType": offering.instance_type,
        "ImageId": instance.image,
        "State": {"Code": _CODES[instance.state], "Name": instance.state},
        "LaunchTime": to_datetime(instance.launched_at),
        "Placement": {"AvailabilityZone": offering.zone, "AvailabilityZoneId": zone_id(offering.zone), "Tenancy": "default"},
        "SubnetId": subnet_id(offering.zone),
        "VpcId": VPC,
        "PrivateIpAddress": address(instance.machine),
        "PrivateDnsName": private_name(instance.machine),
        **volumes.block_device_mappings(instance),
        "Tags": [{"Key": key, "Value": value} for key, value in instance.tags.items()],
    }
    if offering.market == "spot":
        reply["InstanceLifecycle"] = "spot"
    if instance.reason:
        reply["StateReason"] = {"Code": instance.reason, "Message": reason_text(instance.reason)}
    return reply


def _find_instances(region: Region, idents: list[str]) -> list[Instance]:
    if unknown := [ident for ident in idents if ident not in region.instances]:
        plural = "s" if len(unknown) > 1 else ""
        text = f"The instance ID{plural} '{', '.join(unknown)}' do{'' if plural else 'es'} not exist"
        raise AwsError("InvalidInstanceID.NotFound", text)
    return [region.instances[ident] for ident in idents]


def _describe(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    idents = params.get("InstanceIds")
    instances = _find_instances(region, idents) if idents else list(region.instances.values())

    def passes(instance: Instance) -> bool:
        fields = {
            "instance-id": lambda: (instance.id,),
            "instance-type": lambda: (instance.machine.offering.instance_type,),
            "instance-state-name": lambda: (instance.state,),
            "instance-lifecycle": lambda: (instance.machine.offering.market,),
            "availability-zone": lambda: (instance.machine.offering.zone,),
            "private-dns-name": lambda: (private_name(instance.machine),),
            "tag": lambda: [f"{key}={value}" for key, value in instance.tags.items()],
            "tag-key": lambda: list(instance.tags),
        }
        return matches(params.get("Filters", ()), fields)

    shown, more = page([instance for instance in instances if passes(instance)], params, size="MaxResults", default=1000, most=1000)
    rows = [
        {"ReservationId": f"r-{instance.id[2:]}", "OwnerId": region.account, "Instances": [_describe_instance(instance)]}
        for instance in shown
    ]
    return {"Reservations": rows, **more}


def _terminate(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    rows = []
    for instance in _find_instances(region, params["InstanceIds"]):
        before = {"Code": _CODES[instance.state], "Name": instance.state}
        lifecycle.terminate(region, instance)
        after = {"Code": _CODES[instance.state], "Name": instance.state}
        rows.append({"InstanceId": instance.id, "PreviousState": before, "CurrentState": after})
    return {"TerminatingInstances": rows}


# Spot prices


def _prices(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    """The current spot prices and those of earlier hours, the newest first, for the requested types."""
    zones = [params["AvailabilityZone"]] if "AvailabilityZone" in params else region.zones
    begin, end = params.get("StartTime"), params.get("EndTime")
    last = min(region.now, end.timestamp()) if end else region.now
    first = begin.timestamp() if begin else last - 3600 * HOURS
    rows = []
    for name in params.get("InstanceTypes", ()):
        for zone in zones:
            before = None
            for hour in range(int(min(HOURS, max(0.0, last - first) // 3600)), -1, -1):
                when = last - 3600 * hour
                price = f"{region.hardware.price('spot', name, zone, when) * instance_types.per_dollar(region.name):.6f}"
                if price != before:
                    rows.append(_price(name, zone, price, when))
                before = price
    rows.sort(key=lambda row: row["Timestamp"], reverse=True)
    shown, more = page(rows, params, size="MaxResults", default=1000, most=1000)
    return {"SpotPriceHistory": shown, "NextToken": "", **more}


def _price(name: str, zone: str, price: str, when: float) -> dict[str, Any]:
    return {
        "AvailabilityZone": zone,
        "AvailabilityZoneId": zone_id(zone),
        "InstanceType": name,
        "ProductDescription": "Linux/UNIX",
        "SpotPrice": price,
        "Timestamp": to_datetime(when),
    }


# Capacity reservations


def _reserve(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    ident, count = region.identifier("cr"), params["InstanceCount"]
    tags = [tag for specification in params.get("TagSpecifications", ()) for tag in specification.get("Tags", ())]
    zone = params.get("AvailabilityZone", region.zones[0])
    region.hardware.reserve(instance_types.get_type(params["InstanceType"]).name, zone, count)
    if "EndDate" in params:
        region.put(params["EndDate"].timestamp(), partial(_expire, region, ident))
    region.reservations[ident] = {
        "CapacityReservationId": ident,
        "CapacityReservationArn": f"arn:aws:ec2:{region.name}:{region.account}:capacity-reservation/{ident}",
        "OwnerId": region.account,
        "InstanceType": params["InstanceType"],
        "InstancePlatform": params["InstancePlatform"],
        "AvailabilityZone": zone,
        "AvailabilityZoneId": zone_id(zone),
        "Tenancy": "default",
        "TotalInstanceCount": count,
        "AvailableInstanceCount": count,
        "State": "active",
        "StartDate": to_datetime(region.now),
        "CreateDate": to_datetime(region.now),
        "EndDateType": params.get("EndDateType", "unlimited"),
        "InstanceMatchCriteria": params.get("InstanceMatchCriteria", "open"),
        "ReservationType": "default",
        "Tags": tags,
        **({"EndDate": params["EndDate"]} if "EndDate" in params else {}),
    }
    return {"CapacityReservation": region.reservations[ident]}


def _expire(region: Region, ident: str, _now: float) -> None:
    """End a reservation; its instances continue on demand."""
    reservation = region.reservations[ident]
    if reservation["State"] == "active":
        region.hardware.reserve(reservation["InstanceType"], reservation["AvailabilityZone"], -reservation["TotalInstanceCount"])
        region.reservations[ident] = {**reservation, "State": "expired"}


def _cancel(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    _check_reservations_exist(region, [params["CapacityReservationId"]])
    _expire(region, params["CapacityReservationId"], region.now)
    region.reservations[params["CapacityReservationId"]]["State"] = "cancelled"
    return {"Return": True}


def _check_reservations_exist(region: Region, idents: Iterable[str]) -> None:
    if unknown := [ident for ident in idents if ident not in region.reservations]:
        text = f"The capacity reservation ID '{unknown[0]}' does not exist"
        raise AwsError("InvalidCapacityReservationId.NotFound", text)


def _with_available_count(region: Region, reservation: dict[str, Any]) -> dict[str, Any]:
    """A reservation with its free capacity: reservations of one type and zone share their capacity here."""
    used = region.hardware.in_reservations(reservation["InstanceType"], reservation["AvailabilityZone"])
    left = max(0, reservation["TotalInstanceCount"] - used) if reservation["State"] == "active" else 0
    return {**reservation, "AvailableInstanceCount": left}


def _reservations(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    wanted = params.get("CapacityReservationIds")
    _check_reservations_exist(region, wanted or ())

    def passes(reservation: dict[str, Any]) -> bool:
        fields = {
            "instance-type": lambda: (reservation["InstanceType"],),
            "state": lambda: (reservation["State"],),
            "availability-zone": lambda: (reservation["AvailabilityZone"],),
            "instance-match-criteria": lambda: (reservation["InstanceMatchCriteria"],),
            "tag": lambda: [f"{tag['Key']}={tag['Value']}" for tag in reservation["Tags"]],
        }
        return matches(params.get("Filters", ()), fields)

    reservations = [
        reservation for ident, reservation in region.reservations.items() if (not wanted or ident in wanted) and passes(reservation)
    ]
    shown, more = page(reservations, params, size="MaxResults", default=1000, most=1000)
    return {"CapacityReservations": [_with_available_count(region, reservation) for reservation in shown], **more}


OPERATIONS: Final = {
    "DescribeInstances": _describe,
    "TerminateInstances": _terminate,
    "DescribeSpotPriceHistory": _prices,
    "CreateCapacityReservation": _reserve,
    "CancelCapacityReservation": _cancel,
    "DescribeCapacityReservations": _reservations,
}
