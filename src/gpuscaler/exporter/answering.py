"""A small HTTP server for pages that are made at once: GET and HEAD, nothing else.

The server that the other processes share (:mod:`gpuscaler.serving.server`) takes 17 MB, and this process runs on every node with GPUs.
The standard library's, with a thread for each client, takes 2.6 MB where two are left (``python -m benchmarks exporter``), and needs as
much around it for its bounds as there is here.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus

#: Of the head of a request; what browsers and Prometheus send is a tenth of it.
LONGEST_HEAD = 16384
#: Seconds that a client gets for a request, and a connection without one is kept.
PATIENCE = 60.0
#: Connections at once; more are closed at once.
MOST_CONNECTIONS = 64

PLAIN = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    body: bytes
    content_type: str = PLAIN
    status: HTTPStatus = HTTPStatus.OK


#: What makes the page of a path.
Pages = Mapping[str, Callable[[], Answer]]


@dataclass(slots=True)
class PageServer:
    """Serves ``pages`` from :meth:`start` until :meth:`close`; ``port`` is the one that was taken."""

    pages: Pages
    port: int = field(default=0, init=False)
    _server: asyncio.Server | None = field(default=None, init=False)
    _connections: "set[asyncio.Task[None]]" = field(default_factory=set, init=False)

    async def start(self, host: str, port: int) -> None:
        """At ``host`` (empty: all addresses); ``port`` 0 takes a free one. Raises OSError where it cannot be had."""
        if not host and socket.has_dualstack_ipv6():
            # One socket for IPv4 and IPv6: two would each take another free port.
            both = socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
            self._server = await asyncio.start_server(self._connection, sock=both, limit=LONGEST_HEAD)
        else:
            self._server = await asyncio.start_server(self._connection, host or "0.0.0.0", port, limit=LONGEST_HEAD)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            for connection in self._connections:
                connection.cancel()
            await asyncio.gather(*self._connections, return_exceptions=True)
            await self._server.wait_closed()

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            # Cancelled by nobody but close(), which waits for it; asyncio would log what is cancelled as an error.
            with suppress(TimeoutError, ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                while len(self._connections) <= MOST_CONNECTIONS and await self._request(reader, writer):
                    pass
        finally:
            self._connections.discard(task)
            writer.close()

    async def _request(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one; whether the connection stays."""
        try:
            async with asyncio.timeout(PATIENCE):
                head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            await self._write(writer, wrong(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), body=True, stays=False)
            return False
        first, *fields = head.decode("latin-1").lower().split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("http/1."):
            await self._write(writer, wrong(HTTPStatus.BAD_REQUEST), body=True, stays=False)
            return False
        method, target, version = words
        # A body is not read, so that the next request would begin in it.
        carries = any(
            one.startswith("transfer-encoding:") or (one.startswith("content-length:") and one[15:].strip() != "0") for one in fields
        )
        stays = version != "http/1.0" and not carries and not any(one.startswith("connection:") and "close" in one for one in fields)
        await self._write(writer, self._answer(method, target.partition("?")[0]), body=method != "head", stays=stays)
        return stays

    def _answer(self, method: str, path: str) -> Answer:
        if method not in {"get", "head"}:
            return wrong(HTTPStatus.METHOD_NOT_ALLOWED)
        page = self.pages.get(path)
        return page() if page else wrong(HTTPStatus.NOT_FOUND)

    async def _write(self, writer: asyncio.StreamWriter, answer: Answer, *, body: bool, stays: bool) -> None:
        head = [
            f"HTTP/1.1 {answer.status.value} {answer.status.phrase}",
            f"Content-Type: {answer.content_type}",
            f"Content-Length: {len(answer.body)}",
            "X-Content-Type-Options: nosniff",
            *(["Allow: GET, HEAD"] if answer.status is HTTPStatus.METHOD_NOT_ALLOWED else []),
            f"Connection: {'keep-alive' if stays else 'close'}",
            "\r\n",
        ]
        writer.write("\r\n".join(head).encode() + (answer.body if body else b""))
        async with asyncio.timeout(PATIENCE):
            await writer.drain()


def wrong(status: HTTPStatus) -> Answer:
    return Answer(f"{status.value} {status.phrase}: {status.description}\n".encode(), status=status)
