"""The embedded scheduler decides like kube-scheduler, with the same messages."""

from typing import Any

import msgspec
import pytest
from tests.embedded.workloads.lab import Lab, lab
from tests.objects import node, pod

from gpuscaler.embedded.apiserver.faults import Fault, broken
from gpuscaler.kube.resources import CORE_EVENTS, NODES, PODS, PRIORITY_CLASSES


async def submit(here: Lab, name: str, *, cpu: int = 1, memory: str = "1Gi", nominated: str = "", **spec: Any) -> None:
    requests = {"cpu": str(cpu), "memory": memory}
    body = {"metadata": {"name": name}, "spec": {"containers": [{"name": "c", "resources": {"requests": requests}}], **spec}}
    if nominated:
        # Nothing may bind it before it is nominated.
        body["spec"]["schedulingGates"] = [{"name": "wait"}]
    await here.user.create(PODS, body, namespace="default")
    if nominated:
        await here.patch(PODS, name, {"status": {"nominatedNodeName": nominated}}, part="status")
        await here.patch(PODS, name, {"spec": {"schedulingGates": None}})


async def places(here: Lab) -> dict[str, str]:
    return {pod["metadata"]["name"]: pod["spec"].get("nodeName", "") for pod in await here.all()}


async def message(here: Lab, name: str) -> str:
    (condition,) = [condition for condition in (await here.status(PODS, name))["conditions"] if condition["type"] == "PodScheduled"]
    assert (condition["status"], condition["reason"]) == ("False", "Unschedulable")
    text: str = condition["message"]
    return text


async def soften(here: Lab, name: str, *keys: str) -> None:
    taints = [{"key": key, "effect": "PreferNoSchedule"} for key in keys]
    await here.user.merge_patch(NODES, name, {"spec": {"taints": taints}})


async def priorities(here: Lab) -> None:
    for name, value in (("high", 100), ("low", -100)):
        await here.user.create(PRIORITY_CLASSES, {"metadata": {"name": name}, "value": value})


async def test_a_pod_that_fits_nowhere_has_a_message_with_the_reasons_of_all_nodes() -> None:
    async with lab() as here:
        await submit(here, "early")
        await here.wait()
        assert await message(here, "early") == "no nodes available to schedule pods"
        await here.node("tainted", taint="gpuscaler.io/arriving")
        await here.node("small", cpu=2)
        await here.node("full")
        await here.wait(10.0)
        await submit(here, "big", cpu=7)
        await here.node("cordoned")
        await here.user.merge_patch(NODES, "cordoned", {"spec": {"unschedulable": True}})
        await submit(here, "filler", cpu=5, nodeSelector={"kubernetes.io/hostname": "full"})
        await here.wait()
        await submit(here, "more", cpu=7)
        await here.wait()
        assert await message(here, "more") == (
            "0/4 nodes are available: 1 node(s) had untolerated taint(s), 1 node(s) were unschedulable, 2 Insufficient cpu. "
            "no new claims to deallocate, preemption: 0/4 nodes are available: "
            "1 No preemption victims found for incoming pod, 3 Preemption is not helpful for scheduling."
        )


async def test_the_message_names_node_selectors_and_each_missing_resource() -> None:
    async with lab("a") as here:
        await submit(here, "picky", nodeSelector={"no": "such"})
        await submit(here, "huge", cpu=9, memory="64Gi")
        await here.wait()
        rest = "no new claims to deallocate, preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."
        assert await message(here, "picky") == f"0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector. {rest}"
        assert await message(here, "huge") == f"0/1 nodes are available: 1 Insufficient cpu, 1 Insufficient memory. {rest}"
        events = [msgspec.json.decode(raw) for raw in await here.user.list_all(CORE_EVENTS)]
        assert {event["involvedObject"]["name"] for event in events if event["reason"] == "FailedScheduling"} == {"picky", "huge"}


async def test_one_event_counts_how_often_a_pod_found_no_node_for_the_same_reason() -> None:
    async with lab("a") as here:
        await submit(here, "huge", cpu=9)
        await here.wait()
        for number in range(3):
            await here.user.merge_patch(NODES, "a", {"metadata": {"labels": {"looked": str(number)}}})
            await here.wait(20.0)
        (event,) = [msgspec.json.decode(raw) for raw in await here.user.list_all(CORE_EVENTS)]
        assert event["count"] >= 4
        assert event["lastTimestamp"] > event["firstTimestamp"]
        await here.user.merge_patch(NODES, "a", {"spec": {"unschedulable": True}})
        await here.wait(20.0)
        assert len(await here.user.list_all(CORE_EVENTS)) == 2


