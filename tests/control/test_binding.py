"""Promised pods are bound to their machines while those are closed, as seen from outside the controller."""

from typing import Any

import msgspec
import pytest
from tests.control.world import ONE_GPU_MACHINES, World, world
from tests.objects import pod

from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.kube.resources import NAMESPACES, PODS, PRIORITY_CLASSES
from gpuscaler.model.well_known import CLOSING_TAINTS
from gpuscaler.simulation.cloud.delays import Delay, Delays

pytestmark = pytest.mark.looptime(noop_cycles=1)

LARGE = ONE_GPU_MACHINES.replace("g4dn.xlarge", "p4d.24xlarge")
#: How long after its order a machine is ready, in seconds.
STEADY = Delays(boot=Delay(20, 20, 20), device_plugin=Delay(1, 1, 1), answer=Delay(1, 1, 1), image_pull=Delay(0, 0, 0))
READY = 22.0
#: Machines arrive in any order, minutes apart.
SCATTERED = Delays(boot=Delay(20, 60, 400), device_plugin=Delay(1, 2, 3), answer=Delay(0.5, 1, 2), image_pull=Delay(0, 0, 0))


def is_closed(node: dict[str, Any]) -> bool:
    return any(taint["key"] in CLOSING_TAINTS for taint in node["spec"].get("taints") or ())


async def until_bound(here: World, many: int, seconds: float = 120.0) -> dict[str, str]:
    """The nodes of pods, once ``many`` run."""
    for _ in range(int(seconds * 10)):
        bound = {name: node for name, node in (await here.bound()).items() if node}
        if len(bound) >= many:
            return bound
        await here.sleep(0.1)
    raise AssertionError(f"saw {bound} bound after {seconds} s, expected {many} pods")


async def test_a_promised_pod_is_bound_before_its_machine_opens() -> None:
    async with world(ONE_GPU_MACHINES, delays=STEADY) as here:
        here.start()
        await here.submit("p")
        began = here.now()
        bound = await until_bound(here, 1)

        assert here.now() - began - READY < 1.0
        assert [is_closed(node) for node in await here.nodes()] == [True]
        await here.sleep(10.0)
        assert [is_closed(node) for node in await here.nodes()] == [False]
        assert await here.bound() == bound
        assert here.notes.outcomes == {"Kept": 1}


async def test_many_machines_that_become_ready_together_get_their_pods_at_once() -> None:
    async with world(ONE_GPU_MACHINES, delays=STEADY) as here:
        here.start()
        for number in range(20):
            await here.submit(f"p{number}")
        began = here.now()
        await until_bound(here, 20)

        assert here.now() - began - READY < 4.0
        await here.sleep(60.0)
        assert len(here.cluster.core.history()) == 20
        assert here.notes.outcomes == {"Kept": 20}
        assert here.notes.stray == []
        assert not any(map(is_closed, await here.nodes()))


async def test_a_gang_is_bound_at_once_when_its_last_machine_is_ready() -> None:
    async with world(ONE_GPU_MACHINES, delays=SCATTERED, seed=3) as here:
        here.start()
        for number in range(4):
            await here.submit(f"p{number}", 1, **{"gpuscaler.io/gang": "g", "gpuscaler.io/gang-size": "4"})
        counts = set()
        for _ in range(6000):
            await here.sleep(0.1)
            counts.add(sum(map(bool, (await here.bound()).values())))
            if 4 in counts:
                break

        assert counts == {0, 4}
        assert len(here.cluster.core.history()) == 4


async def test_pods_with_the_nomination_annotation_are_nominated_and_others_on_the_machine_are_bound() -> None:
    async with world(LARGE, delays=STEADY) as here:
        here.start()
        await here.submit("bound", 4)
        await here.submit("nominated", 4, **{"gpuscaler.io/steering": "nominate"})
        await until_bound(here, 1)

        assert [name for name, node in (await here.bound()).items() if node] == ["bound"]
        await until_bound(here, 2, 10.0)
        assert len(here.cluster.core.history()) == 1
        (seen,) = {pod["status"].get("nominatedNodeName") for pod in await here.pods() if pod["metadata"]["name"] == "nominated"}
        assert seen


