"""F17 to F22: machines that die young, never join, never show their GPUs, lose one, or stop answering."""

import asyncio
from collections import Counter

import msgspec
from msgspec.structs import replace
from tests.control.world import World
from tests.faults.kit import IDLE, SPOT_FIRST, all_bound, bought, faulty, set_ready, status, taints, watch_of

from gpuscaler.kube.resources import NODES
from gpuscaler.lifecycle.pacing import Pace
from gpuscaler.model.well_known import LEAVING_TAINT
from gpuscaler.planning.state import learned_templates
from gpuscaler.settings.pools_file import parse_policy
from gpuscaler.simulation.cloud.delays import Delay, Delays, Faults

EIGHT = """
region: us-east-1
pools:
  - name: gpu
    types: [g4dn.metal, g4dn.xlarge]
    markets: [on-demand]
    zones: [us-east-1a]
    idle_after: 2h
"""
GPU = "nvidia.com/gpu"


async def die_young(here: World) -> None:
    """End every machine five seconds after its launch was accepted: its key is missing, or its image is broken."""
    while True:
        for machine in here.cluster.core.list():
            if here.now() >= machine.bought_at + 5.0:
                await here.cluster.provider.remove([f"simulated:///{machine.offering.zone}/{machine.id}"])
        await asyncio.sleep(1.0)


async def test_f17_two_machines_that_end_before_they_are_ready_pause_their_offering() -> None:
    async with faulty(SPOT_FIRST) as here:
        here.support(die_young(here))
        await here.submit("p")
        await bought(here, 2)
        await here.sleep(60.0)
        assert {breaker.cause for breaker in (await status(here)).breakers} == {"failed"}
        await here.sleep(3540.0)

        # Four offerings of spot and four on-demand, with two tries each, and later one now and then.
        died = Counter(machine.offering.key for machine in here.cluster.core.history())
        assert len(here.cluster.core.history()) <= 8 * 2 + 8 * 3
        assert max(died.values()) <= 6
        texts = [breaker.text for breaker in (await status(here)).breakers if breaker.cause == "failed"]
        assert "machines did not come up" in texts[0]
        assert "it ended before it opened" in texts[0]


async def test_f18_unregistered_machines_are_ended_by_id_and_three_in_a_row_pause_the_pool() -> None:
    async with faulty(SPOT_FIRST, faults=Faults(never_registers=1.0), pace=Pace(register=60.0)) as here:
        await here.submit("p")
        await here.sleep(4500.0)

        machines = here.cluster.core.history()
        assert len(machines) == 3
        # The API server confirms once a minute that nothing has come.
        assert all(60.0 <= machine.ended_at - machine.bought_at <= 130.0 for machine in machines if machine.ended_at is not None)
        assert here.cluster.core.list() == ()
        paused = [breaker for breaker in (await status(here)).breakers if breaker.cause == "absent"]
        assert [breaker.target for breaker in paused] == ["pool gpu"]
        assert "machines never became nodes, 3 times" in paused[0].text
        assert "did not become a node within 60 s" in paused[0].text
        # The offering of the fruitless purchases for the same pod is paused as well.
        assert ["image, network and permissions" in remark.text for remark in here.notes.remarks] == [True, False]
        assert "machines were bought without use" in here.notes.remarks[1].text


async def test_f18_a_machine_that_its_cloud_calls_faulty_before_it_is_a_node_is_replaced_within_minutes() -> None:
    broken = Faults(never_registers=1.0, impaired=1.0, partial_grants=0.0, gpu_hours_between_failures=0.0)
    async with faulty(faults=broken) as here:
        await here.submit("p")
        await bought(here, 1)
        here.cluster.core.change_faults(replace(broken, never_registers=0.0))
        await here.sleep(220.0)

        machine, *_ = here.cluster.core.history()
        assert machine.ended_at is not None
        # The API server confirms once a minute that nothing has come.
        assert 120.0 <= machine.ended_at - machine.bought_at <= 200.0
        await bought(here, 2)
        await here.sleep(300.0)
        assert await all_bound(here)


async def test_f19_a_node_that_shows_its_gpus_two_minutes_after_ready_causes_no_second_purchase() -> None:
    slow = Delays(boot=Delay(15.0, 15.0, 15.0), device_plugin=Delay(120.0, 120.0, 120.0), answer=Delay(1.0, 1.0, 1.0))
    async with faulty(delays=slow) as here:
        for number in range(8):
            await here.submit(f"p{number}")
        await here.sleep(300.0)

        assert await all_bound(here)
        assert len(here.cluster.core.history()) == 8


async def test_f19_a_machine_that_never_shows_its_gpus_is_replaced_and_its_device_plugin_is_reported() -> None:
    broken = Faults(never_registers=0.0, partial_grants=0.0, gpu_hours_between_failures=0.0, never_visible=1.0)
    async with faulty(faults=broken, pace=Pace(ready=120.0)) as here:
        await here.submit("p")
        await bought(here, 1)
        await here.sleep(100.0)
        assert len(here.cluster.core.history()) == 1
        await bought(here, 2)
        (breaker, *_) = here.controller.memory.breakers.open if here.controller is not None else ()

        assert f"it shows no {GPU}: is its device plugin running?" in breaker.detail
        assert here.cluster.core.history()[0].ended_at is not None


