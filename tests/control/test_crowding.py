"""Pods that tolerate every taint run on machines that are still closed, and take the place of promised pods."""

from typing import Any

import pytest
from tests.control.world import World, world
from tests.objects import pod

from gpuscaler.kube.resources import PODS
from gpuscaler.simulation.cloud.delays import Delay, Delays

FOURS = """
region: us-east-1
pools:
  - {name: gpu, types: [g4dn.12xlarge], markets: [on-demand], zones: [us-east-1a]}
"""
#: The second machine comes a minute after the first.
APART = Delays(boot=Delay(20.0, 50.0, 120.0), device_plugin=Delay(5.0, 5.0, 5.0), answer=Delay(1.0, 1.0, 1.0), image_pull=Delay(0, 0, 0))
#: GPUs show long after a machine has registered.
SLOW = Delays(boot=Delay(20.0, 20.0, 20.0), device_plugin=Delay(60.0, 60.0, 60.0), answer=Delay(1.0, 1.0, 1.0), image_pull=Delay(0, 0, 0))


def tolerating_pod(name: str, gpus: int) -> dict[str, Any]:
    """A pod that tolerates every taint."""
    made = pod(name, gpus)
    made["spec"]["tolerations"] = [{"operator": "Exists"}]
    return made


async def until_bound(here: World, *names: str) -> dict[str, str]:
    """The nodes of all pods once these are bound."""
    for _ in range(1200):
        bound = await here.bound()
        if all(bound[name] for name in names):
            return bound
        await here.sleep(0.5)
    raise AssertionError(f"saw {await here.bound()} after 600 s, expected {', '.join(names)} to be bound")


def machine_of(here: World, name: str) -> str:
    """The node of the machine that is ordered for a pod, empty if there is none yet."""
    assert here.controller is not None
    return next((machine.node for machine in here.controller.memory.ledger.coming if f"default/{name}" in machine.pods), "")


@pytest.mark.parametrize("gpus", [2, 4])
@pytest.mark.parametrize("seed", range(4))
async def test_a_pod_displaced_by_a_tolerating_pod_gets_the_machine_bought_for_that_pod_at_once(seed: int, gpus: int) -> None:
    async with world(FOURS, seed=seed, delays=APART) as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p", 4)
        await here.sleep(3.0)
        await here.user.create(PODS, tolerating_pod("t", gpus), namespace="default")
        node = (await until_bound(here, "t"))["t"]
        await here.sleep(2.0)
        assert machine_of(here, "p") != node

        assert (await until_bound(here, "p"))["p"] != node
        await here.sleep(60.0)
        assert len(here.cluster.core.history()) == 2


@pytest.mark.parametrize("seed", range(3))
async def test_nothing_more_is_bought_if_a_promised_pod_still_fits_beside_tolerating_pods(seed: int) -> None:
    async with world(FOURS, seed=seed, delays=APART) as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p", 2)
        while not await here.nodes():
            await here.sleep(0.5)
        # Its GPUs are about to show, and no other pod may run there yet.
        for number in range(2):
            await here.user.create(PODS, tolerating_pod(f"t{number}", 1), namespace="default")
        bound = await until_bound(here, "p", "t0", "t1")
        await here.sleep(60.0)

        assert len(set(bound.values())) == 1
        assert len(here.cluster.core.history()) == 1


@pytest.mark.parametrize("later", [0.0, 3.0, 6.0, 9.0])
async def test_a_pod_whose_machine_is_filled_by_a_pod_bound_by_hand_gets_another_machine_at_once(later: float) -> None:
    async with world(FOURS, delays=SLOW) as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p", 4)
        while not await here.nodes():
            await here.sleep(0.5)
        node = (await here.nodes())[0]["metadata"]["name"]
        await here.sleep(later)
        # Bound by hand or by another scheduler: no plan covers it. A kubelet admits no pod for GPUs that do not show yet.
        body = tolerating_pod("t", 0)
        body["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "47"
        await here.user.create(PODS, {**body, "spec": {**body["spec"], "nodeName": node}}, namespace="default")
        await here.sleep(3.0)
        assert len(here.cluster.core.history()) == 2

        assert (await until_bound(here, "p"))["p"] != node
        await here.sleep(60.0)
        assert len(here.cluster.core.history()) == 2
