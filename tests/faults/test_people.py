"""F33 to F36, F46 and F97: groups and machines that people and other programs change, and invalid settings."""

import asyncio
from pathlib import Path

from tests.control.leaving import run
from tests.control.records.test_service import events
from tests.control.test_reclaiming import without_controller
from tests.control.world import ONE_GPU_MACHINES, World
from tests.faults.kit import FILE, IDLE, SPOT_FIRST, all_bound, bought, faulty, recorded, refusing, replicated, status, taints, watch_of

from gpuscaler.clouds.protocol import CONFIGURATION, Order, Refusal
from gpuscaler.kube.resources import NODES
from gpuscaler.model.holds import Hold
from gpuscaler.model.instances import Instance, Inventory
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.model.well_known import LEAVING_TAINT
from gpuscaler.settings.pools_file import parse_policy
from gpuscaler.simulation.cloud.provider import provider_id

TWO_POOLS = (
    ONE_GPU_MACHINES
    + """
  - name: other
    types: [g5.xlarge]
    markets: [on-demand]
    zones: [us-east-1a]
"""
)


async def launch(here: World, count: int = 1, token: str = "by hand") -> None:
    """Launch machines as after a person raised the group's desired capacity, or by the group itself."""
    (pool,) = here.policy.pools
    await here.cluster.provider.buy(Order(token, pool.name, (pool.offerings[0].key,), count))


async def test_f97_each_controller_obeys_a_hold_at_once_and_until_the_resume() -> None:
    async with faulty(IDLE) as here:
        await here.submit("first", 1, **{"gpuscaler.io/run-for": "5s"})
        async with asyncio.timeout(300.0):
            while not any(LEAVING_TAINT in taints(node) for node in await here.nodes()):
                await here.sleep(0.05)
        await here.hold(buying=Hold(), removing=Hold())
        await here.submit("second", gpus=4)
        await here.submit("third")
        await here.sleep(120.0)
        await here.kill()
        here.start()
        await here.sleep(600.0)
        assert len(here.cluster.core.history()) == 1
        assert watch_of(here).ended == []
        assert (await here.bound())["third"], "existing machines may be used"

        await here.hold(buying=None, removing=None)
        await here.submit("fourth")
        await bought(here, 2)
        await here.sleep(60.0)
        orders = len(here.notes.orders)
        await here.hold(buying=Hold())
        await here.submit("fifth")
        await here.sleep(1.0)
        assert len(here.notes.orders) == orders, "the hold was obeyed only when the next poll showed it"


async def test_f97_a_timed_hold_lasts_its_duration_although_clocks_are_minutes_ahead_or_behind(tmp_path: Path) -> None:
    async with replicated(tmp_path) as here:
        for machines in (0, 1):
            leader, asked = await here.leader(), here.here.now()
            assert abs(leader.skew) == 120.0
            await here.here.hold(buying=Hold(since=asked, until=asked + 90.0))
            await here.submit()
            await here.sleep(85.0)
            assert len(here.here.cluster.core.history()) == machines
            assert leader.place is not None
            assert any("saw buying held by a clock that is about 1" in trouble for trouble in leader.place.troubles())
            await here.sleep(20.0)
            assert len(here.here.cluster.core.history()) == machines + 1
            await leader.kill()
            await here.until_taken_over(leader, within=30.0)
            await here.restart(leader)


async def test_f33_machines_added_or_ended_by_hand_are_handled() -> None:
    async with faulty(IDLE) as here:
        await launch(here, 2)
        await here.sleep(60.0)
        await run(here, "web", replicas=2)
        await here.sleep(60.0)
        assert await all_bound(here)
        assert here.notes.orders == []
        # The maximum may be below the number of existing machines, and no running pod pays for it.
        here.policy = parse_policy(IDLE + "    max: 1\n")
        assert here.controller is not None
        here.controller.set_policy(here.policy)
        await here.sleep(600.0)
        assert watch_of(here).ended == []
        assert await all_bound(here)
        here.policy = parse_policy(IDLE)
        here.controller.set_policy(here.policy)
        (first, _) = here.cluster.core.list()
        await here.cluster.provider.remove([provider_id(first)])
        await here.sleep(120.0)

        assert await all_bound(here)
        assert len(here.notes.orders) == 1
        assert len(here.cluster.core.list()) == 2
        assert [f"machine {provider_id(first)}" in remark.text for remark in here.notes.remarks] == [True]


async def test_f33_a_machine_ended_by_hand_is_reported_in_an_event_on_its_node() -> None:
    async with recorded(IDLE) as (here, _):
        without_controller(here, terminated=False)
        await run(here, "web")
        await here.sleep(120.0)
        (first,) = here.cluster.core.list()
        await here.cluster.provider.remove([provider_id(first)])
        await here.sleep(60.0)
        notes = [note for about, reason, note in await events(here) if (about, reason) == (f"Node {first.id}", "MachineNoticed")]

    assert len(notes) == 1
    assert notes[0].startswith(f"machine {provider_id(first)} ")
    assert "is gone without any notice" in notes[0]


async def test_f34_a_replacement_that_a_group_launches_is_adopted_and_nothing_more_is_bought() -> None:
    async with faulty(IDLE) as here:
        await run(here, "web")
        await here.sleep(60.0)
        (old,) = here.cluster.core.list()
        # As in a group that rebalances: the new machine is launched first.
        await launch(here, token="rebalancing")
        await here.sleep(20.0)
        assert here.controller is not None
        await here.sleep(60.0)
        await here.cluster.provider.remove([provider_id(old)])
        await here.sleep(120.0)

        assert await all_bound(here)
        assert len(here.notes.orders) == 1
        (new,) = here.cluster.core.list()
        assert new.purchase == "rebalancing"
        assert any("is gone without any notice" in remark.text for remark in here.notes.remarks)


