"""Replacements that users ask for: of all instances by an instance refresh, and of instances that they set to unhealthy.

Only rolling instance refreshes are implemented, which replace one instance after the other. Source: EC2 Auto Scaling's user guide, "How an
instance refresh works", and its API reference (November 2026). The texts of causes were seen in real activities.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from gpuscaler.embedded.aws.autoscaling import groups, lifecycle
from gpuscaler.embedded.aws.launch import choosing
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.state import Group
from gpuscaler.embedded.aws.wire.errors import AwsError, invalid
from gpuscaler.embedded.aws.wire.pages import page
from gpuscaler.embedded.aws.wire.writing import to_datetime

#: Seconds between a refresh's checks of its group, and how long it waits for instances that are protected from scale-in.
STEP, PATIENCE = 5.0, 3600.0
_UNDER_WAY: Final = frozenset({"Pending", "InProgress"})


@dataclass(slots=True)
class Refresh:
    """An instance refresh: ``left`` are the instances still to replace, ``total`` is the number at the start."""

    id: str
    group: str
    preferences: Mapping[str, Any]
    started_at: float
    left: list[str]
    total: int
    status: str = "InProgress"
    reason: str = ""
    ended_at: float | None = None
    #: The instance that is being replaced, and when its replacement is warm.
    going: str = ""
    warm_at: float = 0.0
    waits_since: float | None = None


def _start(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    group = groups.find_group(region, params["AutoScalingGroupName"])
    if any(refresh.status in _UNDER_WAY for refresh in group.refreshes):
        text = "An Instance Refresh is already in progress and blocks the execution of this Instance Refresh."
        raise AwsError("InstanceRefreshInProgress", text)
    if changed := params.get("DesiredConfiguration"):
        groups.update(region, {"AutoScalingGroupName": group.name, **changed})
    preferences = {"MinHealthyPercentage": 90, "SkipMatching": False, "ScaleInProtectedInstances": "Wait", **params.get("Preferences", {})}
    members = [instance for instance in group.members.values() if instance.counted]
    if preferences["SkipMatching"]:
        wanted = [choice.template for choice in choosing.choices(region, group)]
        members = [instance for instance in members if instance.template not in wanted]
    new_refresh = Refresh(region.uuid(), group.name, preferences, region.now, [instance.id for instance in members], len(members))
    group.refreshes.append(new_refresh)
    region.put(region.now, partial(_step, region, group, new_refresh))
    return {"InstanceRefreshId": new_refresh.id}


def _cancel(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    group = groups.find_group(region, params["AutoScalingGroupName"])
    for refresh in group.refreshes:
        if refresh.status in _UNDER_WAY:
            _finish(region, refresh, "Cancelled", "Cancelled by user.")
            return {"InstanceRefreshId": refresh.id}
    raise AwsError("ActiveInstanceRefreshNotFound", "No in progress or pending Instance Refresh found for Auto Scaling group")


def _describe(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    wanted = params.get("InstanceRefreshIds")
    refreshes = [
        refresh
        for refresh in reversed(groups.find_group(region, params["AutoScalingGroupName"]).refreshes)
        if not wanted or refresh.id in wanted
    ]
    shown, more = page(refreshes, params, size="MaxRecords", default=50, most=100)
    return {"InstanceRefreshes": [_describe_refresh(refresh) for refresh in shown], **more}


def _describe_refresh(refresh: Refresh) -> dict[str, Any]:
    left = len(refresh.left) + bool(refresh.going)
    reply = {
        "InstanceRefreshId": refresh.id,
        "AutoScalingGroupName": refresh.group,
        "Status": refresh.status,
        "StatusReason": refresh.reason or None,
        "StartTime": to_datetime(refresh.started_at),
        "EndTime": to_datetime(refresh.ended_at) if refresh.ended_at is not None else None,
        "PercentageComplete": 100 * (refresh.total - left) // refresh.total if refresh.total else 100,
        "InstancesToUpdate": left,
        "Preferences": dict(refresh.preferences),
        "Strategy": "Rolling",
    }
    return {key: value for key, value in reply.items() if value is not None}


def _finish(region: Region, refresh: Refresh, status: str, reason: str = "") -> None:
    refresh.status, refresh.reason, refresh.ended_at = status, reason, region.now


def _step(region: Region, group: Group, refresh: Refresh, now: float) -> None:
    """Replace the next instance, once the previous one is replaced and its replacement is warm."""
    if refresh.status not in _UNDER_WAY or region.groups.get(group.name) is not group:
        return
    region.put(now + STEP, partial(_step, region, group, refresh))
    in_service = sum(member.weight for member in group.members.values() if member.lifecycle == "InService")
    if refresh.going in group.members or in_service < group.desired:
        refresh.warm_at = now + refresh.preferences.get("InstanceWarmup", group.settings.get("DefaultInstanceWarmup", 0))
        return
    if now < refresh.warm_at:
        return
    refresh.going = ""
    refresh.left = [ident for ident in refresh.left if ident in group.members and group.members[ident].counted]
    if not refresh.left:
        _finish(region, refresh, "Successful")
        return
    _replace(region, group, refresh, now)


def _replace(region: Region, group: Group, refresh: Refresh, now: float) -> None:
    """End the next replaceable instance; fail if only protected ones are left for too long."""
    how = refresh.preferences["ScaleInProtectedInstances"]
    if how == "Ignore":
        refresh.left = [ident for ident in refresh.left if not group.members[ident].protected]
    free = [ident for ident in refresh.left if how == "Refresh" or not group.members[ident].protected]
    if not free:
        refresh.waits_since = now if refresh.waits_since is None else refresh.waits_since
        if refresh.left and now - refresh.waits_since >= PATIENCE:
            _finish(region, refresh, "Failed", "Instances protected from scale in were found in your Auto Scaling group.")
        return
    refresh.waits_since, refresh.going = None, free[0]
    refresh.left.remove(refresh.going)
    lifecycle.replace(
        region, group, group.members[refresh.going], "an instance refresh", first=refresh.preferences.get("MaxHealthyPercentage", 100) > 100
    )


# An instance's health


def _set_health(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    """Set the health of an instance, as a user or program reports it. An unhealthy one is replaced, protected or not."""
    instance = region.instances.get(params["InstanceId"])
    group = region.groups.get(instance.group) if instance is not None else None
    if instance is None or group is None or instance.id not in group.members:
        raise invalid(f"Instance Id not found - No managed instance found for instance ID: {params['InstanceId']}")
    if params["HealthStatus"] not in {"Healthy", "Unhealthy"}:
        raise invalid("Valid instance health states are: [Healthy, Unhealthy].")
    instance.health = params["HealthStatus"]
    lifecycle.record_history(region, group)
    if instance.health == "Unhealthy" and instance.counted and "ReplaceUnhealthy" not in group.suspended:
        lifecycle.replace(region, group, instance, "a user health-check")
    return {}


OPERATIONS: Final = {
    "StartInstanceRefresh": _start,
    "CancelInstanceRefresh": _cancel,
    "DescribeInstanceRefreshes": _describe,
    "SetInstanceHealth": _set_health,
}
