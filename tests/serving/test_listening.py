"""Servers under attack: idle connections, endless heads, and answers that are not received. Other clients are still answered."""

import asyncio
import errno
import logging
import socket
import ssl
import time
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gpuscaler.serving.certificates import CertificateAuthority
from gpuscaler.serving.connection_groups import Connection
from gpuscaler.serving.connections import Bounds
from gpuscaler.serving.listening import bind, peer_of
from gpuscaler.serving.server import Server, serve
from gpuscaler.serving.tls import LiveTls

pytestmark = pytest.mark.looptime(False)

#: Small limits, so that tests do not have to wait.
BOUNDS = Bounds(waiting=8, connections=8, by_peer=4, first_byte=0.2, head=0.3, answer=0.3, idle=0.2)


#: Beginnings of a TLS handshake and of a request's head.
_HELLO, _HEAD = b"\x16\x03\x01\x02\x00\x01", b"GET /healthz HTTP/1.1\r\nHost: x\r\n"


@pytest.fixture(autouse=True)
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuscaler.serving.listening.LOOK", 0.02)


@asynccontextmanager
async def served(*routes: web.RouteDef, tls: ssl.SSLContext | None = None, bounds: Bounds = BOUNDS) -> AsyncIterator[Server]:
    async def well(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    server = await serve([web.get("/healthz", well), *routes], host="127.0.0.1", port=0, tls=tls, bounds=bounds)
    try:
        yield server
    finally:
        await server.close()


def secured(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """Return TLS contexts for a server and for a client that trusts it."""
    authority = CertificateAuthority("serving", now=time.time())
    files = authority.issue("server", hosts=("127.0.0.1",)).write(folder, "server")
    return LiveTls(*files).context, ssl.create_default_context(cadata=authority.certificate.decode())


async def probe(server: Server, trust: ssl.SSLContext | None = None, *, path: str = "/healthz", source: str = "127.0.0.1") -> int:
    url = f"{'https' if trust else 'http'}://127.0.0.1:{server.port}{path}"
    connector = aiohttp.TCPConnector(local_addr=(source, 0))
    async with aiohttp.ClientSession(connector=connector) as session, session.get(url, ssl=trust or True) as answer:
        return answer.status


def made_by(server: Server) -> list[Connection]:
    """Record the connections that proceed to TLS or HTTP from now on."""
    begun, make = list[Connection](), server.listener.make

    def recorded(connection: Connection) -> asyncio.Protocol:
        begun.append(connection)
        return make(connection)

    server.listener.make = recorded
    return begun


def connected(stack: ExitStack, server: Server, *, source: str = "127.0.0.1") -> socket.socket:
    made = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), 5, (source, 0)))
    made.setblocking(False)
    return made


def abort(server: Server, count: int, first: bytes) -> None:
    """Send ``first`` over ``count`` connections of different peers, and close them before the server accepts them."""
    with ExitStack() as stack:
        for number in range(count):
            connected(stack, server, source=f"127.0.1.{1 + number}").send(first)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110  # what is waited for is the kernel's doing
            await asyncio.sleep(0.01)


async def closed(made: socket.socket) -> bool:
    try:
        while await asyncio.wait_for(asyncio.get_running_loop().sock_recv(made, 65536), 5):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize("secure", [False, True])
async def test_idle_connections_of_a_peer_lock_out_no_other_and_start_no_handshake(tmp_path: Path, secure: bool) -> None:
    context, trust = secured(tmp_path) if secure else (None, None)
    async with served(tls=context, bounds=Bounds(waiting=8, connections=8, by_peer=4)) as server:
        with ExitStack() as stack:
            idle = []
            for number in range(40):
                idle.append(connected(stack, server, source=f"127.0.0.{2 + number % 5}"))
                await asyncio.sleep(0)
            assert await probe(server, trust) == 200
            assert len(server.listener.connections) <= 8
            assert server.listener.handshakes == set()
            assert await closed(idle[0])


async def test_a_connection_without_a_byte_head_or_further_request_is_closed_in_time() -> None:
    async with served() as server:
        with ExitStack() as stack:
            silent, drips, kept = (connected(stack, server) for _ in range(3))
            drips.send(_HEAD)
            kept.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            assert await closed(silent)
            assert await closed(drips)
            assert await closed(kept)
            assert set(server.listener.connections.closed) <= {
                "time: no byte, or no turn",
                "time: no complete head",
                "time: no further request",
            }
            assert len(server.listener.connections) == 0


