"""Scaling activities: the results of an increment, and changes of a group's desired capacity by others.

Setting the desired capacity of a group returns nothing; its activities report the results minutes later, one per machine. Reasons are only
in their texts, which are read with the tolerance of :mod:`~gpuscaler.clouds.aws.api.causes`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from gpuscaler.clouds.aws.api.causes import ErrorMeaning, interpret_error
from gpuscaler.clouds.aws.api.spelling import respelled
from gpuscaler.clouds.protocol import UNKNOWN

Reply = Mapping[str, Any]

_FAILED_STATUSES: Final = ("Failed", "Cancelled")
_SUCCESSFUL: Final = "Successful"
_LAUNCHING: Final = "Launching"
_INSTANCE: Final = re.compile(r"\bi-[0-9a-f]{8,17}\b")
_CODE_AND_TEXT: Final = re.compile(r"(?P<code>[A-Z][A-Za-z]+(?:\.[A-Z][A-Za-z]+)*) - (?P<text>.*)", re.DOTALL)
_CAPACITY_CHANGE: Final = re.compile(
    r"At (\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.\d+)?Z? a[^.]*?changing the desired capacity from (\d+) to (\d+)"
)
_REASON: Final = "Status Reason:"
#: How groups describe a machine that a hook abandoned: "Instance failed to complete user's Lifecycle Action: …".
_ABANDONED_BY_HOOK: Final = "user's Lifecycle Action"


class LaunchReport(Struct, frozen=True, gc=False):
    """What activities report about launches: the ids of machines that launched, and the meaning of each failure."""

    instances: tuple[str, ...] = ()
    failures: tuple[ErrorMeaning, ...] = ()


class CapacityChange(Struct, frozen=True, gc=False, order=True):
    """A change of the desired capacity at ``at``, a whole second since the epoch."""

    at: float
    before: int
    after: int


def launch_report(activities: Iterable[Reply], *, since: float) -> LaunchReport:
    """Results of launches that began at ``since`` or later, in seconds since the epoch.

    Activities that cannot be read are skipped: a group has many, and a malformed one must not hide the others.
    """
    instances: list[str] = []
    failures: list[ErrorMeaning] = []
    for activity in activities:
        description = str(activity.get("Description") or "")
        began = activity.get("StartTime")
        if not description.startswith(_LAUNCHING) or not isinstance(began, datetime) or began.timestamp() < since:
            continue
        status = _status(activity)
        match = _INSTANCE.search(description)
        if status == _SUCCESSFUL and match is not None:
            instances.append(match.group())
        elif status in _FAILED_STATUSES:
            failed = _error_meaning(activity, description)
            # A launch that was cancelled because it was no longer wanted says nothing about capacity.
            if status == "Failed" or failed.cause != UNKNOWN:
                failures.append(failed)
    return LaunchReport(tuple(dict.fromkeys(instances)), tuple(failures))


def last_failure(activities: Iterable[Reply], *, since: float) -> str:
    """Why a group's newest launch failed, in the group's words, if it began at ``since`` or later; else empty."""
    launches = [
        (began.timestamp(), activity)
        for activity in activities
        if str(activity.get("Description") or "").startswith(_LAUNCHING) and isinstance(began := activity.get("StartTime"), datetime)
    ]
    if not launches:
        return ""
    began, newest = max(launches, key=lambda launch: launch[0])
    status, message = _status(newest), str(newest.get("StatusMessage") or newest.get("Description"))
    # A launch that was cancelled because it was no longer wanted is no failure; a launch that a lifecycle hook abandoned is one.
    failed = status == "Failed" or (status == "Cancelled" and _ABANDONED_BY_HOOK in message)
    return message if failed and began >= since else ""


def _status(activity: Reply) -> str:
    return respelled(activity.get("StatusCode"), (*_FAILED_STATUSES, _SUCCESSFUL))


def _error_meaning(activity: Reply, description: str) -> ErrorMeaning:
    text = str(activity.get("StatusMessage") or description.partition(_REASON)[2]).strip()
    match = _CODE_AND_TEXT.search(text)
    meaning = interpret_error(match["code"], match["text"]) if match is not None else interpret_error("", text)
    return meaning if meaning.zone else msgspec.structs.replace(meaning, zone=_zone(activity))


def _zone(activity: Reply) -> str:
    """The zone of the launch attempt: activities carry it next to the text."""
    try:
        details = msgspec.json.decode(str(activity.get("Details") or "{}"))
    except msgspec.DecodeError:
        return ""
    zone = details.get("Availability Zone", "") if isinstance(details, dict) else ""
    return zone if isinstance(zone, str) else ""


class ActivityLog(Struct, frozen=True, gc=False):
    """Recent changes of a group's desired capacity, and its current and recent launches: machine ids, "" for those without an id yet."""

    changes: tuple[CapacityChange, ...] = ()
    launching: tuple[str, ...] = ()


def activity_log(activities: Iterable[Reply], *, since: float) -> ActivityLog:
    """The log since the whole second of ``since``, in seconds since the epoch; launches in progress are included whatever their age."""
    all_activities = tuple(activities)
    return ActivityLog(capacity_changes(all_activities, since=since), tuple(_launching(all_activities, int(since))))


def _launching(activities: Iterable[Reply], since: float) -> Iterator[str]:
    for activity in activities:
        description = str(activity.get("Description") or "")
        status, ended = _status(activity), activity.get("EndTime")
        over = status in _FAILED_STATUSES or (status == _SUCCESSFUL and isinstance(ended, datetime) and ended.timestamp() < since)
        if description.startswith(_LAUNCHING) and not over:
            match = _INSTANCE.search(description)
            yield match.group() if match is not None else ""


def capacity_changes(activities: Iterable[Reply], *, since: float) -> tuple[CapacityChange, ...]:
    """Changes of the desired capacity that activities name as their causes, from the whole second of ``since`` on, oldest first.

    Activities only name changes that launched or ended a machine.
    """
    changes = set()
    for activity in activities:
        for at, before, after in _CAPACITY_CHANGE.findall(str(activity.get("Cause") or "")):
            moment = datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp()
            if moment >= int(since):
                changes.add(CapacityChange(moment, int(before), int(after)))
    return tuple(sorted(changes))
