"""What changes groups behind gpuscaler: their scaling activities, from CloudTrail who set sizes, and instance refreshes."""

import json
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from gpuscaler.clouds.aws.inspecting.inspection import Inspection

Json = Mapping[str, Any]

ACTIVITY, CHANGE, REFRESH = "aws/ScalingActivity", "aws/SizeChange", "aws/InstanceRefresh"
#: How far failed launches, and all activities, are read back, in seconds.
_HISTORY, _DAY = 7 * 86_400.0, 86_400.0
#: Launches of a group that are read if some failed, the newest first.
_LAUNCHES: Final = 20
#: Activities of the last day, and calls in CloudTrail, that are read of a region at most, the newest first. CloudTrail answers twice a
#: second, each time with 50 calls.
_ACTIVITIES, _CALLS = 2_000, 250
#: How activities name each call of a user that sets a desired capacity. Source: AWS re:Post, "Why did my Auto Scaling group scale down?".
_USER_CALLS: Final = {
    "SetDesiredCapacity": "a user request explicitly set group desired capacity",
    "UpdateAutoScalingGroup": "a user request update of AutoScalingGroup constraints",
}


def read_changes(region: str, names: Collection[str], inspection: Inspection, *, now: float) -> None:
    """Read the activities of the groups ``names`` of the last day, the newest launches of groups in which one failed, and the callers."""
    activities = {str(entry.get("ActivityId")): entry for entry in _recent(region, inspection, now=now)}
    callers = {call for call, text in _USER_CALLS.items() if any(_concerns(entry, names, text) for entry in activities.values())}
    for entry in _launches_where_one_failed(region, names, inspection, now=now):
        activities.setdefault(str(entry.get("ActivityId")), entry)
    inspection.add(ACTIVITY, (entry for entry in activities.values() if entry.get("AutoScalingGroupName") in names), Region=region)
    for call in sorted(callers):
        since = datetime.fromtimestamp(now - _DAY, UTC)
        asked = [{"AttributeKey": "EventName", "AttributeValue": call}]
        events = inspection.pages(
            CHANGE, "cloudtrail", region, "LookupEvents", "Events", most=_CALLS, LookupAttributes=asked, StartTime=since
        )
        changes = filter(None, map(_change, events or ()))
        inspection.add(CHANGE, (change for change in changes if change["AutoScalingGroupName"] in names), Region=region)


def _concerns(activity: Json, names: Collection[str], text: str) -> bool:
    return activity.get("AutoScalingGroupName") in names and text in str(activity.get("Cause"))


def _recent(region: str, inspection: Inspection, *, now: float) -> list[Json]:
    filters = [{"Name": "StartTimeLowerBound", "Values": [_iso(now - _DAY)]}]
    ask = "DescribeScalingActivities"
    return inspection.pages(ACTIVITY, "autoscaling", region, ask, "Activities", most=_ACTIVITIES, MaxRecords=100, Filters=filters) or []


def _launches_where_one_failed(region: str, names: Collection[str], inspection: Inspection, *, now: float) -> Iterator[Json]:
    filters = [{"Name": "StartTimeLowerBound", "Values": [_iso(now - _HISTORY)]}, {"Name": "Status", "Values": ["Failed", "Cancelled"]}]
    ask = "DescribeScalingActivities"
    failed = inspection.pages(ACTIVITY, "autoscaling", region, ask, "Activities", MaxRecords=100, Filters=filters)
    for name in sorted({str(entry.get("AutoScalingGroupName")) for entry in failed or ()} & set(names)):
        reply = inspection.read(ACTIVITY, "autoscaling", region, ask, AutoScalingGroupName=name, MaxRecords=_LAUNCHES)
        yield from (reply or {}).get("Activities") or ()


def _iso(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).isoformat()


def _change(event: Json) -> dict[str, Any] | None:
    """A call that set a desired capacity: when, in which group, and by whom; None if it failed or left the capacity alone.

    ``Principal`` is the ARN of the user or role, ``Service`` the service that acted for it, ``Console`` whether it was the console.
    """
    try:
        details = json.loads(event.get("CloudTrailEvent") or "")
        request, identity = details["requestParameters"], details["userIdentity"]
        if details.get("errorCode") or "desiredCapacity" not in request:
            return None
        issuer = (identity.get("sessionContext") or {}).get("sessionIssuer") or {}
        return {
            "AutoScalingGroupName": request.get("autoScalingGroupName"),
            "Time": event.get("EventTime"),
            "Principal": str(issuer.get("arn") or identity.get("arn") or ""),
            "Service": str(identity.get("invokedBy") or ""),
            "Console": details.get("sessionCredentialFromConsole") == "true",
            "Agent": str(details.get("userAgent") or ""),
        }
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


def read_refreshes(region: str, names: Collection[str], inspection: Inspection) -> None:
    """Read the newest instance refresh of each group of ``names``: one that is under way is always the newest."""

    def read(name: str, part: Inspection) -> None:
        reply = part.read(REFRESH, "autoscaling", region, "DescribeInstanceRefreshes", AutoScalingGroupName=name, MaxRecords=1)
        part.add(REFRESH, ((reply or {}).get("InstanceRefreshes") or ())[:1], Region=region)

    inspection.read_each(sorted(names), read)
