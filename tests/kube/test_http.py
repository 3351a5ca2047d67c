"""Requests over real sockets and TLS: trust, credentials, and the errors without an answer."""

import asyncio
import ssl
import traceback
from collections.abc import Mapping
from pathlib import Path

import pytest
import trustme
from aiohttp import web
from structlog.testing import capture_logs
from tests.kube.servers import connect_proxy, ok, served, server_context

from gpuscaler.kube.access import Access
from gpuscaler.kube.client import Client
from gpuscaler.kube.credentials import Credentials, FixedCredentials, RequestCredentials, TokenFile
from gpuscaler.kube.errors import ApiError, CredentialsError, Forbidden, NotFound, Unauthorized, Unreachable
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.resources import NODES, PODS
from gpuscaler.kube.tls import ClientCertificate, Tls
from gpuscaler.kube.transport import Request

pytestmark = pytest.mark.looptime(False)  # real sockets take real time

SECRET = "s3cr3t-TOKEN-that-must-not-be-seen"


@pytest.fixture(scope="module")
def ca() -> trustme.CA:
    return trustme.CA()


def trusting(ca: trustme.CA, **fields: object) -> Tls:
    return Tls(authority=ca.cert_pem.bytes(), **fields)  # type: ignore[arg-type]


def token(text: str = SECRET) -> Credentials:
    return FixedCredentials(RequestCredentials({"authorization": f"Bearer {text}"}))


def access(url: str, tls: Tls | None = None, **fields: object) -> Access:
    return Access(url, "the test", tls or Tls(), **fields)  # type: ignore[arg-type]


def transport_to(url: str, ca: trustme.CA, credentials: Credentials) -> HttpTransport:
    return HttpTransport(access(url, trusting(ca), credentials=credentials))


async def get(transport: HttpTransport, path: str = "/api/v1/nodes/n", **fields: object) -> tuple[int, bytes]:
    async with transport.exchange(Request("GET", path, **fields)) as answer:  # type: ignore[arg-type]
        return answer.status, b"".join([piece async for piece in answer.pieces])


def all_texts(error: BaseException) -> str:
    """Everything that a log could show of an error: texts, representations and arguments, including those of its causes."""
    answer = ["".join(traceback.format_exception(error))]
    behind: BaseException | None = error
    while behind is not None:
        answer += [str(behind), repr(behind), repr(behind.args)]
        behind = behind.__cause__ or behind.__context__
    return "\n".join(answer)


async def test_a_server_of_the_clusters_authority_gets_token_and_path(ca: trustme.CA) -> None:
    async with served(ok, server_context(ca)) as (url, seen):
        settings = access(f"{url}/k8s/clusters/c-1", trusting(ca), credentials=token("abc"), headers=(("impersonate-group", "a"),) * 2)
        async with HttpTransport(settings) as transport:
            answer = await get(transport, "/api/v1/namespaces/a%2Fb/pods", query={"labelSelector": "a=b,c in (d, e)", "limit": "5"})
    assert answer == (200, b'{"kind": "Node"}')
    assert seen.requests == [("GET", "/k8s/clusters/c-1/api/v1/namespaces/a%2Fb/pods?labelSelector=a%3Db%2Cc+in+%28d%2C+e%29&limit=5")]
    assert seen.tokens == ["Bearer abc"]
    assert seen.headers[0]["accept-encoding"] == "identity"
    assert seen.headers[0]["user-agent"].startswith("gpuscaler/")


async def test_a_connection_serves_one_request_after_the_other(ca: trustme.CA) -> None:
    ports = set()

    async def noting(request: web.Request) -> web.Response:
        assert request.transport is not None
        ports.add(request.transport.get_extra_info("peername")[1])
        return web.json_response({})

    async with served(noting, server_context(ca)) as (url, _), HttpTransport(access(url, trusting(ca))) as transport:
        for _ in range(3):
            await get(transport)
    assert len(ports) == 1


async def test_a_server_of_another_authority_is_refused_with_a_clear_message(ca: trustme.CA) -> None:
    async with served(ok, server_context(trustme.CA())) as (url, seen):
        tls = trusting(ca, owner="cluster 'c' of /k")
        async with HttpTransport(access(url, tls)) as transport:
            with pytest.raises(Unreachable, match=r"certificate that is not trusted .*certificate-authority of cluster 'c' of /k"):
                await get(transport)
    assert seen.requests == []


async def test_the_name_in_the_certificate_must_match(ca: trustme.CA) -> None:
    async with served(ok, server_context(ca, "kubernetes.internal")) as (url, _):
        async with HttpTransport(access(url, trusting(ca))) as transport:
            with pytest.raises(Unreachable, match="not trusted"):
                await get(transport)
        async with HttpTransport(access(url, trusting(ca, server_name="kubernetes.internal"))) as transport:
            assert (await get(transport))[0] == 200


