"""Messages about breakers."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.state import offering_events
from gpuscaler.planning.state.breakers import LIGHT, Breaker, Breakers, counts, is_open, withholds

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


def trouble(breakers: Breakers, key: OfferingKey, now: float) -> str:
    """Why an offering is blocked, or was refused before, by the breaker that stays open longest; empty without such a breaker."""
    found = [one for one in breakers.open if counts(one) and not withholds(one) and one.target.covers(key)]
    return told(max(found, key=lambda one: math.inf if one.until is None else one.until), now) if found else ""


def told(one: Breaker, now: float) -> str:
    """The message of a breaker: "spot g5.xlarge us-east-1a: no capacity, 3 times since 10:02:11 UTC; retried at 10:14:20 UTC"."""
    if one.cause == offering_events.UNFAMILIAR:
        return f"{one.target.words}: nothing is bought until this is resolved: {one.detail}"
    times = "" if one.strikes == 1 else f", {one.strikes} times"
    said = f" ({one.detail})" if one.detail else ""
    probe = "probed" if one.cause in LIGHT else "probed with one machine"
    if one.until is None:
        again = "retried when the settings or the pool change"
    elif one.probe is not None and is_open(one, now):
        again = f"{probe} at {clock(one.probe)}, no answer yet"
    elif is_open(one, now):
        again = f"retried at {clock(one.until, now)}"
        if one.cause in (offering_events.CONFIGURATION, offering_events.PRICE):
            again += " with one machine, or as soon as the settings or the pool change"
    else:
        again = f"may be {probe} now"
    what = f"machines never showed {one.lacks}" if one.lacks else WORDS.get(one.cause, one.cause)
    if withholds(one):
        again = f"nothing is bought for pods that request it; {again}"
    return f"{one.target.words}: {what}{times} since {clock(one.since)}{said}; {again}"


def clock(moment: float, now: float | None = None) -> str:
    """The time of day, with the date if it is more than half a day from ``now``."""
    far = now is not None and abs(moment - now) > FAR_SECONDS
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC" if far else "%H:%M:%S UTC")