async def test_f35_removing_a_pool_from_the_settings_while_its_machines_start_delays_no_pod() -> None:
    async with faulty(TWO_POOLS) as here:
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
        assert first in {machine.offering.pool for machine in here.cluster.core.list()}, (
            "a machine of a pool that is not ours any more was ended"
        )


async def test_f35_if_the_group_of_a_pool_was_deleted_pods_run_in_another_pool() -> None:
    async with faulty(TWO_POOLS) as here:
        await here.submit("first")
        await here.sleep(60.0)
        (machine,) = here.cluster.core.list()
        pool = machine.offering.pool
        message = f"ValidationError: AutoScalingGroup name not found - no such group: {pool}"

        def missing(key: OfferingKey) -> Refusal | None:
            return Refusal(CONFIGURATION, key, message) if key[0] == pool else None

        asked = refusing(here, missing)
        await here.submit("second")
        await here.sleep(120.0)
        await here.submit("third")
        await here.sleep(3600.0)

        assert await all_bound(here)
        assert machine.ended_at is None
        assert [machine.offering.pool == pool for machine in here.cluster.core.history()] == [True, False, False]
        assert sum(order.pool == pool for order in asked) == 1
        (breaker,) = (await status(here)).breakers
        assert f"pool {pool}: configuration refused" in breaker.text


async def test_f36_a_machine_of_others_with_our_labels_or_tags_is_left_alone() -> None:
    async with faulty(IDLE) as here:
        await here.submit("p", 1, **{"gpuscaler.io/run-for": "20s"})
        await bought(here, 1)
        await here.sleep(60.0)
        (ours,) = await here.nodes()
        metadata = {"name": "theirs", "labels": {**ours["metadata"]["labels"], "gpuscaler.io/pool": "gpu"}}
        theirs = {**ours, "metadata": metadata, "spec": {"providerID": "simulated:///us-east-1a/theirs"}}
        await here.user.create(NODES, theirs)
        # Another team tags its group with our cluster's name, too.
        inventory = here.cluster.provider.inventory

        async def more() -> Inventory:
            listed = await inventory()
            foreign = Instance("simulated:///us-east-1a/foreign", "their-pool", "on-demand", "g4dn.xlarge", "us-east-1a")
            return Inventory(listed.at, (*listed.instances, foreign))

        here.cluster.provider.inventory = more  # type: ignore[method-assign]
        await here.sleep(2400.0)

        assert watch_of(here).ended == ["simulated:///us-east-1a/sim-00001"]
        (node,) = await here.nodes()
        assert node["metadata"]["name"] == "theirs"
        assert taints(node) == set()
        assert watch_of(here).to("/nodes/theirs") == []
        assert here.notes.last is not None
        assert [blocked.blocker for blocked in here.notes.last.blocked_nodes if blocked.node == "theirs"] == ["not-listed"]
        (warning,) = (await status(here)).warnings
        assert warning.startswith(
            "pool their-pool: the cloud lists 1 machine of it for this cluster (simulated:///us-east-1a/foreign), expected"
        )


async def test_f46_an_invalid_run_file_changes_nothing_and_is_reported(tmp_path: Path) -> None:
    async with replicated(tmp_path) as here:
        await here.submit()
        await here.sleep(60.0)
        leader = await here.leader()
        file = tmp_path / "run.yaml"
        for wrong in ("pools: [", "", FILE.replace("g4dn.xlarge", "g4dn.xlagre"), FILE.replace("max", "min")[:40]):
            file.write_text(wrong)
            await here.sleep(30.0)
            assert leader.place is not None
            assert any("run.yaml" in trouble for trouble in leader.place.troubles())
        await here.submit()
        await here.sleep(60.0)
        assert all((await here.here.bound()).values())
        assert await here.leader() is leader
        assert here.register.writers == [leader.name]
        file.write_text(FILE)
        await here.sleep(30.0)

        assert leader.place is not None
        assert leader.place.troubles() == ()


async def test_f33_changing_labels_of_running_nodes_affects_neither_ownership_nor_price() -> None:
    async with faulty(SPOT_FIRST + "    idle_after: 5m\n") as here:
        await here.submit("short", 1, **{"gpuscaler.io/run-for": "20m"})
        await here.submit("long")
        await bought(here, 2)
        await here.sleep(900.0)
        before = (await status(here)).pools
        for node in await here.nodes():
            labels = {name: "wrong" for name in node["metadata"]["labels"] if name != "kubernetes.io/hostname"}
            await here.user.merge_patch(NODES, node["metadata"]["name"], {"metadata": {"labels": labels}})
        await here.sleep(60.0)
        assert (await status(here)).pools == before
        await here.submit("late")
        await here.sleep(1000.0)

        assert [node["metadata"]["labels"]["gpuscaler.io/pool"] for node in await here.nodes()] == ["gpu", "gpu"]
        assert sorted(await here.bound()) == ["late", "long"]
        assert await all_bound(here)
        assert {machine.offering.instance_type for machine in here.cluster.core.history()} == {"g4dn.xlarge"}
        assert len(here.cluster.core.history()) == 3
        assert (await status(here)).pools == before
