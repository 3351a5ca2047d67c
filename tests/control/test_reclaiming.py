"""Machines that the cloud takes away, with and without notice."""

from typing import Any

import msgspec
import pytest
from tests.control.leaving import WriteLog, names, run
from tests.control.test_replacing import serve
from tests.control.world import BEGAN, World, world
from tests.faults.kit import set_ready
from tests.objects import pod

from gpuscaler.clouds.protocol import MAINTENANCE, REBALANCE, Notice
from gpuscaler.kube.resources import PODS
from gpuscaler.model import instances
from gpuscaler.model.instances import Inventory
from gpuscaler.planning.state import offering_events
from gpuscaler.settings.pools_file import parse_policy
from gpuscaler.simulation.cloud.delays import Delay, Faults
from gpuscaler.simulation.cloud.machines import TERMINATED
from gpuscaler.simulation.cloud.markets import Markets, Steps
from gpuscaler.simulation.cloud.provider import instance_of, provider_id

SPOT = """
region: us-east-1
pools:
  - name: gpu
    types: [g4dn.xlarge]
    markets: [spot, on-demand]
    zones: [us-east-1a]
    idle_after: 2h
"""
PROTECTED = {"karpenter.sh/do-not-disrupt": "true"}
#: Spot is available for ten minutes, and then not for hours.
DRY_AT = BEGAN + 600.0


def dry_spot_market(*, noticed: bool) -> dict[str, Any]:
    """A spot market that runs dry and reclaims its machines."""
    spot = next(offering for pool in parse_policy(SPOT).pools for offering in pool.offerings if offering.market == "spot")
    return {
        "markets": Markets({spot.key: Steps((0.0, DRY_AT - BEGAN), (50.0, 0.0))}, began=BEGAN),
        "faults": Faults(
            never_registers=0.0,
            partial_grants=0.0,
            gpu_hours_between_failures=0.0,
            # Either way the machines end 130 s after the market ran dry.
            reclaim=Delay(10.0, 10.0, 10.0) if noticed else Delay(130.0, 130.0, 130.0),
            without_notice=0.0 if noticed else 1.0,
        ),
    }


def without_controller(here: World, *, terminated: bool) -> None:
    """Make the cloud leave Nodes behind, and list ended machines as ``terminated``, or not at all."""
    inventory = here.cluster.provider.inventory

    async def listed() -> Inventory:
        listed_inventory = await inventory()
        ended = [machine for machine in here.cluster.core.history() if machine.ended_at is not None] if terminated else []
        history = (msgspec.structs.replace(instance_of(machine, here.now(), tagged=True), state=instances.TERMINATED) for machine in ended)
        return msgspec.structs.replace(listed_inventory, instances=(*listed_inventory.instances, *history))

    async def forget(node: dict[str, Any]) -> None:
        """Leave the Node."""

    here.cluster.provider.inventory = listed  # type: ignore[method-assign]
    here.cluster.machines._remove = forget  # type: ignore[method-assign]


def reclaim_count(here: World) -> int:
    assert here.controller is not None
    return sum(breaker.strikes for breaker in here.controller.memory.breakers.open if breaker.cause == offering_events.RECLAIMED)


async def test_pods_are_evicted_from_an_interrupted_machine_even_if_they_are_protected() -> None:
    async with world(SPOT, **dry_spot_market(noticed=True)) as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("bare")
        await here.user.create(PODS, pod("protected", annotations=PROTECTED), namespace="default")
        await here.sleep(300.0)
        machines = {machine.id for machine in here.cluster.core.list()}
        assert {machine.offering.market for machine in here.cluster.core.list()} == {"spot"}
        await here.sleep(DRY_AT + 100.0 - here.now())

        assert await here.pods() == []
        assert not machines & {machine.id for machine in here.cluster.core.list()}
        assert {machine.state for machine in here.cluster.core.history() if machine.id in machines} == {TERMINATED}
        assert reclaim_count(here) == 1


async def test_a_market_that_reclaims_without_notice_is_avoided_and_the_node_is_left_alone() -> None:
    async with world(SPOT, **dry_spot_market(noticed=False)) as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p")
        await here.sleep(DRY_AT + 125.0 - here.now())
        assert reclaim_count(here) == 0
        await here.sleep(60.0)

        assert here.cluster.core.list() == ()
        assert reclaim_count(here) == 1
        assert [remark.machine for remark in here.notes.remarks] == [provider_id(here.cluster.core.history()[0])]
        await here.sleep(60.0)
        assert len(here.notes.remarks) == 1


