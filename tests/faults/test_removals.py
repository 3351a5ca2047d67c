"""F28 to F32: machines to be removed, and what prevents it."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from itertools import pairwise
from typing import Any

import pytest
from tests.control.leaving import DEAR, LARGE, budget, is_as_before, is_marked, run
from tests.control.test_replacing import BOTH, without_spot
from tests.control.world import World
from tests.faults.kit import IDLE, all_bound, faulty, latest, markets, taints, watch_of
from tests.objects import pod

from gpuscaler.control.records.status.why import why_node
from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.kube.resources import CONFIG_MAPS, PODS
from gpuscaler.lifecycle.termination.removing import DRAIN_SECONDS
from gpuscaler.model.well_known import LEAVING_TAINT

BUDGET = Failure(
    429,
    "TooManyRequests",
    "Cannot evict pod as it would violate the pod's disruption budget.",
    details={"causes": [{"reason": "DisruptionBudget", "message": "The disruption budget web needs 1 healthy pods and has 1 currently"}]},
)
SEVERAL = Failure(500, "", "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.")


@asynccontextmanager
async def dear(*workloads: Mapping[str, Any], pools: str = BOTH, **more: Any) -> AsyncIterator[World]:
    """``workloads`` run on on-demand machines, and would cost less on spot, which may not be bought yet: see :func:`offer_spot`."""
    async with faulty(pools, **more) as here:
        full = here.policy
        assert here.controller is not None
        here.policy = without_spot(full)
        here.controller.set_policy(here.policy)
        for workload in workloads or ({"name": "web"},):
            await run(here, **workload)
        await here.sleep(240.0)
        assert set(markets(here)) == {"on-demand"}
        here.policy = full
        yield here


def offer_spot(here: World) -> None:
    assert here.controller is not None
    here.controller.set_policy(here.policy)


async def test_f28_a_disruption_budget_that_never_allows_evictions_keeps_its_node_while_others_are_removed() -> None:
    async with dear({"name": "web"}, {"name": "free"}) as here:
        await budget(here, "web", maxUnavailable=0)
        await here.sleep(5.0)
        offer_spot(here)
        await here.sleep(1200.0)

        on_spot = {machine.id for machine in here.cluster.core.list() if machine.offering.market == "spot"}
        bound = await here.bound()
        assert {name.split("-")[0] for name, node in bound.items() if node in on_spot} == {"free"}
        (web,) = [node for name, node in bound.items() if name.startswith("web")]
        assert here.notes.last is not None
        (blocked,) = [blocked for blocked in here.notes.last.blocked_nodes if blocked.node == web]
        assert "PodDisruptionBudget" in blocked.detail
        answer = why_node(await latest(here), web, [], here.now())
        message = " ".join(answer.now)
        assert "PodDisruptionBudget web allows 0 disruptions" in message
        assert "at $0.53/h" in message
        watch = watch_of(here)
        # It was not even tried.
        assert [request.path for _, request in watch.to("/eviction") if "/web-" in request.path] == []
        assert [request for _, request in watch.to(f"/nodes/{web}") if LEAVING_TAINT.encode() in request.body] == []


@pytest.mark.parametrize("failure", [BUDGET, SEVERAL], ids=["429", "500"])
async def test_f29_evictions_refused_for_an_hour_are_retried_less_and_less_often_until_they_succeed(failure: Failure) -> None:
    async with dear() as here:
        here.cluster.api.faults.add(Fault(path="/eviction", refusal=failure))
        offer_spot(here)

        async def marked() -> bool:
            return await is_marked(here)

        async def open_again() -> bool:
            return await is_as_before(here) and not await is_marked(here)

        await here.until(marked)
        began = here.now()
        await here.until(open_again, DRAIN_SECONDS + 120.0)
        assert here.now() >= began + DRAIN_SECONDS - 1.0
        tried = [at for at, _ in watch_of(here).to("/eviction")]
        assert 5 <= len(tried) <= 25
        pauses = [later - earlier for earlier, later in pairwise(tried)]
        assert pauses[0] >= 4.9
        assert max(pauses) >= 55.0
        assert any("could not be drained within 600 s" in why and "$0.53 an hour" in why for _, why in here.notes.kept)
        await here.sleep(3600.0 - (here.now() - began))
        assert await all_bound(here)
        here.cluster.api.faults.clear()
        await here.sleep(600.0)

        assert [machine.offering.market for machine in here.cluster.core.list()] == ["spot"]
        assert await all_bound(here)


@pytest.mark.parametrize("after", [0.0, 0.5, 1.0])
async def test_f30_a_pod_that_starts_on_a_node_being_removed_keeps_its_machine(after: float) -> None:
    async with faulty(IDLE) as here:
        await here.submit("first", 1, **{"gpuscaler.io/run-for": "30s"})
        name = ""
        while not name:
            await here.sleep(0.1)
            name = next((node["metadata"]["name"] for node in await here.nodes() if LEAVING_TAINT in taints(node)), "")
        await here.sleep(after)
        assert watch_of(here).ended == []
        late = pod("late")
        late["spec"]["nodeName"] = name
        await here.user.create(PODS, late, namespace="default")
        await here.sleep(300.0)

        assert watch_of(here).ended == []
        assert (await here.bound())["late"] == name
        (node,) = await here.nodes()
        assert taints(node) == set()
        assert [node for node, _ in here.notes.kept] == [name]


async def test_f31_a_pod_that_never_terminates_is_reported_and_does_not_block_the_removal() -> None:
    async with dear(pools=LARGE) as here:
        (name,) = await here.bound()
        await here.user.merge_patch(PODS, name, {"metadata": {"finalizers": ["example.com/hold"]}}, namespace="default")
        offer_spot(here)
        message = ""
        for _ in range(600):
            await here.sleep(1.0)
            assert here.controller is not None
            message = next((removal.detail for removal in here.controller.memory.ledger.leaving if name in removal.detail), message)
        assert "a finalizer blocks it" in message
        assert DEAR not in {machine.id for machine in here.cluster.core.list()}
        assert markets(here)[-1] == "spot"
        assert {node for pod_name, node in (await here.bound()).items() if pod_name != name} == {here.cluster.core.list()[0].id}


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize("step", range(1, 5))
async def test_f32_if_a_controller_dies_during_a_removal_no_node_stays_tainted(step: int, forgets: bool) -> None:
    async with dear(seed=step) as here:
        offer_spot(here)

        async def marked() -> bool:
            return await is_marked(here)

        await here.until(marked)
        here.deaths.at = here.deaths.steps + step
        assert await here.until_dead(200.0)
        if forgets:
            await here.user.delete(CONFIG_MAPS, "gpuscaler-state", namespace="kube-system")
        here.start()
        await here.sleep(12.0)
        assert here.controller is not None
        under_way = {removal.node for removal in here.controller.memory.ledger.leaving}
        closed = {node["metadata"]["name"] for node in await here.nodes() if LEAVING_TAINT in taints(node)}
        assert closed <= under_way
        await here.sleep(900.0)

        assert all(LEAVING_TAINT not in taints(node) for node in await here.nodes())
        assert await all_bound(here)
