"""Faults on demand."""

import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from random import Random
from typing import Literal

from gpuscaler.embedded.apiserver.wire.failures import Failure, Severed
from gpuscaler.kube.transport import Answer, Request


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault, for matching requests.

    ``method`` and ``path`` (a regular expression, found anywhere in the path, with its query behind a ``?`` as ``name=value`` parts) select
    the requests; ``times`` is how often it happens (None: always), ``chance`` its probability. Then the answer is ``delay`` seconds
    late; ``refusal`` is answered instead; the connection breaks ``before`` or ``after`` the request is carried out; or its body
    breaks off after ``cut`` bytes.
    """

    method: str = ""
    path: str = ""
    times: int | None = None
    chance: float = 1.0
    delay: float = 0.0
    refusal: Failure | None = None
    sever: Literal["", "before", "after"] = ""
    cut: int | None = None

    def hits(self, request: Request) -> bool:
        if self.method and request.method != self.method:
            return False
        query = "&".join(f"{name}={value}" for name, value in sorted(request.query.items()))
        return re.search(self.path, f"{request.path}?{query}") is not None


def throttled(seconds: int = 1) -> Failure:
    """The answer of priority and fairness; it has no cause, unlike that of a disruption budget."""
    return Failure(429, "TooManyRequests", "too many requests, please try again later", retry_after=seconds)


def broken() -> Failure:
    return Failure(500, "InternalError", "Internal error occurred: etcdserver: request timed out")


def unavailable() -> Failure:
    return Failure(503, "ServiceUnavailable", "the server is currently unable to handle the request", retry_after=1)


class Faults:
    """The active faults, oldest first: the first that matches a request applies to it."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._faults: list[Fault] = []

    @property
    def in_force(self) -> bool:
        return bool(self._faults)

    def add(self, fault: Fault) -> None:
        self._faults.append(fault)

    def clear(self) -> None:
        self._faults.clear()

    def pick(self, request: Request) -> Fault | None:
        """The fault for ``request``, counted."""
        for place, fault in enumerate(self._faults):
            if fault.hits(request) and (fault.chance >= 1 or self._random.random() < fault.chance):
                if fault.times is not None:
                    self._faults[place : place + 1] = [replace(fault, times=fault.times - 1)] if fault.times > 1 else []
                return fault
        return None

    def cut_body(self, answer: Answer, fault: Fault | None) -> Answer:
        """``answer``, with its body cut off if ``fault`` says so."""
        return answer if fault is None or fault.cut is None else replace(answer, pieces=_cut(answer.pieces, fault.cut))


async def _cut(pieces: AsyncIterator[bytes], left: int) -> AsyncIterator[bytes]:
    async for piece in pieces:
        if len(piece) > left:
            yield piece[:left]
            break
        left -= len(piece)
        yield piece
    raise Severed
