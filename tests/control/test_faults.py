"""Objects that people change by hand, and unexpected answers of the cloud; `tests/faults` has the named cases."""

from typing import Any

import pytest
from tests.control.world import BEGAN, ONE_GPU_MACHINES, World, world

from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.kube.resources import CONFIG_MAPS, NODES, PODS

#: Tests wait only for the event loop, so one pass over it is enough before time advances.

IDLE = f"{ONE_GPU_MACHINES}    idle_after: 60s\n"


async def until_bought(here: World, count: int) -> None:
    """Wait until ``count`` machines have been bought."""
    while len(here.cluster.core.history()) < count:
        await here.sleep(0.5)


async def check_still_working(here: World) -> None:
    """Check that running pods keep running, and that another pod gets another machine."""
    before = len(here.cluster.core.history())
    await here.submit("later")
    await here.sleep(120.0)
    assert (await here.bound())["later"]
    assert len(here.cluster.core.history()) == before + 1


async def all_bound(here: World) -> bool:
    return all((await here.bound()).values())


# The memory


@pytest.mark.parametrize("after", [0.0, 1.0, 10.0])
async def test_a_saved_state_that_is_deleted_while_machines_start_is_written_again(after: float) -> None:
    async with world() as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p")
        await until_bought(here, 1)
        await here.sleep(after)
        await here.user.delete(CONFIG_MAPS, "gpuscaler-state", namespace="kube-system")
        await here.sleep(120.0)

        assert await all_bound(here)
        assert len(here.cluster.core.history()) == 1
        await check_still_working(here)


async def test_a_saved_state_that_is_deleted_after_a_write_without_an_answer_is_written_again() -> None:
    async with world() as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p")
        await until_bought(here, 1)
        here.cluster.api.faults.add(Fault(method="PUT", path="configmaps", sever="after"))
        await here.sleep(60.0)
        await here.user.delete(CONFIG_MAPS, "gpuscaler-state", namespace="kube-system")
        here.cluster.api.faults.clear()
        await here.sleep(120.0)

        assert await all_bound(here)
        assert len(here.cluster.core.history()) == 1


# The cloud


async def test_an_unexpected_error_of_a_provider_is_reported_and_the_call_repeated() -> None:
    async with world() as here:
        here.start()
        await here.sleep(2.0)

        async def inventory() -> Any:
            raise KeyError("a field that this cloud never left out before")

        honest = here.cluster.provider.inventory
        here.cluster.provider.inventory = inventory  # type: ignore[method-assign]
        await here.submit("p")
        await here.sleep(60.0)
        assert here.controller is not None
        assert "KeyError: 'a field that this cloud never left out before'" in here.controller.cloud.trouble
        here.cluster.provider.inventory = honest  # type: ignore[method-assign]
        await here.sleep(300.0)
        assert not here.controller.cloud.trouble
        assert all((await here.bound()).values())


# People


async def test_a_node_deleted_by_hand_while_it_registers_is_waited_for() -> None:
    async with world() as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p")
        while not await here.nodes():
            await here.sleep(0.5)
        (node,) = await here.nodes()
        await here.user.delete(NODES, node["metadata"]["name"])
        await here.sleep(60.0)
        assert len(here.cluster.core.history()) == 1
        await here.sleep(180.0)

        assert await all_bound(here)
        assert len(here.cluster.core.history()) == 1


async def test_a_node_that_a_user_cordoned_stays_cordoned() -> None:
    async with world(IDLE) as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p", 1, **{"gpuscaler.io/run-for": "2m"})
        await here.sleep(90.0)
        (node,) = await here.nodes()
        await here.user.merge_patch(NODES, node["metadata"]["name"], {"spec": {"unschedulable": True}})
        await here.sleep(60.0)
        (node,) = await here.nodes()
        assert node["spec"]["unschedulable"] is True
        await here.submit("q")
        await here.sleep(120.0)

        assert (await here.bound())["q"] != node["metadata"]["name"]


async def test_nothing_is_bought_from_data_older_than_an_outage_of_the_api_server() -> None:
    async with world() as here:
        here.start()
        await here.submit("first")
        await here.sleep(5.0)
        while not await here.nodes():
            assert here.now() < BEGAN + 120.0
            await here.sleep(0.05)
        await here.submit("second")
        await here.sleep(0.05)
        assert here.network is not None
        here.network.cut()
        await here.sleep(20.0)
        await here.user.delete(PODS, "second", namespace="default")
        await here.sleep(200.0)
        here.network.mend()
        await here.sleep(120.0)

        assert [bool(node) for node in (await here.bound()).values()] == [True]
        assert len(here.cluster.core.history()) == 1