@pytest.mark.parametrize("steering", ["bind", "off"])
async def test_pods_without_a_promise_get_only_capacity_that_promised_pods_leave_free(steering: str) -> None:
    """Small pods for which no machine is bought wait for any that opens."""
    pools = f"steering: {steering}\n{ONE_GPU_MACHINES.replace('g4dn.xlarge', 'p4d.24xlarge')}    max: 1\n"
    async with world(pools, delays=STEADY) as here:
        here.start()
        await here.submit("large", 6)
        await here.sleep(2.0)
        for number in range(12):
            await here.submit(f"small{number}", 1)
        await until_bound(here, 3)
        await here.sleep(30.0)

        bound = {name for name, node in (await here.bound()).items() if node}
        assert len(here.cluster.core.history()) == 1
        assert ("large" in bound) == (steering == "bind")
        assert len(bound) == (3 if steering == "bind" else 8)


async def test_a_kept_machine_stays_closed_and_its_pods_are_bound() -> None:
    async with world(LARGE + "    min_gpus_per_pod: 8\n", delays=STEADY) as here:
        here.start()
        await here.submit("large", 8)
        await until_bound(here, 1)
        for _ in range(100):
            assert all(map(is_closed, await here.nodes()))
            await here.sleep(0.5)
        assert here.notes.outcomes == {"Kept": 1}


async def test_a_pod_that_waits_for_a_machine_of_a_closed_pool_is_bound_where_room_becomes_free() -> None:
    """Its machine comes all the same, without a pod, and the next pod gets it."""
    async with world(ONE_GPU_MACHINES + "    closed: true\n", delays=STEADY) as here:
        here.start()
        await here.submit("first")
        node = (await until_bound(here, 1))["first"]
        await here.submit("second")
        await here.sleep(3.0)
        await here.user.delete(PODS, "first", namespace="default")
        await here.sleep(12.0)

        assert (await here.bound()) == {"second": node}
        await here.sleep(30.0)
        assert here.notes.outcomes == {"Kept": 2}
        assert here.notes.stray == []
        await here.submit("third")
        await here.sleep(3.0)
        bound = await here.bound()
        assert bound["third"] not in {"", node}
        assert len(here.cluster.core.history()) == 2
        assert all(map(is_closed, await here.nodes()))


async def test_a_pod_of_higher_priority_that_is_created_late_gets_the_machine() -> None:
    async with world(ONE_GPU_MACHINES + "    max: 1\n", delays=STEADY) as here:
        here.start()
        await here.submit("p")
        await here.sleep(READY - 8.0)
        named = {"metadata": {"name": "high"}, "value": 1000}
        await here.user.create(PRIORITY_CLASSES, {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", **named})
        urgent = pod("urgent")
        urgent["spec"]["priorityClassName"] = "high"
        await here.user.create(PODS, urgent, namespace="default")
        await here.sleep(30.0)

        assert {name for name, node in (await here.bound()).items() if node} == {"urgent"}


@pytest.mark.parametrize(
    ("pools", "annotations"),
    [
        (f"bind_schedulers: [other]\n{ONE_GPU_MACHINES}", {}),
        (ONE_GPU_MACHINES, {"gpuscaler.io/steering": "nominate"}),
        (f"{ONE_GPU_MACHINES}    steering: nominate\n", {}),
    ],
)
async def test_pods_that_may_not_be_bound_are_nominated(pools: str, annotations: dict[str, str]) -> None:
    async with world(pools, delays=STEADY) as here:
        here.start()
        named = {"metadata": {"name": "own", "annotations": annotations}}
        await here.user.create(NAMESPACES, {"apiVersion": "v1", "kind": "Namespace", **named})
        await here.user.create(PODS, pod("p"), namespace="own")
        seen = set()
        for _ in range(400):
            await here.sleep(0.1)
            wire_pod = msgspec.json.decode(await here.user.get(PODS, "p", namespace="own"))
            seen.add((bool(wire_pod["status"].get("nominatedNodeName")), bool(wire_pod["spec"].get("nodeName"))))

        assert (True, False) in seen
        assert any(bound for _, bound in seen)


async def test_after_refused_bindings_pods_are_nominated_and_one_report_is_made() -> None:
    async with world(ONE_GPU_MACHINES, delays=STEADY) as here:
        refusal = Failure(403, "Forbidden", 'pods "p" is forbidden: User "gpuscaler" cannot create resource "pods/binding"')
        here.cluster.api.faults.add(Fault("POST", "/pods/[pq]/binding", times=2, refusal=refusal))
        here.start()
        await here.submit("p")
        await here.submit("q")
        await until_bound(here, 2)

        assert len(here.cluster.core.history()) == 2
        assert here.controller is not None
        ((pool, unbinding),) = here.controller.memory.unbinding.items()
        assert pool == "gpu"
        assert "pods/binding" in unbinding.why
