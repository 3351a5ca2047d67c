"""What Azure's limits still allow, from the headers of its answers, and which calls have to wait.

Azure Resource Manager counts reads, writes and deletions by subscription; Compute counts groups of calls such as ``HighCostGet`` on its
own, by region. An answer names in ``x-ms-ratelimit-remaining-…`` what is left of every limit that its call counts towards. A refused read
holds back only reads of its kind, or all reads of the subscription if that is the limit; writes go on.

https://learn.microsoft.com/azure/azure-resource-manager/management/request-limits-and-throttling and
https://learn.microsoft.com/troubleshoot/azure/virtual-machines/troubleshooting-throttling-errors
"""

import re
from collections.abc import Callable, Mapping
from email.utils import parsedate_to_datetime
from typing import Final

from msgspec import Struct

from gpuscaler.clouds.azure.api.errors import ArmFailure

#: Below this part of a limit, polls become rarer; at nothing left, this many times.
LOW, RAREST = 0.1, 10.0
#: The wait after a refusal that names none, and the longest that is believed, in seconds.
USUAL_WAIT, LONGEST_WAIT = 15.0, 86_400.0
#: Azure Resource Manager's limits: https://learn.microsoft.com/azure/azure-resource-manager/management/request-limits-and-throttling
_KNOWN_LIMITS: Final = {"reads": 250, "writes": 200, "deletes": 200}
_RESOURCE, _SUBSCRIPTION = "x-ms-ratelimit-remaining-resource", re.compile(r"x-ms-ratelimit-remaining-(?:subscription|tenant)-([a-z-]+)")
_BUCKET: Final = re.compile(r"\s*([\w./-]{1,120});\s*(-?\d{1,9})\s*")
_MINUTES: Final = re.compile(r"(\d{1,3})Min$")
_SUBSCRIPTION_CODES: Final = ("subscriptionrequeststhrottled", "tenantrequeststhrottled")
#: The most limits and waits that are remembered.
_MOST: Final = 2000


class Bucket(Struct, gc=False):
    """A limit: the most that was left of it, what was left last, and when that was, in seconds since the epoch."""

    most: int
    left: int
    at: float
    #: How long it takes to fill up, in seconds.
    fills: float

    def part(self, now: float) -> float:
        """The part that is left; what has had the time to fill up is full."""
        return 1.0 if now >= self.at + self.fills or self.most <= 0 else max(0, self.left) / self.most


class Throttle:
    """Waits and limits of one Azure account. ``now`` is the time in seconds since the epoch."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._buckets: dict[tuple[str, str], Bucket] = {}
        self._waits: dict[tuple[str, str], float] = {}

    def record(self, method: str, path: str, headers: Mapping[str, str], failure: ArmFailure | None = None) -> float:
        """Record an answer to a call; for one that was throttled, return the wait in seconds before the next such call."""
        now, subscription = self._now(), subscription_of(path)
        for name, (left, most, fills) in _limits_in(headers).items():
            known = self._buckets.get((subscription, name))
            self._buckets[(subscription, name)] = Bucket(max(left, most, known.most if known else 0), left, now, fills)
        _forget_oldest(self._buckets)
        if failure is None or failure.status != 429:
            return 0.0
        wait = min(retry_after_of(headers, now) or USUAL_WAIT, LONGEST_WAIT)
        of_subscription = failure.code.lower() in _SUBSCRIPTION_CODES
        key = (subscription, _kind_of_limit(method)) if of_subscription else (method, kind_of(method, path))
        self._waits[key] = max(now + wait, self._waits.get(key, 0.0))
        _forget_oldest(self._waits)
        return wait

    def wait_for(self, method: str, path: str) -> float:
        """For how many seconds a call should not be made yet: 0 if it may be made."""
        keys = ((subscription_of(path), _kind_of_limit(method)), (method, kind_of(method, path)))
        return max(0.0, max(self._waits.get(key, 0.0) for key in keys) - self._now())

    def stretch(self, subscription: str = "") -> float:
        """By how much polls should be stretched: 1 normally, up to 10 with little left of a limit or while reads are held back.

        Limits of all subscriptions count if ``subscription`` is empty.
        """
        now, wanted = self._now(), subscription.lower()
        parts = (
            bucket.part(now)
            for (owner, name), bucket in self._buckets.items()
            if wanted in ("", owner) and not name.endswith(("writes", "deletes"))
        )
        least = min(parts, default=1.0)
        if any(now < until for (owner, kind), until in self._waits.items() if _holds_reads(owner, kind, wanted)):
            least = 0.0
        return 1.0 if least >= LOW else 1.0 + (RAREST - 1.0) * (1.0 - least / LOW)


def retry_after_of(headers: Mapping[str, str], now: float) -> float:
    """The wait in seconds that the header Retry-After asks for, as a number or as a date; 0 without one. Not cut off: callers decide."""
    text = headers.get("retry-after", "").partition(",")[0].strip()
    if re.fullmatch(r"\d{1,9}(\.\d{1,3})?", text, re.ASCII):
        return float(text)
    full = headers.get("retry-after", "").strip()
    try:
        return max(0.0, parsedate_to_datetime(full).timestamp() - now) if full else 0.0
    except (TypeError, ValueError, OverflowError):
        return 0.0


def subscription_of(path: str) -> str:
    """The subscription in a path, in lower case."""
    parts = path.lower().split("/", 3)
    return parts[2] if len(parts) > 2 and parts[1] == "subscriptions" else ""


def kind_of(method: str, path: str) -> str:
    """Calls that are held back together. Reads: those of the same types of resources in one resource group; writes: those of one resource.

    Limits are by region, which no path names; a resource group of AKS's nodes is in one region.
    """
    small = path.lower().partition("?")[0].rstrip("/")
    if method != "GET":
        return small
    group, _, rest = small.partition("/providers/")
    parts = rest.split("/")
    return f"{group}/providers/{'/'.join((parts[0], *parts[1::2]))}" if rest else group


def _kind_of_limit(method: str) -> str:
    return {"GET": "reads", "DELETE": "deletes"}.get(method, "writes")


def _holds_reads(owner: str, kind: str, subscription: str) -> bool:
    if kind == "reads":
        return subscription in ("", owner)
    return owner == "GET" and (not subscription or subscription_of(kind) == subscription)


def _limits_in(headers: Mapping[str, str]) -> dict[str, tuple[int, int, float]]:
    """What is left, the known limit and the seconds to fill up, by the name of the limit."""
    found = {}
    for name, value in headers.items():
        match = _SUBSCRIPTION.fullmatch(name)
        if match is not None:
            number = value.partition(",")[0].strip()
            if number.isascii() and number.isdecimal() and len(number) < 10:
                found[match[1]] = (int(number), _KNOWN_LIMITS.get(match[1], 0), 60.0)
    for part in headers.get(_RESOURCE, "")[:4000].split(","):
        bucket = _BUCKET.fullmatch(part)
        if bucket is not None:
            minutes = _MINUTES.search(bucket[1])
            found[bucket[1].lower()] = (max(0, int(bucket[2])), 0, 60.0 * int(minutes[1]) if minutes else 60.0)
    return found


def _forget_oldest(entries: dict[tuple[str, str], Bucket] | dict[tuple[str, str], float]) -> None:
    while len(entries) > _MOST:
        entries.pop(next(iter(entries)))