async def test_f20_a_node_that_lost_a_gpu_is_reported_and_used_with_its_other_gpus() -> None:
    async with faulty(EIGHT) as here:
        for number in range(3):
            await here.submit(f"p{number}")
        await here.submit("large", 4)
        await here.sleep(120.0)
        assert await all_bound(here)
        (large,) = [machine for machine in here.cluster.core.list() if machine.offering.instance_type == "g4dn.metal"]
        before = len(here.cluster.core.list())
        free = 8 - sum(4 if name == "large" else 1 for name, node in (await here.bound()).items() if node == large.id)
        node = msgspec.json.decode(await here.user.get(NODES, large.id))
        node["status"]["allocatable"][GPU] = str(8 - free)
        await here.user.replace(NODES, large.id, node, subresource="status")
        await here.sleep(15.0)
        await here.submit("later")
        await here.sleep(120.0)

        assert (await here.bound())["later"] not in ("", large.id)
        assert len(here.cluster.core.list()) == before + 1
        assert any(f"node {large.id} shows {8 - free} of 8 {GPU}" in warning for warning in (await status(here)).warnings)


def test_f20_a_machine_with_a_broken_gpu_does_not_reduce_the_gpus_of_the_node_template() -> None:
    policy = parse_policy(EIGHT)
    (metal,) = [offering for offering in policy.pools[0].offerings if offering.instance_type == "g4dn.metal"]
    seen = learned_templates.ReadyNode(metal.key, 0.0, {**metal.allocatable, GPU: 7, "memory": metal.allocatable["memory"] - 1})
    (offering,) = [
        offering
        for offering in learned_templates.corrected_policy(policy, learned_templates.step(learned_templates.Learned(), seen))
        .pools[0]
        .offerings
        if offering.instance_type == "g4dn.metal"
    ]

    assert offering.allocatable[GPU] == 8
    assert offering.allocatable["memory"] == metal.allocatable["memory"] - 1


async def test_f21_a_node_not_ready_for_40_minutes_gets_no_pods_and_is_used_again_afterwards() -> None:
    async with faulty(IDLE) as here:
        await here.submit("first", 1, **{"gpuscaler.io/run-for": "30s"})
        while not any(pod["status"].get("phase") == "Succeeded" for pod in await here.pods()):
            await here.sleep(1.0)
        (node,) = await here.nodes()
        name = node["metadata"]["name"]
        await set_ready(here, name, "Unknown")
        await here.submit("second")
        await here.sleep(2400.0)
        assert await all_bound(here)
        assert [machine.ended_at for machine in here.cluster.core.history()] == [None, None]
        await set_ready(here, name, "True")
        await here.submit("third")
        await here.sleep(30.0)

        assert (await here.bound())["third"] == name
        assert len(here.cluster.core.history()) == 2
        assert [taints(node) for node in await here.nodes()] == [set(), set()]


async def test_f21_a_node_that_becomes_not_ready_during_its_removal_is_reopened_and_ended_later() -> None:
    async with faulty(IDLE) as here:
        await here.submit("first", 1, **{"gpuscaler.io/run-for": "30s"})
        while not any(LEAVING_TAINT in taints(node) for node in await here.nodes()):
            await here.sleep(0.1)
        (node,) = await here.nodes()
        await set_ready(here, node["metadata"]["name"], "Unknown")
        await here.sleep(2400.0)
        assert watch_of(here).ended == []
        (node,) = await here.nodes()
        assert LEAVING_TAINT not in taints(node)
        await set_ready(here, node["metadata"]["name"], "True")
        await here.sleep(300.0)

        assert len(watch_of(here).ended) == 1
        assert await here.nodes() == []


async def test_f22_while_most_nodes_are_not_ready_nothing_is_removed() -> None:
    async with faulty(IDLE) as here:
        for number in range(6):
            await here.submit(f"p{number}", 1, **{"gpuscaler.io/run-for": "30s"})
        while not all(pod["status"].get("phase") == "Succeeded" for pod in await here.pods()):
            await here.sleep(2.0)
        names = [node["metadata"]["name"] for node in await here.nodes()]
        assert len(names) == 6
        for name in names[:5]:
            await set_ready(here, name, "Unknown")
        await here.sleep(300.0)
        assert [machine.ended_at for machine in here.cluster.core.history()] == [None] * 6
        # Foreign nodes are nodes of the cluster, too.
        assert "5 of 8 nodes are not Ready; nothing is removed until at most 45 % are" in (await status(here)).warnings
        for name in names[:5]:
            await set_ready(here, name, "True")
        await here.sleep(180.0)

        assert here.cluster.core.list() == ()
