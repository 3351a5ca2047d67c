"""The certificate authorities in the cluster's ConfigMap are watched, and kept if the ConfigMap cannot be read."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import Unreachable
from gpuscaler.kube.transport import Answer, Request
from gpuscaler.metrics.api.trust import NAME, Trust, TrustError, WatchedTrust, parse_trust
from gpuscaler.serving.certificates import CertificateAuthority

CA = CertificateAuthority("front-proxy-ca", now=time.time()).certificate.decode()
OTHER = CertificateAuthority("front-proxy-ca", now=time.time()).certificate.decode()
#: The ConfigMap as kube-apiserver writes it in a cluster made by kubeadm.
DATA = {
    "client-ca-file": OTHER,
    "requestheader-client-ca-file": CA,
    "requestheader-allowed-names": '["front-proxy-client"]',
    "requestheader-username-headers": '["X-Remote-User"]',
    "requestheader-group-headers": '["X-Remote-Group"]',
    "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
    "requestheader-uid-headers": '["X-Remote-Uid"]',
}


class Cluster:
    """A transport to an API server with the ConfigMap; ``events`` are those of its watches."""

    def __init__(self, data: dict[str, str]) -> None:
        self.data, self.version, self.away = data, 1, False
        self.requests: list[Request] = []
        self.events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

    def change(self, **data: str) -> None:
        self.data, self.version = {**self.data, **data}, self.version + 1
        self.events.put_nowait({"type": "MODIFIED", "object": self.object()})

    def object(self) -> dict[str, Any]:
        return {"metadata": {"name": NAME, "resourceVersion": str(self.version)}, "data": self.data}

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        self.requests.append(request)
        await asyncio.sleep(0)
        if self.away:
            raise Unreachable("the API server is away")
        pieces = self._watch() if "watch" in request.query else self._once()
        yield Answer(200, {"content-type": "application/json"}, pieces)

    async def _once(self) -> AsyncIterator[bytes]:
        yield msgspec.json.encode(self.object())

    async def _watch(self) -> AsyncIterator[bytes]:
        while (event := await self.events.get()) is not None:
            yield msgspec.json.encode(event) + b"\n"

    async def close(self) -> None:
        pass


@asynccontextmanager
async def watched(cluster: Cluster, **given: str) -> AsyncIterator[tuple[WatchedTrust, list[Trust]]]:
    trusts: list[Trust] = []
    trust = WatchedTrust(Client(cluster), lambda: given, trusts.append)
    task = asyncio.create_task(trust.run())
    await asyncio.sleep(0.1)
    try:
        yield trust, trusts
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def test_every_key_of_the_authentication_config_map_is_read() -> None:
    trust = parse_trust(DATA)
    assert (len(trust.proxies), len(trust.clients)) == (1, 1)
    assert trust.proxies != trust.clients
    assert trust.proxy_names == {"front-proxy-client"}
    assert (trust.user_headers, trust.group_headers, trust.uid_headers) == (("X-Remote-User",), ("X-Remote-Group",), ("X-Remote-Uid",))
    assert trust.extra_prefixes == ("X-Remote-Extra-",)


def test_an_empty_config_map_trusts_nothing() -> None:
    trust = parse_trust({})
    assert (trust.proxies, trust.clients, trust.user_headers) == ((), (), ())


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("client-ca-file", "-----BEGIN NOTHING-----", "client-ca-file: saw 23 bytes that are not PEM certificates"),
        ("requestheader-allowed-names", "front-proxy-client", "requestheader-allowed-names: saw 'front-proxy-client'"),
        ("requestheader-username-headers", '{"a": 1}', "requestheader-username-headers"),
    ],
)
def test_an_invalid_key_of_the_config_map_is_named_in_the_error(key: str, text: str, message: str) -> None:
    with pytest.raises(TrustError, match="saw") as caught:
        parse_trust({**DATA, key: text})
    assert message in str(caught.value)


async def test_a_change_of_the_config_map_is_used_immediately_through_a_watch_by_name() -> None:
    cluster = Cluster(DATA)
    async with watched(cluster) as (trust, trusts):
        assert (trust.is_loaded, trust.trouble, len(trusts)) == (True, "", 1)
        cluster.change(**{"requestheader-allowed-names": '["another"]'})
        await asyncio.sleep(0.1)
        assert trusts[-1].proxy_names == {"another"}
    (watch,) = [request for request in cluster.requests if "watch" in request.query]
    assert watch.query["fieldSelector"] == f"metadata.name={NAME}"
    assert watch.query["resourceVersion"] == "1"


async def test_a_watch_that_ends_is_restarted_and_equal_data_keeps_the_trust() -> None:
    cluster = Cluster(DATA)
    async with watched(cluster) as (_, trusts):
        cluster.events.put_nowait(None)
        await asyncio.sleep(5)
        assert len([request for request in cluster.requests if "watch" in request.query]) == 2
        assert len(trusts) == 1


async def test_invalid_data_in_the_config_map_is_reported_and_the_previous_trust_is_kept() -> None:
    cluster = Cluster(DATA)
    async with watched(cluster) as (trust, trusts):
        cluster.change(**{"client-ca-file": "broken"})
        await asyncio.sleep(3)
        assert "client-ca-file: saw 6 bytes" in trust.trouble
        assert (trust.is_loaded, len(trusts)) == (True, 1)
        cluster.change(**{"client-ca-file": CA})
        await asyncio.sleep(60)
        assert (trust.trouble, len(trusts)) == ("", 2)


async def test_the_trust_is_kept_if_the_config_map_is_deleted() -> None:
    cluster = Cluster(DATA)
    async with watched(cluster) as (trust, trusts):
        cluster.events.put_nowait({"type": "DELETED", "object": cluster.object()})
        await asyncio.sleep(5)
        assert (trust.is_loaded, len(trusts)) == (True, 1)


async def test_requests_to_an_unavailable_api_server_back_off() -> None:
    cluster = Cluster(DATA)
    cluster.away = True
    async with watched(cluster) as (trust, trusts):
        await asyncio.sleep(600)
        assert "is away" in trust.trouble
        assert (trust.is_loaded, trusts) == (False, [])
        assert len(cluster.requests) < 150
        cluster.away = False
        await asyncio.sleep(40)
        assert (trust.is_loaded, trust.trouble, len(trusts)) == (True, "", 1)


async def test_flags_take_precedence_over_the_config_map() -> None:
    async with watched(Cluster(DATA), **{"client-ca-file": CA}) as (_, trusts):
        assert trusts[-1].clients == parse_trust({"client-ca-file": CA}).clients


async def test_the_config_map_is_not_read_if_files_are_given_for_all_authorities() -> None:
    cluster, trusts = Cluster(DATA), list[Trust]()
    files = {"client-ca-file": CA, "requestheader-client-ca-file": CA}

    def given() -> dict[str, str]:
        if not files:
            raise TrustError("--client-ca-file ca.crt: saw No such file")
        return dict(files)

    trust = WatchedTrust(Client(cluster), given, trusts.append)
    task = asyncio.create_task(trust.run())
    await asyncio.sleep(0.1)
    assert (trust.is_loaded, len(trusts), cluster.requests) == (True, 1, [])
    files["client-ca-file"] = OTHER
    await asyncio.sleep(61)
    assert (len(trusts), trusts[-1].clients) == (2, parse_trust(DATA).clients)
    files.clear()
    await asyncio.sleep(61)
    assert (trust.is_loaded, len(trusts), trust.trouble) == (True, 2, "--client-ca-file ca.crt: saw No such file")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
