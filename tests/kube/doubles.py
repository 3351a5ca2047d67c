"""A transport that answers from a script, for tests in virtual time."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gpuscaler.kube.transport import Answer, Request


async def pieces_of(body: bytes) -> AsyncIterator[bytes]:
    middle = len(body) // 2
    for piece in (body[:middle], body[middle:]):
        yield piece


def answer(status: int = 200, body: object = None, **headers: str) -> Answer:
    encoded = body if isinstance(body, bytes) else msgspec.json.encode(body if body is not None else {})
    return Answer(status, {name.replace("_", "-"): value for name, value in headers.items()}, pieces_of(encoded))


def refusal(status: int, message: str, *, reason: str = "", details: dict[str, Any] | None = None, **headers: str) -> Answer:
    reply = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": message, "reason": reason, "code": status}
    return answer(status, {**reply, **({"details": details} if details else {})}, **headers)


@dataclass
class Scripted:
    """Answers each request with the next of ``answers``, and the last one for ever; an exception is raised, a callable is called."""

    answers: list[Answer | Exception | Callable[[Request], Any]]
    requests: list[Request] = field(default_factory=list)

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        self.requests.append(request)
        reply = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(reply):
            reply = await reply(request)
        if isinstance(reply, Exception):
            raise reply
        yield reply

    async def close(self) -> None:
        pass
