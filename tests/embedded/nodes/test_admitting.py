"""Kubelets reject pods that do not fit on their node, whatever has bound them."""

from typing import Any

import pytest
from tests.embedded.workloads.lab import Lab, lab

from gpuscaler.kube.resources import NODES, PODS

ROOM = {"cpu": "4", "memory": "8Gi", "pods": "3", "nvidia.com/gpu": "2"}


async def bind(here: Lab, name: str, **requests: str) -> None:
    container = {"name": "c", "image": "train:1", "resources": {"requests": requests, "limits": requests}}
    spec = {"nodeName": "a", "containers": [container], "terminationGracePeriodSeconds": 0}
    await here.user.create(PODS, {"metadata": {"name": name}, "spec": spec}, namespace="default")
    await here.wait(1.0)


async def set_allocatable(here: Lab, **room: str) -> None:
    await here.user.merge_patch(NODES, "a", {"status": {"allocatable": room, "capacity": room}}, subresource="status")
    await here.wait(1.0)


async def status_of(here: Lab, name: str) -> tuple[str, str]:
    status: dict[str, Any] = await here.status(PODS, name)
    return status["phase"], status.get("reason", "")


@pytest.mark.parametrize(
    ("resource", "reason"),
    [("cpu", "OutOfcpu"), ("memory", "OutOfmemory"), ("nvidia.com/gpu", "UnexpectedAdmissionError")],
)
async def test_a_pod_that_requests_more_than_is_left_fails_permanently(resource: str, reason: str) -> None:
    async with lab("a") as here:
        await set_allocatable(here, **ROOM)
        most = ROOM[resource]
        await bind(here, "first", **{resource: most})
        await bind(here, "second", **{resource: "1"})
        assert [await status_of(here, name) for name in ("first", "second")] == [("Running", ""), ("Failed", reason)]
        assert "Pod was rejected" in (await here.status(PODS, "second"))["message"]

        await here.user.delete(PODS, "first", namespace="default")
        await here.wait(3.0)
        await bind(here, "third", **{resource: most})
        assert [await status_of(here, name) for name in ("second", "third")] == [("Failed", reason), ("Running", "")]


async def test_a_kubelet_admits_no_more_pods_than_its_nodes_limit() -> None:
    async with lab("a") as here:
        await set_allocatable(here, **ROOM)
        for number in range(4):
            await bind(here, f"p{number}")

        assert [(await status_of(here, f"p{number}"))[0] for number in range(4)] == ["Running"] * 3 + ["Failed"]
        assert (await status_of(here, "p3"))[1] == "OutOfpods"


async def test_a_new_pod_fails_while_the_device_plugin_restarts_and_a_running_pod_continues() -> None:
    async with lab("a") as here:
        await set_allocatable(here, **ROOM)
        await bind(here, "runs", **{"nvidia.com/gpu": "1"})
        await set_allocatable(here, **{**ROOM, "nvidia.com/gpu": "0"})
        await bind(here, "comes", **{"nvidia.com/gpu": "1"})

        assert [await status_of(here, name) for name in ("runs", "comes")] == [("Running", ""), ("Failed", "UnexpectedAdmissionError")]


async def test_a_kubelet_whose_node_reports_no_resources_admits_all_pods() -> None:
    async with lab("a") as here:
        await here.user.merge_patch(NODES, "a", {"status": {"allocatable": None, "capacity": None}}, subresource="status")
        await here.wait(1.0)
        await bind(here, "any", cpu="100")

        assert await status_of(here, "any") == ("Running", "")
