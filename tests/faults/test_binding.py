"""Bindings that fail, completely or in part."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace
from tests.control.records.test_service import events
from tests.control.records.test_service import status as written
from tests.control.schedules import STRANGER
from tests.control.test_binding import SCATTERED
from tests.control.test_promises import run_workload
from tests.control.test_windows import NODE, STEADY, is_closed
from tests.control.world import ONE_GPU_MACHINES, QUICK, World
from tests.faults.guarding import BUSY_STRANGER, Watch
from tests.faults.kit import all_bound, bought, faulty, recorded, status
from tests.objects import pod

from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.kube.resources import NODES, PODS, PRIORITY_CLASSES
from gpuscaler.kube.transport import Request
from gpuscaler.model.holds import Hold
from gpuscaler.simulation.cloud.delays import Delay

OURS = "pods/p[0-9]*/binding"
SMALL = "  - {name: small, types: [g4dn.xlarge], markets: [on-demand], zones: [us-east-1a]}\n"
LARGE = f"{ONE_GPU_MACHINES}    min_gpus_per_pod: 4\n".replace("g4dn.xlarge", "g4dn.12xlarge") + SMALL
ONE_POOL = f"{ONE_GPU_MACHINES}    closed: true\n".replace("g4dn.xlarge", "g4dn.xlarge, g4dn.12xlarge")


async def in_time(here: World, seconds: float) -> bool:
    for _ in range(int(seconds)):
        await here.sleep(1.0)
        if await all_bound(here):
            return True
    return False


async def test_f101_if_bindings_are_refused_pods_are_nominated_and_still_run_on_their_machines() -> None:
    async with faulty() as here:
        message = 'pods "p0" is forbidden: User "gpuscaler" cannot create resource "pods/binding" in API group ""'
        here.cluster.api.faults.add(Fault("POST", OURS, times=4, refusal=Failure(403, "Forbidden", message)))
        for number in range(4):
            await here.submit(f"p{number}")
        await bought(here, 4)

        assert await in_time(here, 120.0)
        assert len(here.cluster.core.history()) == 4
        assert any("cannot create" in trouble and "steering: nominate" in trouble for trouble in (await status(here)).troubles)


class Deadly(Watch):
    """Kills the controller when it sends its second binding of ours."""

    def __init__(self, here: World) -> None:
        super().__init__(here)
        self.sent = 0

    async def write(self, request: Request) -> None:
        await super().write(request)
        if re.search(OURS, request.path):
            self.sent += 1
            if self.sent == 2:
                self._here.deaths.dead.set()


async def test_f102_the_next_leader_binds_the_rest_of_a_gang_and_buys_no_machine_twice() -> None:
    async with faulty(watch=Deadly) as here:
        for number in range(4):
            await here.submit(f"p{number}", 1, **{"gpuscaler.io/gang": "g", "gpuscaler.io/gang-size": "4"})
        assert await here.until_dead(300.0)
        assert [bool(node) for node in (await here.bound()).values()].count(True) == 1
        here.start()

        assert await in_time(here, 120.0)
        assert len(here.cluster.core.history()) == 4


async def test_f109_no_pod_of_a_gang_runs_alone_after_its_other_machine_is_lost_for_good() -> None:
    async with faulty(delays=STEADY) as here:
        for number in range(2):
            await here.submit(f"p{number}", 1, **{"gpuscaler.io/gang": "g", "gpuscaler.io/gang-size": "2"})
        await here.sleep(NODE + 2.0)
        first, second = (machine.id for machine in here.cluster.core.history())
        # Both machines have been ready, each while the device plugin of the other restarted.
        here.cluster.machines.devices.restart(second, seconds=60.0)
        await here.sleep(55.0)
        here.cluster.machines.devices.restart(first, seconds=60.0)
        await here.sleep(20.0)
        assert here.controller is not None
        assert {promise.node for promise in here.controller.memory.ledger.promises} == {first, second}
        await here.hold(buying=Hold())
        here.cluster.core.terminate(second, here.now())
        await here.user.delete(NODES, second)
        for _ in range(180):
            await here.sleep(5.0)
            assert not any((await here.bound()).values())
        assert first not in {machine.id for machine in here.cluster.core.list()}, "it is not paid for without end"
        await here.hold(buying=None)

        assert await in_time(here, 300.0)


async def test_f109_a_running_gang_keeps_its_machines_although_another_pod_of_the_gang_is_pending() -> None:
    gang = {"gpuscaler.io/gang": "g", "gpuscaler.io/gang-size": "2"}
    async with faulty(f"{ONE_GPU_MACHINES}    max: 2\n", delays=STEADY) as here:
        for number in range(2):
            await here.submit(f"p{number}", 1, **gang)
        while not all((await here.bound()).values()):
            await here.sleep(0.1)
        # They are bound, while their machines are still closed.
        await here.submit("p2", 1, **gang)
        await here.sleep(900.0)

        bound = await here.bound()
        assert {bound["p0"], bound["p1"]} == {machine.id for machine in here.cluster.core.list()}
        assert not any(map(is_closed, await here.nodes()))
        assert len(here.cluster.core.history()) == 2


async def test_f109_a_gangs_machine_on_which_another_pod_runs_is_not_ended() -> None:
    async with faulty(f"{ONE_GPU_MACHINES}    max: 2\n", delays=STEADY) as here:
        high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
        await here.user.create(PRIORITY_CLASSES, high)
        for number in range(2):
            await here.submit(f"p{number}", 1, **{"gpuscaler.io/gang": "g", "gpuscaler.io/gang-size": "2"})
        await here.sleep(NODE)
        first = pod("first")
        first["spec"]["priorityClassName"] = "high"
        await here.user.create(PODS, first, namespace="default")
        await here.sleep(900.0)

        node = (await here.bound())["first"]
        assert node in {machine.id for machine in here.cluster.core.list()}


@pytest.mark.parametrize("pools", [LARGE, ONE_POOL], ids=["two pools", "one closed pool"])
async def test_f109_a_small_pod_does_not_run_on_a_machine_kept_for_large_pods(pools: str) -> None:
    """Neither a pod with a small machine of its own, nor a pod of the same priority for which no machine may be bought any more."""
    async with faulty(f"limits: {{machines: 2}}\n{pools}") as here:
        high = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
        await here.user.create(PRIORITY_CLASSES, high)
        await here.submit("large", 4)
        await bought(here, 1)
        for number, name in enumerate(("small", "late")):
            small = pod(name, 1)
            small["spec"]["priorityClassName"] = "high"
            await here.user.create(PODS, small, namespace="default")
            await bought(here, 2)
            await here.sleep(10.0 * number)
        await here.sleep(400.0)

        bound = await here.bound()
        types = {machine.id: machine.offering.instance_type for machine in here.cluster.core.history()}
        assert {name: types.get(node, "") for name, node in bound.items()} == {"large": "g4dn.12xlarge", "small": "g4dn.xlarge", "late": ""}


async def test_f103_while_a_device_plugin_restarts_no_pod_is_bound_and_no_machine_is_bought() -> None:
    async with faulty(delays=SCATTERED) as here:
        for number in range(2):
            await here.submit(f"p{number}", 1, **{"gpuscaler.io/gang": "g", "gpuscaler.io/gang-size": "2"})
        await bought(here, 2)
        machines = [machine.id for machine in here.cluster.core.list()]
        # The second machine takes minutes longer; when it comes, the device plugin of the first restarts.
        first = await shows(here, machines)
        second = next(machine for machine in machines if machine != first)
        for _ in range(100):
            if await shows(here, [second], wait=False):
                break
            here.cluster.machines.devices.restart(first, seconds=60.0)
            await here.sleep(5.0)
            assert here.notes.stray == []
            assert len(here.cluster.core.history()) == 2
        for _ in range(40):
            await here.sleep(1.0)
            assert here.notes.stray == []
        assert not any((await here.bound()).values())

        assert await in_time(here, 120.0)
        assert len(here.cluster.core.history()) == 2


async def shows(here: World, machines: list[str], *, wait: bool = True) -> str:
    """Return the first of ``machines`` whose node shows its GPU; empty if none does and ``wait`` is off."""
    while True:
        for node in await here.nodes():
            if node["metadata"]["name"] in machines and node["status"].get("allocatable", {}).get("nvidia.com/gpu", "0") != "0":
                return str(node["metadata"]["name"])
        if not wait:
            return ""
        await here.sleep(0.5)


async def test_f54_a_gang_is_bound_as_a_whole_despite_an_outage_between_its_bindings() -> None:
    async with faulty() as here:
        for number in range(4):
            await here.submit(f"p{number}", 1, **{"gpuscaler.io/gang": "g", "gpuscaler.io/gang-size": "4"})
        outage = Failure(503, "ServiceUnavailable", "the API server is shutting down")
        here.cluster.api.faults.add(Fault("POST", "pods/p[1-3]/binding", times=9, refusal=outage))

        assert await in_time(here, 300.0)
        await here.sleep(60.0)
        assert len(here.cluster.core.history()) == 4
        assert here.notes.outcomes == {"Kept": 4}


class Meddling(Watch):
    """Runs an action once, right before a write like ``at`` reaches the API server, as soon as there are GPUs."""

    def __init__(self, here: World, meddle: Callable[[World], Awaitable[None]], at: str = OURS) -> None:
        super().__init__(here)
        self._meddle, self._at, self.done = meddle, at, False

    async def write(self, request: Request) -> None:
        await super().write(request)
        there = not self.done and re.search(self._at, request.path) and await machines_of(self._here)
        if there and any(node["status"].get("allocatable", {}).get("nvidia.com/gpu", "0") != "0" for node in there):
            self.done = True
            await self._meddle(self._here)


async def machines_of(here: World) -> list[dict[str, Any]]:
    """Return the nodes of machines that were bought."""
    return [node for node in await here.nodes() if not node["metadata"]["name"].startswith(STRANGER)]


async def test_f55_a_pod_recreated_under_the_same_name_just_before_the_binding_is_not_bound() -> None:
    async def anew(here: World) -> None:
        await here.user.delete(PODS, "p0", namespace="default", grace=0)
        await here.user.create(PODS, pod("p0", 8), namespace="default")

    async with faulty(watch=lambda here: Meddling(here, anew)) as here:
        await here.submit("p0")
        await bought(here, 1)
        await here.sleep(90.0)

        # By now no machine of the pool has room for its request.
        assert await here.bound() == {**await here.bound(), "p0": ""}
        assert here.cluster.core.history()


async def test_f56_a_node_deleted_right_before_a_binding_gets_no_pod_and_the_pod_gets_another_node() -> None:
    async def away(here: World) -> None:
        for machine in here.cluster.core.list():
            here.cluster.core.terminate(machine.id, here.now())
        for node in await machines_of(here):
            await here.user.delete(NODES, node["metadata"]["name"])

    async with faulty(watch=lambda here: Meddling(here, away, "configmaps/gpuscaler-state")) as here:
        await here.submit("p0")
        await bought(here, 2)

        assert await in_time(here, 300.0)
        assert (await here.bound())["p0"] in {node["metadata"]["name"] for node in await here.nodes()}


async def test_f57_if_kube_scheduler_binds_a_promised_pod_elsewhere_other_pods_may_use_its_machine() -> None:
    async def elsewhere(here: World) -> None:
        await here.user.bind("default", "p0", BUSY_STRANGER)

    async with faulty(watch=lambda here: Meddling(here, elsewhere)) as here:
        await here.submit("p0")
        await bought(here, 1)
        await here.sleep(60.0)
        assert (await here.bound())["p0"] == BUSY_STRANGER
        assert (here.notes.stray, here.notes.outcomes) == (["default/p0"], {})

        await here.submit("p1")
        assert await in_time(here, 60.0)
        assert len(here.cluster.core.history()) == 1


async def test_f58_pods_rejected_by_kubelets_are_reported_and_two_in_a_row_switch_binding_to_nomination() -> None:
    slow = replace(QUICK, image_pull=Delay(60.0, 60.0, 60.0))
    async with recorded(delays=slow) as (here, _):
        for name in ("p0", "p1"):
            await here.submit(name)
        assert await in_time(here, 120.0)
        for name in ("p0", "p1"):
            failed = {"phase": "Failed", "reason": "OutOfnvidia.com/gpu"}
            await here.user.merge_patch(PODS, name, {"status": failed}, namespace="default", subresource="status")
        await here.sleep(20.0)

        (text,) = {note for about, reason, note in await events(here) if (about, reason) == ("Pod p1", "PodTurnedAway")}
        assert "OutOfnvidia.com/gpu" in text
        assert any(
            "its pods are nominated" in trouble and "turned away pod default/p1" in trouble for trouble in (await written(here)).troubles
        )


@pytest.mark.parametrize("seed", [10, 20])
async def test_f113_a_pod_that_spreads_over_zones_takes_no_capacity_planned_for_another_pod(seed: int) -> None:
    """Its own machine becomes ready later. kube-scheduler could put it there, and the other pod would need one more machine."""
    kept = await run_workload(seed)

    assert (kept.bound, kept.further) == (kept.planned, 0)
