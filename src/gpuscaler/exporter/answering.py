"""A small HTTP server for pages that can be built immediately: GET and HEAD, nothing else.

The server that the other processes share (:mod:`gpuscaler.serving.server`) takes 17 MB, and this process runs on every node with GPUs.
The server of the standard library, with a thread for each client, takes 2.6 MB, while two are left of the memory budget (``python -m
benchmarks exporter``), and would need as much additional code for its limits as this module has.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus

from gpuscaler.serving.connection_groups import Connection
from gpuscaler.serving.connections import Bounds, Connections
from gpuscaler.serving.counted import Counted
from gpuscaler.serving.listening import Listener, bind

#: Longest head of a request, in bytes; browsers and Prometheus send a tenth of it.
LONGEST_HEAD = 16384
BOUNDS = Bounds(by_peer=8, head=5.0, answer=30.0, most_bytes=2 * LONGEST_HEAD)

PLAIN = "text/plain; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Answer:
    body: bytes
    content_type: str = PLAIN
    status: HTTPStatus = HTTPStatus.OK


#: Functions that build the page of each path.
Pages = Mapping[str, Callable[[], Answer]]


@dataclass(slots=True)
class PageServer:
    """Serves ``pages`` from :meth:`start` until :meth:`close`. ``port`` is the port in use; ``warn`` receives problems as text."""

    pages: Pages
    warn: Callable[[str], None] = lambda _text: None
    bounds: Bounds = BOUNDS
    port: int = field(default=0, init=False)
    _listener: Listener | None = field(default=None, init=False)
    _clients: "set[asyncio.Task[None]]" = field(default_factory=set, init=False)

    async def start(self, host: str, port: int) -> None:
        """Listen at ``host`` (empty: all addresses); ``port`` 0 takes a free port. Raises OSError if the port cannot be bound."""
        connections = Connections(self.bounds, asyncio.get_running_loop().time)
        make = _maker(self._serve, connections)
        self._listener = Listener(await bind(host, port), connections, make, None, self.warn)
        self._listener.start()
        self.port = self._listener.port

    async def close(self) -> None:
        if self._listener is not None:
            await self._listener.close()
            for client in self._clients:
                client.cancel()
            await asyncio.gather(*self._clients, return_exceptions=True)

    async def _serve(self, client: "_Client") -> None:
        task = asyncio.current_task()
        assert task is not None
        self._clients.add(task)
        try:
            # Only close() cancels this task, and it waits for it; asyncio would log the cancellation as an error.
            with suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
                stays = True
                while stays:
                    stays = await self._request(client)
                    client.stream.connections.answered(client.stream.connection)
        finally:
            self._clients.discard(task)
            client.writer.close()

    async def _request(self, client: "_Client") -> bool:
        """Answer one request; return whether the connection stays open."""
        writer = client.writer
        try:
            head = await client.reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            await self._write(writer, error_answer(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE), body=True, stays=False)
            return False
        await client.stream.wait_for_turn()
        first, *fields = head.decode("latin-1").lower().split("\r\n")
        words = first.split(" ")
        if len(words) != 3 or not words[2].startswith("http/1."):
            await self._write(writer, error_answer(HTTPStatus.BAD_REQUEST), body=True, stays=False)
            return False
        method, target, version = words
        # The body is not read, so the next request would start inside it: close the connection.
        has_body = any(
            field.startswith("transfer-encoding:") or (field.startswith("content-length:") and field[15:].strip() != "0")
            for field in fields
        )
        stays = version != "http/1.0" and not has_body and not any(field.startswith("connection:") and "close" in field for field in fields)
        await self._write(writer, self._answer(method, target.partition("?")[0]), body=method != "head", stays=stays)
        return stays

    def _answer(self, method: str, path: str) -> Answer:
        if method not in {"get", "head"}:
            return error_answer(HTTPStatus.METHOD_NOT_ALLOWED)
        page = self.pages.get(path)
        return page() if page else error_answer(HTTPStatus.NOT_FOUND)

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
        await writer.drain()


@dataclass(slots=True)
class _Client:
    stream: "_Stream"
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


def _maker(serve: Callable[[_Client], Awaitable[None]], connections: Connections) -> Callable[[Connection], asyncio.Protocol]:
    def make(connection: Connection) -> asyncio.Protocol:
        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await serve(_Client(stream, reader, writer))

        stream = _Stream(asyncio.StreamReader(LONGEST_HEAD), connected)
        stream.count(connection, connections)
        return stream

    return make


class _Stream(Counted, asyncio.StreamReaderProtocol):
    """asyncio's side of a connection, which also counts what is received over it."""


def error_answer(status: HTTPStatus) -> Answer:
    return Answer(f"{status.value} {status.phrase}: {status.description}\n".encode(), status=status)
