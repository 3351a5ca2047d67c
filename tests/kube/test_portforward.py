"""Pages of pods through the portforward subresource of an API server over HTTP."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.embedded.serving.server import serve
from gpuscaler.kube.access import Access
from gpuscaler.kube.credentials import Credentials, FixedCredentials, RequestCredentials, TokenFile
from gpuscaler.kube.errors import ApiError, Forbidden, NotFound, Unauthorized, Unreachable
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.portforward import NotAnsweredError, PodPort, get_page

pytestmark = pytest.mark.looptime(False)
LEADER = PodPort(namespace="gpuscaler", pod="leader", port=8081)
Playing = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def answering(answer: bytes, *, stays: bool = False) -> Playing:
    """A listener in the pod: it answers every request with ``answer``, and closes the connection unless it ``stays``."""

    async def play(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = await reader.readuntil(b"\r\n\r\n")
        writer.write(answer.replace(b"ASKED", received.split(b"\r\n", 1)[0]))
        await writer.drain()
        if stays:
            await reader.read()
        writer.close()

    return play


@asynccontextmanager
async def forwarding(
    play: Playing | None, *, node: str = "n1", tokens: list[str] | None = None, credentials: Credentials | None = None
) -> AsyncIterator[tuple[ApiServer, HttpTransport]]:
    api = ApiServer(time.time, tokens=tokens)
    metadata = {"name": "leader", "namespace": "gpuscaler"}
    api.load([{"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"nodeName": node, "containers": []}}])
    serving = await serve(api)
    listening = await asyncio.start_server(play, "127.0.0.1", 0) if play is not None else None
    if listening is not None:
        api.forwards.register(LEADER, listening.sockets[0].getsockname()[1])
    try:
        async with HttpTransport(Access(serving.url, "test", credentials=credentials or FixedCredentials())) as transport:
            yield api, transport
    finally:
        if listening is not None:
            listening.close()
        await serving.close()


async def page(transport: HttpTransport, target: PodPort = LEADER, within: float = 10.0) -> tuple[int, bytes]:
    return await get_page(transport, target, "/why/pod/a/b", within=within)


LARGE = b"x" * 3_000_000


@pytest.mark.parametrize(
    ("answer", "stays", "expected"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 27\r\n\r\nGET /why/pod/a/b HTTP/1.1??", False, (404, b"GET /why/pod/a/b HTTP/1.1??")),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3000000\r\n\r\n" + LARGE, True, (200, LARGE)),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n", False, (200, b"abcde")),
        (b"HTTP/1.1 200 OK\r\n\r\nASKED", False, (200, b"GET /why/pod/a/b HTTP/1.1")),
    ],
    ids=["with a length", "large, on a connection that stays open", "in chunks", "to the end of the connection"],
)
async def test_a_page_of_a_pod_is_fetched_through_its_forwarded_port(answer: bytes, stays: bool, expected: tuple[int, bytes]) -> None:
    async with forwarding(answering(answer, stays=stays)) as (_, transport):
        assert await page(transport) == expected


async def test_a_closed_port_is_reported() -> None:
    async with forwarding(None) as (_, transport):
        with pytest.raises(
            NotAnsweredError, match=r"pod gpuscaler/leader, port 8081: .*dial tcp4 127.0.0.1:8081: connect: connection refused"
        ):
            await page(transport)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "saw the connection closed without an answer"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "saw 21 bytes that are not a complete HTTP answer"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nbroken off", "saw 50 bytes that are not a complete HTTP answer"),
    ],
)
async def test_an_answer_that_is_not_http_is_reported(answer: bytes, message: str) -> None:
    async with forwarding(answering(answer)) as (_, transport):
        with pytest.raises(NotAnsweredError, match=f"{message}, expected a page of gpuscaler"):
            await page(transport)


async def test_the_wait_for_an_answer_is_limited() -> None:
    async with forwarding(answering(b"", stays=True)) as (_, transport):
        with pytest.raises(NotAnsweredError, match=r"no answer within 0\.2 s"):
            await page(transport, within=0.2)


async def test_a_refusal_by_the_api_server_is_reported_in_its_words() -> None:
    words = 'pods "leader" is forbidden: User "me" cannot create resource "pods/portforward" in API group "" in the namespace "gpuscaler"'
    async with forwarding(answering(b"")) as (api, transport):
        api.faults.add(Fault(path="/portforward", refusal=Failure(403, "Forbidden", words)))
        with pytest.raises(Forbidden, match=words):
            await page(transport)


async def test_a_port_of_a_missing_or_pending_pod_cannot_be_forwarded() -> None:
    async with forwarding(answering(b""), node="") as (_, transport):
        with pytest.raises(NotFound, match='pods "other" not found'):
            await page(transport, PodPort(namespace="gpuscaler", pod="other", port=8081))
        with pytest.raises(ApiError, match="pod leader does not have a host assigned"):
            await page(transport)


async def test_a_connection_that_breaks_during_opening_is_unreachable() -> None:
    async with forwarding(answering(b"")) as (api, transport):
        api.faults.add(Fault(path="/portforward", sever="before"))
        with pytest.raises(Unreachable):
            await page(transport)


async def test_after_a_refused_portforward_a_changed_token_is_read_once(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("old")
    credentials = TokenFile(file, "test")
    await credentials.current()
    file.write_text("new")
    served = answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
    async with forwarding(served, tokens=["new"], credentials=credentials) as (_, transport):
        assert await page(transport) == (200, b"ok")
    wrong = FixedCredentials(RequestCredentials({"authorization": "Bearer other"}))
    async with forwarding(served, tokens=["new"], credentials=wrong) as (_, transport):
        with pytest.raises(Unauthorized):
            await page(transport)


async def test_a_redirect_is_not_followed_with_our_credentials() -> None:
    received: list[bytes] = []

    async def elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 307 Temporary Redirect\r\nLocation: /elsewhere\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    listening = await asyncio.start_server(elsewhere, "127.0.0.1", 0)
    access = Access(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", "test")
    async with listening, HttpTransport(access) as transport:
        with pytest.raises(ApiError) as raised:
            await page(transport)

    assert raised.value.status == 307
    assert len(received) == 1
