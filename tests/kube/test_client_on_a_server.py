"""The client with a server that stores objects, over TLS with a kubeconfig: writes take effect, and refusals give their reason."""

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme
import yaml
from tests import objects
from tests.kube.servers import server_context

from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.serving.server import serve
from gpuscaler.kube.access import from_kubeconfig
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import AlreadyExists, Conflict, NotFound, Unauthorized
from gpuscaler.kube.events import EventRecorder, Reference
from gpuscaler.kube.eviction import AlreadyDeleted, Evicted, Refused
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.resources import CONFIG_MAPS, CORE_EVENTS, NODES, POD_DISRUPTION_BUDGETS, PODS

pytestmark = pytest.mark.looptime(False)  # real sockets take real time

NOW = 1_700_000_000.0


@asynccontextmanager
async def connected(folder: Path, token: str = "right") -> AsyncIterator[Client]:
    ca = trustme.CA()
    server = await serve(ApiServer(lambda: NOW, tokens=["right"]), tls=server_context(ca))
    cluster = {"server": server.url, "certificate-authority-data": base64.b64encode(ca.cert_pem.bytes()).decode()}
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": token}}],
    }
    (folder / "config").write_text(yaml.safe_dump(config))
    try:
        async with HttpTransport(from_kubeconfig([folder / "config"], environ={})) as transport:
            yield Client(transport)
    finally:
        await server.close()


def pod(name: str, **labels: str) -> dict[str, Any]:
    return objects.pod(name, labels=labels, nodeName="n")


async def test_objects_are_created_read_changed_and_deleted(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        created = msgspec.json.decode(
            await client.create(CONFIG_MAPS, {"metadata": {"name": "ledger"}, "data": {"a": "1"}}, namespace="default")
        )
        with pytest.raises(AlreadyExists):
            await client.create(CONFIG_MAPS, {"metadata": {"name": "ledger"}}, namespace="default")
        await client.merge_patch(CONFIG_MAPS, "ledger", {"data": {"a": None, "b": "2"}}, namespace="default")
        with pytest.raises(Conflict):
            await client.replace(CONFIG_MAPS, "ledger", {**created, "data": {}}, namespace="default")
        stored = msgspec.json.decode(await client.get(CONFIG_MAPS, "ledger", namespace="default"))
        assert stored["data"] == {"b": "2"}
        with pytest.raises(Conflict):
            await client.delete(CONFIG_MAPS, "ledger", namespace="default", uid="another")
        await client.delete(CONFIG_MAPS, "ledger", namespace="default", uid=stored["metadata"]["uid"])
        with pytest.raises(NotFound) as raised:
            await client.get(CONFIG_MAPS, "ledger", namespace="default")
    assert raised.value.name == "ledger"


async def test_an_object_is_applied_twice(tmp_path: Path) -> None:
    status = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "status"}}
    async with connected(tmp_path) as client:
        for text in ("one", "two"):
            await client.apply(CONFIG_MAPS, "status", {**status, "data": {"text": text}}, namespace="default")
        stored = msgspec.json.decode(await client.get(CONFIG_MAPS, "status", namespace="default"))
    assert stored["data"] == {"text": "two"}


async def test_a_long_list_is_complete(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        for number in range(7):
            await client.create(PODS, pod(f"p{number}", even=str(number % 2 == 0)), namespace="default")
        pages = await client.list_all(PODS, query={"limit": "2"})
        even = await client.list_all(PODS, namespace="default", query={"labelSelector": "even=True", "limit": "3"})
    assert [msgspec.json.decode(data)["metadata"]["name"] for data in pages] == [f"p{number}" for number in range(7)]
    assert len(even) == 4


async def test_evictions_return_their_result(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        created = msgspec.json.decode(await client.create(PODS, pod("p", app="web"), namespace="default"))
        await client.merge_patch(PODS, "p", {"status": {"phase": "Running"}}, namespace="default", subresource="status")
        budget = {"metadata": {"name": "web"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}}
        await client.create(POD_DISRUPTION_BUDGETS, budget, namespace="default")
        refused = await client.evict("default", "p", uid=created["metadata"]["uid"])
        await client.delete(POD_DISRUPTION_BUDGETS, "web", namespace="default")
        answers = [
            await client.evict("default", "p", uid="another"),
            await client.evict("default", "p", dry_run=True),
            await client.evict("default", "p", uid=created["metadata"]["uid"], grace=0),
            await client.evict("default", "q"),
        ]
    assert isinstance(refused, Refused)
    assert "web" in refused.why
    assert answers == [AlreadyDeleted(), Evicted(), Evicted(), AlreadyDeleted()]


async def test_a_pod_is_bound(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        await client.create(NODES, {"metadata": {"name": "n2"}})
        free = pod("p")
        del free["spec"]["nodeName"]
        await client.create(PODS, free, namespace="default")
        await client.bind("default", "p", "n2")
        stored = msgspec.json.decode(await client.get(PODS, "p", namespace="default"))
    assert stored["spec"]["nodeName"] == "n2"


async def test_events_arrive_and_are_counted(tmp_path: Path) -> None:
    async with connected(tmp_path) as client:
        events = EventRecorder(client, lambda: NOW)
        for _ in range(2):
            events.record(Reference("Pod", "p", "default", "u"), "Waiting", "no room", action="Planning")
            await events.flush()
        (stored,) = map(msgspec.json.decode, await client.list_all(CORE_EVENTS, namespace="default"))
    assert (stored["message"], stored["series"]["count"], events.dropped) == ("no room", 2, 0)


async def test_a_wrong_token_is_refused(tmp_path: Path) -> None:
    async with connected(tmp_path, token="wrong-t0ken") as client:
        with pytest.raises(Unauthorized) as raised:
            await client.get(NODES, "n")
    assert "wrong-t0ken" not in str(raised.value)
