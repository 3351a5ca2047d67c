"""Auto Scaling groups as they are stored and described, with their tags."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from gpuscaler.embedded.aws.autoscaling import hooks, lifecycle, scaling
from gpuscaler.embedded.aws.hardware.zones import subnet_id
from gpuscaler.embedded.aws.launch.templates import find_template
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.state import Group
from gpuscaler.embedded.aws.wire.errors import AwsError, invalid, no_group
from gpuscaler.embedded.aws.wire.filters import matches
from gpuscaler.embedded.aws.wire.pages import page
from gpuscaler.embedded.aws.wire.writing import iso, to_datetime

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


#: The role that launches machines if a group names no other.
_ROLE: Final = "aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"


def find_group(region: Region, name: str) -> Group:
    """The group of that name."""
    if name not in region.groups:
        raise no_group(name)
    return region.groups[name]


def create(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    name = params["AutoScalingGroupName"]
    if name in region.groups:
        raise AwsError("AlreadyExists", f"AutoScalingGroup by this name already exists - A group with the name {name} already exists")
    low, high = params["MinSize"], params["MaxSize"]
    group = Group(
        name=name,
        arn=f"arn:aws:autoscaling:{region.name}:{region.account}:autoScalingGroup:{region.uuid()}:autoScalingGroupName/{name}",
        created_at=region.now,
        zones=_zones(region, params),
        settings={"ServiceLinkedRoleARN": f"arn:aws:iam::{region.account}:role/{_ROLE}"},
        min=low,
        max=high,
        desired=params.get("DesiredCapacity", low),
    )
    _apply_settings(region, group, params)
    _check_sizes(group)
    region.groups[name] = group
    _put_tags(group, params.get("Tags", ()))
    for hook in params.get("LifecycleHookSpecificationList", ()):
        hooks.put_hook(group, hook)
    lifecycle.record_history(region, group)
    what = f"a user request created an AutoScalingGroup changing the desired capacity from 0 to {group.desired}."
    group.cause = f"At {iso(to_datetime(region.now))} {what}"
    region.wake(group)
    return {}


def update(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    group = find_group(region, params["AutoScalingGroupName"])
    low, high = params.get("MinSize", group.min), params.get("MaxSize", group.max)
    if low > high:
        raise invalid(f"Max bound, {high}, must be greater than or equal to min bound, {low}")
    desired = params.get("DesiredCapacity", min(max(group.desired, low), high))
    if not low <= desired <= high:
        raise invalid(f"Desired capacity:{desired} must be between the specified min size:{low} and max size:{high}")
    _apply_settings(region, group, params)
    if params.get("VPCZoneIdentifier") or params.get("AvailabilityZones"):
        group.zones = _zones(region, params)
    group.min, group.max = low, high
    scaling.set_desired(
        region, group, desired, f"a user request update of AutoScalingGroup constraints to min: {low}, max: {high}, desired: {desired}"
    )
    return {}


def delete(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    group = find_group(region, params["AutoScalingGroupName"])
    if group.members and not params.get("ForceDelete"):
        text = "You cannot delete an AutoScalingGroup while there are instances or pending Spot instance request(s) still in the group."
        raise AwsError("ResourceInUse", text)
    for instance in list(group.members.values()):
        lifecycle.terminate(region, instance)
    del region.groups[group.name]
    return {}


def _apply_settings(region: Region, group: Group, params: Mapping[str, Any]) -> None:
    """Set the fields in ``params``, with launch templates under both their names."""
    ways = [way for way in ("LaunchTemplate", "LaunchConfigurationName", "MixedInstancesPolicy", "InstanceId") if params.get(way)]
    if len(ways) > 1 or not (ways or group.settings):
        raise invalid(
            "Valid requests must contain either LaunchTemplate, LaunchConfigurationName, InstanceId or MixedInstancesPolicy parameter."
        )
    if ways:
        for way in ("LaunchTemplate", "LaunchConfigurationName", "MixedInstancesPolicy"):
            group.settings.pop(way, None)
    group.settings |= {key: params[key] for key in _PASSED if params.get(key) is not None}
    if "LaunchTemplate" in params:
        group.settings["LaunchTemplate"] = _template_specification(region, params["LaunchTemplate"])
    if "MixedInstancesPolicy" in params:
        group.settings["MixedInstancesPolicy"] = _mixed_instances_policy(region, params["MixedInstancesPolicy"])
    for key, default in (("DefaultCooldown", 300), ("HealthCheckType", "EC2"), ("HealthCheckGracePeriod", 0)):
        group.settings[key] = params.get(key, group.settings.get(key, default))
    group.settings["TerminationPolicies"] = params.get("TerminationPolicies", group.settings.get("TerminationPolicies", ["Default"]))
    protected = params.get("NewInstancesProtectedFromScaleIn", group.settings.get("NewInstancesProtectedFromScaleIn", False))
    group.settings["NewInstancesProtectedFromScaleIn"] = protected


def _mixed_instances_policy(region: Region, policy: Mapping[str, Any]) -> dict[str, Any]:
    template = dict(policy.get("LaunchTemplate", {}))
    if "LaunchTemplateSpecification" not in template:
        raise invalid("The LaunchTemplateSpecification of a MixedInstancesPolicy must be given.")
    template["LaunchTemplateSpecification"] = _template_specification(region, template["LaunchTemplateSpecification"])
    overrides = [dict(override) for override in template.get("Overrides", ())]
    for override in overrides:
        if "LaunchTemplateSpecification" in override:
            override["LaunchTemplateSpecification"] = _template_specification(region, override["LaunchTemplateSpecification"])
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


def _template_specification(region: Region, specification: Mapping[str, Any]) -> dict[str, Any]:
    try:
        template = find_template(region, specification)
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


def _check_sizes(group: Group) -> None:
    if group.min > group.max:
        raise invalid(f"Max bound, {group.max}, must be greater than or equal to min bound, {group.min}")
    if not group.min <= group.desired <= group.max:
        raise invalid(f"Desired capacity:{group.desired} must be between the specified min size:{group.min} and max size:{group.max}")


def describe(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    names = params.get("AutoScalingGroupNames")
    groups = [region.groups[name] for name in names if name in region.groups] if names else list(region.groups.values())
    kept = [group for group in groups if _passes(group, params.get("Filters", ()))]
    shown, more = page(kept, params, size="MaxRecords", default=50, most=100)
    rows = [lifecycle.visible_description(region, group) for group in shown]
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
        _put_tags(find_group(region, tag.get("ResourceId", "")), [tag])
    return {}


def delete_tags(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    for tag in params["Tags"]:
        find_group(region, tag.get("ResourceId", "")).tags.pop(tag["Key"], None)
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
