"""A handler's answer, before it is sent."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from gpuscaler.kube.transport import Answer, WholeBody

JSON = {"content-type": "application/json"}


def reply(body: bytes, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Answer:
    return Answer(status, {**(JSON if headers is None else headers), "content-length": str(len(body))}, WholeBody(body))


def json_reply(value: Any, *, status: int = 200) -> Answer:
    return reply(msgspec.json.encode(value) + b"\n", status=status)


def text_reply(text: str, *, status: int = 200) -> Answer:
    return reply(text.encode(), status=status, headers={"content-type": "text/plain; charset=utf-8"})


def streamed(pieces: AsyncIterator[bytes]) -> Answer:
    return Answer(200, JSON, pieces)
