"""F23 to F27, F121, F122: machines that the cloud takes away, with much notice, little or none, and many at once."""

from typing import Any

import msgspec
import pytest
from tests.control.leaving import run
from tests.control.test_reclaiming import without_controller
from tests.control.world import BEGAN, QUICK, World
from tests.faults.guarding import IDLE_STRANGER, Watch
from tests.faults.kit import all_bound, faulty, markets, set_ready, taints, watch_of

from gpuscaler.clouds.protocol import INTERRUPTION, Notice
from gpuscaler.kube.resources import NODES
from gpuscaler.lifecycle.node_events import STALE_SECONDS
from gpuscaler.model.scheduled_events import PREEMPT, SCHEDULED_EVENT, ScheduledEvent, format_scheduled_event
from gpuscaler.model.well_known import LEAVING_TAINT
from gpuscaler.settings.pools_file import parse_policy
from gpuscaler.simulation.cloud.delays import Delay, Faults
from gpuscaler.simulation.cloud.markets import Markets, Steps
from gpuscaler.simulation.cloud.provider import provider_id

SPOT = """
region: us-east-1
pools:
  - name: gpu
    types: [g4dn.xlarge]
    markets: [spot, on-demand]
    zones: [us-east-1a]
    idle_after: 2h
"""
#: Limits for a hundred machines while those that leave and those that come exist at the same time.
MANY = "limits: {gpus: 128, machines: 128, machines_per_minute: 64, dollars_per_hour: 60}\n"
DRY_AT = BEGAN + 300.0


def dry(*, notice: float, spread: float = 0.0, late: float = 0.0) -> dict[str, Any]:
    """A spot market without capacity, from ``late`` seconds on, that reclaims its machines ``notice`` seconds after the notice.

    All notices come within ``spread`` seconds.
    """
    spot = next(offering for pool in parse_policy(SPOT).pools for offering in pool.offerings if offering.market == "spot")
    return {
        "markets": Markets({spot.key: Steps((0.0, DRY_AT + late - BEGAN), (100.0, 0.0))}, began=BEGAN),
        "faults": Faults(
            never_registers=0.0,
            partial_grants=0.0,
            gpu_hours_between_failures=0.0,
            reclaim=Delay(0.0, spread / 2, spread),
            without_notice=0.0 if notice else 1.0,
            notice_seconds=notice,
        ),
    }


async def until(here: World, moment: float) -> None:
    await here.sleep(moment - here.now())


async def test_f23_after_a_notice_grace_periods_are_shortened_to_it_and_a_replacement_is_ordered_at_once() -> None:
    async with faulty(SPOT, **dry(notice=120.0)) as here:
        await run(here, "web", terminationGracePeriodSeconds=600)
        await until(here, DRY_AT + 60.0)
        watch = watch_of(here)
        evictions = watch.to("/eviction")
        body = msgspec.json.decode(evictions[0][1].body)
        assert 60 <= body["deleteOptions"]["gracePeriodSeconds"] <= 120
        assert here.notes.orders[-1].at <= evictions[0][0] + 5.0
        assert markets(here) == ["spot", "on-demand"]
        await until(here, DRY_AT + 400.0)

        assert await all_bound(here)
        assert here.notes.failures == []
        assert [node["metadata"]["name"] for node in await here.nodes()] == [machine.id for machine in here.cluster.core.list()]


@pytest.mark.parametrize("late", [0.1, 1.1, 1.9])
async def test_f24_with_30_seconds_left_machines_are_tainted_and_pods_notified_or_evicted_within_3_seconds(late: float) -> None:
    async with faulty(SPOT, **dry(notice=30.0, late=late)) as here:
        await run(here, "web", annotations={"gpuscaler.io/grace": "10s"}, terminationGracePeriodSeconds=5)
        await run(here, "batch")
        await until(here, DRY_AT + late + 3.0)
        watch = watch_of(here)
        assert sum(LEAVING_TAINT.encode() in request.body for _, request in watch.to("/nodes/", "PATCH")) == 2
        # One is asked to save its work, and the other to end.
        assert sum(b"gpuscaler.io/checkpoint-requested" in request.body for _, request in watch.to("/pods/web", "PATCH")) == 1
        assert evicted(watch) == ["batch"]
        await until(here, DRY_AT + late + 20.0)
        assert evicted(watch) == ["batch", "web"]
        await until(here, DRY_AT + 300.0)
        assert await all_bound(here)


def evicted(watch: Watch) -> list[str]:
    """Return the names of the evicted pods, in order."""
    return list(dict.fromkeys(request.path.split("/")[-2].split("-")[0] for _, request in watch.to("/eviction")))


async def test_f25_the_node_of_a_machine_lost_without_notice_is_deleted_and_its_market_is_avoided() -> None:
    async with faulty(SPOT, **dry(notice=0.0)) as here:
        await run(here, "web")
        await until(here, DRY_AT + 60.0)
        (vanished, *_) = here.cluster.core.history()
        assert vanished.ended_at is not None
        assert here.controller is not None
        assert [breaker.cause for breaker in here.controller.memory.breakers.open] == ["reclaimed"]
        await until(here, DRY_AT + 600.0)

        assert vanished.id not in {node["metadata"]["name"] for node in await here.nodes()}
        assert await all_bound(here)
        assert markets(here) == ["spot", "on-demand"]


