"""Messages are decoded in all their formats, and malformed ones are recognised."""

import json
from typing import Any

import pytest

from gpuscaler.clouds.aws.machines.notices import HELD, STATE, Announcement, Hook, MalformedError, decode_message
from gpuscaler.clouds.protocol import INTERRUPTION, MAINTENANCE, REBALANCE

NAME = "i-0123456789abcdef0"
AT = 1_795_262_400.0


def event(kind: str, detail: dict[str, Any]) -> str:
    return json.dumps({"version": "0", "id": "1", "detail-type": kind, "time": "2026-11-21T12:00:00Z", "detail": detail})


WARNING = event("EC2 Spot Instance Interruption Warning", {"instance-id": NAME, "instance-action": "terminate"})
HOOK = {
    "LifecycleActionToken": "t",
    "AutoScalingGroupName": "gpus",
    "LifecycleHookName": "h",
    "EC2InstanceId": NAME,
    "LifecycleTransition": "autoscaling:EC2_INSTANCE_TERMINATING",
}
WORK = {
    "service": "EC2",
    "eventTypeCategory": "scheduledChange",
    "startTime": "Sat, 28 Nov 2026 12:00:00 GMT",
    "affectedEntities": [{"entityValue": NAME}, {"entityValue": "vol-1"}, {}],
}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (WARNING, [Announcement(INTERRUPTION, NAME, AT + 120)]),
        (json.dumps({"Type": "Notification", "Message": WARNING}), [Announcement(INTERRUPTION, NAME, AT + 120)]),
        (event("EC2 Instance Rebalance Recommendation", {"instance-id": NAME}), [Announcement(REBALANCE, NAME, AT)]),
        (event("EC2 Instance State-change Notification", {"instance-id": NAME, "state": "shutting-down"}), [Announcement(STATE, NAME, AT)]),
        (event("EC2 Instance State-change Notification", {"instance-id": NAME, "state": "running"}), []),
        (event("AWS Health Event", WORK), [Announcement(MAINTENANCE, NAME, AT + 7 * 86400)]),
        (event("AWS Health Event", {**WORK, "service": "RDS"}), []),
        (event("EC2 Instance-terminate Lifecycle Action", HOOK), [Announcement(HELD, NAME, 0.0, Hook("gpus", "h", "t", NAME))]),
        (json.dumps(HOOK), [Announcement(HELD, NAME, 0.0, Hook("gpus", "h", "t", NAME))]),
        (json.dumps({**HOOK, "LifecycleTransition": "autoscaling:EC2_INSTANCE_LAUNCHING"}), []),
        (json.dumps({"Event": "autoscaling:TEST_NOTIFICATION"}), []),
        (event("Something Else", {"state": "x"}), []),
    ],
)
def test_a_queue_message_is_decoded_in_every_format(body: str, expected: list[Announcement]) -> None:
    assert list(decode_message(body)) == expected


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "[]",
        "null",
        "{}",
        json.dumps({"detail-type": "EC2 Spot Instance Interruption Warning"}),
        json.dumps({"detail-type": "EC2 Spot Instance Interruption Warning", "detail": []}),
        event("EC2 Spot Instance Interruption Warning", {"instance-id": 7}),
        event("EC2 Spot Instance Interruption Warning", {"instance-id": "vol-1"}),
        WARNING.replace("2026-11-21T12:00:00Z", "yesterday"),
        event("AWS Health Event", {**WORK, "startTime": "soon"}),
        json.dumps({**HOOK, "LifecycleActionToken": None}),
        json.dumps({"Type": "Notification", "Message": "{"}),
        "[" * 200_000,
        '{"a":' * 100_000,
        "[" * 5000 + "]" * 5000,
        "1" * 10_000,
        event("AWS Health Event", {**WORK, "startTime": "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"}),
        event("AWS Health Event", {**WORK, "startTime": "Mon, 01 Jan 2026 00:00:00 +99999999999"}),
        event("AWS Health Event", {**WORK, "startTime": 5}),
        event("AWS Health Event", {**WORK, "affectedEntities": 5}),
        event("AWS Health Event", {**WORK, "affectedEntities": [None]}),
        event("EC2 Spot Instance Interruption Warning", {"instance-id": "i-\x1b[31m\n"}),
        event("EC2 Spot Instance Interruption Warning", {"instance-id": "i-" + "x" * 200_000}),
        WARNING.replace("2026-11-21T12:00:00Z", "9999-12-31T23:59:59-23:59"),
        WARNING.replace("2026-11-21T12:00:00Z", "0001-01-01T00:00:00+23:59"),
        json.dumps({"detail-type": {}}),
        json.dumps({"Type": "Notification", "Message": json.dumps({"Type": "Notification", "Message": WARNING})}),
    ],
)
def test_a_malformed_queue_message_is_recognised(body: str) -> None:
    with pytest.raises(MalformedError, match="saw"):
        decode_message(body)
