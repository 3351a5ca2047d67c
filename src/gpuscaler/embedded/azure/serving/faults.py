"""Faults of calls: throttling, missing permissions, outages, slowness, broken connections."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from random import Random
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.embedded.azure.wire.requests import Request


class Fault(Struct, frozen=True, forbid_unknown_fields=True):
    """What happens to calls that match.

    ``method`` and ``path`` are patterns such as ``GET`` and ``*/virtualMachines``, compared without case; ``times`` is how often it
    happens (None: always), ``chance`` its probability. Then the answer takes ``delay`` seconds more; with a ``code`` the call is refused
    with it and ``status``, with ``headers`` such as ``retry-after``; or the connection breaks ``before`` or ``after`` its effect.
    """

    method: str = "*"
    path: str = "*"
    times: int | None = None
    chance: float = 1.0
    delay: float = 0.0
    code: str = ""
    message: str = ""
    status: int = 500
    headers: Mapping[str, str] = {}
    sever: Literal["", "before", "after"] = ""

    def hits(self, request: Request) -> bool:
        return fnmatchcase(request.method, self.method.upper()) and fnmatchcase(request.path.lower(), self.path.lower())


class Faults:
    """The active faults, the oldest first: the first that matches a call applies to it."""

    def __init__(self, seed: int = 0) -> None:
        self._random = Random(seed)
        self.all: list[Fault] = []

    def pick(self, request: Request) -> Fault | None:
        """The fault for a call, counted."""
        for place, fault in enumerate(self.all):
            if fault.hits(request) and (fault.chance >= 1 or self._random.random() < fault.chance):
                if fault.times is not None:
                    self.all[place : place + 1] = [replace(fault, times=fault.times - 1)] if fault.times > 1 else []
                return fault
        return None
