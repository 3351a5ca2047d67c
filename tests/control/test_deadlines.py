"""Machines that the cloud takes away at a known time: replacements are ordered first, and everything ends in time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from tests.control.leaving import CHEAP_RESTART, WriteLog, budget, run, taints
from tests.control.world import ONE_GPU_MACHINES, World, world

from gpuscaler.clouds.protocol import INTERRUPTION, MAINTENANCE, Notice, Order
from gpuscaler.kube.errors import Forbidden
from gpuscaler.kube.resources import PODS
from gpuscaler.model.well_known import ARRIVING_TAINT
from gpuscaler.simulation.cloud.provider import provider_id

FIRST = "sim-00001"


class TimedWriteLog(WriteLog):
    """Records purchases and writes with their times."""

    def __init__(self, here: World) -> None:
        super().__init__()
        self.here = here
        self.moments: list[tuple[str, float]] = []
        #: The error for deletions of pods, empty if they are allowed.
        self.forbids = ""

    async def write(self, request: Any) -> None:
        await super().write(request)
        for what, is_it in (
            ("evict", request.path.endswith("/eviction")),
            ("delete", request.method == "DELETE" and "/pods/" in request.path),
        ):
            if is_it:
                self.moments.append((what, self.here.now()))
                if what == "delete" and self.forbids:
                    raise Forbidden(403, self.forbids)

    async def buy(self, _order: Order) -> None:
        self.moments.append(("buy", self.here.now()))

    def first(self, what: str) -> float:
        return next(at for name, at in self.moments if name == what)


@asynccontextmanager
async def after_notice(
    seconds: float, *, budgeted: bool = False, kind: str = INTERRUPTION, **workload: Any
) -> AsyncIterator[tuple[World, TimedWriteLog, float]]:
    """A pod on a machine that ends after some seconds, and the time at which it does."""
    async with world(ONE_GPU_MACHINES) as here:
        here.watchman = log = TimedWriteLog(here)
        here.start()
        await here.sleep(2.0)
        await run(here, "web", **workload)
        await here.sleep(100.0)
        if budgeted:
            await budget(here, "web", maxUnavailable=0)
            await here.sleep(2.0)
        (machine,) = here.cluster.core.list()
        ends = here.now() + seconds
        here.announced.append(Notice(kind, provider_id(machine), ends))
        log.moments.clear()
        yield here, log, ends


async def has_moved(here: World) -> bool:
    return set((await here.bound()).values()) == {"sim-00002"}


async def test_the_replacement_of_a_machine_is_ordered_once_before_its_pods_are_evicted() -> None:
    async with after_notice(120.0) as (here, log, _):
        await here.sleep(100.0)

        assert log.first("buy") <= log.first("evict")
        assert [what for what, _ in log.moments].count("buy") == 1
        assert await has_moved(here)
        assert [machine.id for machine in here.cluster.core.list()] == ["sim-00002"]


async def test_an_interruption_notice_of_a_few_seconds_is_acted_on_within_seconds() -> None:
    async with after_notice(30.0) as (here, log, ends):
        await here.sleep(20.0)

        # Notices are read every 2 s.
        assert log.first("evict") <= ends - 30.0 + 2.0 + 3.0


async def test_a_grace_period_is_cut_to_the_remaining_time_of_the_machine() -> None:
    async with after_notice(120.0, terminationGracePeriodSeconds=600) as (here, log, ends):
        await here.sleep(20.0)

        (grace,) = log.graces()
        assert grace is not None
        assert log.first("evict") + grace <= ends
        assert grace >= 100


async def test_disruption_budgets_are_respected_until_the_last_seconds_and_then_the_pod_is_deleted() -> None:
    async with after_notice(60.0, budgeted=True) as (here, log, ends):
        await here.sleep(64.0)

        assert len(log.evicted()) >= 4
        assert ends - 15.0 <= log.first("delete") <= ends - 10.0
        assert log.deleted("pods") == [log.evicted()[0]]
        await here.sleep(60.0)
        assert await has_moved(here)


async def test_without_the_right_to_delete_pods_a_blocked_pod_ends_with_its_machine_and_the_right_is_named() -> None:
    async with after_notice(120.0, budgeted=True) as (here, log, ends):
        log.forbids = 'pods "web" is forbidden: User "gpuscaler" cannot delete resource "pods" in API group "" in the namespace "default"'
        await here.sleep(ends - here.now())
        assert set((await here.bound()).values()) == {FIRST}
        await here.cluster.provider.remove((provider_id(here.cluster.core.machine(FIRST)),))
        await here.sleep(180.0)

        assert log.first("delete") > log.first("evict")
        assert any(log.forbids in failure for failure in here.notes.failures)
        assert await has_moved(here)
        assert [machine.id for machine in here.cluster.core.list()] == ["sim-00002"]


async def test_a_pod_that_requests_checkpoint_time_gets_at_most_the_remaining_time_of_its_machine() -> None:
    grace = {**CHEAP_RESTART, "gpuscaler.io/grace": "10m"}
    async with after_notice(120.0, annotations=grace) as (here, log, ends):
        await here.sleep(10.0)
        (pod,) = [pod for pod in await here.pods() if pod["spec"]["nodeName"] == FIRST]
        assert "gpuscaler.io/checkpoint-requested" in pod["metadata"]["annotations"]
        assert log.evicted() == []
        await here.sleep(80.0)

        assert ends - 36.0 <= log.first("evict") <= ends - 30.0
        await here.sleep(20.0)
        assert await has_moved(here)


@pytest.mark.parametrize("protected", [True, False], ids=["protected", "free"])
async def test_protected_pods_are_evicted_only_shortly_before_maintenance(protected: bool) -> None:
    notes = {**CHEAP_RESTART, **({"karpenter.sh/do-not-disrupt": "true"} if protected else {})}
    async with after_notice(900.0, annotations=notes, kind=MAINTENANCE) as (here, log, ends):
        await here.sleep(850.0)

        early = log.first("evict") < ends - 800.0
        assert early is not protected
        assert await has_moved(here)
        assert log.deleted("pods") == []


async def test_if_there_is_enough_time_no_pod_is_evicted_before_the_replacement_is_open() -> None:
    async with after_notice(900.0, kind=MAINTENANCE) as (here, log, _):
        while "evict" not in dict(log.moments):
            await here.sleep(0.5)

        assert len(log.moments) == 2
        nodes = {node["metadata"]["name"]: taints(node) for node in await here.nodes()}
        assert ARRIVING_TAINT not in nodes["sim-00002"]
        await here.sleep(10.0)
        assert await has_moved(here)


async def test_a_controller_restarted_before_an_interruption_keeps_its_deadline() -> None:
    async with after_notice(60.0, budgeted=True) as (here, log, ends):
        await here.sleep(20.0)
        await here.kill()
        here.announced.clear()
        await here.sleep(5.0)
        here.start()
        await here.sleep(45.0)

        assert ends - 15.0 <= log.first("delete") <= ends - 9.0
        body = msgspec.json.decode(await here.user.get(PODS, (await here.pods())[0]["metadata"]["name"], namespace="default"))
        assert body["spec"].get("nodeName", "") != FIRST