async def test_f25_a_node_left_behind_is_deleted_once_the_cloud_lists_its_machine_as_terminated() -> None:
    async with faulty(SPOT, **dry(notice=0.0)) as here:
        without_controller(here, terminated=True)
        await run(here, "web")
        await until(here, DRY_AT + 60.0)
        (vanished, *_) = here.cluster.core.history()
        await set_ready(here, vanished.id, "Unknown")
        await until(here, DRY_AT + 240.0)

        assert vanished.id not in {node["metadata"]["name"] for node in await here.nodes()}
        assert watch_of(here).ended == []
        assert await all_bound(here)
        assert markets(here) == ["spot", "on-demand"]


async def test_f26_a_repeated_interruption_notice_counts_once_and_one_for_another_cluster_is_ignored() -> None:
    async with faulty(SPOT) as here:
        await run(here, "web", replicas=2)
        await here.sleep(120.0)
        assert await all_bound(here)
        first, second = here.cluster.core.list()
        at = here.now() + 120.0
        odd = [Notice("ec2-unheard-of", provider_id(second), at), Notice("", "", -1.0)]
        theirs = (f"simulated:///us-east-1a/{IDLE_STRANGER}", "aws:///us-east-1a/i-0123")
        foreign = [Notice(INTERRUPTION, instance, moment) for instance, moment in zip(theirs, (at, 0.0), strict=True)]
        ours = [Notice(INTERRUPTION, provider_id(first), later) for later in (at, at - 30.0, at, at + 30.0, at)]
        here.announced += [*odd, *foreign, *ours, *foreign, *odd]
        await here.sleep(300.0)

        watch = watch_of(here)
        assert len(watch.to("/eviction")) == 1
        assert {
            request.path.rpartition("/")[2] for _, request in watch.to("/nodes/", "PATCH") if LEAVING_TAINT.encode() in request.body
        } == {first.id}
        assert all(not taints(node) for node in await here.nodes() if node["metadata"]["name"] == second.id)
        assert len(here.cluster.core.history()) == 3
        assert await all_bound(here)
        # An unknown notice is reported, once, and no action is taken.
        assert [remark.text.split(";")[0] for remark in here.notes.remarks if "unheard" in remark.text] == [
            f"the cloud announces ec2-unheard-of of machine {provider_id(second)}"
        ]
        assert len(here.notes.remarks) == 2


async def test_f27_fifty_machines_interrupted_within_ten_seconds_are_replaced_with_a_few_orders() -> None:
    async with faulty(MANY + SPOT, delays=QUICK, **dry(notice=120.0, spread=10.0)) as here:
        await run(here, "web", replicas=50)
        await until(here, DRY_AT - 1.0)
        assert await all_bound(here)
        assert markets(here) == ["spot"] * 50
        before, plans = len(here.notes.orders), here.notes.plans
        await until(here, DRY_AT + 400.0)

        assert await all_bound(here)
        assert sorted(markets(here)) == ["on-demand"] * 50 + ["spot"] * 50
        assert len(here.notes.orders) - before <= 10
        assert here.notes.plans - plans <= 100
        watch = watch_of(here)
        # Each pod is evicted, and retried a few times at most.
        assert 50 <= len(watch.to("/eviction")) <= 150
        assert sum(LEAVING_TAINT.encode() in request.body for _, request in watch.to("/nodes/", "PATCH")) <= 100
        assert here.notes.failures == []


async def announce(here: World, node: str, value: str) -> None:
    """Write a scheduled event on a node, as an agent there does."""
    await here.user.merge_patch(NODES, node, {"metadata": {"annotations": {SCHEDULED_EVENT: value}}})


@pytest.mark.parametrize("late", [0.3, 3.7, 7.1])
async def test_f121_a_machine_whose_node_announces_an_eviction_in_30_seconds_is_tainted_within_a_second_and_replaced(late: float) -> None:
    async with faulty(SPOT) as here:
        await run(here, "web", terminationGracePeriodSeconds=600)
        await here.sleep(120.0 + late)
        (home,) = set((await here.bound()).values())
        began = here.now()
        await announce(here, home, format_scheduled_event(ScheduledEvent(PREEMPT, "e-1", began + 30.0)))
        await here.sleep(25.0)
        watch = watch_of(here)
        tainted = [at for at, request in watch.to("/nodes/", "PATCH") if LEAVING_TAINT.encode() in request.body]
        assert tainted[0] <= began + 1.0
        assert tainted[0] <= here.notes.orders[-1].at <= watch.to("/eviction")[0][0]
        assert msgspec.json.decode(watch.to("/eviction")[0][1].body)["deleteOptions"]["gracePeriodSeconds"] <= 30
        await here.sleep(300.0)

        assert await all_bound(here)
        assert markets(here) == ["spot", "on-demand"]


async def test_f122_scheduled_events_that_are_old_unreadable_or_of_machines_that_are_not_ours_remove_nothing() -> None:
    async with faulty(SPOT) as here:
        await run(here, "web", replicas=2)
        await here.sleep(120.0)
        homes = await here.bound()
        first, second = sorted(set(homes.values()))
        await announce(here, first, format_scheduled_event(ScheduledEvent(PREEMPT, "e-1", here.now() - 2 * STALE_SECONDS)))
        await announce(here, second, '{"kind":"Vanish","id":"e-2"}')
        await announce(here, IDLE_STRANGER, format_scheduled_event(ScheduledEvent(PREEMPT, "e-3", here.now() + 30.0)))
        await here.sleep(300.0)

        assert await here.bound() == homes
        assert watch_of(here).ended == []
        assert here.notes.last is not None
        assert any(SCHEDULED_EVENT in warning and second in warning for warning in here.notes.last.warnings)
        await here.user.merge_patch(NODES, IDLE_STRANGER, {"metadata": {"annotations": None}})
