"""Scaling policies and scheduled actions of groups: stored and described, and never carried out."""

from typing import Any, Final

from gpuscaler.embedded.aws.autoscaling.groups import find_group
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.wire.errors import invalid
from gpuscaler.embedded.aws.wire.pages import page


def _put(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    group, name = find_group(region, params["AutoScalingGroupName"]), params["PolicyName"]
    arn = f"{group.arn.replace(':autoScalingGroup:', ':scalingPolicy:')}:policyName/{name}"
    group.policies[name] = {"PolicyType": "SimpleScaling", "Enabled": True, **params, "PolicyARN": arn, "Alarms": []}
    return {"PolicyARN": arn, "Alarms": []}


def _delete(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    group = find_group(region, params["AutoScalingGroupName"])
    if params["PolicyName"] not in group.policies:
        raise invalid(f"No scaling policy found with name: {params['PolicyName']}")
    del group.policies[params["PolicyName"]]
    return {}


def _describe(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    wanted = params.get("AutoScalingGroupName")
    rows = [policy for group in region.groups.values() if wanted in (None, group.name) for policy in group.policies.values()]
    shown, more = page(rows, params, size="MaxRecords", default=50, most=100)
    return {"ScalingPolicies": shown, **more}


def _schedule(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    find_group(region, params["AutoScalingGroupName"]).scheduled[params["ScheduledActionName"]] = params
    return {}


def _unschedule(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    find_group(region, params["AutoScalingGroupName"]).scheduled.pop(params["ScheduledActionName"], None)
    return {}


def _describe_scheduled(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    wanted = params.get("AutoScalingGroupName")
    rows = [action for group in region.groups.values() if wanted in (None, group.name) for action in group.scheduled.values()]
    shown, more = page(rows, params, size="MaxRecords", default=50, most=100)
    return {"ScheduledUpdateGroupActions": shown, **more}


OPERATIONS: Final = {
    "DeletePolicy": _delete,
    "DeleteScheduledAction": _unschedule,
    "DescribePolicies": _describe,
    "DescribeScheduledActions": _describe_scheduled,
    "PutScalingPolicy": _put,
    "PutScheduledUpdateGroupAction": _schedule,
}