async def test_a_stalled_tls_handshake_is_ended(tmp_path: Path) -> None:
    context, trust = secured(tmp_path)
    async with served(tls=context) as server:
        with ExitStack() as stack:
            begun = connected(stack, server)
            begun.send(_HELLO)
            assert await closed(begun)
            assert await probe(server, trust) == 200


async def test_handshakes_beyond_the_rate_of_a_peer_wait_for_their_turn(tmp_path: Path) -> None:
    context, trust = secured(tmp_path)
    bounds = Bounds(connections=64, by_peer=32, peer_turns=50.0, peer_turns_at_once=2)
    async with served(tls=context, bounds=bounds) as server:
        began = asyncio.get_running_loop().time()
        assert await asyncio.gather(*(probe(server, trust) for _ in range(8))) == [200] * 8
        assert asyncio.get_running_loop().time() - began > 0.1


async def test_a_connection_that_its_peer_closes_early_starts_no_handshake(tmp_path: Path) -> None:
    context, _ = secured(tmp_path)
    async with served(tls=context, bounds=Bounds()) as server:
        begun = made_by(server)
        with ExitStack() as stack:
            connected(stack, server)
            await until(lambda: len(server.listener.connections) == 1)
        await until(lambda: len(server.listener.connections) == 0)
        assert begun == []
        assert server.listener.connections.closed == {}


@pytest.mark.parametrize("secure", [False, True])
async def test_what_is_aborted_before_it_is_accepted_takes_neither_a_turn_nor_the_place_of_another(tmp_path: Path, secure: bool) -> None:
    context, trust = secured(tmp_path) if secure else (None, None)
    async with served(tls=context, bounds=Bounds(waiting=8, turns=0.1, turns_at_once=1)) as server:
        begun = made_by(server)
        with ExitStack() as stack:
            waits = connected(stack, server, source="127.0.0.9")
            await until(lambda: len(server.listener.connections) == 1)
            abort(server, 40, _HELLO if secure else _HEAD)
            # It gets the only turn.
            assert await probe(server, trust) == 200
            with pytest.raises(BlockingIOError):
                waits.recv(1)
        assert len(begun) == 1
        assert server.listener.connections.closed == {}


@pytest.mark.parametrize("secure", [False, True])
async def test_what_is_aborted_while_it_waits_takes_no_turn(tmp_path: Path, secure: bool) -> None:
    context, trust = secured(tmp_path) if secure else (None, None)
    async with served(tls=context, bounds=Bounds(turns=10, turns_at_once=1)) as server:
        assert await probe(server, trust) == 200
        begun = made_by(server)
        with ExitStack() as stack:
            for number in range(20):
                connected(stack, server, source=f"127.0.1.{1 + number}").send(_HELLO if secure else _HEAD)
            await until(lambda: len(server.listener.connections) >= 20)
        await until(lambda: len(server.listener.connections) == 0)
        # Some may have got a turn before they were aborted.
        assert len(begun) <= 3


async def test_a_system_that_does_not_say_that_a_client_has_left_gives_its_handshake_a_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context, trust = secured(tmp_path)
    # Neither an option that it lacks, nor one that it refuses.
    for option in (None, 9999):
        monkeypatch.setattr("gpuscaler.serving.listening._TCP_INFO", option)
        async with served(tls=context, bounds=Bounds()) as server:
            begun = made_by(server)
            abort(server, 3, _HELLO)
            assert await probe(server, trust) == 200
            await until(lambda: not server.listener.handshakes)
            assert len(begun) == 4


async def test_a_request_without_tls_gets_its_turn_although_its_client_sends_no_more() -> None:
    async with served() as server:
        with ExitStack() as stack:
            asks = connected(stack, server)
            asks.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
            asks.shutdown(socket.SHUT_WR)
            begun = made_by(server)
            await until(lambda: len(begun) == 1)


