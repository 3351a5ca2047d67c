"""F4 to F7: calls to a cloud that are refused, get no answer, return part of an answer, or return old data."""

from collections.abc import Sequence
from itertools import pairwise

from tests.faults.kit import IDLE, all_bound, bought, cloud_outage, faulty, recorded, status, taints

from gpuscaler.clouds.protocol import CloudError, LostAnswerError
from gpuscaler.control.loop.cloud import LONGEST_PAUSE
from gpuscaler.control.loop.failing import CALL_SECONDS
from gpuscaler.lifecycle.pacing import Pace
from gpuscaler.model.instances import Instance, Inventory
from gpuscaler.simulation.cloud.provider import CallFaults


async def test_f04_calls_to_a_throttling_cloud_become_less_frequent_and_pods_run_after_it_recovers() -> None:
    async with faulty(calls=CallFaults(throttled=1.0, retry_after=45.0)) as here:
        reads, read = [], here.cluster.provider.inventory

        async def inventory() -> Inventory:
            reads.append(here.now())
            return await read()

        here.cluster.provider.inventory = inventory  # type: ignore[method-assign]
        await here.submit("p")
        await here.sleep(300.0)
        asked = [order.at for order in here.notes.orders]
        assert 2 <= len(asked) <= 8
        assert all(later - earlier >= 45.0 for earlier, later in pairwise(asked))
        # Calls that only read are not sent more often than the cloud allows, either.
        assert all(later - earlier >= 45.0 for earlier, later in pairwise(reads))
        grew = [later - earlier for earlier, later in pairwise(reads)]
        assert grew == sorted(grew)
        assert grew[-1] > grew[0]
        here.cluster.provider._faults = CallFaults()
        await here.sleep(240.0)

        assert await all_bound(here)
        assert len(here.cluster.core.history()) == 1


async def test_f05_during_a_cloud_outage_nothing_is_removed_and_afterwards_pending_pods_get_machines() -> None:
    async with faulty(IDLE.replace("60s", "5m")) as here:
        await here.submit("first", 1, **{"gpuscaler.io/run-for": "60s"})
        await here.sleep(90.0)
        async with cloud_outage(here):
            await here.sleep(1700.0)
            assert [machine.ended_at for machine in here.cluster.core.history()] == [None]
            assert [taints(node) for node in await here.nodes()] == [set()]
            await here.submit("second")
            await here.submit("third")
            await here.sleep(100.0)
            assert "simulated: the cloud is down" in (await status(here)).troubles
        await here.sleep(240.0)

        assert await all_bound(here)
        assert len(here.cluster.core.history()) == 2
        assert (await status(here)).troubles == ("",)


async def test_f05_the_controller_stays_alive_and_ready_during_a_cloud_outage_and_recovers_soon() -> None:
    async with recorded() as (here, service):
        async with cloud_outage(here):
            for _ in range(30):
                await here.sleep(60.0)
                assert (service.liveness_problem(), service.readiness_problem()) == ("", "")
            assert "simulated: the cloud is down" in service.troubles()
        await here.sleep(LONGEST_PAUSE + CALL_SECONDS)
        assert not any("the cloud is down" in trouble for trouble in service.troubles())


async def test_f06_an_incomplete_list_of_machines_is_not_used() -> None:
    async with faulty(IDLE, pace=Pace(register=900.0)) as here:
        for number in range(4):
            await here.submit(f"p{number}")
        await here.sleep(120.0)
        await here.submit("later")
        await bought(here, 5)
        whole = here.cluster.provider.inventory

        async def inventory() -> Inventory:
            pages: Sequence[Instance] = (await whole()).instances
            first = pages[:2]
            raise CloudError("unknown", f"page 2 after {len(first)} machines: InternalError")

        here.cluster.provider.inventory = inventory  # type: ignore[method-assign]
        await here.sleep(300.0)
        assert here.controller is not None
        assert here.controller.cloud.inventory is not None
        assert len(here.controller.cloud.inventory.instances) >= 4
        here.cluster.provider.inventory = whole  # type: ignore[method-assign]
        await here.sleep(200.0)

        # Machines of the second page did not count as gone: nothing was bought in their place, and no breaker mentions them.
        assert await all_bound(here)
        assert len(here.cluster.core.history()) == 5
        assert here.controller.memory.breakers.open == ()
        assert here.notes.remarks == []


async def test_f07_a_list_of_machines_that_lags_by_90_seconds_causes_no_second_purchase() -> None:
    for tokens in (True, False):
        async with faulty(calls=CallFaults(stale_seconds=90.0, tokens=tokens)) as here:
            await here.submit("p")
            await bought(here, 1)
            await here.sleep(20.0)
            assert here.controller is not None
            assert len(here.controller.memory.ledger.coming) == 1
            assert here.controller.memory.breakers.open == ()
            await here.sleep(300.0)

            assert await all_bound(here)
            assert len(here.cluster.core.history()) == 1
            assert [machine.ended_at for machine in here.cluster.core.history()] == [None]


async def test_f07_machines_of_an_order_whose_answer_was_lost_are_found_in_delayed_lists() -> None:
    async with faulty(calls=CallFaults(stale_seconds=90.0, tokens=False)) as here:
        buy = here.cluster.provider.buy

        async def lost(order: object) -> object:
            await buy(order)  # type: ignore[arg-type]
            here.cluster.provider.buy = buy  # type: ignore[method-assign]
            raise LostAnswerError("the connection broke")

        here.cluster.provider.buy = lost  # type: ignore[method-assign, assignment]
        await here.submit("p")
        await here.sleep(400.0)

        assert await all_bound(here)
        assert len(here.cluster.core.history()) == 1
