"""Tokens are had in three ways, kept until shortly before their end, and shown nowhere."""

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.clouds.azure.api.scripted import START, Asked, Say, Server, serving

from gpuscaler.clouds.azure.api.credentials import Credentials, FixedToken, TokenSource, credentials_from
from gpuscaler.clouds.azure.api.http import Http, HttpReply
from gpuscaler.clouds.protocol import THROTTLED, UNAUTHORISED, UNKNOWN, CloudError

pytestmark = pytest.mark.looptime(False)
TENANT, CLIENT, SECRET, ASSERTION = "tenant-1", "client-1", "s3cr3t+value/=", "eyJ.service.account"
TOKEN = Say(200, {"token_type": "Bearer", "expires_in": 3600, "access_token": "access-1"})


def token(name: str, **more: Any) -> Say:
    return Say(200, {"token_type": "Bearer", "expires_in": 3600, "access_token": name, **more})


def refusal(number: str, text: str = "something is wrong.", status: int = 401) -> Say:
    description = f"AADSTS{number}: {text} Trace ID: 0b1c Correlation ID: 2d3e Timestamp: 2026-11-01 00:00:00Z"
    return Say(status, {"error": "invalid_client", "error_description": description, "error_codes": [int(number)]})


class Clock:
    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> float:
        return self.time


@asynccontextmanager
async def source(
    way: str, *answers: Say, file: Path | None = None, more: Mapping[str, str] = {}
) -> AsyncIterator[tuple[Credentials, Server, Clock]]:
    """Credentials of one kind, and the server that they ask."""
    clock, http = Clock(), Http()
    async with serving(*answers) as server:
        environ = {"AZURE_TENANT_ID": TENANT, "AZURE_CLIENT_ID": CLIENT, "AZURE_AUTHORITY_HOST": server.url}
        if way == "workload identity":
            assert file is not None
            environ["AZURE_FEDERATED_TOKEN_FILE"] = str(file)
        elif way == "secret":
            environ["AZURE_CLIENT_SECRET"] = SECRET
        else:
            environ = {"AZURE_POD_IDENTITY_AUTHORITY_HOST": server.url}
        yield credentials_from({**environ, **more}, http, clock), server, clock
        await http.close()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "azure-identity-token"
    path.write_text(f"{ASSERTION}\n")
    return path


def fields(asked: Asked) -> Mapping[str, str]:
    return {name: values[0] for name, values in parse_qs(asked.body.decode(), strict_parsing=True).items()}


async def test_workload_identity_exchanges_the_token_in_the_file(file: Path) -> None:
    async with source("workload identity", TOKEN, file=file) as (credentials, server, _):
        assert await credentials.token() == "access-1"

    (asked,) = server.asked
    assert (asked.method, asked.path) == ("POST", f"/{TENANT}/oauth2/v2.0/token")
    assert asked.headers["content-type"] == "application/x-www-form-urlencoded"
    assert fields(asked) == {
        "grant_type": "client_credentials",
        "client_id": CLIENT,
        "scope": "https://management.azure.com/.default",
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        "client_assertion": ASSERTION,
    }


async def test_the_file_is_read_again_at_every_exchange(file: Path) -> None:
    async with source("workload identity", TOKEN, file=file) as (credentials, server, clock):
        await credentials.token()
        await asyncio.to_thread(file.write_text, "eyJ.renewed.token")
        clock.time += 3600
        await credentials.token()

    assert [fields(asked)["client_assertion"] for asked in server.asked] == [ASSERTION, "eyJ.renewed.token"]


async def test_a_client_secret_is_sent_to_the_authority_of_the_tenant() -> None:
    async with source("secret", TOKEN) as (credentials, server, _):
        assert await credentials.token() == "access-1"

    assert fields(server.asked[0])["client_secret"] == SECRET
    assert "client_assertion" not in fields(server.asked[0])


