"""Access to pages by address, with TLS, tokens and an API server that reviews them."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import msgspec
import pytest
import trustme
from aiohttp import web
from click.testing import CliRunner, Result
from tests.cli.serving import kubeconfig
from tests.metrics.api.scene import ReviewServer
from tests.serving.test_server import written

from gpuscaler.cli import main
from gpuscaler.control.process.running import UnusableError
from gpuscaler.control.records.listening import Listeners
from gpuscaler.control.records.status.why import Explanation
from gpuscaler.kube.client import Client
from gpuscaler.kube.leases import NotLeaderError
from gpuscaler.settings.run_settings import AuthenticatedSettings, HttpSettings, PagesSettings

pytestmark = pytest.mark.looptime(False)


async def answer_ok(_request: web.Request) -> web.Response:
    return web.Response(text="ok")


async def answer_why(_request: web.Request) -> web.Response:
    answer = Explanation("node n1", known=True, now=("it stays",), happened=(), at=0.0)
    return web.Response(body=msgspec.json.encode(answer), content_type="application/json")


ROUTES = [web.get("/why/pod/{namespace}/{name}", answer_ok), web.get("/why/node/{name}", answer_why), web.get("/status", answer_ok)]


def not_leading(_seconds: float) -> None:
    raise NotLeaderError("this copy does not lead")


@asynccontextmanager
async def authenticated_pages(folder: Path, api: ReviewServer) -> AsyncIterator[tuple[aiohttp.ClientSession, str]]:
    """Pages behind authentication, of a process that does not lead."""
    authority = trustme.CA()
    certificate, key = written(folder, authority)
    authority.cert_pem.write_to_path(str(folder / "ca.pem"))
    trust = ssl.create_default_context()
    authority.configure_trust(trust)
    listeners = Listeners()
    settings = AuthenticatedSettings("127.0.0.1", 0, str(certificate), str(key))
    await listeners.serve_authenticated(settings, ROUTES, Client(api, fence=not_leading, dry_run=True))
    try:
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=trust)) as session:
            yield session, f"https://127.0.0.1:{listeners.ports['pages.authenticated']}"
    finally:
        await listeners.close()


async def get(session: aiohttp.ClientSession, url: str, token: str = "") -> tuple[int, str]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with session.get(url, headers=headers) as answer:
        return answer.status, await answer.text()


async def test_authenticated_pages_are_served_to_users_with_permission_for_the_path(tmp_path: Path) -> None:
    jane = {"username": "jane", "uid": "7", "groups": ["ops"]}
    api = ReviewServer(
        tokens={"good": jane, "also": {"username": "joe"}},
        allows=lambda spec: spec["user"] == "jane" and spec["nonResourceAttributes"]["path"].startswith("/why/"),
        reason="no such role",
    )
    async with authenticated_pages(tmp_path, api) as (session, url):
        assert await get(session, f"{url}/status") == (401, "expected a bearer token of this cluster\n")
        assert api.specs == []
        assert (await get(session, f"{url}/status", "bad"))[0] == 401
        assert await get(session, f"{url}/why/pod/default/a", "good") == (200, "ok")
        assert api.specs[-1] == {
            "user": "jane",
            "groups": ["ops", "system:authenticated"],
            "uid": "7",
            "nonResourceAttributes": {"verb": "get", "path": "/why/pod/default/a"},
        }
        refused = "may not get /status: no such role; expected the right to get it as a non-resource URL\n"
        assert await get(session, f"{url}/status", "good") == (403, f"user 'jane' {refused}")
        assert (await get(session, f"{url}/why/pod/default/a", "also"))[0] == 403


async def test_why_sends_its_token_to_a_leader_with_tls_and_shows_that_a_bad_token_is_refused(tmp_path: Path) -> None:
    api = ReviewServer(tokens={"good": {"username": "jane"}})
    files = ("--leader-ca-file", str(tmp_path / "ca.pem"), "--kubeconfig", str(kubeconfig(tmp_path, "http://127.0.0.1:1")))

    async def why(url: str, token: str) -> Result:
        (tmp_path / "token").write_text(token)
        words = ["why", "node", "n1", "--leader", url, "--leader-token-file", str(tmp_path / "token"), *files]
        return await asyncio.to_thread(CliRunner().invoke, main, words)

    async with authenticated_pages(tmp_path, api) as (_, url):
        good, bad = await why(url, "good"), await why(url, "made-up")

    assert (good.exit_code, good.output) == (0, "node n1:\n  it stays\n")
    assert "The leader cannot be queried (the leader answered 401: expected a bearer token of this cluster)" in bad.output


async def test_no_request_for_a_page_is_admitted_while_the_api_server_is_unreachable(tmp_path: Path) -> None:
    async with authenticated_pages(tmp_path, ReviewServer(tokens={"good": {"username": "jane"}}, away=True)) as (session, url):
        assert await get(session, f"{url}/status", "good") == (503, "the API server could not check the token; the log says why\n")


async def test_a_token_sent_without_tls_is_not_accepted(tmp_path: Path) -> None:
    async with authenticated_pages(tmp_path, ReviewServer()) as (session, url):
        with pytest.raises(aiohttp.ClientError):
            await get(session, url.replace("https:", "http:") + "/status", "good")


@pytest.mark.parametrize(
    ("group", "said"),
    [
        ("http", "http: saw .* for 203.0.113.1, port 1, expected to listen there; set http.address, or http.enabled: false"),
        ("pages", "pages: saw .* for 203.0.113.1, port 1, expected to listen there; set pages.address, or pages.enabled: false"),
        ("pages.authenticated", "pages.authenticated.certificate: /nowhere/tls.crt: saw No such file"),
    ],
)
async def test_an_unusable_listen_address_is_reported_with_its_settings_key(group: str, said: str) -> None:
    listeners, away = Listeners(), AuthenticatedSettings("203.0.113.1", 1, "/nowhere/tls.crt", "/nowhere/tls.key")
    starts = {
        "http": lambda: listeners.serve_metrics(HttpSettings(host=away.host, port=1), ROUTES),
        "pages": lambda: listeners.serve_pages(PagesSettings(host=away.host, port=1), ROUTES),
        "pages.authenticated": lambda: listeners.serve_authenticated(away, ROUTES, Client(ReviewServer())),
    }
    with pytest.raises(UnusableError, match=said):
        await starts[group]()
    await listeners.close()


@pytest.mark.parametrize("key", ["http", "pages"])
async def test_an_address_in_use_may_be_that_of_another_gpuscaler(key: str) -> None:
    listeners, others = Listeners(), Listeners()
    await others.serve_metrics(HttpSettings(host="127.0.0.1", port=0), ROUTES)
    port = others.ports["http"]
    starts = {
        "http": lambda: listeners.serve_metrics(HttpSettings(host="127.0.0.1", port=port), ROUTES),
        "pages": lambda: listeners.serve_pages(PagesSettings(host="127.0.0.1", port=port), ROUTES),
    }
    with pytest.raises(UnusableError) as raised:
        await starts[key]()
    await listeners.close()
    await others.close()

    assert str(raised.value) == (
        f"{key}: saw Address already in use for 127.0.0.1, port {port}, expected to listen there; "
        f"another gpuscaler may run on this machine already; set {key}.address, or {key}.enabled: false"
    )
