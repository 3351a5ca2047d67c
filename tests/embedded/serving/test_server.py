"""The same handlers over HTTP, with and without TLS, in real time."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
import trustme
from tests.embedded.asking import CONFIG_MAPS, config_map
from tests.patience import PATIENCE

from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.serving.server import serve

pytestmark = pytest.mark.looptime(False)


@asynccontextmanager
async def _served(api: ApiServer, tls: ssl.SSLContext | None = None) -> AsyncIterator[tuple[str, aiohttp.ClientSession]]:
    serving = await serve(api, tls=tls)
    try:
        async with aiohttp.ClientSession() as session:
            yield serving.url, session
    finally:
        await serving.close()


async def _until(watching: bool, api: ApiServer) -> None:
    async with asyncio.timeout(PATIENCE):
        while (api.watching > 0) is not watching:  # noqa: ASYNC110 - the server has no reason to signal it to anyone
            await asyncio.sleep(0.01)


async def test_an_object_written_over_http_is_read_back_unchanged() -> None:
    async with _served(ApiServer(time.time)) as (url, session):
        async with session.post(url + CONFIG_MAPS, json=config_map(a="1")) as answer:
            assert (answer.status, answer.content_type) == (201, "application/json")
        async with session.get(f"{url}{CONFIG_MAPS}/c") as answer:
            assert (await answer.json())["data"] == {"a": "1"}
        async with session.get(f"{url}{CONFIG_MAPS}/d") as answer:
            assert (answer.status, (await answer.json())["reason"]) == (404, "NotFound")


async def test_percent_encoded_names_in_paths_are_decoded() -> None:
    async with _served(ApiServer(time.time)) as (url, session):
        async with session.post(url + CONFIG_MAPS, json=config_map("a.b")) as answer:
            assert answer.status == 201
        async with session.get(f"{url}/api/v1/namespaces/default/configmaps/a%2Eb") as answer:
            assert answer.status == 200


async def test_requests_that_a_web_site_sends_through_a_browser_are_refused() -> None:
    names = ({"Host": "rebound.example"}, {"Host": "[x"}, {"Origin": "https://site.example"}, {"Origin": "null"})
    async with _served(ApiServer(time.time)) as (url, session):
        for headers in names:
            async with session.get(f"{url}{CONFIG_MAPS}", headers=headers) as answer:
                assert (answer.status, (await answer.json())["reason"]) == (403, "Forbidden"), headers
        for headers in ({"Host": "localhost:1"}, {"Origin": "http://localhost:3000"}):
            async with session.get(f"{url}{CONFIG_MAPS}", headers=headers) as answer:
                assert answer.status == 200


async def test_tls_and_tokens_are_checked() -> None:
    authority = trustme.CA()
    server_tls, client_tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(server_tls)
    authority.configure_trust(client_tls)
    async with _served(ApiServer(time.time, tokens=["secret"]), tls=server_tls) as (url, session):
        assert url.startswith("https://127.0.0.1:")
        async with session.get(url + CONFIG_MAPS, ssl=client_tls) as answer:
            assert answer.status == 401
        async with session.get(url + CONFIG_MAPS, ssl=client_tls, headers={"Authorization": "Bearer secret"}) as answer:
            assert answer.status == 200
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await session.get(url + CONFIG_MAPS)


async def test_a_watch_streams_lines_longer_than_any_buffer() -> None:
    async with _served(ApiServer(time.time)) as (url, session), session.get(url + CONFIG_MAPS, params={"watch": "1"}) as watch:
        async with session.post(url + CONFIG_MAPS, json=config_map(big="x" * 1_000_000)) as answer:
            assert answer.status == 201
        read = b""
        async for piece in watch.content.iter_any():
            read += piece
            if read.endswith(b"\n"):
                break
        assert read.startswith(b'{"type":"ADDED"')
        assert len(read) > 1_000_000


async def test_a_watch_ends_when_its_client_disconnects() -> None:
    api = ApiServer(time.time)
    async with _served(api) as (url, session):
        async with session.get(url + CONFIG_MAPS, params={"watch": "1"}) as watch:
            assert watch.status == 200
            await _until(True, api)
        await _until(False, api)


async def test_clients_that_hang_up_before_their_answer_cause_no_server_errors(caplog: pytest.LogCaptureFixture) -> None:
    api = ApiServer(time.time)
    async with _served(api) as (url, session):
        async with session.post(url + CONFIG_MAPS, json=config_map(big="x" * 500_000)) as answer:
            assert answer.status == 201
        host, port = url.removeprefix("http://").split(":")
        for words in ["", "?watch=1&resourceVersion=1"] * 10:
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(f"GET {CONFIG_MAPS}{words} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            await writer.drain()
            writer.transport.abort()
        async with session.get(url + CONFIG_MAPS) as answer:
            assert answer.status == 200
        await _until(False, api)
    assert caplog.messages == []


async def test_an_aborted_response_is_a_broken_connection_for_its_client() -> None:
    api = ApiServer(time.time)
    api.faults.add(Fault(method="POST", times=1, sever="after"))
    api.faults.add(Fault(method="GET", times=1, cut=40))
    async with _served(api) as (url, session):
        with pytest.raises(aiohttp.ClientError):
            await session.post(url + CONFIG_MAPS, json=config_map())
        with pytest.raises(aiohttp.ClientError):
            async with session.get(url + CONFIG_MAPS) as answer:
                await answer.read()
        async with session.get(url + CONFIG_MAPS) as answer:
            assert answer.status == 200


async def test_an_open_http_watch_is_disconnected_when_watches_are_dropped() -> None:
    api = ApiServer(time.time)
    async with _served(api) as (url, session), session.get(url + CONFIG_MAPS, params={"watch": "1"}) as watch:
        await _until(True, api)
        api.drop_watches()
        with pytest.raises(aiohttp.ClientError):
            await watch.read()


async def test_a_server_stops_at_once_despite_open_watches() -> None:
    api = ApiServer(time.time)
    serving = await serve(api)
    async with aiohttp.ClientSession() as session:
        watch = await session.get(serving.url + CONFIG_MAPS, params={"watch": "1"})
        async with asyncio.timeout(20):
            await serving.close()
        watch.close()


async def test_an_address_in_use_is_an_os_error() -> None:
    serving = await serve(ApiServer(time.time))
    try:
        with pytest.raises(OSError, match="in use"):
            await serve(ApiServer(time.time), port=int(serving.url.rpartition(":")[2]))
    finally:
        await serving.close()
