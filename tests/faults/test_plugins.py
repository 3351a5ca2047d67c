"""Device plugins that restart: for a while the kubelet shows none of their devices."""

import pytest
from tests.control.world import ONE_GPU_MACHINES
from tests.faults.kit import all_bound, bought, faulty, status, watch_of

from gpuscaler.embedded.nodes.plugins import PLUGINS
from gpuscaler.kube.resources import DAEMON_SETS
from gpuscaler.lifecycle.pacing import Pace

GPU = "nvidia.com/gpu"
ZERO = "0"


def allocatable(nodes: list[dict[str, object]], name: str) -> str:
    (node,) = [node for node in nodes if node["metadata"]["name"] == name]  # type: ignore[index]
    return str(node["status"]["allocatable"].get(GPU, ZERO))  # type: ignore[index]


@pytest.mark.parametrize("seconds", [45.0, 290.0])
async def test_f63_a_device_plugin_restart_on_an_idle_node_causes_no_purchase(seconds: float) -> None:
    async with faulty() as here:
        await here.submit("first", 1, **{"gpuscaler.io/run-for": "30s"})
        await bought(here, 1)
        await here.sleep(75.0)
        (machine,) = here.cluster.core.list()
        here.cluster.machines.devices.restart(machine.id, seconds=seconds)
        await here.sleep(1.0)
        assert allocatable(await here.nodes(), machine.id) == ZERO
        await here.submit("second")
        await here.sleep(seconds + 15.0)

        assert (await here.bound())["second"] == machine.id
        assert len(here.cluster.core.history()) == 1


async def test_f63_a_full_node_is_neither_changed_nor_ended_while_its_device_plugin_restarts() -> None:
    async with faulty(ONE_GPU_MACHINES + "    idle_after: 30s\n") as here:
        await here.submit("train")
        await bought(here, 1)
        await here.sleep(75.0)
        assert await all_bound(here)
        before = len(watch_of(here).to("/nodes/"))
        here.cluster.machines.devices.restart(seconds=270.0)
        await here.sleep(320.0)

        assert watch_of(here).to("/nodes/")[before:] == []
        assert await all_bound(here)
        assert len(here.cluster.core.list()) == 1


async def test_f63_restarting_the_controller_does_not_restart_the_five_minutes_for_missing_devices() -> None:
    async with faulty(pace=Pace(resync=5.0)) as here:
        await here.submit("first", 1, **{"gpuscaler.io/run-for": "30s"})
        await bought(here, 1)
        await here.sleep(75.0)
        here.cluster.machines.devices.restart(seconds=1e6)
        await here.sleep(10.0)
        await here.submit("second")
        await here.sleep(240.0)
        assert len(here.cluster.core.history()) == 1
        await here.kill()
        here.start()
        await here.sleep(30.0)
        assert len(here.cluster.core.history()) == 1
        await bought(here, 2, within=60.0)


async def test_f63_missing_devices_are_reported_and_a_replacement_is_bought_after_five_minutes() -> None:
    async with faulty() as here:
        await here.submit("first", 1, **{"gpuscaler.io/run-for": "30s"})
        await bought(here, 1)
        await here.sleep(75.0)
        (machine,) = here.cluster.core.list()
        began = here.now()
        await here.user.delete(DAEMON_SETS, PLUGINS[0].name, namespace="kube-system")
        await here.sleep(5.0)
        assert allocatable(await here.nodes(), machine.id) == ZERO
        await here.submit("second")
        await bought(here, 2)

        assert 300.0 <= here.now() - began < 340.0
        assert any(f"node {machine.id} had 1 {GPU} and has shown none for 5 min" in trouble for trouble in (await status(here)).troubles)


EIGHT = ONE_GPU_MACHINES.replace("g4dn.xlarge", "g4dn.metal")


async def test_f63_an_empty_machine_with_a_broken_gpu_is_replaced_once_for_a_pod_that_needs_all_gpus() -> None:
    async with faulty(EIGHT + "    idle_after: 10m\n") as here:
        await here.submit("first", 8, **{"gpuscaler.io/run-for": "30s"})
        await bought(here, 1)
        await here.sleep(120.0)
        (machine,) = here.cluster.core.list()
        here.cluster.machines.devices.break_for_good(machine.id, GPU)
        await here.sleep(5.0)
        assert allocatable(await here.nodes(), machine.id) == "7"
        await here.submit("all", 8)
        await here.submit("some", 3)
        await here.sleep(600.0)

        bound = await here.bound()
        assert bound["some"] == machine.id
        assert bound["all"] not in ("", machine.id)
        assert len(here.cluster.core.history()) == 2


async def test_f63_a_gpu_that_breaks_on_a_busy_machine_causes_no_eviction_and_no_purchase() -> None:
    async with faulty(EIGHT) as here:
        await here.submit("train", 8)
        await bought(here, 1)
        await here.sleep(120.0)
        (machine,) = here.cluster.core.list()
        here.cluster.machines.devices.break_for_good(machine.id, GPU)
        await here.sleep(1200.0)

        assert (await here.bound())["train"] == machine.id
        assert len(here.cluster.core.history()) == 1
        assert allocatable(await here.nodes(), machine.id) == "7"
