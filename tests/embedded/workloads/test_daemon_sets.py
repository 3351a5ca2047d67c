"""DaemonSets have a pod on every node that admits it."""

import pytest
from tests.embedded.workloads.lab import lab

from gpuscaler.kube.resources import DAEMON_SETS, NODES, PODS


async def test_every_node_gets_a_daemon_set_pod_with_affinity_to_that_node_only() -> None:
    async with lab("a", "b") as here:
        await here.create(DAEMON_SETS, "agent")
        await here.wait()
        assert sorted(pod["spec"]["nodeName"] for pod in await here.pods()) == ["a", "b"]
        await here.node("c")
        await here.wait()
        assert sorted(pod["spec"]["nodeName"] for pod in await here.pods()) == ["a", "b", "c"]
        status = await here.status(DAEMON_SETS, "agent")
        assert status == {
            "observedGeneration": 1,
            "desiredNumberScheduled": 3,
            "currentNumberScheduled": 3,
            "numberMisscheduled": 0,
            "numberReady": 3,
            "numberAvailable": 3,
            "updatedNumberScheduled": 3,
        }


async def test_a_daemon_set_pod_stays_pending_while_its_node_is_full() -> None:
    async with lab("a") as here:
        await here.node("small", cpu=0)
        await here.create(DAEMON_SETS, "agent")
        await here.wait()
        phases = {pod["spec"].get("nodeName", ""): pod["status"]["phase"] for pod in await here.pods()}
        assert phases == {"a": "Running", "": "Pending"}


async def test_nodes_that_a_daemon_set_does_not_select_or_tolerate_get_no_pod_until_this_changes() -> None:
    async with lab() as here:
        await here.node("gpu", labels={"kind": "gpu"}, taint="gpuscaler.io/arriving")
        await here.node("cpu")
        await here.create(DAEMON_SETS, "agent", template={"nodeSelector": {"kind": "gpu"}})
        await here.wait()
        assert await here.pods() == []
        await here.user.merge_patch(NODES, "gpu", {"spec": {"taints": None}})
        await here.wait()
        assert [pod["spec"]["nodeName"] for pod in await here.pods()] == ["gpu"]
        await here.user.merge_patch(NODES, "gpu", {"metadata": {"labels": {"kind": None}}})
        await here.wait()
        assert await here.all() == []


async def test_a_cordoned_node_keeps_and_gets_its_daemon_set_pod() -> None:
    async with lab("a") as here:
        taint = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
        await here.user.merge_patch(NODES, "a", {"spec": {"unschedulable": True, "taints": [taint]}})
        await here.create(DAEMON_SETS, "agent")
        await here.wait()
        assert [pod["status"]["phase"] for pod in await here.pods()] == ["Running"]


@pytest.mark.parametrize(("effect", "left"), [("NoSchedule", 1), ("NoExecute", 0)])
async def test_a_no_schedule_taint_keeps_running_daemon_set_pods(effect: str, left: int) -> None:
    async with lab("a") as here:
        await here.create(DAEMON_SETS, "agent")
        await here.wait()
        await here.user.merge_patch(NODES, "a", {"spec": {"taints": [{"key": "gpuscaler.io/leaving", "effect": effect}]}})
        await here.wait()
        assert len(await here.pods()) == left
        for pod in await here.pods():
            await here.user.delete(PODS, pod["metadata"]["name"], namespace="default")
        await here.wait(60.0)
        assert await here.pods() == []


async def test_the_daemon_set_pod_of_a_deleted_node_is_deleted() -> None:
    async with lab("a", "b") as here:
        await here.create(DAEMON_SETS, "agent")
        await here.wait()
        await here.user.delete(NODES, "b")
        await here.wait(60.0)
        assert [pod["spec"]["nodeName"] for pod in await here.all()] == ["a"]
        assert (await here.status(DAEMON_SETS, "agent"))["desiredNumberScheduled"] == 1


async def test_a_new_daemon_set_template_replaces_one_pod_at_a_time() -> None:
    async with lab("a", "b", "c") as here:
        await here.create(DAEMON_SETS, "agent")
        await here.wait()
        await here.patch(DAEMON_SETS, "agent", {"spec": {"template": {"metadata": {"labels": {"version": "2"}}}}})
        fewest = 3
        for _ in range(100):
            await here.wait(0.2)
            fewest = min(fewest, sum(pod["status"]["phase"] == "Running" for pod in await here.pods()))
        assert [pod["metadata"]["labels"]["version"] for pod in await here.pods()] == ["2"] * 3
        assert fewest == 2