@pytest.mark.parametrize(("more", "query"), [({}, {}), ({"AZURE_CLIENT_ID": "chosen"}, {"client_id": "chosen"})])
async def test_a_managed_identity_asks_the_metadata_service(more: dict[str, str], query: dict[str, str]) -> None:
    answer = token("access-1", expires_in="86399", expires_on=str(int(START) + 86_399))
    async with source("managed identity", answer, more=more) as (credentials, server, _):
        assert await credentials.token() == "access-1"

    (asked,) = server.asked
    assert (asked.method, asked.path, asked.headers["metadata"]) == ("GET", "/metadata/identity/oauth2/token", "true")
    assert asked.query == {"api-version": "2018-02-01", "resource": "https://management.azure.com/", **query}


async def test_a_file_takes_precedence_over_a_secret(file: Path) -> None:
    async with source("workload identity", TOKEN, file=file, more={"AZURE_CLIENT_SECRET": SECRET}) as (credentials, server, _):
        await credentials.token()

    assert "client_secret" not in fields(server.asked[0])


async def test_the_scope_is_that_of_the_endpoint() -> None:
    async with serving(TOKEN) as server:
        http = Http()
        environ = {
            "AZURE_TENANT_ID": TENANT,
            "AZURE_CLIENT_ID": CLIENT,
            "AZURE_CLIENT_SECRET": SECRET,
            "AZURE_AUTHORITY_HOST": f"{server.url}/",
        }
        await credentials_from(environ, http, Clock(), endpoint_url="https://management.usgovcloudapi.net/").token()
        await http.close()

    assert fields(server.asked[0])["scope"] == "https://management.usgovcloudapi.net/.default"


async def test_a_token_is_kept_until_five_minutes_before_its_end() -> None:
    async with source("secret", token("first"), token("second")) as (credentials, server, clock):
        assert await credentials.token() == "first"
        clock.time += 3299
        assert await credentials.token() == "first"
        clock.time += 1
        assert await credentials.token() == "second"

    assert len(server.asked) == 2


async def test_a_token_of_a_few_minutes_is_kept_for_half_of_its_life() -> None:
    async with source("secret", token("first", expires_in=200), token("second")) as (credentials, _, clock):
        await credentials.token()
        clock.time += 99
        assert await credentials.token() == "first"
        clock.time += 1
        assert await credentials.token() == "second"


async def test_many_calls_at_once_make_one_exchange() -> None:
    async with source("secret", TOKEN) as (credentials, server, _):
        assert await asyncio.gather(*(credentials.token() for _ in range(20))) == ["access-1"] * 20

    assert len(server.asked) == 1


async def test_a_token_serves_to_its_end_if_no_new_one_can_be_had() -> None:
    async with source("secret", token("first"), Say(503)) as (credentials, server, clock):
        await credentials.token()
        clock.time += 3400
        assert await credentials.token() == "first"
        assert await credentials.token() == "first"
        assert len(server.asked) == 2
        clock.time += 200
        with pytest.raises(CloudError, match="answered 503"):
            await credentials.token()


async def test_a_failure_is_not_repeated_for_seconds() -> None:
    async with source("secret", Say(503), TOKEN) as (credentials, server, clock):
        for _ in range(5):
            with pytest.raises(CloudError):
                await credentials.token()
        assert len(server.asked) == 1
        clock.time += 5
        assert await credentials.token() == "access-1"


async def test_a_rejected_token_is_replaced_at_once_and_only_once() -> None:
    async with source("secret", token("first"), token("second")) as (credentials, server, _):
        first = await credentials.token()
        credentials.reject(first)
        assert await credentials.token() == "second"
        credentials.reject(first)
        assert await credentials.token() == "second"

    assert len(server.asked) == 2


