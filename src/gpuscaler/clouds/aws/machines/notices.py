"""Decodes messages of EventBridge and of lifecycle hooks about machines. Pure; malformed messages raise :class:`MalformedError`.

Formats: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/monitoring-instance-state-changes.html and its neighbours, autumn 2026.
Messages come more than once, late, and in any order.
"""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import msgspec
from msgspec import Struct

from gpuscaler.clouds.aws.api.spelling import respelled
from gpuscaler.clouds.protocol import INTERRUPTION, MAINTENANCE, REBALANCE, TEST
from gpuscaler.model.quantities import shorten_value

#: Time from a spot warning to the end of the machine, in seconds.
WARNING_SECONDS: Final = 120.0
#: States of machines that will not return to service.
_GOING: Final = ("stopping", "stopped", "shutting-down", "terminated")
_TERMINATING: Final = "autoscaling:EC2_INSTANCE_TERMINATING"
#: Seconds from 1970 to 2200: later times are rejected.
LATEST: Final = 7_258_118_400.0
_INSTANCE: Final = re.compile(r"i-[0-9A-Za-z-]{1,62}", re.ASCII)
#: Kinds of messages that the protocol lacks: a change of state, which the list of machines shows too, and a hook that holds an ending
#: machine.
STATE: Final = "state"
HELD: Final = "held"
#: The source and kind of the messages that ``gpuscaler doctor --send-test-message`` sends. AWS has no such source.
TEST_SOURCE: Final = "gpuscaler.doctor"
TEST_KIND: Final = "gpuscaler test message"
_TEST_ID: Final = re.compile(r"[0-9a-f]{1,32}", re.ASCII)


class Hook(Struct, frozen=True, gc=False):
    """A lifecycle hook that holds a machine that its group ends."""

    group: str
    name: str
    token: str
    instance: str


class Announcement(Struct, frozen=True, gc=False):
    """A message about the machine with the EC2 id ``instance``; ``kind`` is a kind of the protocol or of this module.

    Of a test message, ``instance`` is its own id.
    """

    kind: str
    instance: str
    at: float = 0.0
    hook: Hook | None = None


class MalformedError(ValueError):
    """A malformed message; the text says what was seen."""


def encode_test_message(ident: str, at: float) -> str:
    """A test message with the id ``ident``, hexadecimal digits, in the form of an event of EventBridge."""
    moment = f"{datetime.fromtimestamp(at, UTC):%Y-%m-%dT%H:%M:%SZ}"
    event = {"version": "0", "id": ident, "detail-type": TEST_KIND, "source": TEST_SOURCE, "time": moment, "detail": {"test-id": ident}}
    return msgspec.json.encode(event).decode()


def decode_message(body: str) -> tuple[Announcement, ...]:
    """Decode the message ``body``; empty if it is about something else. Raises :class:`MalformedError`."""
    message = _decoded(body)
    if message.get("Type") == "Notification" and isinstance(message.get("Message"), str):
        # An SNS topic between the event and the queue adds one wrapper.
        message = _decoded(message["Message"])
    try:
        return _announcements_of(message)
    except MalformedError:
        raise
    except Exception as error:
        # Anyone with access to the queue can send anything: no content of a message may cause another error here.
        kind = shorten_value(message.get("detail-type") or "a message")
        raise MalformedError(f"saw {type(error).__name__} {shorten_value(str(error))} in {kind}") from error


def _decoded(body: str) -> Mapping[str, Any]:
    try:
        message = msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise MalformedError(f"saw {body[:80]!r}, expected JSON") from error
    if not isinstance(message, dict):
        raise MalformedError(f"saw {body[:80]!r}, expected an object")
    return message


def _announcements_of(message: Mapping[str, Any]) -> tuple[Announcement, ...]:
    if "LifecycleTransition" in message:
        return _held_by_hook(message)
    kind = message.get("detail-type")
    if not isinstance(kind, str):
        if message.get("Event") == "autoscaling:TEST_NOTIFICATION":
            return ()
        raise MalformedError("saw no detail-type, expected an event of EventBridge")
    detail = message["detail"]
    match kind:
        case "EC2 Spot Instance Interruption Warning":
            return (Announcement(INTERRUPTION, _id(detail["instance-id"]), _time_of(message) + WARNING_SECONDS),)
        case "EC2 Instance Rebalance Recommendation":
            return (Announcement(REBALANCE, _id(detail["instance-id"]), _time_of(message)),)
        case "EC2 Instance State-change Notification":
            return (
                (Announcement(STATE, _id(detail["instance-id"]), _time_of(message)),)
                if respelled(detail["state"], _GOING) in _GOING
                else ()
            )
        case "EC2 Instance-terminate Lifecycle Action":
            return _held_by_hook(detail)
        case "AWS Health Event":
            return _maintenance(detail)
        case _ if (message.get("source"), kind) == (TEST_SOURCE, TEST_KIND):
            ident = _text(detail["test-id"])
            return (Announcement(TEST, ident),) if _TEST_ID.fullmatch(ident) is not None else ()
    return ()


def _held_by_hook(detail: Mapping[str, Any]) -> tuple[Announcement, ...]:
    if detail["LifecycleTransition"] != _TERMINATING:
        return ()
    instance = _id(detail["EC2InstanceId"])
    hook = Hook(_text(detail["AutoScalingGroupName"]), _text(detail["LifecycleHookName"]), _text(detail["LifecycleActionToken"]), instance)
    return (Announcement(HELD, instance, 0.0, hook),)


def _maintenance(detail: Mapping[str, Any]) -> tuple[Announcement, ...]:
    if detail.get("service") != "EC2" or detail.get("eventTypeCategory") != "scheduledChange":
        return ()
    at = _checked_time(parsedate_to_datetime(detail["startTime"]).timestamp())
    names = (entity.get("entityValue", "") for entity in detail.get("affectedEntities") or ())
    return tuple(Announcement(MAINTENANCE, name, at) for name in names if isinstance(name, str) and _INSTANCE.fullmatch(name) is not None)


def _time_of(message: Mapping[str, Any]) -> float:
    moment = datetime.fromisoformat(message["time"])
    return _checked_time((moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp())


def _checked_time(at: float) -> float:
    """Return ``at``. Raises :class:`MalformedError` if it is outside of 1970 to 2200."""
    if not 0.0 <= at < LATEST:
        raise MalformedError(f"saw a time of {at:.0f} s since 1970, expected one from 1970 to 2200")
    return at


def _id(value: object) -> str:
    if not isinstance(value, str) or _INSTANCE.fullmatch(value) is None:
        raise MalformedError(f"saw {shorten_value(value)}, expected the id of an instance")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise MalformedError(f"saw {shorten_value(value)}, expected text")
    return value
