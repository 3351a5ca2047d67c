"""What must happen when something breaks: the API server, the cloud, objects that people change by hand."""

import asyncio
from collections import Counter
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from tests.control.world import BEGAN, ONE_GPU_MACHINES, Deaths, World, world

from gpuscaler.clouds.delays import Delay, Delays, Faults
from gpuscaler.clouds.markets import Markets, Steps
from gpuscaler.clouds.simulated_provider import CallFaults
from gpuscaler.control.controller import Pace
from gpuscaler.embedded.failures import Failure
from gpuscaler.embedded.faults import Fault
from gpuscaler.kube.resources import CONFIG_MAPS, NODES, PODS
from gpuscaler.model.pools import Policy
from gpuscaler.settings.pools_file import parse_policy

#: Nothing but the event loop is waited for, so one look at it is enough before time goes on.
pytestmark = pytest.mark.looptime(noop_cycles=1)

IDLE = f"{ONE_GPU_MACHINES}    idle_after: 60s\n"
TWO_POOLS = (
    ONE_GPU_MACHINES
    + """
  - name: other
    types: [g5.xlarge]
    markets: [on-demand]
    zones: [us-east-1a]
"""
)


async def bought(here: World, count: int) -> None:
    """Wait until so many machines have been bought."""
    while len(here.cluster.core.history()) < count:
        await here.sleep(0.5)


async def lives(here: World) -> None:
    """What runs goes on to run, and another pod gets another machine."""
    before = len(here.cluster.core.history())
    await here.submit("later")
    await here.sleep(120.0)
    assert (await here.bound())["later"]
    assert len(here.cluster.core.history()) == before + 1


async def all_bound(here: World) -> bool:
    return all((await here.bound()).values())


# The memory


@pytest.mark.parametrize("after", [0.0, 1.0, 10.0])
async def test_a_memory_that_somebody_deletes_while_machines_are_on_their_way_is_written_again(after: float) -> None:
    async with world() as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p")
        await bought(here, 1)
        await here.sleep(after)
        await here.user.delete(CONFIG_MAPS, "gpuscaler-state", namespace="kube-system")
        await here.sleep(120.0)

        assert await all_bound(here)
        assert len(here.cluster.core.history()) == 1
        await lives(here)


async def test_a_memory_that_somebody_deletes_while_its_write_is_in_doubt_is_written_again() -> None:
    async with world() as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p")
        await bought(here, 1)
        here.cluster.api.faults.add(Fault(method="PUT", path="configmaps", sever="after"))
        await here.sleep(60.0)
        await here.user.delete(CONFIG_MAPS, "gpuscaler-state", namespace="kube-system")
        here.cluster.api.faults.clear()
        await here.sleep(120.0)

        assert await all_bound(here)
        assert len(here.cluster.core.history()) == 1


# The API server


async def test_a_machine_that_registers_while_the_api_server_is_away_is_not_given_up() -> None:
    async with world(pace=Pace(register=90.0, ready=90.0)) as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p")
        await bought(here, 1)
        assert here.network is not None
        here.network.cut()
        await here.sleep(600.0)
        here.network.mend()
        await here.sleep(90.0)

        assert await all_bound(here)
        assert len(here.cluster.core.history()) == 1


async def test_nothing_is_removed_on_what_was_seen_before_the_api_server_went_away() -> None:
    async with world(IDLE) as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p", 1, **{"gpuscaler.io/run-for": "60s"})
        await here.sleep(70.0)
        assert here.network is not None
        here.network.cut()
        await here.sleep(600.0)

        assert [one.ended_at for one in here.cluster.core.history()] == [None]
        here.network.mend()
        await here.sleep(180.0)
        assert here.cluster.core.list() == ()


