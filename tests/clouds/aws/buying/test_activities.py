"""Scaling activities report the results of an increment, and changes of a group by others."""

from datetime import UTC, datetime, timedelta
from typing import Any

from gpuscaler.clouds.aws.buying.activities import CapacityChange, activity_log, capacity_changes, launch_report
from gpuscaler.clouds.protocol import CAPACITY

BEGAN = datetime(2026, 11, 21, 12, 0, 0, tzinfo=UTC)


def activity(status: str = "Failed", *, seconds: float = 1.0, **more: Any) -> dict[str, Any]:
    return {
        "ActivityId": "a",
        "AutoScalingGroupName": "workers",
        "Description": "Launching a new EC2 instance.  Status Reason: There is no Spot capacity available that matches your request.",
        "Cause": "At 2026-11-21T12:00:00Z a user request explicitly set group desired capacity changing the desired capacity from 3 to 6.  "
        "At 2026-11-21T12:00:01Z an instance was started in response to a difference between desired and actual capacity.",
        "StartTime": BEGAN + timedelta(seconds=seconds),
        "StatusCode": status,
        **more,
    }


def test_launch_activities_are_classified_by_their_results() -> None:
    report = launch_report(
        [
            activity(StatusMessage="Could not launch Spot Instances. InsufficientInstanceCapacity - There is no Spot capacity available."),
            activity("Successful", Description="Launching a new EC2 instance: i-0123456789abcdef0"),
            activity("PreInService", Description="Launching a new EC2 instance: i-0123456789abcdef1"),
            activity("SomethingNew", Description="Launching a new EC2 instance"),
        ],
        since=BEGAN.timestamp(),
    )
    assert report.instances == ("i-0123456789abcdef0",)
    assert [verdict.cause for verdict in report.failures] == [CAPACITY]


def test_the_attempted_zone_is_read_from_the_details_of_an_activity() -> None:
    details = '{"Subnet ID":"subnet-1","Availability Zone":"us-east-1b"}'
    report = launch_report([activity(Details=details), activity(Details="{broken"), activity(Details="[1]")], since=BEGAN.timestamp())
    assert [verdict.zone for verdict in report.failures] == ["us-east-1b", "", ""]


def test_launches_before_the_order_and_terminations_are_ignored() -> None:
    ended = activity("Failed", Description="Terminating EC2 instance: i-0123456789abcdef0")
    assert launch_report([activity(seconds=-1), ended, {"StatusCode": "Failed"}, {}], since=BEGAN.timestamp()) == launch_report([], since=0)


def test_a_cancelled_launch_counts_as_a_refusal_only_if_it_has_a_reason() -> None:
    silent = activity("Cancelled", Description="Launching a new EC2 instance", StatusMessage="")
    assert launch_report([silent], since=BEGAN.timestamp()).failures == ()
    assert len(launch_report([activity("Cancelled")], since=BEGAN.timestamp()).failures) == 1


def test_machines_count_as_launching_until_shortly_after_they_are_in_service() -> None:
    names = [f"i-0123456789abcdef{number}" for number in range(4)]
    log = activity_log(
        [
            activity("PreInService", Description=f"Launching a new EC2 instance: {names[0]}", seconds=-900),
            activity("Successful", Description=f"Launching a new EC2 instance: {names[1]}", EndTime=BEGAN + timedelta(seconds=2)),
            activity("Successful", Description=f"Launching a new EC2 instance: {names[2]}", EndTime=BEGAN - timedelta(seconds=2)),
            activity("WaitingForInstanceId", Description="Launching a new EC2 instance"),
            activity("Failed"),
        ],
        since=BEGAN.timestamp() + 0.5,
    )
    assert log.launching == (names[0], names[1], "")


def test_each_change_of_the_desired_capacity_is_read_once_from_activity_causes() -> None:
    policy = "At 2026-11-21T12:00:05Z a monitor alarm a in state ALARM triggered policy p changing the desired capacity from 6 to 7."
    update = "a user request update of AutoScalingGroup constraints to min: 0, max: 9, desired: 9"
    constraints = f"At 2026-11-21T12:00:09Z {update} changing the desired capacity from 7 to 9."
    changes = capacity_changes(
        [activity(), activity(), activity(Cause=policy), activity(Cause=constraints), {"Cause": None}], since=BEGAN.timestamp()
    )
    start = BEGAN.timestamp()
    assert changes == (CapacityChange(start, 3, 6), CapacityChange(start + 5, 6, 7), CapacityChange(start + 9, 7, 9))
    assert capacity_changes([activity()], since=start + 1) == ()
