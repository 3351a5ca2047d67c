"""Requests to Prometheus over real sockets, and errors if there is no usable answer."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
import trustme
from aiohttp import web
from tests.kube.servers import Seen, served, server_context

from gpuscaler.kube.errors import AccessError
from gpuscaler.kube.transport import Answer, Request
from gpuscaler.metrics.sources.prometheus import BadAnswer, Prometheus, PrometheusAway, QueryRefused, Server, access_of, server_of

pytestmark = pytest.mark.looptime(False)  # real sockets take real time


def vector(*elements: tuple[dict[str, str], float, str]) -> dict[str, Any]:
    result = [{"metric": labels, "value": [at, text]} for labels, at, text in elements]
    return {"status": "success", "data": {"resultType": "vector", "result": result}}


def answering(body: Any, status: int = 200) -> Callable[[web.Request], Any]:
    async def handler(_request: web.Request) -> web.Response:
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(text=text, status=status, content_type="application/json")

    return handler


def asking(*urls: str, **fields: Any) -> Prometheus:
    return Prometheus([server_of(access_of(url)) for url in urls], clock=time.monotonic, **fields)


def form(seen: Seen, place: int = 0) -> dict[str, list[str]]:
    return parse_qs(seen.bodies[place].decode())


async def test_a_query_is_posted_as_a_form_and_any_float_in_the_result_is_parsed() -> None:
    body = vector(({"pod": "a"}, 1700000000.5, "42.5"), ({"pod": "b"}, 1700000000.5, "NaN"), ({}, 1700000000.5, "-Inf"))
    async with served(answering(body)) as (url, seen):
        prometheus = asking(f"{url}/prom/")
        samples = await prometheus.query('sum(x{pod=~"a|b"}) by (pod)')
        await prometheus.close()
    assert seen.requests == [("POST", "/prom/api/v1/query")]
    assert form(seen) == {"query": ['sum(x{pod=~"a|b"}) by (pod)'], "timeout": ["10s"]}
    assert [(sample.metric, sample.value[0]) for sample in samples] == [
        ({"pod": "a"}, 1700000000.5),
        ({"pod": "b"}, 1700000000.5),
        ({}, 1700000000.5),
    ]
    assert samples[0].number == 42.5
    assert samples[1].number != samples[1].number
    assert samples[2].number == float("-inf")


async def test_a_query_is_sent_by_get_if_configured() -> None:
    async with served(answering(vector())) as (url, seen):
        prometheus = asking(url, post=False)
        assert await prometheus.query("up == 1") == []
        await prometheus.close()
    method, target = seen.requests[0]
    assert (method, parse_qs(target.partition("?")[2])) == ("GET", {"query": ["up == 1"], "timeout": ["10s"]})


async def test_a_server_that_rejects_post_gets_the_query_by_get() -> None:
    async def picky(request: web.Request) -> web.Response:
        return web.json_response(vector(({}, 1, "7")), status=405 if request.method == "POST" else 200)

    async with served(picky) as (url, seen):
        prometheus = asking(url)
        assert [sample.number for sample in await prometheus.query("x")] == [7]
        await prometheus.close()
    assert [method for method, _ in seen.requests] == ["POST", "GET"]


async def test_series_and_metric_names_are_requested_for_a_time_range() -> None:
    async def handler(request: web.Request) -> web.Response:
        data: Any = {"/api/v1/series": [{"__name__": "x", "pod": "a"}], "/api/v1/labels": ["__name__", "pod"]}.get(request.path, ["x"])
        return web.json_response({"status": "success", "data": data})

    async with served(handler) as (url, seen):
        prometheus = asking(url)
        assert await prometheus.series('{pod!=""}', start=1.5, end=2) == [{"__name__": "x", "pod": "a"}]
        assert await prometheus.metric_names('{pod!=""}', start=1.5, end=2) == ["x"]
        assert await prometheus.label_names("x", start=1.5, end=2) == ["__name__", "pod"]
        await prometheus.close()
    assert [path.partition("?")[0] for _, path in seen.requests] == ["/api/v1/series", "/api/v1/label/__name__/values", "/api/v1/labels"]
    assert form(seen) == {"match[]": ['{pod!=""}'], "start": ["1.500"], "end": ["2.000"]}


@pytest.mark.parametrize(
    ("body", "status", "error", "message"),
    [
        ({"status": "error", "errorType": "bad_data", "error": "parse error: no"}, 400, QueryRefused, "400 bad_data: parse error: no"),
        (
            {"status": "error", "errorType": "execution", "error": "too many samples"},
            422,
            QueryRefused,
            "too many samples; correct the rule",
        ),
        ({"status": "error", "errorType": "timeout", "error": "query timed out"}, 422, PrometheusAway, "query timed out"),
        ({"status": "error", "errorType": "internal", "error": "disk"}, 500, PrometheusAway, "500 internal: disk"),
        ("<html>no</html>", 503, PrometheusAway, "saw status 503: <html>no</html>"),
        ("", 401, PrometheusAway, "saw status 401: nothing"),
        ("<html>log in</html>", 200, BadAnswer, "expected Prometheus' JSON"),
        ({"status": "success", "data": {"resultType": "matrix", "result": []}}, 200, BadAnswer, "saw a matrix, expected a vector"),
        ({"status": "success", "data": {"resultType": "vector", "result": [{"metric": 5}]}}, 200, BadAnswer, "data in another format"),
        ("{" + '"a":[' * 3000, 200, BadAnswer, "expected Prometheus' JSON"),
        ("", 302, PrometheusAway, "redirects are not followed"),
    ],
)
async def test_an_unusable_response_raises_an_error_with_the_server_and_its_text(
    body: Any, status: int, error: type[Exception], message: str
) -> None:
    async with served(answering(body, status)) as (url, _):
        prometheus = asking(url)
        with pytest.raises(error) as caught:
            await prometheus.query("x")
        await prometheus.close()
    assert message in str(caught.value)
    assert "127.0.0.1" in str(caught.value) or "query x" in str(caught.value) or "/api/v1/query" in str(caught.value)


async def test_reading_stops_at_the_size_limit_of_a_response() -> None:
    async with served(answering(vector(*[({"pod": f"p{number}"}, 1, "1") for number in range(1000)]))) as (url, _):
        prometheus = asking(url, most_bytes=2048)
        with pytest.raises(BadAnswer, match="narrow the rule"):
            await prometheus.query("x")
        await prometheus.close()


@dataclass
class Large:
    """A transport with answers of 5 MiB in pieces; ``most`` is the peak of all of them in memory together."""

    there: int = 0
    most: int = 0
    piece: bytes = b" " * 2**18

    @asynccontextmanager
    async def exchange(self, _request: Request) -> AsyncIterator[Answer]:
        sent = 0

        async def pieces() -> AsyncIterator[bytes]:
            nonlocal sent
            for part in (*[self.piece] * 20, json.dumps(vector(({}, 1, "1"))).encode()):
                sent += len(part)
                self.there += len(part)
                self.most = max(self.most, self.there)
                yield part
                await asyncio.sleep(0)

        yield Answer(200, {}, pieces())
        self.there -= sent

    async def close(self) -> None:
        pass


async def test_large_responses_are_read_one_at_a_time() -> None:
    transport = Large()
    prometheus = Prometheus([Server("p", "", transport)], clock=time.monotonic)
    samples = await asyncio.gather(*(prometheus.query("x") for _ in range(10)))
    assert [len(samples) for samples in samples] == [1] * 10
    assert transport.most < 30 * 2**20


async def test_the_second_server_replaces_an_unavailable_first_one() -> None:
    async with served(answering({}, 500)) as (bad, ill), served(answering(vector(({}, 1, "1")))) as (good, well):
        prometheus = asking(bad, good)
        assert len(await prometheus.query("x")) == 1
        assert len(await prometheus.query("x")) == 1
        await prometheus.close()
    assert (len(ill.requests), len(well.requests)) == (1, 2)
    assert prometheus.metrics.outcomes == {
        ("/api/v1/query", bad.removeprefix("http://"), "fault"): 1,
        ("/api/v1/query", good.removeprefix("http://"), "ok"): 2,
    }
    assert prometheus.metrics.request_count("/api/v1/query") == 3


async def test_a_query_that_one_server_rejects_is_not_sent_to_another() -> None:
    async with served(answering({"status": "error", "error": "parse"}, 400)) as (bad, _), served(answering(vector())) as (good, well):
        prometheus = asking(bad, good)
        with pytest.raises(QueryRefused):
            await prometheus.query("x(")
        await prometheus.close()
    assert well.requests == []


async def test_a_server_that_hangs_leaves_time_for_the_next() -> None:
    async def hanging(request: web.Request) -> web.Response:
        await request.read()
        await asyncio.sleep(60)
        return web.Response()

    async with served(hanging) as (bad, _), served(answering(vector(({}, 1, "1")))) as (good, _):
        prometheus = asking(bad, good, timeout=1.0)
        assert len(await prometheus.query("x")) == 1
        alone = asking(bad, timeout=0.2)
        with pytest.raises(PrometheusAway, match=r"no answer within 0\.2 s"):
            await alone.query("x")
        await prometheus.close()
        await alone.close()


async def test_the_error_names_every_server_if_none_listens() -> None:
    prometheus = asking("http://127.0.0.1:9", "http://localhost:9")
    with pytest.raises(PrometheusAway, match=r"127\.0\.0\.1:9.*localhost:9"):
        await prometheus.query("x")
    await prometheus.close()


async def test_prometheus_warnings_are_returned_and_counted() -> None:
    warnings: list[str] = []
    async with served(answering(vector() | {"warnings": ["PromQL info: metric might not be a counter"]})) as (url, _):
        prometheus = asking(url, warn=warnings.append)
        await prometheus.query("x")
        await prometheus.close()
    assert "might not be a counter" in warnings[0]
    assert prometheus.metrics.warnings == 1


async def test_a_client_certificate_the_latest_token_and_headers_are_always_sent(tmp_path: Path) -> None:
    ca = trustme.CA()
    client = ca.issue_cert("client", common_name="client")
    (tmp_path / "ca.crt").write_bytes(ca.cert_pem.bytes())
    (tmp_path / "tls.crt").write_bytes(client.cert_chain_pems[0].bytes())
    (tmp_path / "tls.key").write_bytes(client.private_key_pem.bytes())
    token = tmp_path / "token"
    token.write_text("old\n")

    async def picky(request: web.Request) -> web.Response:
        right = request.headers.get("authorization") == "Bearer new" and request.headers.get("x-scope-orgid") == "ml"
        return web.json_response(vector(({}, 1, "1")), status=200 if right else 401)

    async with served(picky, server_context(ca, clients=True)) as (url, seen):
        access = access_of(
            url,
            ca_file=tmp_path / "ca.crt",
            certificate_file=tmp_path / "tls.crt",
            key_file=tmp_path / "tls.key",
            token_file=token,
            headers=[("X-Scope-OrgID", "ml")],
        )
        prometheus = Prometheus([server_of(access)], clock=time.monotonic)
        with pytest.raises(PrometheusAway, match="401"):
            await prometheus.query("x")
        token.write_text("new\n")
        assert len(await prometheus.query("x")) == 1
        await prometheus.close()
    assert seen.tokens[-1] == "Bearer new"
    assert all(certificate for certificate in seen.certificates)


async def test_header_files_are_read_again_after_the_server_rejects_the_credentials(tmp_path: Path) -> None:
    file = tmp_path / "authorization"

    async def picky(request: web.Request) -> web.Response:
        right = request.headers.get("authorization") == "Basic bmV3"
        return web.json_response(vector(({}, 1, "1")), status=200 if right else 401)

    async with served(picky) as (url, _):
        prometheus = Prometheus([server_of(access_of(url, header_files=[("Authorization", file)]))], clock=time.monotonic)
        with pytest.raises(PrometheusAway, match=r"header authorization: saw .*authorization: No such file"):
            await prometheus.query("x")
        file.write_text("Basic b2xk\n")
        with pytest.raises(PrometheusAway, match="401"):
            await prometheus.query("x")
        file.write_text("Basic bmV3\n")
        assert len(await prometheus.query("x")) == 1
        file.write_text("two\nlines\n")
        assert len(await prometheus.query("x")) == 1
        await prometheus.close()


async def test_a_server_without_a_trusted_certificate_gets_no_request() -> None:
    async with served(answering(vector()), server_context(trustme.CA())) as (url, seen):
        prometheus = asking(url)
        with pytest.raises(PrometheusAway, match=r"not trusted .*; see --prometheus-ca-file"):
            await prometheus.query("x")
        await prometheus.close()
    assert seen.requests == []


async def test_a_name_and_password_in_the_url_are_sent_but_not_shown() -> None:
    async with served(answering({}, 500)) as (url, seen):
        prometheus = asking(url.replace("http://", "http://me:s3cret%21@"))
        with pytest.raises(PrometheusAway) as caught:
            await prometheus.query("x")
        await prometheus.close()
    assert seen.tokens == ["Basic bWU6czNjcmV0IQ=="]
    assert "s3cret" not in str(caught.value)


def test_an_invalid_certificate_authority_file_is_refused_with_the_name_of_its_flag(tmp_path: Path) -> None:
    (tmp_path / "ca.crt").write_text("no certificate")
    with pytest.raises(AccessError, match="see --prometheus-ca-file"):
        access_of("https://prometheus:9090", ca_file=tmp_path / "ca.crt")


@pytest.mark.parametrize("url", ["prometheus:9090", "ftp://x", "http://", "http://x:99999", "http://x/?a=b"])
def test_an_invalid_url_is_refused_without_being_quoted(url: str) -> None:
    with pytest.raises(AccessError, match="expected http"):
        access_of(url)
