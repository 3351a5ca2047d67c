"""Messages about breakers."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.state import offering_events
from gpuscaler.planning.state.breakers import LIGHT, Breaker, Breakers, has_enough_strikes, is_open, withholds

#: Times further away than this, in seconds, are shown with the date.
FAR_SECONDS = 43_200.0

WORDS: Mapping[str, str] = {
    offering_events.CAPACITY: "no capacity",
    offering_events.QUOTA: "quota used up",
    offering_events.PRICE: "price refused",
    offering_events.CONFIGURATION: "configuration refused",
    offering_events.UNAUTHORISED: "not permitted",
    offering_events.THROTTLED: "too many requests",
    offering_events.UNKNOWN: "refused",
    offering_events.FAILED: "machines did not come up",
    offering_events.FRUITLESS: "machines were bought without use",
    offering_events.LACKING: "machines never showed resources of their type",
    offering_events.ABSENT: "machines never became nodes",
    offering_events.RECLAIMED: "reclaimed by the cloud",
    offering_events.UNFAMILIAR: "an unrecognised machine",
}


def describe_trouble(breakers: Breakers, key: OfferingKey, now: float) -> str:
    """Why an offering is blocked, or was refused before, by the breaker that stays open longest; empty without such a breaker."""
    blocking = [
        breaker for breaker in breakers.open if has_enough_strikes(breaker) and not withholds(breaker) and breaker.target.covers(key)
    ]
    return (
        describe_breaker(max(blocking, key=lambda breaker: math.inf if breaker.until is None else breaker.until), now) if blocking else ""
    )


def describe_breaker(breaker: Breaker, now: float) -> str:
    """The message of a breaker: "spot g5.xlarge us-east-1a: no capacity, 3 times since 10:02:11 UTC; retried at 10:14:20 UTC"."""
    if breaker.cause == offering_events.UNFAMILIAR:
        return f"{breaker.target.words}: nothing is bought until this is resolved: {breaker.detail}"
    times = "" if breaker.strikes == 1 else f", {breaker.strikes} times"
    detail = f" ({breaker.detail})" if breaker.detail else ""
    probe = "probed" if breaker.cause in LIGHT else "probed with one machine"
    if breaker.until is None:
        retry = "retried when the settings or the pool change"
    elif breaker.probe is not None and is_open(breaker, now):
        retry = f"{probe} at {format_time(breaker.probe)}, no answer yet"
    elif is_open(breaker, now):
        retry = f"retried at {format_time(breaker.until, now)}"
        if breaker.cause in (offering_events.CONFIGURATION, offering_events.PRICE):
            retry += " with one machine, or as soon as the settings or the pool change"
    else:
        retry = f"may be {probe} now"
    failure = f"machines never showed {breaker.lacks}" if breaker.lacks else WORDS.get(breaker.cause, breaker.cause)
    if withholds(breaker):
        retry = f"nothing is bought for pods that request it; {retry}"
    return f"{breaker.target.words}: {failure}{times} since {format_time(breaker.since)}{detail}; {retry}"


def format_time(moment: float, now: float | None = None) -> str:
    """The time of day, with the date if it is more than half a day from ``now``."""
    far = now is not None and abs(moment - now) > FAR_SECONDS
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC" if far else "%H:%M:%S UTC")