async def test_conflicts_on_every_write_of_a_node_for_a_minute_lose_no_taint() -> None:
    async with world() as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p")
        conflict = Failure(409, "Conflict", "the object has been modified")
        here.cluster.api.faults.add(Fault(method="PATCH", path="/nodes/", refusal=conflict))
        await here.sleep(90.0)
        here.cluster.api.faults.clear()
        await here.sleep(60.0)

        assert await all_bound(here)
        (node,) = await here.nodes()
        assert [taint["key"] for taint in node["spec"].get("taints") or () if taint["effect"] == "NoSchedule"] == []


# The cloud


async def test_while_the_cloud_is_away_nothing_is_removed_and_what_waits_is_served_when_it_is_back() -> None:
    async with world(IDLE) as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("first", 1, **{"gpuscaler.io/run-for": "60s"})
        await here.sleep(90.0)
        here.cluster.provider.outage = "the cloud is down"
        await here.submit("second", 2)
        await here.submit("third")
        await here.sleep(1800.0)
        assert [one.ended_at for one in here.cluster.core.history()] == [None]
        here.cluster.provider.outage = ""
        await here.sleep(240.0)

        assert (await here.bound())["third"]


async def test_a_provider_that_fails_in_a_way_nobody_foresaw_ends_the_controller_and_is_named() -> None:
    async with world() as here:
        here.start()
        await here.sleep(2.0)

        async def inventory() -> Any:
            raise KeyError("a field that this cloud never left out before")

        here.cluster.provider.inventory = inventory  # type: ignore[method-assign]
        with pytest.raises(KeyError, match="never left out"):
            await here.sleep(30.0)


async def test_a_cloud_that_refuses_everything_is_asked_ever_more_rarely_and_the_demand_stays() -> None:
    async with world(calls=CallFaults(throttled=1.0, retry_after=45.0)) as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p")
        await here.sleep(300.0)
        assert len(here.notes.orders) <= 8
        asked = [order.at for order in here.notes.orders]
        assert all(later - earlier >= 45.0 for earlier, later in pairwise(asked))


# People


async def test_a_node_that_somebody_deletes_while_it_arrives_is_waited_for() -> None:
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


async def test_a_persons_cordon_is_never_written() -> None:
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


async def test_a_pool_that_leaves_the_settings_with_machines_on_their_way_keeps_nobody_waiting() -> None:
    async with world(TWO_POOLS) as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p")
        await bought(here, 1)
        assert here.controller is not None
        first = here.cluster.core.list()[0].offering.pool
        both = parse_policy(TWO_POOLS)
        here.controller.set_policy(Policy(tuple(pool for pool in both.pools if pool.name != first)))
        await here.sleep(1200.0)

        assert await all_bound(here)
        assert not here.controller.memory.ledger.coming
        assert not here.controller.memory.ledger.promises
        assert first in {one.offering.pool for one in here.cluster.core.list()}, "a machine of a pool that is not ours any more was ended"


async def test_a_controller_that_dies_in_the_middle_of_a_removal_leaves_no_node_closed() -> None:
    for step in range(1, 5):
        async with world(IDLE, seed=step) as here:
            here.start()
            await here.sleep(2.0)
            await here.submit("p", 1, **{"gpuscaler.io/run-for": "20s"})
            await here.sleep(80.0)
            here.deaths.at = here.deaths.steps + step
            assert await here.until_dead(200.0)
            here.start(Deaths())
            await here.sleep(20.0)
            await here.submit("q")
            await here.sleep(120.0)

            assert (await here.bound())["q"]


async def test_pods_that_come_and_go_all_the_time_buy_no_more_machines_than_wait_at_once() -> None:
    async with world(IDLE) as here:
        here.start()
        await here.sleep(2.0)
        for number in range(60):
            await here.submit(f"p{number}")
            await asyncio.sleep(0.5)
            await here.user.delete(PODS, f"p{number}", namespace="default")
            await asyncio.sleep(0.5)

        assert len(here.cluster.core.history()) <= 2


# Capacity

SPOT_FIRST = """
region: us-east-1
pools:
  - name: gpu
    types: [g4dn.xlarge, g5.xlarge]
    markets: [spot, on-demand]
    zones: [us-east-1a, us-east-1b]
"""


