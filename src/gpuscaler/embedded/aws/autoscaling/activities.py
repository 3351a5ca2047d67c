"""Scaling activities: what a group did and why, visible with a delay."""

import json
from typing import Any, Final

from gpuscaler.embedded.aws.hardware.zones import subnet_id
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.state import Activity, Group
from gpuscaler.embedded.aws.wire.errors import no_group
from gpuscaler.embedded.aws.wire.pages import page
from gpuscaler.embedded.aws.wire.reading import parse_time
from gpuscaler.embedded.aws.wire.writing import iso, to_datetime

_DONE: Final = frozenset({"Successful", "Failed", "Cancelled"})
#: AWS keeps six weeks; here the newest ones of each group are kept.
KEPT: Final = 2_000


def add(
    region: Region, group: Group, description: str, cause: str, *, status: str, message: str = "", ended: bool = False, zone: str = ""
) -> Activity:
    """Record an activity that starts, or is already over."""
    visible_at = region.now + region.conditions.activity
    activity = Activity(region.uuid(), description, cause[:1023], region.now, visible_at, status, message[:255])
    activity.zone, activity.ended_at = zone, region.now if ended else None
    group.activities.append(activity)
    del group.activities[:-KEPT]
    return activity


def add_failure_once(region: Region, group: Group, text: str) -> None:
    """Record that a group cannot do something; the same failure in a row is recorded once."""
    if not group.activities or group.activities[-1].message != text:
        add(region, group, text, group.cause, status="Failed", message=text, ended=True)


def finish(region: Region, activity: Activity, *, status: str, message: str = "") -> None:
    """Mark an activity as ended."""
    activity.status, activity.message, activity.ended_at = status, message[:255], region.now


def launch_cause(region: Region, group: Group, before: int) -> str:
    """Why an instance is started: the last request to the group, and its missing capacity."""
    what = "an instance was started in response to a difference between desired and actual capacity, increasing the capacity"
    return f"{group.cause}  At {iso(to_datetime(region.now))} {what} from {before} to {group.desired}.".strip()


def describe(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    """DescribeScalingActivities, the newest first."""
    name = params.get("AutoScalingGroupName")
    if name is not None and name not in region.groups:
        raise no_group(name)
    wanted, filters = params.get("ActivityIds"), {item["Name"]: item["Values"] for item in params.get("Filters", ())}
    rows = [
        (group, activity)
        for group in region.groups.values()
        if name in (None, group.name)
        for activity in group.activities
        if activity.visible_at <= region.now and (not wanted or activity.id in wanted) and _passes(activity, filters)
    ]
    rows.sort(key=lambda row: (row[1].started_at, row[1].id), reverse=True)
    shown, more = page(rows, params, size="MaxRecords", default=100, most=100)
    return {"Activities": [describe_activity(group, activity) for group, activity in shown], **more}


def _passes(activity: Activity, filters: dict[str, list[str]]) -> bool:
    if "StartTimeLowerBound" in filters and activity.started_at < parse_time(filters["StartTimeLowerBound"][0]).timestamp():
        return False
    if "StartTimeUpperBound" in filters and activity.started_at > parse_time(filters["StartTimeUpperBound"][0]).timestamp():
        return False
    return "Status" not in filters or activity.status in filters["Status"]


def describe_activity(group: Group, activity: Activity) -> dict[str, Any]:
    """An activity in the form of the API."""
    reply = {
        "ActivityId": activity.id,
        "AutoScalingGroupName": group.name,
        "AutoScalingGroupARN": group.arn,
        "Description": activity.description,
        "Cause": activity.cause,
        "StartTime": to_datetime(activity.started_at),
        "StatusCode": activity.status,
        "StatusMessage": activity.message or None,
        "Progress": 100 if activity.status in _DONE else 50,
        "Details": json.dumps({"Subnet ID": subnet_id(activity.zone), "Availability Zone": activity.zone} if activity.zone else {}),
        "EndTime": to_datetime(activity.ended_at) if activity.ended_at is not None else None,
    }
    return {key: value for key, value in reply.items() if value is not None}