@pytest.mark.parametrize(
    ("terminated", "ready", "stays"),
    [(True, "Unknown", False), (False, "Unknown", True), (True, "True", True)],
    ids=["terminated", "not listed", "listed as terminated, and Ready"],
)
async def test_the_node_of_a_vanished_machine_is_deleted_only_if_the_machine_is_listed_as_terminated(
    terminated: bool, ready: str, stays: bool
) -> None:
    async with world(SPOT, **dry_spot_market(noticed=False)) as here:
        here.watchman = writes = WriteLog()
        without_controller(here, terminated=terminated)
        here.start()
        await here.sleep(2.0)
        await run(here, "web")
        await here.sleep(DRY_AT + 135.0 - here.now())
        (vanished,) = here.cluster.core.history()
        assert vanished.ended_at is not None
        await set_ready(here, vanished.id, ready)
        await here.sleep(50.0)
        assert vanished.id in await names(here)
        # The pod is as good as lost, so a machine for the next one need not wait until the Node is deleted.
        assert len(here.cluster.core.history()) == (1 if stays else 2)
        await here.sleep(30.0)

        assert (vanished.id in await names(here)) is stays
        deletions = [request for request in writes.requests if request.method == "DELETE" and "/nodes/" in request.path]
        assert all(b'"preconditions":{"uid":"' in request.body for request in deletions)
        assert len(deletions) == (0 if stays else 1)
        (remark,) = here.notes.remarks
        assert remark.text.endswith("is deleted when it is not Ready" if terminated else "is left to the cloud's controller")
        await here.sleep(120.0)
        assert here.notes.kept == []
        if not stays:
            assert set((await here.bound()).values()) == {here.cluster.core.list()[0].id}


async def test_a_machine_is_drained_and_replaced_before_its_scheduled_maintenance() -> None:
    async with world(SPOT) as here:
        here.start()
        await here.sleep(2.0)
        await serve(here)
        await here.sleep(120.0)
        (machine,) = here.cluster.core.list()
        here.announced.append(Notice(MAINTENANCE, provider_id(machine), here.now() + 300.0))
        await here.sleep(200.0)

        assert [remark.text for remark in here.notes.remarks] == [
            f"the cloud announces maintenance of machine {provider_id(machine)}; it is drained before that"
        ]
        (home,) = (await here.bound()).values()
        assert home not in ("", machine.id)
        assert machine.id not in {machine.id for machine in here.cluster.core.list()}
        assert reclaim_count(here) == 0


@pytest.mark.parametrize("kind", [MAINTENANCE, REBALANCE])
async def test_cloud_notices_of_other_types_or_without_a_time_are_reported_once_and_ignored(kind: str) -> None:
    async with world(SPOT) as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p")
        await here.sleep(120.0)
        (machine,) = here.cluster.core.list()
        here.announced.append(Notice(kind, provider_id(machine), 0.0 if kind == MAINTENANCE else here.now() + 60.0))
        await here.sleep(200.0)

        assert [remark.text for remark in here.notes.remarks] == [
            f"the cloud announces {kind} of machine {provider_id(machine)}; no action is taken"
        ]
        assert (await here.bound())["p"] == machine.id
        assert reclaim_count(here) == 0


async def test_ending_a_machine_does_not_count_as_an_interruption_of_its_market() -> None:
    async with world(SPOT.replace("2h", "60s")) as here:
        here.start()
        await here.sleep(2.0)
        await here.user.create(PODS, pod("p", annotations={"gpuscaler.io/run-for": "3m"}), namespace="default")
        await here.sleep(600.0)

        assert here.cluster.core.list() == ()
        assert here.notes.remarks == []
        assert reclaim_count(here) == 0


async def test_a_machine_reclaimed_before_it_opened_is_replaced_by_a_purchase() -> None:
    policy = dry_spot_market(noticed=True)
    async with world(SPOT, **policy) as here:
        here.start()
        await here.sleep(DRY_AT - 12.0 - BEGAN)
        await here.user.create(PODS, pod("p"), namespace="default")
        await here.sleep(400.0)

        bought = here.cluster.core.history()
        assert [machine.offering.market for machine in bought] == ["spot", "on-demand"]
        assert (await here.bound()) == {"p": bought[1].id}
