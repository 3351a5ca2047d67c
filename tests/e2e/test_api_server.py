"""Differences between API servers: whether lists are streamed, and a server that handles fewer requests at a time than are made."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
from tests.e2e.objects import deployment, pod, pod_spec
from tests.e2e.stage import ACCOUNT, AT_ONCE, NAMESPACE, Json, Stage, stage, until

from gpuscaler.kube.access import from_kubeconfig
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.resources import PODS, Resource
from gpuscaler.kube.transport import Request

pytestmark = pytest.mark.e2e

_FLOW_CONTROL = "flowcontrol.apiserver.k8s.io"
LEVELS = Resource(_FLOW_CONTROL, "v1", "prioritylevelconfigurations", "PriorityLevelConfiguration", namespaced=False)
SCHEMAS = Resource(_FLOW_CONTROL, "v1", "flowschemas", "FlowSchema", namespaced=False)
#: Pods of a Deployment. Each pod fills a machine.
PODS_OF_ALL = 6


@pytest.mark.parametrize("streams", [True, False], ids=["streamed", "in pages"])
def test_the_cluster_is_read_whether_lists_are_streamed_or_not(streams: bool) -> None:
    asyncio.run(_known(streams))


async def _known(streams: bool) -> None:
    async with stage(f"lists-{streams}".lower(), audit=True, features={"WatchList": streams}) as made:
        await made.namespace("w")
        for number in range(20):
            await made.create(pod(f"waits-{number}", "nowhere"), "w")
        picture = Picture(made.admin, clock=asyncio.get_running_loop().time, random=Random(1))

        async def shows(*names: str) -> bool:
            taken = await picture.take()
            taken_names = {pod.name for pod in taken.cluster.pods.values() if pod.namespace == "w"}
            return picture.synced and taken_names == {f"waits-{number}" for number in range(1, 20)} | set(names)

        watching = asyncio.create_task(picture.run())
        try:
            await until("all pods are known", lambda: shows("waits-0"))
            await made.create(pod("later", "nowhere"), "w")
            await made.admin.delete(PODS, "waits-0", namespace="w", grace=0)
            await until("what changed is known", lambda: shows("later"))
            assert picture.troubles == ()
            assert {
                reflector.resource.label: reflector.failures
                for reflector in picture.reflectors
                if reflector.failures and not reflector.absent
            } == {}
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        asked = [json.loads(line) for line in made.plane.layout.audit.read_text().splitlines()]
    pods = [
        request for request in asked if request["requestURI"].startswith("/api/v1/pods?") and request["userAgent"].startswith("gpuscaler/")
    ]
    streamed = {pod["responseStatus"]["code"] for pod in pods if "sendInitialEvents=true" in pod["requestURI"]}
    listed = {pod["responseStatus"]["code"] for pod in pods if pod["verb"] == "list"}
    assert (streamed, listed) == (({200}, set()) if streams else ({422}, {200}))


def test_machines_are_bought_once_and_removed_while_the_server_refuses_concurrent_requests() -> None:
    asyncio.run(_refused())


async def _refused() -> None:
    async with stage("refused") as made, made.kubelets():
        await made.install()
        await made.apply(LEVELS, _level())
        await made.apply(SCHEMAS, _schema())
        run_file = made.run_file("run", [{"name": "w", "types": ["g4dn.xlarge"]}], http={"enabled": False}, pace=AT_ONCE)
        controller = made.start(run_file, await made.kubeconfig())
        await made.namespace("w")
        async with _another_client(made):
            await made.create(deployment("serve", PODS_OF_ALL, pod_spec("w")), "w")

            async def ordered() -> bool:
                controller.check()
                return bool(controller.logged("ordered"))

            await until("machines are ordered", ordered)
            refused = await _rejected(made)
            await made.bound("w", PODS_OF_ALL)
            assert sum(order["pod_count"] for order in controller.logged("ordered")) == PODS_OF_ALL
            assert len(await made.nodes("w")) == PODS_OF_ALL
            await made.scale("Deployment", "serve", "w", 0)
            await made.empty("w")
            assert await _rejected(made) > refused > 0
        assert await controller.end() == 0


@asynccontextmanager
async def _another_client(made: Stage) -> AsyncIterator[None]:
    """A client of the controller's account that reads pods three times a second.

    The controller alone makes few requests at a time: on a fast server, none of them meet.
    """
    access = from_kubeconfig([await made.kubeconfig("another")], environ={})
    async with HttpTransport(access) as transport:

        async def ask() -> None:
            while True:
                async with transport.exchange(Request("GET", "/api/v1/pods")) as answer:
                    async for _ in answer.pieces:
                        pass
                await asyncio.sleep(0.3)

        asking = asyncio.create_task(ask())
        try:
            yield
            assert not asking.done(), asking
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)


def _level() -> Json:
    """A priority level that handles one request at a time and rejects the others. No share and no borrowing leave one request."""
    limited = {"nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0, "limitResponse": {"type": "Reject"}}
    return {**_body(LEVELS), "spec": {"type": "Limited", "limited": limited}}


def _schema() -> Json:
    account = {"kind": "ServiceAccount", "serviceAccount": {"name": ACCOUNT, "namespace": NAMESPACE}}
    everything = {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "clusterScope": True, "namespaces": ["*"]}
    rules = [{"subjects": [account], "resourceRules": [everything]}]
    level = {"name": _body(LEVELS)["metadata"]["name"]}
    return {**_body(SCHEMAS), "spec": {"matchingPrecedence": 100, "priorityLevelConfiguration": level, "rules": rules}}


def _body(resource: Resource) -> Json:
    return {"apiVersion": resource.api_version, "kind": resource.kind, "metadata": {"name": "one-at-a-time"}}


async def _rejected(made: Stage) -> float:
    """How many of the controller's requests the server has rejected, by its own metric."""
    text = b""
    async with made.admin.transport.exchange(Request("GET", "/metrics")) as answer:
        async for piece in answer.pieces:
            text += piece
    counts = re.findall(
        r'^apiserver_flowcontrol_rejected_requests_total\{.*priority_level="one-at-a-time".*\} (\S+)$', text.decode(), re.MULTILINE
    )
    return sum(map(float, counts))
