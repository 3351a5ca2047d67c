"""The small HTTP server, with clients good and bad."""

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus

import aiohttp
import pytest

from gpuscaler.exporter.answering import BOUNDS, LONGEST_HEAD, Answer, PageServer
from gpuscaler.serving.connections import Bounds

pytestmark = pytest.mark.looptime(False)


@asynccontextmanager
async def served(
    page: Callable[[], Answer] = lambda: Answer(b"hello\n", "text/plain; version=0.0.4"),
    host: str = "127.0.0.1",
    bounds: Bounds = BOUNDS,
) -> AsyncIterator[PageServer]:
    server = PageServer({"/metrics": page}, bounds=bounds)
    await server.start(host, 0)
    try:
        yield server
    finally:
        await server.close()


async def send_text(server: PageServer, text: bytes) -> bytes:
    """Everything that the server answers to ``text`` until it closes the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(text)
    try:
        return await asyncio.wait_for(reader.read(), 10)
    finally:
        writer.close()
        await writer.wait_closed()


def held(server: PageServer) -> int:
    assert server._listener is not None
    return len(server._listener.connections)


async def test_the_metrics_page_is_served_over_a_persistent_connection() -> None:
    async with served() as server, aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
        for _ in range(3):
            async with session.get("/metrics?name=x") as answer:
                assert (answer.status, await answer.text()) == (200, "hello\n")
                assert answer.headers["Content-Type"] == "text/plain; version=0.0.4"
                assert answer.headers["Connection"] == "keep-alive"
        assert held(server) == 1


async def test_the_metrics_page_is_rendered_for_each_request() -> None:
    made = iter(range(9))
    async with served(lambda: Answer(f"{next(made)}".encode())) as server, aiohttp.ClientSession() as session:
        answers = [await (await session.get(f"http://127.0.0.1:{server.port}/metrics")).text() for _ in range(2)]

    assert answers == ["0", "1"]


async def test_a_head_request_is_answered_with_the_length_and_no_body() -> None:
    async with served() as server:
        answer = await send_text(server, b"HEAD /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")

    assert b"Content-Length: 6\r\n" in answer
    assert answer.endswith(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /other HTTP/1.0\r\n\r\n", HTTPStatus.NOT_FOUND),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", HTTPStatus.METHOD_NOT_ALLOWED),
        (b"\x16\x03\x01 hello\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /metrics HTTP/2.0\r\n\r\n", HTTPStatus.BAD_REQUEST),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * LONGEST_HEAD + b"\r\n\r\n", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
    ],
)
async def test_an_invalid_request_is_refused_and_the_connection_closed(request_: bytes, status: HTTPStatus) -> None:
    async with served() as server:
        answer = await send_text(server, request_)

    assert answer.startswith(f"HTTP/1.1 {status.value} ".encode())
    assert b"Connection: close" in answer


async def test_a_request_body_is_not_parsed_as_the_next_request() -> None:
    hidden = b"GET /metrics HTTP/1.1\r\n\r\n"
    async with served() as server:
        answer = await send_text(server, b"GET /metrics HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (len(hidden), hidden))

    assert answer.count(b"hello\n") == 1


async def test_a_client_that_sends_no_request_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuscaler.serving.listening.LOOK", 0.01)
    async with served(bounds=Bounds(first_byte=0.05, head=0.05)) as server:
        assert await send_text(server, b"GET /metrics HTT") == b""
        assert await send_text(server, b"") == b""


async def test_a_disconnected_client_leaves_no_open_connection() -> None:
    async with served() as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /met")
        await writer.drain()
        writer.transport.abort()
        assert (await send_text(server, b"GET /metrics HTTP/1.0\r\n\r\n")).endswith(b"hello\n")
        assert held(server) == 0


async def test_a_regular_client_is_not_delayed_by_many_later_clients() -> None:
    async with served(bounds=Bounds(turns=10, turns_at_once=6, first_byte=30)) as server:
        for _ in range(5):
            await send_text(server, b"GET /metrics HTTP/1.0\r\n\r\n")
        crowd = []
        for number in range(120):
            _, writer = await asyncio.open_connection("127.0.0.1", server.port, local_addr=(f"127.0.1.{1 + number % 60}", 0))
            writer.write(b"GET")
            crowd.append(writer)
        # Of twelve seconds in the queue it waits for only two or three.
        async with asyncio.timeout(3):
            assert (await send_text(server, b"GET /metrics HTTP/1.0\r\n\r\n")).endswith(b"hello\n")
        for writer in crowd:
            writer.transport.abort()


@pytest.mark.parametrize("peers", [1, 40])
async def test_idle_connections_do_not_block_new_clients_and_the_longest_idle_are_closed(peers: int) -> None:
    async with served() as server:
        opened = [
            await asyncio.open_connection("127.0.0.1", server.port, local_addr=(f"127.0.0.{2 + number % peers}", 0))
            for number in range(400)
        ]
        for _ in range(3):
            assert (await send_text(server, b"GET /metrics HTTP/1.0\r\n\r\n")).endswith(b"hello\n")
        assert held(server) <= min(peers * BOUNDS.by_peer, BOUNDS.waiting)
        with suppress(ConnectionResetError):
            assert await opened[0][0].read() == b""
        for _, stream_writer in opened:
            stream_writer.transport.abort()


async def test_a_port_in_use_raises_an_oserror() -> None:
    async with served() as server:
        with pytest.raises(OSError, match="address"):
            await PageServer({}).start("127.0.0.1", server.port)


async def test_without_a_host_the_server_listens_on_every_address() -> None:
    addresses = ["127.0.0.1", *(["::1"] if socket.has_dualstack_ipv6() else [])]
    async with served(host="") as server:
        for address in addresses:
            _, writer = await asyncio.open_connection(address, server.port)
            writer.close()
            await writer.wait_closed()
