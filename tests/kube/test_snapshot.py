"""A cluster listed once, from servers of different releases and with different permissions."""

import time
from contextlib import AbstractAsyncContextManager

import pytest

from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import Forbidden, Gone, NotFound
from gpuscaler.kube.snapshot import snapshot
from gpuscaler.kube.transport import Answer, Request

MISSING = Failure(404, "NotFound", "the server could not find the requested resource")
FORBIDDEN = Failure(403, "Forbidden", "it is forbidden: User cannot list it")


class Noting:
    """A transport that remembers the requests."""

    def __init__(self, api: ApiServer) -> None:
        self._inner = MemoryTransport(api)
        self.paths: list[str] = []

    def exchange(self, request: Request) -> AbstractAsyncContextManager[Answer]:
        self.paths.append(request.path)
        return self._inner.exchange(request)

    async def close(self) -> None:
        await self._inner.close()


@pytest.fixture
def api() -> ApiServer:
    server = ApiServer(time.time)
    server.load([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n"}}])
    return server


async def test_a_snapshot_contains_every_object(api: ApiServer) -> None:
    seen = await snapshot(Client(MemoryTransport(api)))

    assert (list(seen.cluster.nodes), seen.withheld) == (["n"], ())
    assert "system-cluster-critical" in seen.cluster.priority_classes


async def test_an_older_version_of_a_resource_is_listed_if_the_server_has_no_newer_one(api: ApiServer) -> None:
    api.faults.add(Fault(path="resource.k8s.io/v1/", refusal=MISSING))
    transport = Noting(api)
    await snapshot(Client(transport))

    assert "/apis/resource.k8s.io/v1/resourceslices" in transport.paths
    assert "/apis/resource.k8s.io/v1beta2/resourceslices" in transport.paths


async def test_an_unreadable_object_is_set_aside_and_the_rest_is_included(api: ApiServer) -> None:
    api.load([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "odd"}, "status": {"allocatable": {"cpu": "many"}}}])
    seen = await snapshot(Client(MemoryTransport(api)))

    assert list(seen.cluster.nodes) == ["n"]
    assert [skipped.object for skipped in seen.cluster.set_aside] == ["Node odd"]


async def test_a_forbidden_optional_resource_is_reported_and_a_required_one_raises(api: ApiServer) -> None:
    api.faults.add(Fault(path="/resourceslices", refusal=FORBIDDEN))
    assert (await snapshot(Client(MemoryTransport(api)))).withheld == ("resourceslices.resource.k8s.io",)

    api.faults.add(Fault(path="/poddisruptionbudgets", refusal=FORBIDDEN))
    with pytest.raises(Forbidden):
        await snapshot(Client(MemoryTransport(api)))


async def test_a_server_that_is_not_kubernetes_is_distinguished_from_an_empty_cluster(api: ApiServer) -> None:
    api.faults.add(Fault(refusal=MISSING))
    with pytest.raises(NotFound):
        await snapshot(Client(MemoryTransport(api)))


async def test_a_list_that_expires_between_two_pages_is_restarted_once(api: ApiServer) -> None:
    api.load({"apiVersion": "v1", "kind": "Node", "metadata": {"name": f"n{number}"}} for number in range(700))
    expired = Failure(410, "Expired", "The provided continue parameter is too old")
    api.faults.add(Fault(path="/nodes.*continue=.", refusal=expired, times=1))
    assert len((await snapshot(Client(MemoryTransport(api)))).cluster.nodes) == 701

    api.faults.add(Fault(path="/nodes.*continue=.", refusal=expired))
    with pytest.raises(Gone):
        await snapshot(Client(MemoryTransport(api)))
