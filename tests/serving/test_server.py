"""The HTTP server: probes, metrics, and a certificate that changes while it serves."""

import asyncio
import ssl
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from unittest.mock import Mock

import aiohttp
import pytest
import trustme
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from prometheus_client import CollectorRegistry, Counter

from gpuscaler.serving import exposition
from gpuscaler.serving.certificates import CertificateAuthority, CertificatePair
from gpuscaler.serving.health import Health
from gpuscaler.serving.server import Server, serve
from gpuscaler.serving.tls import CertificateError, LiveTls

pytestmark = pytest.mark.looptime(False)


@asynccontextmanager
async def served(*routes: web.RouteDef, tls: ssl.SSLContext | None = None) -> AsyncIterator[Server]:
    server = await serve(routes, host="127.0.0.1", port=0, tls=tls)
    try:
        yield server
    finally:
        await server.close()


async def get(url: str, *, trust: ssl.SSLContext | bool = True, **headers: str) -> tuple[int, str, str]:
    async with aiohttp.ClientSession() as session, session.get(url, ssl=trust, headers=headers) as answer:
        return answer.status, await answer.text(), answer.headers["Content-Type"]


async def test_a_probe_names_every_check_and_fails_if_one_fails() -> None:
    trouble = {"loop": "", "synced": "nodes are not listed yet"}
    health = Health(alive={"loop": lambda: trouble["loop"]}, ready={"synced": lambda: trouble["synced"]})
    async with served(*health.routes()) as server:
        url = f"http://127.0.0.1:{server.port}"
        alive, ready = await get(f"{url}/healthz"), await get(f"{url}/readyz")
        assert alive[:2] == (200, "[+]loop ok\nok\n")
        assert ready[:2] == (503, "[+]loop ok\n[-]synced nodes are not listed yet\nfailed\n")
        trouble.update(loop="no turn for 90 s", synced="")
        assert (await get(f"{url}/healthz"))[0] == 503
        assert (await get(f"{url}/readyz"))[0] == 503


@pytest.mark.parametrize(
    ("peer", "message"), [("10.0.0.7", "reason withheld"), ("::ffff:127.0.0.1", "https://10.0.0.1 is away"), ("::1", "https:")]
)
async def test_a_probe_shows_reasons_only_to_callers_on_this_machine(peer: str, message: str) -> None:
    health = Health(ready={"synced": lambda: "https://10.0.0.1 is away"})
    transport = Mock(**{"get_extra_info.side_effect": lambda name, default=None: (peer, 5) if name == "peername" else default})
    answer = await health.routes()[1].handler(make_mocked_request("GET", "/readyz", transport=transport))
    assert isinstance(answer, web.Response)
    assert answer.status == 503
    assert (answer.text or "").startswith(f"[-]synced {message}")


async def test_a_probe_check_that_raises_counts_as_failed() -> None:
    def broken() -> str:
        raise ValueError("no clock")

    async with served(*Health(alive={"clock": broken}).routes()) as server:
        assert (await get(f"http://127.0.0.1:{server.port}/healthz"))[:2] == (503, "[-]clock ValueError: no clock\nfailed\n")


async def test_metrics_are_served_in_the_requested_format() -> None:
    registry = CollectorRegistry()
    Counter("machines_bought", "Machines.", registry=registry).inc(3)
    async with served(*exposition.routes(registry)) as server:
        url = f"http://127.0.0.1:{server.port}/metrics"
        plain, newer = await get(url), await get(url, Accept="application/openmetrics-text; version=1.0.0")
        assert "machines_bought_total 3.0" in plain[1]
        assert plain[2].startswith("text/plain")
        assert newer[2].startswith("application/openmetrics-text")
        assert newer[1].endswith("# EOF\n")


async def test_listening_on_a_port_in_use_raises_os_error() -> None:
    async with served() as server:
        with pytest.raises(OSError, match="address"):
            await serve([], host="127.0.0.1", port=server.port)


async def serial(port: int, authority: trustme.CA) -> int:
    """Return the serial number of the certificate of a new connection."""
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trust, server_hostname="localhost")
    shown = writer.get_extra_info("peercert")["serialNumber"]
    writer.close()
    await writer.wait_closed()
    assert reader is not None
    return int(shown, 16)


def written(folder: Path, authority: trustme.CA) -> tuple[Path, Path]:
    made = authority.issue_cert("localhost", "127.0.0.1")
    certificate, key = folder / "tls.crt", folder / "tls.key"
    certificate.write_bytes(b"".join(blob.bytes() for blob in made.cert_chain_pems))
    key.write_bytes(made.private_key_pem.bytes())
    return certificate, key


async def test_a_changed_certificate_is_used_for_new_connections(tmp_path: Path) -> None:
    authority = trustme.CA()
    live = LiveTls(*written(tmp_path, authority))
    async with served(tls=live.context) as server:
        first = await serial(server.port, authority)
        written(tmp_path, authority)
        assert await serial(server.port, authority) == first
        live.reload()
        second = await serial(server.port, authority)

    assert second != first
    assert live.trouble == ""


async def test_an_unusable_new_certificate_keeps_the_old_one_with_a_message(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate, key = written(tmp_path, authority)
    live = LiveTls(certificate, key)
    good = certificate.read_bytes()
    async with served(tls=live.context) as server:
        first = await serial(server.port, authority)
        certificate.write_text("no certificate")
        live.reload()
        assert await serial(server.port, authority) == first
        assert live.trouble.startswith(f"{certificate} and {key}: saw ")
        assert live.trouble.endswith("the previous certificate stays in use")
        certificate.write_bytes(good)
        live.reload()
        assert live.trouble == ""


def test_a_server_does_not_start_with_a_missing_certificate(tmp_path: Path) -> None:
    with pytest.raises(CertificateError, match=r"nothing\.crt: saw No such file or directory, expected a PEM file"):
        LiveTls(tmp_path / "nothing.crt", tmp_path / "nothing.key")


async def shown(port: int, authority: CertificateAuthority, pair: CertificatePair) -> bytes:
    """Return a server's answer to a client with a certificate."""
    trust = pair.load_into(ssl.create_default_context(cadata=authority.certificate.decode()))
    async with aiohttp.ClientSession() as session, session.get(f"https://localhost:{port}/", ssl=trust) as answer:
        return await answer.read()


async def test_clients_of_the_latest_authorities_are_accepted(tmp_path: Path) -> None:
    serving, first, second = (CertificateAuthority(name, now=time.time()) for name in ("serving", "first", "second"))
    files = serving.issue("server", hosts=("localhost",)).write(tmp_path, "server")
    live = LiveTls(*files, ask_clients=True)

    async def caller(request: web.Request) -> web.Response:
        peer = request.get_extra_info("peercert")
        return web.Response(text=dict(part[0] for part in peer["subject"])["commonName"] if peer else "anonymous")

    async with served(web.get("/", caller), tls=live.context) as server:
        live.accept_authorities(first.certificate)
        assert await shown(server.port, serving, first.issue("one")) == b"one"
        with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
            await shown(server.port, serving, second.issue("two"))
        live.accept_authorities(second.certificate)
        assert await shown(server.port, serving, second.issue("two")) == b"two"
        with pytest.raises(CertificateError, match="authorities of clients"):
            live.accept_authorities(b"-----BEGIN CERTIFICATE-----\nAA==\n-----END CERTIFICATE-----\n")
        assert await shown(server.port, serving, second.issue("two")) == b"two"
