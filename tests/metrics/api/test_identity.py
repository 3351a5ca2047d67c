"""Authentication of front proxies and clients by their certificates and of tokens by review; headers alone are never trusted."""

import asyncio
import ssl
import time
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.metrics.api.scene import HPA, Scene, pod, scene

from gpuscaler.serving.certificates import CertificateAuthority

pytestmark = pytest.mark.looptime(False)

PATH = "/apis/custom.metrics.k8s.io/v1beta1/namespaces/default/pods/*/duty_cycle_current"
#: Headers of an attacker.
FORGED = [("X-Remote-User", "admin"), ("X-Remote-Group", "system:masters")]


async def asked_about(made: Scene) -> dict[str, Any]:
    """The user of the last review."""
    spec = made.reviewing.specs[-1]
    return {key: value for key, value in spec.items() if key in ("user", "groups", "uid", "extra")}


async def test_user_groups_and_extras_are_taken_from_the_headers_of_a_front_proxy(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.source.values = [pod("a", "42")]
        headers = [
            ("X-Remote-Group", "one"),
            ("X-Remote-Group", "two"),
            ("X-Remote-Uid", "u-1"),
            ("X-Remote-Extra-Example.com%2fScopes", "read"),
            ("X-Remote-Extra-Example.com%2fScopes", "list"),
        ]
        assert (await made.get(PATH, headers=headers)).status == 200
        assert await asked_about(made) == {
            "user": HPA,
            "groups": ["one", "two", "system:authenticated"],
            "uid": "u-1",
            "extra": {"example.com/scopes": ["read", "list"]},
        }


async def test_a_user_in_hundreds_of_groups_is_accepted(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.source.values = [pod("a", "42")]
        groups = [f"group-{number}" for number in range(1000)]
        assert (await made.get(PATH, headers=[("X-Remote-Group", group) for group in groups])).status == 200
        assert (await asked_about(made))["groups"] == [*groups, "system:authenticated"]


async def test_headers_without_a_certificate_are_not_trusted(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.reviewing.allows = lambda spec: spec["user"] != "system:anonymous"
        answer = await made.ask(PATH, None, FORGED)
        assert answer.status == 403
        assert 'User "system:anonymous" cannot get' in answer.json["message"]
        assert await asked_about(made) == {"user": "system:anonymous", "groups": ["system:unauthenticated"]}


async def test_headers_with_a_clients_own_certificate_are_not_trusted(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        assert (await made.get(PATH, pair=made.clients.issue("jane", groups=("devs",)), headers=FORGED)).status == 200
        assert await asked_about(made) == {"user": "jane", "groups": ["devs", "system:authenticated"]}


async def test_a_client_certificate_with_a_proxys_name_is_not_a_proxy(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        assert (await made.get(PATH, pair=made.clients.issue("front-proxy-client"), headers=FORGED)).status == 200
        assert await asked_about(made) == {"user": "front-proxy-client", "groups": ["system:authenticated"]}


async def test_a_certificate_of_the_proxies_authority_for_another_name_is_refused(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        answer = await made.get(PATH, pair=made.proxies.issue("other"), headers=FORGED)
        assert answer.status == 401
        assert answer.body == (
            b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"Unauthorized","reason":"Unauthorized","code":401}\n'
        )
        made.configured(names="[]")
        assert (await made.get(PATH, pair=made.proxies.issue("other"), headers=FORGED)).status == 200


async def test_a_certificate_of_an_unknown_authority_ends_the_handshake(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        stranger = CertificateAuthority("front-proxy-ca", now=time.time())
        with pytest.raises((aiohttp.ClientError, ssl.SSLError)):
            await made.get(PATH, pair=stranger.issue("front-proxy-client"), headers=FORGED)
        assert made.source.asked == []


async def test_a_removed_certificate_authority_is_no_longer_trusted_even_on_open_connections(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        pair = made.proxies.issue("front-proxy-client")
        reader, writer = await asyncio.open_connection("127.0.0.1", int(made.url.rpartition(":")[2]), ssl=made.context(pair))

        async def again() -> bytes:
            writer.write(f"GET {PATH} HTTP/1.1\r\nHost: x\r\nX-Remote-User: {HPA}\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
            await reader.readexactly(length)
            return head.split(b"\r\n")[0]

        assert await again() == b"HTTP/1.1 200 OK"
        later = CertificateAuthority("front-proxy-ca", now=time.time())
        made.configured(proxies=later)
        assert await again() == b"HTTP/1.1 401 Unauthorized"
        writer.close()
        assert (await made.get(PATH, pair=later.issue("front-proxy-client"), headers=[("X-Remote-User", HPA)])).status == 200


async def test_an_expired_proxy_certificate_is_not_trusted(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.api.wall = lambda: time.time() + 366 * 86400
        assert (await made.get(PATH)).status == 401


async def test_a_token_belongs_to_the_user_of_its_review_and_is_reviewed_once(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.reviewing.tokens["good"] = {"username": "robot", "uid": "7", "groups": ["bots"], "extra": {"pod": ["x"]}}
        for _ in range(2):
            assert (await made.ask(PATH, None, [("Authorization", "Bearer good"), *FORGED])).status == 200
        assert await asked_about(made) == {
            "user": "robot",
            "uid": "7",
            "groups": ["bots", "system:authenticated"],
            "extra": {"pod": ["x"]},
        }
        assert [spec for spec in made.reviewing.specs if "token" in spec] == [{"token": "good"}]
        assert (await made.ask(PATH, None, [("Authorization", "Bearer bad")])).status == 401


async def test_a_token_that_cannot_be_checked_is_rejected_and_not_cached(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.reviewing.tokens["good"] = {"username": "robot"}
        made.reviewing.away = True
        assert (await made.ask(PATH, None, [("Authorization", "Bearer good")])).status == 401
        made.reviewing.away = False
        assert (await made.ask(PATH, None, [("Authorization", "Bearer good")])).status == 200


@pytest.mark.parametrize(("known", "lines"), [(False, 1), (True, 15)])
async def test_request_headers_are_limited_to_64_kib_or_1_mib_with_a_client_certificate(tmp_path: Path, known: bool, lines: int) -> None:
    async with scene(tmp_path) as made:
        context = made.context(made.clients.issue("other") if known else None)
        reader, writer = await asyncio.open_connection("127.0.0.1", int(made.url.rpartition(":")[2]), ssl=context)
        fields = b"".join(b"X-%d: %s\r\n" % (number, b"x" * 60_000) for number in range(lines))
        for _ in range(3):
            writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n" + fields + b"\r\n")
            assert (await reader.readuntil(b"\r\n\r\nok")).startswith(b"HTTP/1.1 200 OK")
        writer.write(b"GET /livez HTTP/1.1\r\nHost: x\r\n")
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await sent(writer, fields, times=100)
        writer.transport.abort()


async def sent(writer: asyncio.StreamWriter, piece: bytes, *, times: int) -> None:
    """An endless head: ``piece`` is not a complete one."""
    for _ in range(times):
        writer.write(piece)
        await writer.drain()
