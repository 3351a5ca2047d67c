"""An HTTP server on this machine that gives prepared answers, one after the other, and keeps what it was asked."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

from aiohttp import web
from msgspec import Struct

from gpuscaler.clouds.azure.api.arm import Arm
from gpuscaler.clouds.azure.api.credentials import Credentials, FixedToken
from gpuscaler.clouds.azure.api.http import Http

START = 1_700_000_000.0


class Say(Struct, frozen=True):
    """An answer. ``sever`` breaks the connection: "before" an answer, or in the middle of its "body". ``endless`` never answers."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = {}
    repeated: tuple[tuple[str, str], ...] = ()
    sever: str = ""
    endless: bool = False


class Asked(Struct, frozen=True):
    """A request that came."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: bytes

    @property
    def token(self) -> str:
        return self.headers.get("authorization", "").removeprefix("Bearer ")


@dataclass
class Server:
    """``answers`` are given in order; the last one is repeated."""

    answers: list[Say]
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    arrived: asyncio.Condition = field(default_factory=asyncio.Condition)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        headers = {name.lower(): value for name, value in request.headers.items()}
        self.asked.append(Asked(request.method, request.path, dict(request.query), headers, await request.read()))
        async with self.arrived:
            self.arrived.notify_all()
        say = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if say.endless:
            await self.over.wait()
        if say.sever == "before":
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if say.sever == "body":
            broken = web.StreamResponse(status=say.status, headers={**self._own(say.headers), "content-length": "1000"})
            await broken.prepare(request)
            await broken.write(b'{"na')
            assert request.transport is not None
            request.transport.close()
            return broken
        content = say.body.encode() if isinstance(say.body, str) else b"" if say.body is None else json.dumps(say.body).encode()
        response = web.Response(status=say.status, body=content, headers=self._own(say.headers), content_type="application/json")
        for name, value in say.repeated:
            response.headers.add(name, value)
        return response

    def _own(self, headers: Mapping[str, str]) -> dict[str, str]:
        return {name: value.replace("{url}", self.url) for name, value in headers.items()}


@asynccontextmanager
async def serving(*answers: Say) -> AsyncIterator[Server]:
    server = Server(list(answers))
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.handle)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        server.over.set()
        await runner.cleanup()


@dataclass
class Caller:
    """Calls of a server, with a clock that moves only while the caller waits."""

    server: Server
    arm: Arm
    time: list[float]
    waited: list[float]
    fenced: list[float]


@asynccontextmanager
async def calling(*answers: Say, credentials: Credentials | None = None, url: str = "") -> AsyncIterator[Caller]:
    """A server with these answers, and calls of it; with ``url``, calls of that address instead."""
    time, waited, fenced = [START], list[float](), list[float]()

    async def sleep(seconds: float) -> None:
        waited.append(seconds)
        time[0] += seconds

    async with serving(*(answers or (Say(),))) as server:
        arm = Arm(
            credentials or FixedToken("token-1"),
            endpoint_url=url or server.url,
            fence=fenced.append,
            now=lambda: time[0],
            sleep=sleep,
            http=Http(),
            random=Random(1),
        )
        try:
            yield Caller(server, arm, time, waited, fenced)
        finally:
            await arm.close()