async def test_a_deleted_scheduling_event_is_created_again() -> None:
    async with lab("a") as here:
        await submit(here, "huge", cpu=9)
        await here.wait()
        (event,) = [msgspec.json.decode(raw) for raw in await here.user.list_all(CORE_EVENTS)]
        await here.user.delete(CORE_EVENTS, event["metadata"]["name"], namespace="default")
        for number in range(2):
            await here.user.merge_patch(NODES, "a", {"metadata": {"labels": {"looked": str(number)}}})
            await here.wait(20.0)
        (event,) = [msgspec.json.decode(raw) for raw in await here.user.list_all(CORE_EVENTS)]
        assert event["count"] == 1


async def test_pods_spread_over_the_emptiest_nodes() -> None:
    async with lab("a", "b") as here:
        for number in range(4):
            await submit(here, f"p{number}", cpu=2)
            await here.wait(1.0)
        assert sorted((await places(here)).values()) == ["a", "a", "b", "b"]


async def test_a_pod_goes_to_its_nominated_node_even_if_another_scores_higher() -> None:
    async with lab("a", "b") as here:
        await submit(here, "filler", cpu=4, nodeSelector={"kubernetes.io/hostname": "b"})
        await here.wait()
        await submit(here, "promised", nominated="b")
        await here.wait()
        assert (await places(here))["promised"] == "b"


async def test_a_nomination_that_fails_is_cleared() -> None:
    async with lab("a") as here:
        await submit(here, "promised", cpu=9, nominated="a")
        await here.wait()
        assert "nominatedNodeName" not in await here.status(PODS, "promised")


@pytest.mark.parametrize(("priority", "winner"), [(0, "promised"), (-1, "promised"), (1, "other")])
async def test_resources_reserved_for_nominated_pods_are_used_only_by_pods_of_higher_priority(priority: int, winner: str) -> None:
    async with lab() as here:
        # All at once: the scheduler must not see only some of them.
        options: dict[str, Any] = {"schedulerName": "default-scheduler"}
        other = pod("other", 0, status={"phase": "Pending"}, priority=priority, **options)
        promised = pod("promised", 0, cpu="8", status={"phase": "Pending", "nominatedNodeName": "a"}, **options)
        here.cluster.api.load([node("a"), other, promised])
        await here.wait(8.0)
        assert await places(here) == {"other": "", "promised": "", winner: "a"}


async def test_the_pod_with_the_higher_priority_is_scheduled_first() -> None:
    async with lab() as here:
        await priorities(here)
        await submit(here, "weak", cpu=8, priorityClassName="low")
        await submit(here, "plain", cpu=8)
        await submit(here, "strong", cpu=8, priorityClassName="high")
        await here.wait()
        await here.node("a")
        await here.wait(15.0)
        assert await places(here) == {"weak": "", "plain": "", "strong": "a"}


async def test_nodes_with_soft_taints_are_avoided_only_while_another_node_fits() -> None:
    async with lab("a", "b") as here:
        await soften(here, "a", "little-used")
        for number in range(9):
            await submit(here, f"p{number}")
            await here.wait(1.0)
        nodes_of_pods = await places(here)
        assert sorted(nodes_of_pods.values()) == ["a"] + ["b"] * 8
        toleration = {"key": "little-used", "operator": "Exists"}
        await submit(here, "tolerant", tolerations=[toleration])
        await here.wait()
        assert (await places(here))["tolerant"] == "a"


async def test_a_node_of_preferred_affinity_is_chosen_while_the_pod_fits_there() -> None:
    async with lab("a", "b") as here:
        await here.node("c", cpu=2)
        term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["c"]}]}
        affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "preference": term}]}}
        for number in range(3):
            await submit(here, f"p{number}", affinity=affinity)
            await here.wait(1.0)
        assert sorted((await places(here)).values())[1:] == ["c", "c"]


async def test_gated_pods_and_those_of_another_scheduler_are_ignored() -> None:
    async with lab("a") as here:
        await submit(here, "gated", schedulingGates=[{"name": "wait"}])
        await submit(here, "foreign", schedulerName="another")
        await here.wait()
        assert await places(here) == {"gated": "", "foreign": ""}
        await here.patch(PODS, "gated", {"spec": {"schedulingGates": None}})
        await here.wait()
        assert (await places(here))["gated"] == "a"


async def test_a_pending_pod_is_retried_when_a_node_appears() -> None:
    async with lab() as here:
        await submit(here, "p")
        await here.wait(100.0)
        await here.node("a")
        await here.wait(12.0)
        assert (await places(here))["p"] == "a"


async def test_a_failed_binding_is_retried() -> None:
    async with lab("a") as here:
        here.cluster.api.faults.add(Fault(method="POST", path="/binding", times=2, refusal=broken()))
        await submit(here, "p")
        await here.wait(10.0)
        assert (await places(here))["p"] == "a"
