"""Single requests, whose failures say whether they may have been carried out."""

import asyncio
import ssl
from collections.abc import Mapping

import pytest
import trustme
from aiohttp import web
from tests.clouds.azure.api.scripted import Say, serving
from tests.clouds.azure.api.test_arm import free_port

from gpuscaler.clouds.azure.api.http import BrokenError, Http, HttpReply, UnsentError, is_loopback, proxy_for

pytestmark = pytest.mark.looptime(False)


async def asked(
    url: str, *, environ: Mapping[str, str] | None = None, seconds: float = 5.0, longest: int = 1000, method: str = "GET"
) -> HttpReply:
    http = Http(environ)
    try:
        return await http.request(method, url, headers={}, seconds=seconds, longest=longest)
    finally:
        await http.close()


async def test_an_answer_has_its_headers_in_lower_case_and_repeated_ones_joined() -> None:
    async with serving(Say(200, "{}", {"ETag": '"1"'}, (("X-Many", "a"), ("x-many", "b")))) as server:
        reply = await asked(server.url)

    assert (reply.status, reply.body, reply.complete) == (200, b"{}", True)
    assert (reply.headers["etag"], reply.headers["x-many"]) == ('"1"', "a,b")
    assert server.asked[0].headers["user-agent"].startswith("gpuscaler/")


async def test_a_redirect_is_not_followed() -> None:
    async with serving(Say()) as other, serving(Say(307, None, {"Location": f"{other.url}/x"})) as server:
        assert (await asked(server.url)).status == 307

    assert other.asked == []


async def test_an_answer_that_is_too_long_is_not_read() -> None:
    async with serving(Say(200, "x" * 1001)) as server:
        assert await asked(server.url) == HttpReply(200, (await asked(server.url)).headers, b"", complete=False)


async def test_an_answer_that_breaks_off_has_its_head() -> None:
    async with serving(Say(202, sever="body", headers={"Location": "here"})) as server:
        reply = await asked(server.url, method="PUT")

    assert (reply.status, reply.headers["location"], reply.complete) == (202, "here", False)


async def test_a_request_without_an_answer_in_time_may_have_been_carried_out() -> None:
    async with serving(Say(endless=True)) as server:
        with pytest.raises(BrokenError, match=r"no answer of 127\.0\.0\.1 within 0\.05 s"):
            await asked(server.url, seconds=0.05)


@pytest.mark.parametrize("method", ["GET", "PUT"])
async def test_a_broken_connection_leads_to_no_second_request(method: str) -> None:
    async with serving(Say(200, "{}"), Say(sever="before"), Say(200, "{}")) as server:
        http = Http()
        await http.request("GET", server.url, headers={})
        with pytest.raises(BrokenError, match="closed the connection before it answered"):
            await http.request(method, server.url, headers={})
        await http.close()

    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("http://127.0.0.1:{port}", "cannot connect to 127.0.0.1"),
        ("http://no-such-host.invalid", "cannot resolve the address of no-such-host.invalid"),
        ("http://127.0.0.1:99999/", "saw an odd address"),
        ("http://", "saw an odd address"),
        ("ftp://127.0.0.1/", "saw an odd address"),
    ],
)
async def test_what_was_not_sent_is_known(url: str, text: str) -> None:
    with pytest.raises(UnsentError, match=text):
        await asked(url.replace("{port}", str(free_port())))


async def test_a_certificate_that_is_not_trusted_is_named() -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
    runner = web.AppRunner(web.Application())
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    try:
        with pytest.raises(UnsentError, match=r"saw a certificate of 127\.0\.0\.1 that is not trusted .*; set SSL_CERT_FILE"):
            await asked(f"https://127.0.0.1:{runner.addresses[0][1]}/")
    finally:
        await runner.cleanup()


@pytest.mark.parametrize(
    ("environ", "url", "proxy"),
    [
        ({}, "https://management.azure.com/x", ""),
        ({"HTTPS_PROXY": "http://proxy:3128"}, "https://management.azure.com/x", "http://proxy:3128"),
        ({"https_proxy": "proxy:3128"}, "https://management.azure.com/x", "http://proxy:3128"),
        ({"HTTP_PROXY": "http://proxy:3128"}, "https://management.azure.com/x", ""),
        ({"HTTPS_PROXY": "http://proxy", "NO_PROXY": "example.com, .azure.com"}, "https://management.azure.com/x", ""),
        ({"HTTPS_PROXY": "http://proxy", "NO_PROXY": "azure.com:443"}, "https://management.azure.com/x", ""),
        ({"HTTPS_PROXY": "http://proxy", "NO_PROXY": "*"}, "https://management.azure.com/x", ""),
        ({"HTTPS_PROXY": "http://proxy", "NO_PROXY": "re.com,,"}, "https://management.azure.com/x", "http://proxy"),
        ({"HTTP_PROXY": "http://proxy"}, "http://127.0.0.1:1/x", ""),
    ],
)
def test_the_proxy_is_that_of_the_environment(environ: dict[str, str], url: str, proxy: str) -> None:
    assert proxy_for(environ, url) == proxy


async def test_a_proxy_is_used_and_its_password_is_shown_nowhere() -> None:
    environ = {"HTTPS_PROXY": f"http://user:pass-word@127.0.0.1:{free_port()}"}
    with pytest.raises(UnsentError, match="cannot reach the proxy") as raised:
        await asked("https://management.azure.com/", environ=environ)

    assert "pass-word" not in f"{raised.value!r} {raised.value.__context__!r}"


async def test_a_proxy_that_opens_no_tunnel_is_named() -> None:
    async with serving(Say(407)) as proxy:
        with pytest.raises(UnsentError, match=r"the proxy answered 40[47] instead of opening a tunnel to management\.azure\.com"):
            await asked("https://management.azure.com/", environ={"HTTPS_PROXY": proxy.url})


def test_addresses_of_this_machine_are_known() -> None:
    assert [is_loopback(url) for url in ("http://127.0.0.1:1", "http://[::1]/", "http://localhost", "http://127.0.0.1.evil.com")] == [
        True, True, True, False
    ]  # fmt: skip


async def test_a_cancelled_request_is_cancelled_and_leaves_no_connection() -> None:
    async with serving(Say(endless=True)) as server:
        http = Http()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(http.request("GET", server.url, headers={}), 0.05)
        await http.close()