@pytest.mark.parametrize(
    ("number", "text"),
    [
        ("700016", "saw no application or identity client-1 in tenant tenant-1; correct AZURE_CLIENT_ID or AZURE_TENANT_ID"),
        ("700024", "saw an expired token of the ServiceAccount, expected a current one; kubelet renews the file"),
        ("90002", "saw no tenant tenant-1; correct AZURE_TENANT_ID, or AZURE_AUTHORITY_HOST in a national cloud"),
        ("7000215", "saw a wrong client secret of client-1, expected its value, not its id; correct AZURE_CLIENT_SECRET"),
        ("7000222", "saw an expired client secret of client-1; make a new one, or use workload identity"),
        ("70021", "saw no federated credential of client-1 for this ServiceAccount (issuer, subject or audience differs)"),
        ("700213", "(the subject differs), expected one with the OIDC issuer of the cluster"),
        ("500011", "saw no service with the address of settings' azure.endpoint_url in tenant tenant-1"),
        ("999999", "answered 401: invalid_client AADSTS999999: something is wrong."),
    ],
)
async def test_a_refusal_of_entra_says_what_to_do(number: str, text: str, file: Path) -> None:
    async with source("workload identity", refusal(number), file=file) as (credentials, _, _):
        with pytest.raises(CloudError) as raised:
            await credentials.token()

    detail = raised.value.detail
    assert raised.value.cause == UNAUTHORISED
    assert detail.startswith("workload identity of Azure: ")
    assert text in detail
    assert f"AADSTS{number}" in detail
    assert "Trace ID" not in detail
    assert "\n" not in detail


@pytest.mark.parametrize(
    ("say", "cause"),
    [
        (Say(429, {}, {"Retry-After": "17"}), THROTTLED),
        (Say(500, "<html>", {"Retry-After": "17"}), UNKNOWN),
        (Say(400, "{"), UNAUTHORISED),
        (Say(200, {"token_type": "Bearer"}), UNKNOWN),
        (token("with space"), UNKNOWN),
        (token("line\r\nx-evil: 1"), UNKNOWN),
        (Say(200, []), UNKNOWN),
        (Say(200, "[" * 100_000), UNKNOWN),
        (Say(302, None, {"Location": "http://127.0.0.1:9/"}), UNAUTHORISED),
        (Say(sever="before"), UNKNOWN),
        (Say(sever="body"), UNKNOWN),
    ],
)
async def test_other_answers_have_a_cause(say: Say, cause: str) -> None:
    async with source("secret", say) as (credentials, _, _):
        with pytest.raises(CloudError) as raised:
            await credentials.token()

    assert raised.value.cause == cause
    assert raised.value.retry_after == (17 if "Retry-After" in say.headers else 0)


async def test_a_managed_identity_that_does_not_exist_says_so() -> None:
    answer = Say(400, {"error": "invalid_request", "error_description": "Identity not found"})
    async with source("managed identity", answer) as (credentials, _, _):
        with pytest.raises(CloudError, match="no such identity on this machine; assign it to the VM"):
            await credentials.token()


async def test_without_a_metadata_service_the_error_names_the_other_ways() -> None:
    http = Http()
    credentials = credentials_from({"AZURE_POD_IDENTITY_AUTHORITY_HOST": "http://127.0.0.1:1"}, http, Clock())
    with pytest.raises(CloudError, match="neither AZURE_FEDERATED_TOKEN_FILE nor AZURE_CLIENT_SECRET is set"):
        await credentials.token()
    await http.close()


@pytest.mark.parametrize("content", [None, b"", b"two\nlines", b"\xff\xfe", b"x" * 70_000])
async def test_a_file_without_a_token_is_named(content: bytes | None, file: Path) -> None:
    await asyncio.to_thread(file.unlink if content is None else partial(file.write_bytes, content))
    async with source("workload identity", TOKEN, file=file) as (credentials, server, _):
        with pytest.raises(CloudError, match=f"AZURE_FEDERATED_TOKEN_FILE={file}") as raised:
            await credentials.token()

    assert raised.value.cause == UNAUTHORISED
    assert "azure.workload.identity/use" in raised.value.detail
    assert "xxx" not in raised.value.detail
    assert server.asked == []


