"""Disruption budgets count how many of their pods may be evicted."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.embedded.asking import MERGE, PODS, START, Asker, asker, pod, virtual_clock

from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.apiserver.disruptions import budget_status

BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
SETS = "/apis/apps/v1/namespaces/default/replicasets"


def _pod(name: str, *, ready: bool = True, **metadata: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    return {"metadata": {"name": name, **metadata}, "status": {"conditions": conditions}}


@pytest.mark.parametrize(
    ("spec", "scale", "allowed", "desired", "expected"),
    [
        ({"minAvailable": 2}, None, 1, 2, 4),
        ({"minAvailable": 3}, None, 0, 3, 4),
        ({"minAvailable": "50%"}, 5, 0, 3, 5),
        ({"minAvailable": "20%"}, 5, 2, 1, 5),
        ({"minAvailable": "20%"}, None, 0, 0, 0),
        ({"maxUnavailable": 2}, 4, 1, 2, 4),
        ({"maxUnavailable": 9}, 4, 3, 0, 4),
        ({"maxUnavailable": "30%"}, 4, 1, 2, 4),
        ({"maxUnavailable": 1}, None, 0, 0, 0),
        ({"maxUnavailable": 1}, 0, 0, 0, 0),
    ],
)
def test_the_allowed_disruptions_are_the_healthy_pods_above_the_desired_number(
    spec: dict[str, Any], scale: int | None, allowed: int, desired: int, expected: int
) -> None:
    pods = [_pod("a"), _pod("b"), _pod("c"), _pod("d", ready=False)]
    status = budget_status({"metadata": {"generation": 3}, "spec": spec}, pods, scale=scale, now=START)
    assert (status["disruptionsAllowed"], status["desiredHealthy"], status["expectedPods"]) == (allowed, desired, expected)
    assert (status["currentHealthy"], status["observedGeneration"]) == (3, 3)


def test_terminating_pods_and_pods_with_a_granted_eviction_are_not_healthy() -> None:
    pods = [_pod("a"), _pod("b", deletionTimestamp="x"), _pod("c"), _pod("d")]
    granted = {"b": "2026-01-01T00:00:00Z", "c": "2026-01-01T00:00:00Z", "d": "2025-12-31T23:00:00Z", "gone": "2026-01-01T00:00:00Z"}
    budget = {"metadata": {}, "spec": {"minAvailable": 1}, "status": {"disruptedPods": granted}}
    status = budget_status(budget, pods, scale=None, now=START + 60)
    assert status["currentHealthy"] == 2
    assert status["disruptedPods"] == {"c": "2026-01-01T00:00:00Z"}


@asynccontextmanager
async def _looking(api: ApiServer) -> AsyncIterator[Asker]:
    task = asyncio.create_task(api.disruptions.run())
    yield asker(api)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def _budget(ask: Asker, **spec: Any) -> None:
    await ask.ok("POST", BUDGETS, {"metadata": {"name": "web"}, "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec}})


async def _ready(ask: Asker, name: str, owner: dict[str, Any] | None = None) -> None:
    body = pod(name, labels={"app": "web"})
    if owner:
        reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "s", "uid": owner["metadata"]["uid"], "controller": True}
        body["metadata"]["ownerReferences"] = [reference]
    await ask.ok("POST", PODS, body)
    await ask.ok("POST", f"{PODS}/{name}/binding", {"target": {"name": "n"}})
    running = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await ask.ok("PATCH", f"{PODS}/{name}/status", {"status": running}, media=MERGE)


async def _allowed(ask: Asker) -> int:
    await asyncio.sleep(1)
    return int((await ask.ok("GET", f"{BUDGETS}/web"))["status"]["disruptionsAllowed"])


async def _evict(ask: Asker, name: str) -> int:
    status, _ = await ask("POST", f"{PODS}/{name}/eviction", {"metadata": {"name": name}})
    return status


async def test_a_budgets_status_is_updated_with_its_pods_and_not_written_otherwise() -> None:
    api = ApiServer(virtual_clock)
    async with _looking(api) as ask:
        await _budget(ask, minAvailable=1)
        assert await _allowed(ask) == 0
        await _ready(ask, "a")
        await _ready(ask, "b")
        assert await _allowed(ask) == 1
        budget = await ask.ok("GET", f"{BUDGETS}/web")
        assert budget["status"]["conditions"][0]["reason"] == "SufficientPods"
        assert await _evict(ask, "a") == 201
        assert await _evict(ask, "b") == 429
        assert await _allowed(ask) == 0
        await _ready(ask, "c")
        assert await _allowed(ask) == 1
        settled = api.store.revision
        await asyncio.sleep(600)
        assert api.store.revision == settled


async def test_a_budget_percentage_is_of_the_desired_and_not_of_the_existing_replicas() -> None:
    async with _looking(ApiServer(virtual_clock)) as ask:
        template = {"spec": {"containers": [{"name": "c"}]}}
        owner = await ask.ok("POST", SETS, {"metadata": {"name": "s"}, "spec": {"replicas": 4, "template": template}})
        await _budget(ask, maxUnavailable="50%")
        for name in ("a", "b", "c"):
            await _ready(ask, name, owner)
        assert await _allowed(ask) == 1
        await ask.ok("DELETE", f"{SETS}/s", {"propagationPolicy": "Orphan"})
        assert await _allowed(ask) == 0