def dry(*markets: str) -> Markets:
    """No capacity in these markets, ever."""
    pools = parse_policy(SPOT_FIRST).pools
    return Markets({one.key: Steps((0.0,), (0.0,)) for pool in pools for one in pool.offerings if one.market in markets}, began=BEGAN)


async def test_where_all_spot_is_dry_on_demand_is_bought_within_ten_seconds_of_the_first_refusal() -> None:
    async with world(SPOT_FIRST, markets=dry("spot")) as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p")
        await bought(here, 1)
        (machine,) = here.cluster.core.history()
        assert machine.offering.market == "on-demand"
        assert machine.bought_at - here.notes.orders[0].at <= 10.0 + 3.0


async def test_where_everything_is_dry_the_cloud_is_asked_less_than_once_a_second_and_the_demand_stays() -> None:
    async with world(SPOT_FIRST, markets=dry("spot", "on-demand")) as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p")
        await here.sleep(600.0)

        assert 3 <= len(here.notes.orders) <= 60
        assert here.notes.last is not None
        assert [one.pod for one in here.notes.last.unplaced] == ["default/p"] or here.notes.last.machines


async def test_of_a_partial_grant_only_the_rest_is_bought_elsewhere() -> None:
    both = ONE_GPU_MACHINES.replace("[on-demand]", "[spot, on-demand]")
    spot = next(one for one in parse_policy(both).pools[0].offerings if one.market == "spot")
    async with world(both, markets=Markets({spot.key: Steps((0.0,), (6.0,))}, began=BEGAN)) as here:
        here.start()
        await here.sleep(2.0)
        for number in range(10):
            await here.submit(f"p{number}")
        await here.sleep(300.0)

        assert await all_bound(here)
        assert Counter(one.offering.market for one in here.cluster.core.history()) == {"spot": 6, "on-demand": 4}


async def test_machines_that_never_register_are_ended_and_not_bought_without_end() -> None:
    async with world(faults=Faults(never_registers=1.0), pace=Pace(register=60.0)) as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p")
        await here.sleep(3600.0)

        machines = here.cluster.core.history()
        assert 1 < len(machines) < 20
        assert sum(one.ended_at is None for one in machines) <= 1
        assert len(here.cluster.core.list()) <= 1


async def test_gpus_that_appear_two_minutes_after_ready_are_not_bought_twice() -> None:
    slow = Delays(boot=Delay(15.0, 15.0, 15.0), device_plugin=Delay(120.0, 120.0, 120.0), answer=Delay(1.0, 1.0, 1.0))
    async with world(delays=slow) as here:
        here.start()
        await here.sleep(2.0)
        for number in range(8):
            await here.submit(f"p{number}")
        await here.sleep(300.0)

        assert await all_bound(here)
        assert len(here.cluster.core.history()) == 8


async def test_while_most_nodes_are_not_ready_nothing_is_removed() -> None:
    async with world(IDLE) as here:
        here.start()
        await here.sleep(2.0)
        for number in range(6):
            await here.submit(f"p{number}", 1, **{"gpuscaler.io/run-for": "30s"})
        while not all(one["status"].get("phase") == "Succeeded" for one in await here.pods()):
            await here.sleep(2.0)
        names = [one["metadata"]["name"] for one in await here.nodes()]
        assert len(names) == 6
        for name in names[:5]:
            await become(here, name, "Unknown")
        await here.sleep(300.0)
        assert [one.ended_at for one in here.cluster.core.history()] == [None] * 6
        for name in names[:5]:
            await become(here, name, "True")
        await here.sleep(180.0)

        assert here.cluster.core.list() == ()


async def become(here: World, name: str, ready: str) -> None:
    """The node says so of itself."""
    node = msgspec.json.decode(await here.user.get(NODES, name))
    node["status"]["conditions"] = [{"type": "Ready", "status": ready}]
    await here.user.replace(NODES, name, node, subresource="status")
