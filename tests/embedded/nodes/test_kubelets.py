"""Kubelets simulate pods: they start, run for their run time, and end when they are deleted or their node is gone."""

import asyncio
from random import Random
from typing import Any

import msgspec
import pytest
import structlog
from tests.embedded.asking import START, virtual_clock
from tests.embedded.workloads.lab import Lab, lab

from gpuscaler.embedded.apiserver.faults import Fault, broken
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.embedded.nodes.kubelets import Kubelets
from gpuscaler.embedded.nodes.scheduling import timestamp
from gpuscaler.embedded.serving.cluster import Conditions, EmbeddedCluster
from gpuscaler.kube.errors import NotFound
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.resources import NODES, PODS
from gpuscaler.model.pools import Policy
from gpuscaler.simulation.cloud.delays import Delay, Delays


async def bind(here: Lab, name: str = "p", *, node: str = "a", run_for: str = "", **spec: Any) -> None:
    annotations = {"gpuscaler.io/run-for": run_for} if run_for else {}
    whole = {"nodeName": node, "containers": [{"name": "c", "image": "train:1"}], **spec}
    await here.user.create(PODS, {"metadata": {"name": name, "annotations": annotations}, "spec": whole}, namespace="default")


async def phase_listed(here: Lab) -> list[str]:
    """The phases of all pods, without a request."""
    return [msgspec.json.decode(raw)["status"]["phase"] for raw in await here.user.list_all(PODS)]


async def phase(here: Lab, name: str = "p") -> str:
    """The phase of a pod; empty if there is none."""
    try:
        current: str = (await here.status(PODS, name))["phase"]
    except NotFound:
        return ""
    return current


async def test_a_pod_runs_for_its_run_time_and_then_succeeds() -> None:
    async with lab("a") as here:
        await bind(here, run_for="90s", initContainers=[{"name": "first", "image": "init:1"}])
        await here.wait(1.0)
        running = await here.status(PODS, "p")
        assert running["phase"] == "Running"
        assert {condition["type"]: condition["status"] for condition in running["conditions"]}["Ready"] == "True"
        assert running["containerStatuses"][0]["state"] == {"running": {"startedAt": running["startTime"]}}
        assert running["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 0
        await here.wait(87.0)
        assert await phase(here) == "Running"
        await here.wait(3.0)
        done = await here.status(PODS, "p")
        assert done["phase"] == "Succeeded"
        ended = done["containerStatuses"][0]["state"]["terminated"]
        assert (ended["exitCode"], ended["startedAt"]) == (0, running["startTime"])
        assert {condition["type"]: condition["status"] for condition in done["conditions"]}["Ready"] == "False"


@pytest.mark.parametrize("run_for", ["", "soon"])
async def test_a_pod_without_a_run_time_runs_until_it_is_deleted(run_for: str) -> None:
    async with lab("a") as here:
        await bind(here, run_for=run_for)
        await here.wait(3600.0)
        assert await phase(here) == "Running"
        await here.user.delete(PODS, "p", namespace="default")
        await here.wait(1.0)
        assert (await here.get(PODS, "p"))["metadata"]["deletionTimestamp"]
        await here.wait(2.0)
        assert await phase(here) == ""


async def test_pods_of_a_deleted_node_are_deleted() -> None:
    async with lab("a", "b") as here:
        await bind(here)
        await bind(here, "other", node="b")
        await here.wait(1.0)
        await here.user.delete(NODES, "a")
        await here.wait(1.0)
        assert (await phase(here), await phase(here, "other")) == ("", "Running")


async def test_a_pod_bound_before_its_node_exists_starts_when_the_node_appears() -> None:
    async with lab() as here:
        await bind(here)
        await here.wait(2.0)
        assert await phase(here) == "Pending"
        await here.node("a")
        await here.wait(1.0)
        assert await phase(here) == "Running"


async def test_a_new_pod_with_the_same_name_has_its_own_run_time() -> None:
    async with lab("a") as here:
        await bind(here, run_for="60s")
        await here.wait(50.0)
        await here.user.delete(PODS, "p", namespace="default", grace=0)
        await bind(here, run_for="60s")
        await here.wait(30.0)
        assert await phase(here) == "Running"
        await here.wait(31.0)
        assert await phase(here) == "Succeeded"


async def test_api_server_errors_only_delay_pod_phase_changes() -> None:
    async with lab("a") as here:
        here.cluster.api.faults.add(Fault(method="PATCH", path="/pods/p/status", times=3, refusal=broken()))
        await bind(here, run_for="60s")
        await here.wait(2.0)
        assert await phase(here) == "Pending"
        await here.wait(5.0)
        assert await phase(here) == "Running"
        await here.wait(61.0)
        assert await phase(here) == "Succeeded"


async def test_a_forbidden_write_of_a_kubelet_is_logged_once_and_made_once_allowed() -> None:
    with structlog.testing.capture_logs() as logs:
        async with lab("a") as here:
            forbidden = Failure(403, "Forbidden", 'pods "p" is forbidden: User "gpuscaler" cannot get resource "pods"')
            here.cluster.api.faults.add(Fault(method="GET", path="/pods/p", times=10, refusal=forbidden))
            await bind(here)
            await here.wait(5.0)
            assert await phase_listed(here) == ["Pending"]
            await here.wait(8.0)
            assert await phase_listed(here) == ["Running"]

    assert [log["pod"] for log in logs if "cannot get resource" in log.get("problem", "")] == ["default/p"]


async def test_the_first_pod_on_a_machine_waits_for_its_image_and_the_next_pod_does_not() -> None:
    cluster = EmbeddedCluster(Policy(pools=()), now=virtual_clock, conditions=Conditions(delays=Delays(image_pull=Delay(0, 0, 0))))
    user = cluster.client("user")
    picture = cluster.picture(user, (PODS, NODES))
    asked: list[str] = []

    def pull(node: str) -> float:
        asked.append(node)
        return 30.0 if len(asked) == 1 else 0.0

    kubelets = Kubelets(user, picture, now=virtual_clock, pull=pull)
    tasks = [asyncio.create_task(part.run()) for part in (picture, kubelets)]
    cluster.api.load([{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}}])
    for name in ("first", "second"):
        cluster.api.load(
            [{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": {"nodeName": "a"}, "status": {"phase": "Pending"}}]
        )
        await asyncio.sleep(1.0)
    phases = [b'"Running"' in await user.get(PODS, name, namespace="default") for name in ("first", "second")]
    assert (phases, asked) == ([False, True], ["a", "a"])
    await asyncio.sleep(30.0)
    assert b'"Running"' in await user.get(PODS, "first", namespace="default")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_kubelets_that_start_later_continue_with_existing_pods() -> None:
    cluster = EmbeddedCluster(Policy(pools=()), now=virtual_clock, conditions=Conditions())
    user = cluster.client("user")
    began = {"phase": "Running", "startTime": timestamp(START - 50.0)}
    meta = {"name": "p", "annotations": {"gpuscaler.io/run-for": "60s"}}
    cluster.api.load(
        [
            {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a"}},
            {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"nodeName": "a"}, "status": began},
        ]
    )
    picture = Picture(user, clock=asyncio.get_running_loop().time, random=Random(1), resources=(PODS, NODES))
    tasks = [asyncio.create_task(part.run()) for part in (picture, Kubelets(user, picture, now=virtual_clock, pull=lambda _node: 0.0))]
    await asyncio.sleep(8.0)
    assert b'"Running"' in await user.get(PODS, "p", namespace="default")
    await asyncio.sleep(4.0)
    assert b'"Succeeded"' in await user.get(PODS, "p", namespace="default")
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
