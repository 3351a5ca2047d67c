"""Bindings when the cluster has changed, or refuses them."""

from typing import Any

import msgspec
import pytest
from tests.objects import node, pod

from gpuscaler.control.loop.cluster_writes import ClusterWriter, Outcome
from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.kube.rate import RateLimit
from gpuscaler.kube.resources import NODES, PODS
from gpuscaler.lifecycle.actions import Bind

pytestmark = pytest.mark.looptime(noop_cycles=1)
FORBIDDEN = Failure(403, "Forbidden", 'pods "p" is forbidden: User "gpuscaler" cannot create resource "pods/binding" in API group ""')
WEBHOOK = Failure(400, "BadRequest", 'admission webhook "guard.example" denied the request: bindings come from the scheduler')


class Cluster:
    """A node with ``gpus``, a pod, and a client that may bind."""

    def __init__(self, gpus: int = 8) -> None:
        self.api = ApiServer(lambda: 1_790_000_000.0)
        self.user = self._client()
        self.actor = ClusterWriter(self._client())
        self.gpus = gpus

    def _client(self) -> Client:
        return Client(MemoryTransport(self.api), limit=RateLimit(qps=1e6, burst=1_000_000))

    async def begin(self) -> str:
        """Create both; return the pod's uid."""
        await self.user.create(NODES, node("a", self.gpus))
        return await self.submit()

    async def submit(self) -> str:
        made: dict[str, Any] = msgspec.json.decode(await self.user.create(PODS, pod("p"), namespace="default"))
        return str(made["metadata"]["uid"])

    async def bind(self, uid: str) -> Outcome:
        (outcome,) = await self.actor.carry_out([Bind("default/p", uid, "a", {"nvidia.com/gpu": 8})])
        return outcome

    async def runs_on(self) -> str:
        wire_pod = msgspec.json.decode(await self.user.get(PODS, "p", namespace="default"))
        return str(wire_pod["spec"].get("nodeName", ""))


async def test_a_promised_pod_is_bound_if_its_node_is_unchanged() -> None:
    here = Cluster()
    outcome = await here.bind(await here.begin())

    assert outcome.detail == ""
    assert await here.runs_on() == "a"


async def test_no_pod_is_bound_to_a_node_while_its_device_plugin_restarts() -> None:
    here = Cluster(gpus=0)
    outcome = await here.bind(await here.begin())

    assert (
        outcome.detail == "pod default/p: node a shows 0 nvidia.com/gpu now, and 8 before; the pod is bound once the node offers them again"
    )
    assert not outcome.lasting
    assert await here.runs_on() == ""


async def test_no_pod_is_bound_to_a_deleted_node() -> None:
    here = Cluster()
    uid = await here.begin()
    await here.user.delete(NODES, "a")
    outcome = await here.bind(uid)

    assert "not found" in outcome.detail
    assert await here.runs_on() == ""


async def test_a_pod_recreated_under_the_name_of_a_promised_pod_is_not_bound() -> None:
    here = Cluster()
    before = await here.begin()
    await here.user.delete(PODS, "p", namespace="default", grace=0)
    await here.submit()
    outcome = await here.bind(before)

    assert outcome.detail.startswith("pod default/p: ")
    assert not outcome.lasting
    assert await here.runs_on() == ""


async def test_a_pod_that_another_scheduler_bound_keeps_its_node_and_that_is_reported() -> None:
    here = Cluster()
    uid = await here.begin()
    await here.user.bind("default", "p", "b")
    outcome = await here.bind(uid)

    assert 'already assigned to node "b"' in outcome.detail
    assert await here.runs_on() == "b"


async def test_a_binding_whose_answer_was_lost_counts_as_done() -> None:
    here = Cluster()
    uid = await here.begin()
    await here.user.bind("default", "p", "a")

    assert (await here.bind(uid)).detail == ""


@pytest.mark.parametrize("refusal", [FORBIDDEN, WEBHOOK])
async def test_a_permanently_refused_binding_is_reported_with_its_reason(refusal: Failure) -> None:
    here = Cluster()
    uid = await here.begin()
    here.api.faults.add(Fault("POST", "/binding", refusal=refusal))
    outcome = await here.bind(uid)

    assert outcome.lasting
    assert refusal.message in outcome.detail
