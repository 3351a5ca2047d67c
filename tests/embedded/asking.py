"""Short helpers for requests to the embedded API server, for tests."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.transport import Request, Transport

#: 2026-01-01T00:00:00Z
START = 1767225600.0
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"
OPERATIONS, APPLY = "application/json-patch+json", "application/apply-patch+yaml"
PODS = "/api/v1/namespaces/default/pods"
NODES = "/api/v1/nodes"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
TABLE = {"accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}


def virtual_clock() -> float:
    """The time of the running loop, as POSIX seconds; without a running loop, its start."""
    try:
        return START + asyncio.get_running_loop().time()
    except RuntimeError:
        return START


class Asker:
    """Sends requests over a transport and returns (status, value)."""

    def __init__(self, transport: Transport) -> None:
        self.transport = transport

    async def __call__(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        media: str = "application/json",
        headers: Mapping[str, str] | None = None,
        timeout: float | None = 30.0,  # noqa: ASYNC109 - it is the one that the request carries
        **query: str,
    ) -> tuple[int, Any]:
        encoded = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        sent = {"content-type": media} if encoded else {}
        async with self.transport.exchange(Request(method, path, query, {**sent, **(headers or {})}, encoded, timeout)) as answer:
            read = b"".join([piece async for piece in answer.pieces])
        return answer.status, msgspec.json.decode(read) if "json" in answer.headers["content-type"] else read.decode()

    async def ok(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        status, value = await self(method, path, body, **more)
        assert status in (200, 201), (status, value)
        return value

    @asynccontextmanager
    async def watch(self, path: str, **query: str) -> AsyncIterator["Lines"]:
        async with self.transport.exchange(Request("GET", path, {"watch": "true", **query}, timeout=None)) as answer:
            assert answer.status == 200, answer
            yield Lines(answer.pieces)


class Lines:
    """The events of a watch, one at a time."""

    def __init__(self, pieces: AsyncIterator[bytes]) -> None:
        self._pieces, self._left = pieces, b""

    async def next(self) -> tuple[str, Any]:
        """Type and object of the next event. Raises StopAsyncIteration if the watch has ended."""
        while b"\n" not in self._left:
            self._left += await anext(self._pieces)
        line, _, self._left = self._left.partition(b"\n")
        event = msgspec.json.decode(line)
        return event["type"], event["object"]

    async def names(self, count: int) -> list[tuple[str, str]]:
        """Type and name of the next ``count`` events."""
        return [(type_, obj["metadata"]["name"]) for type_, obj in [await self.next() for _ in range(count)]]


def asker(api: ApiServer | None = None, **more: Any) -> Asker:
    return Asker(MemoryTransport(api or ApiServer(virtual_clock), **more))


def pod(name: str = "p", *, labels: Mapping[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    containers = [{"name": "c", "image": "busybox:1"}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {"containers": containers, **spec},
    }


def node(name: str = "n", **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec, "status": {"capacity": {"cpu": "8"}}}


def config_map(name: str = "c", **data: str) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}
