"""Auto Scaling's calls that change the number of instances, or end particular ones."""

from collections.abc import Callable
from typing import Any, Final

from gpuscaler.embedded.aws.autoscaling import activities, groups, lifecycle, scaling
from gpuscaler.embedded.aws.hardware.refusals import Failure
from gpuscaler.embedded.aws.hardware.zones import subnet_id, zone_id
from gpuscaler.embedded.aws.launch import choosing
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.state import Group, Instance
from gpuscaler.embedded.aws.wire.errors import AwsError, invalid
from gpuscaler.embedded.aws.wire.pages import page
from gpuscaler.embedded.aws.wire.writing import iso, to_datetime

#: Limits of one call: launched, protected and described instances.
MOST_LAUNCHED, MOST_PROTECTED, MOST_DESCRIBED = 100, 50, 50


def _set_desired(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    group, wanted = groups.find_group(region, params["AutoScalingGroupName"]), params["DesiredCapacity"]
    if wanted > group.max:
        raise invalid(f"New SetDesiredCapacity value {wanted} is above max value {group.max} for the AutoScalingGroup.")
    if wanted < group.min:
        raise invalid(f"New SetDesiredCapacity value {wanted} is below min value {group.min} for the AutoScalingGroup.")
    scaling.set_desired(region, group, wanted, "a user request explicitly set group desired capacity")
    return {}


def _terminate(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    idents = [*params.get("InstanceIds", ()), *([params["InstanceId"]] if "InstanceId" in params else [])]
    for ident in idents:
        candidate = region.instances.get(ident)
        if candidate is None or ident not in (group := region.groups.get(candidate.group, _NO_GROUP)).members:
            raise invalid(f"Instance Id not found - No managed instance found for instance ID: {ident}")
        instance = candidate
        if params["ShouldDecrementDesiredCapacity"] and not instance.lifecycle.startswith("Terminating"):
            if group.desired - instance.weight < group.min:
                raise invalid(
                    f"Currently, desiredSize equals minSize ({group.min}). Terminating instance without replacement will violate group's "
                    "min size constraint. Either set shouldDecrementDesiredCapacity flag to false or lower group's min size."
                )
            group.desired -= instance.weight
        what = "instance was taken out of service in response to a user request"
        shrinking = f", shrinking the capacity from {group.desired + instance.weight} to {group.desired}"
        text = f"At {iso(to_datetime(region.now))} {what}{shrinking if params['ShouldDecrementDesiredCapacity'] else ''}."
        lifecycle.end(region, group, instance, text)
        region.wake(group)
    last = instance.activity
    return {"Activity": activities.describe_activity(group, last)} if last is not None else {}


_NO_GROUP: Final = Group("", "", 0.0, (), {}, 0, 0, 0)


def _protect(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    group, idents = groups.find_group(region, params["AutoScalingGroupName"]), params["InstanceIds"]
    if len(idents) > MOST_PROTECTED:
        raise invalid(f"The number of instance ids must be at most {MOST_PROTECTED}, saw {len(idents)}")
    instances = [lifecycle.member(region, group, ident) for ident in idents]
    for instance in instances:
        if instance.lifecycle not in {"InService", "EnteringStandby", "Standby"}:
            raise invalid(f"The instance {instance.id} is not in InService or EnteringStandby or Standby.")
    for instance in instances:
        instance.protected = params["ProtectedFromScaleIn"]
    lifecycle.record_history(region, group)
    if not params["ProtectedFromScaleIn"]:
        region.wake(group)
    return {}


def _describe_instances(region: Region, params: dict[str, Any]) -> dict[str, Any]:

    wanted = params.get("InstanceIds")
    if wanted and len(wanted) > MOST_DESCRIBED:
        raise invalid(f"The number of instance ids that may be passed in is limited to {MOST_DESCRIBED}")
    rows = [
        {**item, "AutoScalingGroupName": group.name, "HealthStatus": item["HealthStatus"].upper()}
        for group in region.groups.values()
        for item in (lifecycle.visible_description(region, group) or {}).get("Instances", ())
        if not wanted or item["InstanceId"] in wanted
    ]
    shown, more = page(rows, params, size="MaxRecords", default=50, most=50)
    return {"AutoScalingInstances": shown, **more}


def _suspend(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    group = groups.find_group(region, params["AutoScalingGroupName"])
    for name in params.get("ScalingProcesses") or PROCESSES:
        if name not in PROCESSES:
            raise invalid(f"The process {name} is not one of {', '.join(PROCESSES)}")
        group.suspended[name] = f"User suspended at {iso(to_datetime(region.now))}"
    lifecycle.record_history(region, group)
    return {}


def _resume(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    group = groups.find_group(region, params["AutoScalingGroupName"])
    for name in params.get("ScalingProcesses") or PROCESSES:
        group.suspended.pop(name, None)
    lifecycle.record_history(region, group)
    region.wake(group)
    return {}


PROCESSES: Final = (
    "Launch",
    "Terminate",
    "AddToLoadBalancer",
    "AlarmNotification",
    "AZRebalance",
    "HealthCheck",
    "InstanceRefresh",
    "ReplaceUnhealthy",
    "ScheduledActions",
)


# LaunchInstances


def _launch(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    """Launch at once in one zone, and return what was refused. Desired capacity rises by what was launched (with a retry: by all)."""
    return once_per_token(region, "LaunchInstances", params, _launch_instances)


def _launch_instances(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    group, units = groups.find_group(region, params["AutoScalingGroupName"]), params["RequestedCapacity"]
    zone = _zone(group, params)
    retry = params.get("RetryStrategy") == "retry-with-group-configuration"
    if not 1 <= units <= MOST_LAUNCHED:
        raise invalid(f"RequestedCapacity must be between 1 and {MOST_LAUNCHED}, saw {units}")
    if group.settings.get("LaunchConfigurationName"):
        raise invalid("LaunchInstances is not supported for Auto Scaling groups that use launch configurations.")
    if group.desired + units > group.max:
        raise invalid(f"Requested capacity {units} would raise the desired capacity above max value {group.max} for the AutoScalingGroup.")
    if "Launch" in group.suspended:
        raise invalid("The Launch process of the AutoScalingGroup is suspended.")
    split = list(choosing.split_by_market(region, group, units))
    distribution = group.settings.get("MixedInstancesPolicy", {}).get("InstancesDistribution")
    if (distribution and distribution["OnDemandPercentageAboveBaseCapacity"] not in {0, 100}) or (
        distribution and distribution["OnDemandBaseCapacity"] and len(split) > 1
    ):
        raise invalid("LaunchInstances is not supported for Auto Scaling groups that mix Spot and On-Demand Instances.")
    before = set(group.members)
    group.cause = f"At {iso(to_datetime(region.now))} a user request launched instances synchronously."
    granted, failures = scaling.launch(region, group, split[0][0], zone, units)
    group.desired = min(group.max, group.desired + (units if retry else granted))
    lifecycle.record_history(region, group)
    if retry and granted < units:
        region.wake(group)
    launched = [group.members[ident] for ident in group.members if ident not in before]
    return {
        "AutoScalingGroupName": group.name,
        "ClientToken": params["ClientToken"],
        "Instances": _group_instances(launched),
        "Errors": [_error(failure) for failure in failures],
    }


def once_per_token(
    region: Region, operation: str, params: dict[str, Any], act: Callable[[Region, dict[str, Any]], dict[str, Any]]
) -> dict[str, Any]:
    """Repeat the answer of an earlier call with the same ClientToken."""
    token = params.get("ClientToken")
    if not token:
        return act(region, params)
    if (operation, token) in region.tokens:
        earlier, answer = region.tokens[operation, token]
        if earlier != params:
            raise AwsError("IdempotentParameterMismatch", f"The client token {token} was used before with other parameters.")
        return answer
    answer = act(region, params)
    region.tokens[operation, token] = (params, answer)
    return answer


def _zone(group: Group, params: dict[str, Any]) -> str:
    places = [place for key in ("AvailabilityZones", "AvailabilityZoneIds", "SubnetIds") for place in params.get(key, ())]
    if not places:
        if len(group.zones) > 1:
            raise invalid("AvailabilityZones, AvailabilityZoneIds or SubnetIds must be given for a group with several Availability Zones.")
        return group.zones[0]
    if len(places) > 1:
        raise invalid("Only one of AvailabilityZones, AvailabilityZoneIds and SubnetIds may be given, with one entry.")
    for zone in group.zones:
        if places[0] in (zone, zone_id(zone), subnet_id(zone)):
            return zone
    raise invalid(f"{places[0]} is not an Availability Zone or subnet of the AutoScalingGroup.")


def _group_instances(instances: list[Instance]) -> list[dict[str, Any]]:
    rows: dict[tuple[str, str, str], list[str]] = {}
    for instance in instances:
        offering = instance.machine.offering
        rows.setdefault((offering.instance_type, offering.market, offering.zone), []).append(instance.id)
    return [{**_where(*key), "InstanceIds": idents} for key, idents in rows.items()]


def _error(failure: Failure) -> dict[str, Any]:
    return {**_where(failure.instance_type, failure.market, failure.zone), "ErrorCode": failure.code, "ErrorMessage": failure.message}


def _where(instance_type: str, market: str, zone: str) -> dict[str, Any]:
    return {
        "InstanceType": instance_type,
        # A reservation is not a market in EC2's terms.
        "MarketType": "spot" if market == "spot" else "on-demand",
        "SubnetId": subnet_id(zone),
        "AvailabilityZone": zone,
        "AvailabilityZoneId": zone_id(zone),
    }


OPERATIONS: Final = {
    "SetDesiredCapacity": _set_desired,
    "TerminateInstanceInAutoScalingGroup": _terminate,
    "SetInstanceProtection": _protect,
    "DescribeAutoScalingInstances": _describe_instances,
    "DescribeScalingActivities": activities.describe,
    "SuspendProcesses": _suspend,
    "ResumeProcesses": _resume,
    "LaunchInstances": _launch,
}
