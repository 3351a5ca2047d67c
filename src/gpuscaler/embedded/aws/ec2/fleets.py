"""CreateFleet of type instant: one synchronous try over templates, types and zones."""

from collections.abc import Iterator, Mapping
from math import ceil
from typing import Any, Final

from msgspec import Struct

from gpuscaler.embedded.aws.autoscaling import lifecycle
from gpuscaler.embedded.aws.autoscaling.capacity import once_per_token
from gpuscaler.embedded.aws.hardware.refusals import Failure
from gpuscaler.embedded.aws.hardware.zones import subnet_id, zone_id
from gpuscaler.embedded.aws.launch import choosing, templates
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.wire.errors import AwsError
from gpuscaler.simulation.cloud.machines import CloudMachine

#: Fields of an override that are in the reply.
_KEPT: Final = ("InstanceType", "SubnetId", "AvailabilityZone", "WeightedCapacity", "Priority", "MaxPrice")


class _Line(Struct, frozen=True):
    """One override of a request."""

    choice: choosing.Choice
    zone: str
    override: Mapping[str, Any]


def _create(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    if params.get("Type") != "instant":
        raise AwsError("InvalidParameterValue", f"saw type {params.get('Type', 'maintain')}; this endpoint has only instant fleets")
    return once_per_token(region, "CreateFleet", params, _fill_fleet)


def _fill_fleet(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    target = params["TargetCapacitySpecification"]
    kind = target.get("DefaultTargetCapacityType", "on-demand")
    counts = {"spot": target.get("SpotTargetCapacity", 0), "on-demand": target.get("OnDemandTargetCapacity", 0)}
    if kind not in counts:
        raise AwsError("InvalidParameterValue", f"saw {kind}, expected spot or on-demand")
    counts[kind] += max(0, target["TotalTargetCapacity"] - sum(counts.values()))
    lines = list(_lines(region, params))
    granted: list[tuple[_Line, CloudMachine]] = []
    errors: list[tuple[_Line, Failure]] = []
    for market, units in counts.items():
        filled, refused = _fill(region, params, market, units, lines)
        granted += filled
        errors += refused
    tags = [
        tag
        for specification in params.get("TagSpecifications", ())
        if specification.get("ResourceType") == "instance"
        for tag in specification.get("Tags", ())
    ]
    for line, machine in granted:
        lifecycle.register(region, machine, line.choice).tags |= {tag["Key"]: tag["Value"] for tag in tags}
    return {
        "FleetId": f"fleet-{region.uuid()}",
        "Instances": [_instance(line, machine) for line, machine in granted],
        "Errors": [_error(line, failure) for line, failure in errors],
    }


def _lines(region: Region, params: dict[str, Any]) -> Iterator[_Line]:
    for config in params["LaunchTemplateConfigs"]:
        template = templates.find_template(region, config["LaunchTemplateSpecification"])
        number = template.version(config["LaunchTemplateSpecification"].get("Version", "$Default"))
        spec = {"LaunchTemplateId": template.id, "LaunchTemplateName": template.name, "Version": str(number)}
        data = template.versions[number - 1]
        for override in config.get("Overrides") or [{}]:
            name = override.get("InstanceType", data.get("InstanceType"))
            if name is None:
                raise AwsError("InvalidParameterValue", "You must use either InstanceType or InstanceRequirements in the request.")
            choice = choosing.Choice(name, int(override.get("WeightedCapacity", 1)), spec, data)
            for zone in _zones(region, override):
                yield _Line(choice, zone, override)


def _zones(region: Region, override: Mapping[str, Any]) -> tuple[str, ...]:
    if "SubnetId" in override:
        zones = tuple(zone for zone in region.zones if subnet_id(zone) == override["SubnetId"])
        if not zones:
            raise AwsError("InvalidSubnetID.NotFound", f"The subnet ID '{override['SubnetId']}' does not exist")
        return zones
    return (override["AvailabilityZone"],) if "AvailabilityZone" in override else region.zones


def _fill(
    region: Region, params: dict[str, Any], market: str, units: int, lines: list[_Line]
) -> tuple[list[tuple[_Line, CloudMachine]], list[tuple[_Line, Failure]]]:
    """Launch ``units`` of one market; if they are fewer than its MinTargetCapacity, end them again."""
    options = params.get("SpotOptions" if market == "spot" else "OnDemandOptions", {})
    strategy = options.get("AllocationStrategy", "lowest-price")
    if strategy in {"prioritized", "capacity-optimized-prioritized"}:
        order = sorted(lines, key=lambda line: float(line.override.get("Priority", float("inf"))))
    else:
        order = sorted(lines, key=lambda line: region.hardware.price(market, line.choice.instance_type, line.zone, region.now))
    granted: list[tuple[_Line, CloudMachine]] = []
    refused: list[tuple[_Line, Failure]] = []
    left = units
    for line in order:
        if left <= 0:
            break
        bid = float(line.override["MaxPrice"]) if line.override.get("MaxPrice") else None
        count = ceil(left / line.choice.weight)
        result = region.hardware.launch(market, [line.choice.instance_type], line.zone, count=count, now=region.now, bid=bid)
        granted += [(line, machine) for machine in result.machines]
        refused += [(line, failure) for failure in result.failures]
        left -= len(result.machines) * line.choice.weight
    if units - left < options.get("MinTargetCapacity", 0):
        for _, machine in granted:
            region.hardware.end(machine, region.now)
        granted = []
    return granted, refused


def _instance(line: _Line, machine: CloudMachine) -> dict[str, Any]:
    offering = machine.offering
    return {
        "LaunchTemplateAndOverrides": _requested_template(line),
        "Lifecycle": offering.market,
        "InstanceIds": [machine.id],
        "InstanceType": offering.instance_type,
        "AvailabilityZone": offering.zone,
        "AvailabilityZoneId": zone_id(offering.zone),
        "SubnetId": subnet_id(offering.zone),
    }


def _error(line: _Line, failure: Failure) -> dict[str, Any]:
    return {
        "LaunchTemplateAndOverrides": _requested_template(line),
        "Lifecycle": failure.market,
        "ErrorCode": failure.code,
        "ErrorMessage": failure.message,
    }


def _requested_template(line: _Line) -> dict[str, Any]:
    spec = {key: value for key, value in line.choice.template.items() if key != "LaunchTemplateName"}
    override = {key: line.override[key] for key in _KEPT if key in line.override}
    return {"LaunchTemplateSpecification": spec, "Overrides": {"InstanceType": line.choice.instance_type, **override}}


OPERATIONS: Final = {"CreateFleet": _create}