async def test_insecure_access_trusts_any_server(ca: trustme.CA) -> None:
    async with served(ok, server_context(ca, "elsewhere")) as (url, _), HttpTransport(access(url, Tls(insecure=True))) as transport:
        assert (await get(transport))[0] == 200


async def test_a_client_certificate_is_presented_from_data_and_from_files(ca: trustme.CA, tmp_path: Path) -> None:
    mine = ca.issue_cert("me@example.org", organization_unit_name="me")
    chain, key = mine.cert_chain_pems[0].bytes(), mine.private_key_pem.bytes()
    (tmp_path / "c").write_bytes(chain)
    (tmp_path / "k").write_bytes(key)
    async with served(ok, server_context(ca, clients=True)) as (url, seen):
        for tls in (
            trusting(ca),
            trusting(ca, certificate=chain, key=key),
            trusting(ca, certificate_file=tmp_path / "c", key_file=tmp_path / "k"),
        ):
            async with HttpTransport(access(url, tls)) as transport:
                await get(transport)
    assert seen.certificates == ["", "me", "me"]


async def test_a_renewed_certificate_authority_is_trusted_after_a_failed_handshake(ca: trustme.CA, tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    trustme.CA().cert_pem.write_to_path(str(file))
    async with served(ok, server_context(ca)) as (url, _), HttpTransport(access(url, Tls(authority_file=file))) as transport:
        with pytest.raises(Unreachable):
            await get(transport)
        ca.cert_pem.write_to_path(str(file))
        assert (await get(transport))[0] == 200


async def test_while_a_certificate_authority_file_is_half_written_the_old_one_stays_in_use(ca: trustme.CA, tmp_path: Path) -> None:
    file = tmp_path / "ca.crt"
    ca.cert_pem.write_to_path(str(file))
    async with served(ok, server_context(ca)) as (url, _), HttpTransport(access(url, Tls(authority_file=file))) as transport:
        await get(transport)
        file.write_text("-----BEGIN CERT")
        transport._contexts.distrust()
        assert (await get(transport))[0] == 200


async def test_a_refusal_without_other_credentials_is_returned(ca: trustme.CA) -> None:
    async def no(_: web.Request) -> web.Response:
        return web.json_response({"kind": "Status", "message": "Unauthorized", "reason": "Unauthorized", "code": 401}, status=401)

    async with served(no, server_context(ca)) as (url, seen), transport_to(url, ca, token()) as transport:
        with pytest.raises(Unauthorized) as raised:
            await Client(transport).get(NODES, "n")
    assert len(seen.requests) == 1
    assert SECRET not in all_texts(raised.value)


async def test_a_newly_issued_certificate_is_used_at_once(ca: trustme.CA) -> None:
    def issued(name: str) -> ClientCertificate:
        mine = ca.issue_cert("me@example.org", organization_unit_name=name)
        return ClientCertificate(mine.cert_chain_pems[0].bytes(), mine.private_key_pem.bytes())

    certificates = [issued("first"), issued("second")]

    class Rotating:
        async def current(self) -> RequestCredentials:
            return RequestCredentials(certificate=certificates[0])

        async def renewed(self, refused: RequestCredentials) -> RequestCredentials | None:
            assert refused.certificate is certificates.pop(0)
            return await self.current()

    async def picky(request: web.Request) -> web.Response:
        subject = dict(part[0] for part in request.get_extra_info("peercert")["subject"])
        return web.json_response({}, status=200 if subject["organizationalUnitName"] == "second" else 401)

    async with served(picky, server_context(ca, clients=True)) as (url, seen), transport_to(url, ca, Rotating()) as transport:
        assert (await get(transport))[0] == 200
    assert seen.certificates == ["first", "second"]


async def test_a_redirect_is_not_followed(ca: trustme.CA) -> None:
    async def away(_: web.Request) -> web.Response:
        return web.Response(status=307, headers={"location": "http://127.0.0.1:1/steal"})

    async with served(away, server_context(ca)) as (url, _), HttpTransport(access(url, trusting(ca), credentials=token())) as transport:
        with pytest.raises(ApiError, match="307"):
            await Client(transport).get(NODES, "n")


async def test_http_errors_are_raised_as_typed_errors(ca: trustme.CA) -> None:
    async def missing(_: web.Request) -> web.Response:
        body = {"kind": "Status", "message": 'pods "p" not found', "reason": "NotFound", "details": {"name": "p", "kind": "pods"}}
        return web.json_response(body, status=404)

    async with served(missing, server_context(ca)) as (url, _), HttpTransport(access(url, trusting(ca))) as transport:
        with pytest.raises(NotFound) as raised:
            await Client(transport).get(PODS, "p", namespace="ns")
    assert (raised.value.name, raised.value.kind, str(raised.value)) == ("p", "pods", 'pods "p" not found (404 NotFound)')


async def test_a_response_stream_arrives_in_pieces_and_can_be_closed_at_any_time(ca: trustme.CA) -> None:
    left = asyncio.Event()

    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            await response.write(b"one\n")
            for _ in range(10_000):
                await response.write(b"x" * 600_000 + b"\n")
                await asyncio.sleep(0.01)
        finally:
            left.set()
        return response

    async with served(stream, server_context(ca)) as (url, _), HttpTransport(access(url, trusting(ca))) as transport:
        async with transport.exchange(Request("GET", "/watch", timeout=5)) as answer:
            size = 0
            async for piece in answer.pieces:
                size += len(piece)
                if size > 600_000:
                    break
        async with asyncio.timeout(5):
            await left.wait()


async def test_a_silent_stream_ends_as_unreachable(ca: trustme.CA) -> None:
    async def silent(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"one\n")
        await asyncio.sleep(60)
        return response

    async with served(silent, server_context(ca)) as (url, _), HttpTransport(access(url, trusting(ca))) as transport:
        with pytest.raises(Unreachable, match=r"GET /watch: no answer within 0.2 s"):
            await get(transport, "/watch", timeout=0.2)


async def test_a_server_that_does_not_answer_is_unreachable(ca: trustme.CA) -> None:
    async def slow(_: web.Request) -> web.Response:
        await asyncio.sleep(60)
        return web.Response()

    async with served(slow, server_context(ca)) as (url, _), HttpTransport(access(url, trusting(ca))) as transport:
        with pytest.raises(Unreachable, match=r"no answer within 0.2 s"):
            await get(transport, timeout=0.2)


async def test_an_incomplete_answer_is_unreachable(ca: trustme.CA) -> None:
    async def cut(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-length": "100"})
        await response.prepare(request)
        await response.write(b"some")
        assert request.transport is not None
        request.transport.abort()
        return response

    async with served(cut, server_context(ca)) as (url, _), HttpTransport(access(url, trusting(ca))) as transport:
        with pytest.raises(Unreachable, match=r"closed before the answer was complete|connection broke"):
            await get(transport)


async def test_a_closed_port_is_reported_with_host_port_and_source_of_the_access() -> None:
    async with HttpTransport(access("http://127.0.0.1:1")) as transport:
        with pytest.raises(Unreachable) as raised:
            await get(transport)
    assert str(raised.value) == (
        "http://127.0.0.1:1 (the test): GET /api/v1/nodes/n: cannot connect to 127.0.0.1:1 (Connect call failed ('127.0.0.1', 1))"
    )


async def test_an_unknown_host_is_reported() -> None:
    async with HttpTransport(access("https://no-such-host.invalid:6443")) as transport:
        with pytest.raises(Unreachable, match=r"cannot resolve the address of no-such-host.invalid"):
            await get(transport)


async def test_a_server_without_tls_is_reported(ca: trustme.CA) -> None:
    async with served(ok) as (url, _), HttpTransport(access(url.replace("http:", "https:"), trusting(ca))) as transport:
        with pytest.raises(Unreachable, match=r"TLS failed \("):
            await get(transport)


@pytest.mark.parametrize("method", ["PUT", "DELETE", "POST", "PATCH"])
async def test_a_write_on_a_connection_that_breaks_is_sent_once(ca: trustme.CA, method: str) -> None:
    count = 0

    async def breaking(request: web.Request) -> web.Response:
        nonlocal count
        count += request.method == method
        if request.method == method:
            assert request.transport is not None
            request.transport.close()
        return web.json_response({})

    async with served(breaking, server_context(ca)) as (url, _), HttpTransport(access(url, trusting(ca))) as transport:
        await get(transport)
        with pytest.raises(Unreachable):
            async with transport.exchange(Request(method, "/api/v1/x", body=b"{}")):
                pass
    assert count == 1


async def test_a_proxy_tunnels_to_the_server_and_never_sees_the_token(ca: trustme.CA) -> None:
    async with served(ok, server_context(ca)) as (url, seen), connect_proxy() as (port, heads):
        settings = access(url, trusting(ca), credentials=token(), proxy=f"http://user:hidden-pa55@127.0.0.1:{port}")
        async with HttpTransport(settings) as transport:
            assert (await get(transport))[0] == 200
            assert (await get(transport))[0] == 200
    assert len(heads) == 1
    assert heads[0].startswith(f"CONNECT {url.removeprefix('https://')} ")
    assert "Proxy-Authorization: Basic " in heads[0]
    assert SECRET not in heads[0]
    assert seen.tokens == [f"Bearer {SECRET}"] * 2
    assert "hidden-pa55" not in repr(settings)


async def test_a_proxy_can_itself_use_tls(ca: trustme.CA) -> None:
    async with served(ok, server_context(ca)) as (url, seen), connect_proxy(tls=server_context(ca)) as (port, heads):
        settings = access(url, trusting(ca), credentials=token(), proxy=f"https://127.0.0.1:{port}")
        async with HttpTransport(settings) as transport:
            assert (await get(transport))[0] == 200
    assert len(heads) == 1
    assert seen.tokens == [f"Bearer {SECRET}"]


@pytest.mark.parametrize("refuse", [True, False])
async def test_a_failing_proxy_is_named_without_its_password(ca: trustme.CA, refuse: bool) -> None:
    async with connect_proxy(refuse=True) as (port, _):
        proxy_port = port if refuse else 1
        settings = access(
            "https://127.0.0.1:6443", trusting(ca), credentials=token(), proxy=f"http://user:hidden-pa55@127.0.0.1:{proxy_port}"
        )
        async with HttpTransport(settings) as transport:
            with pytest.raises(Unreachable, match=r"the proxy 127.0.0.1 answered 407|cannot reach the proxy 127.0.0.1:1") as raised:
                await get(transport)
    texts = all_texts(raised.value)
    assert "hidden-pa55" not in texts
    assert SECRET not in texts


def failing(kind: str, ca: trustme.CA) -> Mapping[str, object]:
    return {
        "no server": {"server": "https://127.0.0.1:1", "tls": trusting(ca)},
        "no credentials": {"server": "https://127.0.0.1:1", "tls": trusting(ca), "credentials": TokenFile(Path("/no/such"), "user")},
    }[kind]


@pytest.mark.parametrize("kind", ["no server", "no credentials"])
async def test_no_error_shows_the_token(ca: trustme.CA, kind: str) -> None:
    settings = Access(source="the test", **{"credentials": token(), **failing(kind, ca)})  # type: ignore[arg-type]
    async with HttpTransport(settings) as transport:
        with pytest.raises(Unreachable) as raised:
            await get(transport)
        shown = all_texts(raised.value) + repr(settings) + str(settings) + repr(transport)
    assert SECRET not in shown
    assert isinstance(raised.value, CredentialsError) == (kind == "no credentials")


async def test_answers_are_gzipped_only_on_request(ca: trustme.CA) -> None:
    async def large(request: web.Request) -> web.Response:
        response = web.Response(body=b"x" * 100_000)
        if "gzip" in request.headers["accept-encoding"]:
            response.enable_compression(web.ContentCoding.gzip)
        return response

    async with served(large, server_context(ca)) as (url, seen), HttpTransport(access(url, trusting(ca), compress=True)) as transport:
        assert await get(transport) == (200, b"x" * 100_000)
    assert seen.headers[0]["accept-encoding"] == "gzip"


def test_a_tls_context_is_no_stricter_about_certificates_than_go(ca: trustme.CA) -> None:
    flags = trusting(ca).context().verify_flags
    assert not flags & ssl.VERIFY_X509_STRICT
    assert flags & ssl.VERIFY_X509_PARTIAL_CHAIN


async def test_no_log_shows_a_token_or_a_password(ca: trustme.CA, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "ca.crt"
    ca.cert_pem.write_to_path(str(file))

    async def failing(_: web.Request) -> web.Response:
        return web.json_response({"kind": "Status", "message": "no", "code": 403}, status=403)

    with caplog.at_level("DEBUG"), capture_logs() as logs:
        async with served(failing, server_context(ca)) as (url, _), connect_proxy() as (port, _):
            proxy = f"http://user:hidden-pa55@127.0.0.1:{port}"
            settings = access(url, Tls(authority_file=file), credentials=token(), proxy=proxy)
            async with HttpTransport(settings) as transport:
                with pytest.raises(Forbidden) as raised:
                    await Client(transport).create(NODES, {})
                file.write_text(SECRET)
                transport._contexts.distrust()
                with pytest.raises(Forbidden):
                    await Client(transport).get(NODES, "n")
    shown = caplog.text + repr(logs) + all_texts(raised.value)
    assert "tls files cannot be used" in shown
    assert SECRET not in shown
    assert "hidden-pa55" not in shown
