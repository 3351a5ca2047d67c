"""Budgets of calls: ARM's token buckets, Microsoft.Compute's counts in 3 and 30 minutes, AKS's buckets; headers and refusals of each."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import ceil
from typing import Final

from gpuscaler.embedded.azure.compute.views import iso
from gpuscaler.embedded.azure.contents import Contents
from gpuscaler.embedded.azure.wire.errors import AzureError, Failure
from gpuscaler.embedded.azure.wire.requests import Call, Route

#: ARM's buckets for a subscription: size, and refill in a second ("Understand how Azure Resource Manager throttles requests").
ARM: Final[Mapping[str, tuple[float, float]]] = {"reads": (250, 25), "writes": (200, 10), "deletes": (200, 10)}
#: AKS's buckets: size, refill in a second ("Quotas, virtual machine size restrictions, and region availability in AKS").
AKS: Final[Mapping[str, tuple[float, float]]] = {
    "aks-put-pool": (20, 1 / 60),
    "aks-put-cluster": (20, 1 / 60),
    "aks-get": (60, 1),
    "aks-list": (60, 1),
    "aks-operation": (200, 2),
}
#: Counts of Microsoft.Compute: policy, calls in 3 minutes, calls in 30 minutes. The first three as headers in reports show them, the others
#: are assumptions.
COMPUTE: Final[Mapping[str, tuple[str, int, int]]] = {
    "high-get-set": ("HighCostGetVMScaleSet", 180, 900),
    "high-get": ("HighCostGet", 160, 800),
    "delete-machines": ("DeleteVMScaleSet", 120, 600),
    "delete-set": ("DeleteVMScaleSet", 120, 600),
    "put-set": ("CreateVMScaleSet", 375, 1875),
    "low-get": ("LowCostGet", 4000, 32_000),
    "operation": ("GetOperation", 15_000, 45_000),
}
_WINDOWS: Final = ((0, "3Min", 180.0), (1, "30Min", 1800.0))


@dataclass(slots=True)
class Bucket:
    """A token bucket of ``size`` that gets ``rate`` tokens in a second."""

    size: float
    rate: float
    level: float
    at: float

    def take(self, now: float) -> float:
        """Take a token; returns the seconds until there is one if there is none."""
        self.level = min(self.size, self.level + (now - self.at) * self.rate)
        self.at = now
        if self.level < 1.0:
            return max(1.0, (1.0 - self.level) / self.rate)
        self.level -= 1.0
        return 0.0


@dataclass(slots=True)
class Window:
    """Calls in a window of time that begins with the first."""

    began: float
    used: int = 0


@dataclass(slots=True)
class Throttling:
    """What callers have used. ``closed`` are policies such as ``HighCostGetVMScaleSet30Min`` that are used up until a time, by hand."""

    account: Contents
    arm: dict[str, tuple[float, float]] = field(default_factory=lambda: dict(ARM))
    aks: dict[str, tuple[float, float]] = field(default_factory=lambda: dict(AKS))
    compute: dict[str, tuple[str, int, int]] = field(default_factory=lambda: dict(COMPUTE))
    closed: dict[str, float] = field(default_factory=dict)
    _buckets: dict[tuple[str, str], Bucket] = field(default_factory=dict)
    _windows: dict[tuple[str, str], Window] = field(default_factory=dict)

    def count(self, route: Route, call: Call) -> dict[str, str]:
        """Count a call; returns the headers about what is left. Raises :class:`AzureError` (429) if nothing is."""
        subscription = call.names.get("subscription", "").lower()
        if not subscription or not self.account.conditions.throttling:
            return {}
        headers = self._arm(call, subscription)
        if route.bucket in self.aks:
            self._aks(route.bucket, call)
        elif route.bucket in self.compute:
            headers |= self._compute(route.bucket, f"{subscription} {self._location(call, subscription)}")
        return headers

    def _arm(self, call: Call, subscription: str) -> dict[str, str]:
        kind = {"GET": "reads", "HEAD": "reads", "DELETE": "deletes"}.get(call.method, "writes")
        bucket = self._bucket(kind, subscription, self.arm[kind])
        header = f"x-ms-ratelimit-remaining-subscription-{kind}"
        if wait := bucket.take(self.account.time):
            word = {"reads": "read", "writes": "write", "deletes": "delete"}[kind]
            text = (
                f"Number of '{word}' requests for subscription '{subscription}' actor '00000000-0000-0000-0000-0000000000aa' exceeded. "
                f"Please try again after '{ceil(wait)}' seconds after additional tokens are available. Refer to "
                "https://aka.ms/arm-throttling for additional information."
            )
            raise _throttled(Failure("SubscriptionRequestsThrottled", text), wait, {header: "0"})
        return {header: str(int(bucket.level))}

    def _aks(self, kind: str, call: Call) -> None:
        where = call.request.path.lower().removesuffix("/deletemachines")
        bucket = self._bucket(
            kind, where if kind in {"aks-put-pool", "aks-put-cluster"} else call.names["subscription"].lower(), self.aks[kind]
        )
        if wait := bucket.take(self.account.time):
            text = f"The request is throttled: too many requests of this kind were sent. Please retry after {ceil(wait)} seconds."
            raise _throttled(Failure("Throttled", text), wait, {})

    def _location(self, call: Call, subscription: str) -> str:
        """The location of a call, since Microsoft.Compute counts by subscription and location."""
        group = self.account.groups.get((subscription, call.names.get("group", "").lower()))
        return group.location if group is not None else call.names.get("location", "").lower()

    def _compute(self, kind: str, place: str) -> dict[str, str]:
        name, *limits = self.compute[kind]
        now, left = self.account.time, []
        for number, suffix, seconds in _WINDOWS:
            policy, limit = f"{name}{suffix}", limits[number]
            window = self._windows.setdefault((policy, place), Window(now))
            if now - window.began >= seconds:
                window.began, window.used = now, 0
            end = max(window.began + seconds if window.used >= limit else now, self.closed.get(policy, now))
            window.used += 1
            if end > now:
                raise _throttled(_over_limit(policy, window, seconds, limit), end - now, {_REMAINING: f"Microsoft.Compute/{policy};0"})
            left.append(f"Microsoft.Compute/{policy};{limit - window.used}")
        return {_REMAINING: ",".join(left), "x-ms-request-charge": "1"}

    def _bucket(self, kind: str, who: str, figures: tuple[float, float]) -> Bucket:
        size, rate = figures
        return self._buckets.setdefault((kind, who), Bucket(size, rate, size, self.account.time))

    def close(self, policy: str, seconds: float) -> None:
        """Use up a policy of Microsoft.Compute, such as ``HighCostGetVMScaleSet30Min``, for ``seconds``."""
        self.closed[policy] = self.account.time + seconds

    def reset(self) -> None:
        """Fill all budgets again."""
        self.closed.clear()
        self._buckets.clear()
        self._windows.clear()

    def drain(self, kind: str, level: float = 0.0) -> None:
        """Leave ``level`` tokens in ARM's bucket ``kind`` (``reads``, ``writes``, ``deletes``) of each subscription."""
        for subscription in self.account.subscriptions:
            self._bucket(kind, subscription.lower(), self.arm[kind]).level = level


_REMAINING: Final = "x-ms-ratelimit-remaining-resource"


def _over_limit(policy: str, window: Window, seconds: float, limit: int) -> Failure:
    """Microsoft.Compute's refusal: the policy is the target of the inner error, whose message is JSON."""
    measured = {
        "operationGroup": policy,
        "startTime": iso(window.began),
        "endTime": iso(window.began + seconds),
        "allowedRequestCount": limit,
        "measuredRequestCount": max(limit + 1, window.used),
    }
    inner = Failure("TooManyRequests", json.dumps(measured), target=policy)
    text = "The server rejected the request because too many requests have been received for this subscription."
    return Failure("OperationNotAllowed", text, details=(inner,), inner="TooManyRequestsReceived")


def _throttled(failure: Failure, wait: float, headers: Mapping[str, str]) -> AzureError:
    return AzureError(failure, status=429, headers={**headers, "retry-after": str(ceil(wait))})
