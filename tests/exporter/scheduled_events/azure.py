"""Azure's metadata service on a real socket, with events that a test schedules."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

NODE, MACHINE = "aks-gpu-12345678-vmss00000a", "aks-gpu-12345678-vmss_10"


def event(kind: str = "Preempt", *, id: str = "e-1", at: str | None = "Fri, 15 Jan 2027 08:00:30 GMT", **more: Any) -> dict[str, Any]:  # noqa: A002  # its name
    """An event as the service shows it."""
    return {
        "EventId": id,
        "EventStatus": "Scheduled",
        "EventType": kind,
        "ResourceType": "VirtualMachine",
        "Resources": [MACHINE],
        "NotBefore": at,
        "Description": "",
        "EventSource": "Platform",
        "DurationInSeconds": -1,
        **more,
    }


class Azure:
    """The service: ``body`` replaces the document, ``status`` is that of its answers.

    ``name`` is the machine's; if it is empty, ``name_status`` is answered instead.
    """

    def __init__(self) -> None:
        self.incarnation = 1
        self.events: list[Any] = []
        self.body: bytes | None = None
        self.status = 200
        self.name, self.name_status = "", 404
        self.requests: list[tuple[str, dict[str, str], dict[str, str]]] = []
        self.started: list[str] = []
        self.url = ""

    def schedule(self, *events: Any) -> None:
        """Show these events, and no others, from now on."""
        self.incarnation, self.events = self.incarnation + 1, list(events)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.requests.append((request.method, dict(request.query), {key.lower(): value for key, value in request.headers.items()}))
        if request.headers.get("Metadata") != "true" or "X-Forwarded-For" in request.headers:
            return web.json_response({"error": "Bad request. Required metadata header not specified"}, status=400)
        if self.status != 200:
            return web.Response(status=self.status, headers={"Location": f"{self.url}/elsewhere"})
        if request.method == "POST":
            self.started += [start["EventId"] for start in (await request.json())["StartRequests"]]
            return web.Response()
        if self.body is not None:
            return web.Response(body=self.body)
        return web.Response(body=json.dumps({"DocumentIncarnation": self.incarnation, "Events": self.events}).encode())

    async def answer_name(self, _request: web.Request) -> web.Response:
        return web.Response(text=self.name) if self.name else web.Response(status=self.name_status)


@asynccontextmanager
async def azure() -> AsyncIterator[Azure]:
    """A metadata service, at ``url`` of the result."""
    service, app = Azure(), web.Application()
    app.router.add_route("*", "/metadata/scheduledevents", service.answer)
    app.router.add_get("/metadata/instance/compute/name", service.answer_name)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    service.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield service
    finally:
        await runner.cleanup()