@pytest.mark.parametrize(
    ("environ", "text"),
    [
        ({"AZURE_FEDERATED_TOKEN_FILE": "/f", "AZURE_TENANT_ID": TENANT}, "saw AZURE_FEDERATED_TOKEN_FILE without AZURE_CLIENT_ID"),
        ({"AZURE_FEDERATED_TOKEN_FILE": "/f", "AZURE_CLIENT_ID": CLIENT}, "saw AZURE_FEDERATED_TOKEN_FILE without AZURE_TENANT_ID"),
        ({"AZURE_CLIENT_SECRET": SECRET, "AZURE_CLIENT_ID": CLIENT}, "saw AZURE_CLIENT_SECRET without AZURE_TENANT_ID, expected both"),
        (
            {
                "AZURE_CLIENT_SECRET": SECRET,
                "AZURE_CLIENT_ID": CLIENT,
                "AZURE_TENANT_ID": TENANT,
                "AZURE_AUTHORITY_HOST": "http://login.example",
            },
            "saw AZURE_AUTHORITY_HOST=http://login.example, expected https://…; nothing was sent there",
        ),
    ],
)
async def test_incomplete_credentials_say_what_is_missing(environ: dict[str, str], text: str) -> None:
    credentials = credentials_from(environ, Http(), Clock())
    credentials.reject("x")
    with pytest.raises(CloudError) as raised:
        await credentials.token()

    assert raised.value.cause == UNAUTHORISED
    assert text in raised.value.detail
    assert SECRET not in raised.value.detail


async def test_a_fixed_token_stays() -> None:
    credentials = FixedToken("t")
    credentials.reject("t")

    assert await credentials.token() == "t"


async def test_no_secret_is_in_errors_representations_or_logs(caplog: pytest.LogCaptureFixture, file: Path) -> None:
    caplog.set_level(logging.DEBUG)
    texts = []
    for way, proof in (("secret", SECRET), ("workload identity", ASSERTION)):
        echo = {"error": "invalid_client", "error_description": f"AADSTS7000215: not {proof}, {quote(proof, safe='')}, {quote_plus(proof)}"}
        for say in (Say(401, echo), Say(sever="before"), Say(500, echo), Say(429, echo), TOKEN):
            async with source(way, say, file=file) as (credentials, _, _):
                failure = (await asyncio.gather(credentials.token(), return_exceptions=True))[0]
                if isinstance(failure, CloudError):
                    texts.append(f"{failure!r} {failure.__context__!r} {failure.__cause__!r} {vars(failure)}")
                inside = vars(credentials)["_exchange"]
                texts.append(f"{credentials!r} {inside!r} {vars(inside)!r}")

    assert len(texts) == 18
    for hidden in (ASSERTION, "s3cr3t"):
        assert hidden not in " ".join(texts)
        assert hidden not in caplog.text
    assert "access-1" not in " ".join(texts) + caplog.text


@given(
    st.dictionaries(
        st.sampled_from(["access_token", "expires_in", "expires_on", "error", "error_description"]), st.none() | st.text() | st.integers()
    )
)
def test_no_answer_makes_reading_a_token_fail(answer: dict[str, Any]) -> None:

    class Exchange:
        name, client, tenant = "x", "c", "t"

        async def __call__(self) -> tuple[HttpReply, tuple[str, ...]]:
            return HttpReply(200, {}, json.dumps(answer).encode()), ()

    async def outcome() -> str | BaseException:
        return (await asyncio.gather(TokenSource(Exchange(), Clock()).token(), return_exceptions=True))[0]

    found = asyncio.run(outcome())

    assert found == answer.get("access_token") or (isinstance(found, CloudError) and found.cause == UNKNOWN)
