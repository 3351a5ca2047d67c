"""Faults of calls, on demand."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from random import Random
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.embedded.aws.wire.reading import Call


class Fault(Struct, frozen=True, forbid_unknown_fields=True):
    """A fault of matching calls.

    ``service`` and ``operation`` are patterns such as ``Describe*``, ``region`` a name or "" for all, ``about`` a name that the call must
    contain, such as that of a group; ``times`` is how often it happens (None: always), ``chance`` its probability. Then the answer
    takes ``delay`` seconds more; with a ``code`` the call is refused with it and ``status``, asking to wait ``retry_after`` seconds; or the
    connection breaks ``before`` or ``after`` the call takes effect.
    """

    service: str = "*"
    operation: str = "*"
    region: str = ""
    about: str = ""
    times: int | None = None
    chance: float = 1.0
    delay: float = 0.0
    code: str = ""
    message: str = ""
    status: int = 400
    retry_after: float = 0.0
    sever: Literal["", "before", "after"] = ""

    def hits(self, call: Call) -> bool:
        matches = fnmatchcase(call.service, self.service) and fnmatchcase(call.operation, self.operation)
        return matches and self.region in ("", call.region) and _contains_value(call.params, self.about)


def throttled(operation: str = "*", *, retry_after: float = 0.0, times: int | None = None, chance: float = 1.0) -> Fault:
    """Too many calls; EC2 calls it RequestLimitExceeded, the others Throttling."""
    return Fault(operation=operation, code="Throttling", message="Rate exceeded", retry_after=retry_after, times=times, chance=chance)


def denied(operation: str, *, region: str = "") -> Fault:
    """The caller lacks the permission."""
    return Fault(operation=operation, region=region, code="AccessDenied", status=403)


def outage(service: str = "*", *, region: str = "") -> Fault:
    """A service is down."""
    return Fault(service=service, region=region, code="InternalFailure", status=500, message="The request processing has failed.")


def unreachable(service: str, *, region: str = "") -> Fault:
    """Connections to a service fail, as from a private network without an endpoint for it."""
    return Fault(service=service, region=region, sever="before")


class Faults:
    """The active faults, the oldest first: the first that matches a call applies to it."""

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)
        self.all: list[Fault] = []

    def pick(self, call: Call) -> Fault | None:
        """The fault for a call, counted."""
        for place, fault in enumerate(self.all):
            if fault.hits(call) and (fault.chance >= 1 or self._random.random() < fault.chance):
                if fault.times is not None:
                    self.all[place : place + 1] = [replace(fault, times=fault.times - 1)] if fault.times > 1 else []
                return fault
        return None


def _contains_value(value: object, what: str) -> bool:
    """Whether one of a call's parameters, at any depth, is ``what``."""
    if isinstance(value, Mapping):
        value = list(value.values())
    return not what or value == what or (isinstance(value, list) and any(_contains_value(item, what) for item in value))
