"""The endpoint without a network: for loops in virtual time."""

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from gpuscaler.clouds.azure.api.http import BrokenError, Http, HttpReply
from gpuscaler.embedded.azure import Endpoint
from gpuscaler.embedded.azure.wire.errors import BrokenError as SeveredError
from gpuscaler.embedded.azure.wire.requests import Request

URL = "http://127.0.0.1:1"


class MemoryHttp(Http):
    """Connections that lead straight to ``endpoint``; each answer takes ``delay`` seconds more than its own time.

    After :meth:`cut`, no request arrives and no answer comes back.
    """

    def __init__(self, endpoint: Endpoint, *, delay: float = 0.0) -> None:
        super().__init__({})
        self.endpoint, self.delay, self._whole = endpoint, delay, True

    def cut(self) -> None:
        self._whole = False

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: Mapping[str, str],
        body: bytes = b"",
        **_limits: Any,
    ) -> HttpReply:
        parts = urlsplit(url)
        # Half of the time passes on the way there, so that others may act in between.
        await asyncio.sleep(self.delay / 2)
        self._check_whole()
        request = Request(method, parts.path, {name.lower(): value for name, value in headers.items()}, body, parts.query, URL)
        try:
            answer = self.endpoint.handle(request)
        except SeveredError:
            raise BrokenError(f"{URL}: the connection broke") from None
        await asyncio.sleep(self.delay / 2 + answer.after)
        self._check_whole()
        return HttpReply(answer.status, {name.lower(): value for name, value in answer.headers.items()}, answer.body)

    def _check_whole(self) -> None:
        if not self._whole:
            raise BrokenError(f"{URL}: the connection broke")
