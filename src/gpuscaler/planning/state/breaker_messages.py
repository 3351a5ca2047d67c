"""Breakers in words."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.state import offering_events
from gpuscaler.planning.state.breakers import LIGHT, Breaker, Breakers, counts, is_open, withholds

#: Further away than this, a time of day alone says too little, in seconds.
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
    offering_events.FRUITLESS: "machines were bought in vain",
    offering_events.LACKING: "machines never showed what they are sold with",
    offering_events.ABSENT: "machines never became nodes",
    offering_events.RECLAIMED: "reclaimed by the cloud",
    offering_events.UNFAMILIAR: "a machine that is not understood",
}


def trouble(breakers: Breakers, key: OfferingKey, now: float) -> str:
    """Why an offering may not be asked, or was refused before; of several breakers the one that is open longest. Empty when it may."""
    found = [one for one in breakers.open if counts(one) and not withholds(one) and one.target.covers(key)]
    return told(max(found, key=lambda one: math.inf if one.until is None else one.until), now) if found else ""


def told(one: Breaker, now: float) -> str:
    """Such as "spot g5.xlarge us-east-1a: no capacity, 3 times since 10:02:11 UTC; asked again at 10:14:20 UTC"."""
    if one.cause == offering_events.UNFAMILIAR:
        return f"{one.target.words}: nothing is bought until this is understood: {one.detail}"
    times = "" if one.strikes == 1 else f", {one.strikes} times"
    said = f" ({one.detail})" if one.detail else ""
    probe = "asked" if one.cause in LIGHT else "asked for one machine"
    if one.until is None:
        again = "asked again when the settings or the pool change"
    elif one.probe is not None and is_open(one, now):
        again = f"{probe} at {clock(one.probe)} as a probe, not answered yet"
    elif is_open(one, now):
        again = f"asked again at {clock(one.until, now)}"
        if one.cause in (offering_events.CONFIGURATION, offering_events.PRICE):
            again += " with one machine, or as soon as the settings or the pool change"
    else:
        again = f"may be {probe} as a probe"
    what = f"machines never showed {one.lacks}" if one.lacks else WORDS.get(one.cause, one.cause)
    if withholds(one):
        again = f"pods that ask for it are not bought for; {again}"
    return f"{one.target.words}: {what}{times} since {clock(one.since)}{said}; {again}"


def clock(moment: float, now: float | None = None) -> str:
    """The time of day, and the day too where that is half a day or more from ``now``."""
    far = now is not None and abs(moment - now) > FAR_SECONDS
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M:%S UTC" if far else "%H:%M:%S UTC")