async def test_only_connections_that_are_watched_for_their_first_byte_are_unwatched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unwatching a socket that is not watched takes longer than accepting it."""
    context, trust = secured(tmp_path)
    loop = asyncio.get_running_loop()
    unwatched, remove = list[bool](), loop.remove_reader
    async with served(tls=context, bounds=Bounds(waiting=8, turns=4, turns_at_once=1)) as server:
        assert await probe(server, trust) == 200
        with ExitStack() as stack:
            with monkeypatch.context() as watched:
                watched.setattr(loop, "remove_reader", lambda fd: unwatched.append(remove(fd)))
                for number in range(40):
                    connected(stack, server, source=f"127.0.1.{1 + number}").send(_HELLO)
                    await asyncio.sleep(0)
                connected(stack, server).close()
                await until(lambda: server.listener.connections.closed.get("waiting connections", 0) >= 20)
            assert False not in unwatched


async def test_a_connection_without_tls_is_closed_immediately_without_a_handshake(tmp_path: Path) -> None:
    context, trust = secured(tmp_path)
    async with served(tls=context, bounds=Bounds(turns=0.1, turns_at_once=1)) as server:
        begun = made_by(server)
        with ExitStack() as stack:
            for _ in range(20):
                plain = connected(stack, server)
                plain.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
                assert await closed(plain)
        assert begun == []
        assert await probe(server, trust) == 200


async def test_neither_a_known_nor_a_new_peer_waits_behind_many_connections_of_others(tmp_path: Path) -> None:
    context, trust = secured(tmp_path)
    async with served(tls=context, bounds=Bounds(turns=20, turns_at_once=1, first_byte=30)) as server:
        assert await probe(server, trust) == 200
        with ExitStack() as stack:
            for number in range(200):
                connected(stack, server, source=f"127.0.1.{1 + number % 100}").send(_HELLO)
            await until(lambda: len(server.listener.connections) > 100)
            # The crowd would use ten seconds of turns.
            async with asyncio.timeout(2):
                assert await probe(server, trust) == 200
                assert await probe(server, trust, source="127.0.0.9") == 200


async def test_pipelined_requests_take_a_turn_each(monkeypatch: pytest.MonkeyPatch) -> None:
    # The server stops while requests wait for their turn.
    monkeypatch.setattr("gpuscaler.serving.server.SHUTDOWN", 0.02)
    async with served(bounds=Bounds(peer_turns=0.1, peer_turns_at_once=5)) as server:
        with ExitStack() as stack:
            greedy = connected(stack, server, source="127.0.0.9")
            greedy.send(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n" * 50)
            answers = b""
            while answers.count(b"200 OK") < 5:
                answers += await asyncio.wait_for(asyncio.get_running_loop().sock_recv(greedy, 65536), 5)
            assert await probe(server) == 200
            with pytest.raises(BlockingIOError):
                greedy.recv(1)


async def test_a_request_is_not_answered_if_its_connection_ends_before_its_turn() -> None:
    asked: list[str] = []

    async def count(request: web.Request) -> web.Response:
        asked.append(request.path)
        return web.Response()

    async with served(web.get("/count", count), bounds=Bounds(peer_turns=20, peer_turns_at_once=2)) as server:
        with ExitStack() as stack:
            removed = connected(stack, server, source="127.0.0.9")
            removed.send(b"GET /count HTTP/1.1\r\nHost: x\r\n\r\n" * 10)
            await until(lambda: len(asked) == 2)
        await until(lambda: len(server.listener.connections) == 0)
        served_by_then = len(asked)
        await asyncio.sleep(0.2)
        assert len(asked) == served_by_then < 10
        assert not [task for task in asyncio.all_tasks() if "RequestHandler.start" in repr(task.get_coro())]


async def test_handshakes_ended_at_any_moment_leave_no_socket_behind(tmp_path: Path) -> None:
    """Socket numbers are reused immediately; asyncio would reject one that it mistakes for an earlier connection."""
    context, trust = secured(tmp_path)
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, about: errors.append(about))
    async with served(tls=context, bounds=Bounds(connections=4, by_peer=2, turns=10_000, peer_turns=10_000)) as server:
        for number in range(30):
            shaking = [asyncio.create_task(probe(server, trust)) for _ in range(4)]
            for _ in range(number % 15):
                await asyncio.sleep(0)
            server.listener.connections.make_room()
            await asyncio.gather(*shaking, return_exceptions=True)
        await until(lambda: not server.listener.handshakes)
        assert await probe(server, trust) == 200
        assert errors == []


async def test_a_handshake_is_ended_if_its_peer_has_too_many(tmp_path: Path) -> None:
    context, trust = secured(tmp_path)
    async with served(tls=context, bounds=Bounds(waiting=8, connections=8, by_peer=4)) as server:
        with ExitStack() as stack:
            begun = []
            for _ in range(12):
                begun.append(connected(stack, server))
                begun[-1].send(_HELLO)
                await asyncio.sleep(0.01)
            assert await closed(begun[0])
            assert len(server.listener.handshakes) <= 4
            assert await probe(server, trust) == 200


async def test_a_response_that_the_peer_does_not_receive_is_cut_off() -> None:
    async def large(_request: web.Request) -> web.Response:
        return web.Response(body=b"x" * 32 * 2**20)

    async with served(web.get("/large", large)) as server:
        with ExitStack() as stack:
            slow = connected(stack, server)
            slow.send(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: bool(server.listener.connections.closed))
            assert server.listener.connections.closed == {"time: answer not received": 1}


async def test_a_connection_with_a_too_large_request_head_is_closed_and_others_are_answered() -> None:
    async with served() as server:
        with ExitStack() as stack:
            greedy = connected(stack, server)
            fields = b"".join(b"X-%d: %s\r\n" % (number, b"x" * 1000) for number in range(10_000))
            with pytest.raises(ConnectionError):
                await asyncio.get_running_loop().sock_sendall(greedy, b"GET /healthz HTTP/1.1\r\n" + fields)
            assert await probe(server) == 200


async def test_failures_to_accept_connections_are_reported_once_and_idle_connections_are_closed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = True

    class Exhausted(socket.socket):
        def accept(self) -> Any:
            if failing:
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    monkeypatch.setattr("gpuscaler.serving.listening.AGAIN", 0.01)
    async with served() as server:
        with ExitStack() as stack:
            idle = connected(stack, server)
            await until(lambda: len(server.listener.connections) > 0)
            old = server.listener.sockets[0]
            asyncio.get_running_loop().remove_reader(old)
            sock = Exhausted(fileno=old.detach())
            server.listener.sockets[0] = sock
            server.listener.start()
            waiting = asyncio.create_task(probe(server))
            assert await closed(idle)
            await asyncio.sleep(0.05)
            assert not waiting.done()
            failing = False
            assert await waiting == 200
    capture_result = capsys.readouterr()
    assert (capture_result.out + capture_result.err).count("connections cannot be accepted: Too many open files") == 1


async def test_a_request_that_is_not_http_leaves_no_traceback_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    async with served() as server:
        with ExitStack() as stack, caplog.at_level(logging.DEBUG):
            for text in (b"GET /\x00 HTTP/1.1\r\n\r\n", b"GET / HTTP/1.1\r\nHost : x\r\n\r\n", b"GET / HTTP/1.1\r\n" + b"x" * 9000):
                noise = connected(stack, server)
                noise.send(text)
                assert await closed(noise)

    assert not [line for line in caplog.records if line.levelno >= logging.INFO or line.exc_info]


async def test_an_internal_error_keeps_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def broken(_request: web.Request) -> web.Response:
        raise ValueError("ours")

    async with served(web.get("/broken", broken)) as server:
        assert await probe(server, path="/broken") == 500

    assert [line.exc_info[1].args for line in caplog.records if line.exc_info and line.exc_info[1]] == [("ours",)]


async def test_the_server_listens_at_all_addresses_of_a_name_and_of_the_machine() -> None:
    for host in ("localhost", "", "0.0.0.0"):
        sockets = await bind(host, 0)
        assert len({socket.getsockname()[1] for socket in sockets}) == 1
        for sock in sockets:
            sock.close()


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        (("10.0.0.7", 5), "10.0.0.7"),
        (("::ffff:10.0.0.7", 5, 0, 0), "10.0.0.7"),
        (("2001:db8::1:0:0:0:9", 5, 0, 0), "2001:0db8:0000:0001::/64"),
        (("fe80::1%eth0", 5, 0, 2), "fe80:0000:0000:0000::/64"),
    ],
)
def test_connections_are_grouped_by_ipv4_address_or_ipv6_network(address: tuple[Any, ...], peer: str) -> None:
    assert peer_of(address) == peer
