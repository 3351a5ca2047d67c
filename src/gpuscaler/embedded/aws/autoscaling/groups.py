"""Auto Scaling groups as they are stored and described, with their tags."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpuscaler.embedded.aws.autoscaling import hooks, lifecycle, scaling
from gpuscaler.embedded.aws.hardware.zones import subnet_id
from gpuscaler.embedded.aws.launch.templates import find
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.state import Group
from gpuscaler.embedded.aws.wire.errors import AwsError, invalid, no_group
from gpuscaler.embedded.aws.wire.filters import matches
from gpuscaler.embedded.aws.wire.pages import page
from gpuscaler.embedded.aws.wire.writing import at, iso

#: Fields that are stored and shown unchanged.
_PASSED: Final = (
    "LaunchConfigurationName",
    "LaunchTemplate",
    "MixedInstancesPolicy",
    "VPCZoneIdentifier",
    "PlacementGroup",
    "MaxInstanceLifetime",
    "CapacityRebalance",
    "Context",
    "DesiredCapacityType",
    "DefaultInstanceWarmup",
    "InstanceMaintenancePolicy",
    "AvailabilityZoneDistribution",
    "AvailabilityZoneImpairmentPolicy",
    "CapacityReservationSpecification",
    "ServiceLinkedRoleARN",
    "InstanceLifecyclePolicy",
    "DeletionProtection",
)


def group(region: Region, name: str) -> Group:
    """The group of that name."""
    if name not in region.groups:
        raise no_group(name)
    return region.groups[name]


def create(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    name = params["AutoScalingGroupName"]
    if name in region.groups:
        raise AwsError("AlreadyExists", f"AutoScalingGroup by this name already exists - A group with the name {name} already exists")
    low, high = params["MinSize"], params["MaxSize"]
    made = Group(
        name=name,
        arn=f"arn:aws:autoscaling:{region.name}:{region.account}:autoScalingGroup:{region.uuid()}:autoScalingGroupName/{name}",
        created_at=region.now,
        zones=_zones(region, params),
        settings={},
        min=low,
        max=high,
        desired=params.get("DesiredCapacity", low),
    )
    _set(region, made, params)
    _check_sizes(made)
    region.groups[name] = made
    _put_tags(made, params.get("Tags", ()))
    for hook in params.get("LifecycleHookSpecificationList", ()):
        hooks.put(made, hook)
    lifecycle.note(region, made)
    made.cause = (
        f"At {iso(at(region.now))} a user request created an AutoScalingGroup changing the desired capacity from 0 to {made.desired}."
    )
    region.wake(made)
    return {}


def update(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    made = group(region, params["AutoScalingGroupName"])
    low, high = params.get("MinSize", made.min), params.get("MaxSize", made.max)
    if low > high:
        raise invalid(f"Max bound, {high}, must be greater than or equal to min bound, {low}")
    desired = params.get("DesiredCapacity", min(max(made.desired, low), high))
    if not low <= desired <= high:
        raise invalid(f"Desired capacity:{desired} must be between the specified min size:{low} and max size:{high}")
    _set(region, made, params)
    if params.get("VPCZoneIdentifier") or params.get("AvailabilityZones"):
        made.zones = _zones(region, params)
    made.min, made.max = low, high
    scaling.want(
        region, made, desired, f"a user request update of AutoScalingGroup constraints to min: {low}, max: {high}, desired: {desired}"
    )
    return {}


def delete(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    made = group(region, params["AutoScalingGroupName"])
    if made.members and not params.get("ForceDelete"):
        text = "You cannot delete an AutoScalingGroup while there are instances or pending Spot instance request(s) still in the group."
        raise AwsError("ResourceInUse", text)
    for instance in list(made.members.values()):
        lifecycle.terminate(region, instance)
    del region.groups[made.name]
    return {}


def _set(region: Region, made: Group, params: Mapping[str, Any]) -> None:
    """Set the fields in ``params``, with launch templates under both their names."""
    ways = [way for way in ("LaunchTemplate", "LaunchConfigurationName", "MixedInstancesPolicy", "InstanceId") if params.get(way)]
    if len(ways) > 1 or not (ways or made.settings):
        raise invalid(
            "Valid requests must contain either LaunchTemplate, LaunchConfigurationName, InstanceId or MixedInstancesPolicy parameter."
        )
    if ways:
        for way in ("LaunchTemplate", "LaunchConfigurationName", "MixedInstancesPolicy"):
            made.settings.pop(way, None)
    made.settings |= {key: params[key] for key in _PASSED if params.get(key) is not None}
    if "LaunchTemplate" in params:
        made.settings["LaunchTemplate"] = _specified(region, params["LaunchTemplate"])
    if "MixedInstancesPolicy" in params:
        made.settings["MixedInstancesPolicy"] = _mixed(region, params["MixedInstancesPolicy"])
    for key, default in (("DefaultCooldown", 300), ("HealthCheckType", "EC2"), ("HealthCheckGracePeriod", 0)):
        made.settings[key] = params.get(key, made.settings.get(key, default))
    made.settings["TerminationPolicies"] = params.get("TerminationPolicies", made.settings.get("TerminationPolicies", ["Default"]))
    protected = params.get("NewInstancesProtectedFromScaleIn", made.settings.get("NewInstancesProtectedFromScaleIn", False))
    made.settings["NewInstancesProtectedFromScaleIn"] = protected


def _mixed(region: Region, policy: Mapping[str, Any]) -> dict[str, Any]:
    template = dict(policy.get("LaunchTemplate", {}))
    if "LaunchTemplateSpecification" not in template:
        raise invalid("The LaunchTemplateSpecification of a MixedInstancesPolicy must be given.")
    template["LaunchTemplateSpecification"] = _specified(region, template["LaunchTemplateSpecification"])
    overrides = [dict(override) for override in template.get("Overrides", ())]
    for override in overrides:
        if "LaunchTemplateSpecification" in override:
            override["LaunchTemplateSpecification"] = _specified(region, override["LaunchTemplateSpecification"])
    wanted = policy.get("InstancesDistribution", {})
    distribution = {
        "OnDemandAllocationStrategy": "prioritized",
        "OnDemandBaseCapacity": 0,
        "OnDemandPercentageAboveBaseCapacity": 100,
        "SpotAllocationStrategy": "lowest-price",
        **({} if wanted.get("SpotAllocationStrategy", "lowest-price") != "lowest-price" else {"SpotInstancePools": 2}),
        **wanted,
    }
    return {"LaunchTemplate": {**template, "Overrides": overrides}, "InstancesDistribution": distribution}


def _specified(region: Region, specification: Mapping[str, Any]) -> dict[str, Any]:
    try:
        template = find(region, specification)
    except AwsError as error:
        raise invalid(f"You must use a valid fully-formed launch template. {error.message}") from error
    return {"LaunchTemplateId": template.id, "LaunchTemplateName": template.name, "Version": specification.get("Version", "$Default")}


def _zones(region: Region, params: Mapping[str, Any]) -> tuple[str, ...]:
    if subnets := params.get("VPCZoneIdentifier"):
        by_subnet = {subnet_id(zone): zone for zone in region.zones}
        wanted = [subnet.strip() for subnet in subnets.split(",") if subnet.strip()]
        if unknown := [subnet for subnet in wanted if subnet not in by_subnet]:
            raise invalid(f"The subnet ID '{unknown[0]}' does not exist")
        return tuple(by_subnet[subnet] for subnet in wanted)
    wanted = params.get("AvailabilityZones", [])
    if not wanted:
        raise invalid("At least one Availability Zone or VPC Subnet is required.")
    if unknown := [zone for zone in wanted if zone not in region.zones]:
        raise invalid(f"Invalid availability zone(s): [{', '.join(unknown)}]")
    return tuple(wanted)


def _check_sizes(made: Group) -> None:
    if made.min > made.max:
        raise invalid(f"Max bound, {made.max}, must be greater than or equal to min bound, {made.min}")
    if not made.min <= made.desired <= made.max:
        raise invalid(f"Desired capacity:{made.desired} must be between the specified min size:{made.min} and max size:{made.max}")


def describe(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    names = params.get("AutoScalingGroupNames")
    groups = [region.groups[name] for name in names if name in region.groups] if names else list(region.groups.values())
    kept = [group for group in groups if _passes(group, params.get("Filters", ()))]
    shown, more = page(kept, params, size="MaxRecords", default=50, most=100)
    rows = [lifecycle.seen(region, group) for group in shown]
    return {"AutoScalingGroups": [row for row in rows if row is not None], **more}


def _passes(group: Group, filters: Iterable[Mapping[str, Any]]) -> bool:
    fields = {
        "tag": lambda: [f"{tag['Key']}={tag['Value']}" for tag in group.tags.values()],
        "tag-key": lambda: list(group.tags),
        "tag-value": lambda: [tag["Value"] for tag in group.tags.values()],
    }
    return matches(filters, fields)


# Tags


def _shown_tags(group: Group) -> list[dict[str, Any]]:
    return [{"ResourceId": group.name, "ResourceType": "auto-scaling-group", **tag} for tag in group.tags.values()]


def _put_tags(group: Group, tags: Iterable[Mapping[str, Any]]) -> None:
    for tag in tags:
        group.tags[tag["Key"]] = {
            "Key": tag["Key"],
            "Value": tag.get("Value", ""),
            "PropagateAtLaunch": tag.get("PropagateAtLaunch", True),
        }


def create_tags(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    for tag in params["Tags"]:
        _put_tags(group(region, tag.get("ResourceId", "")), [tag])
    return {}


def delete_tags(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    for tag in params["Tags"]:
        group(region, tag.get("ResourceId", "")).tags.pop(tag["Key"], None)
    return {}


def describe_tags(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    rows = []
    for group in region.groups.values():
        for tag in _shown_tags(group):
            fields = {
                "auto-scaling-group": lambda tag=tag: (tag["ResourceId"],),
                "key": lambda tag=tag: (tag["Key"],),
                "value": lambda tag=tag: (tag["Value"],),
                "propagate-at-launch": lambda tag=tag: (str(tag["PropagateAtLaunch"]).lower(),),
            }
            if matches(params.get("Filters", ()), fields):
                rows.append(tag)
    shown, more = page(rows, params, size="MaxRecords", default=50, most=100)
    return {"Tags": shown, **more}


OPERATIONS: Final = {
    "CreateAutoScalingGroup": create,
    "CreateOrUpdateTags": create_tags,
    "DeleteAutoScalingGroup": delete,
    "DeleteTags": delete_tags,
    "DescribeAutoScalingGroups": describe,
    "DescribeTags": describe_tags,
    "UpdateAutoScalingGroup": update,
}
