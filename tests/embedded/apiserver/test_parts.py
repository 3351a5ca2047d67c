"""Subresources: scale, binding, eviction."""

from typing import Any

import pytest
from tests.embedded.asking import MERGE, PODS, Asker, asker, pod

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"


async def _deployment(ask: Asker) -> None:
    spec = {"selector": {"matchLabels": {"app": "web"}}, "template": {"spec": {"containers": [{"name": "c"}]}}}
    await ask.ok("POST", DEPLOYMENTS, {"metadata": {"name": "web"}, "spec": spec})


async def test_a_deployment_is_scaled_through_its_scale_subresource() -> None:
    ask = asker()
    await _deployment(ask)
    scale = await ask.ok("GET", f"{DEPLOYMENTS}/web/scale")
    assert (scale["kind"], scale["spec"], scale["status"]) == ("Scale", {"replicas": 1}, {"replicas": 0, "selector": "app=web"})
    await ask.ok("PATCH", f"{DEPLOYMENTS}/web/scale", {"spec": {"replicas": 4}}, media=MERGE)
    assert (await ask.ok("GET", f"{DEPLOYMENTS}/web"))["spec"]["replicas"] == 4
    assert (await ask("PUT", f"{DEPLOYMENTS}/web/scale", scale))[0] == 409
    again = await ask.ok("GET", f"{DEPLOYMENTS}/web/scale")
    assert (await ask.ok("PUT", f"{DEPLOYMENTS}/web/scale", {**again, "spec": {"replicas": 2}}))["spec"]["replicas"] == 2
    assert (await ask("PATCH", f"{DEPLOYMENTS}/web/scale", {"spec": {"replicas": -1}}, media=MERGE))[0] == 422


async def test_a_binding_sets_the_node_of_a_pod_once() -> None:
    ask = asker()
    await ask.ok("POST", PODS, pod())
    await ask.ok("POST", f"{PODS}/p/binding", {"metadata": {"name": "p", "annotations": {"a": "b"}}, "target": {"name": "n"}})
    bound = await ask.ok("GET", f"{PODS}/p")
    assert (bound["spec"]["nodeName"], bound["metadata"]["annotations"]) == ("n", {"a": "b"})
    assert bound["status"]["conditions"][0]["type"] == "PodScheduled"
    status, answer = await ask("POST", f"{PODS}/p/binding", {"target": {"name": "m"}})
    assert (status, answer["reason"]) == (409, "Conflict")
    assert 'already assigned to node "n"' in answer["message"]


@pytest.mark.parametrize(("body", "code"), [({}, 400), ({"target": {"name": "n"}, "metadata": {"uid": "other"}}, 409)])
async def test_a_binding_without_a_node_or_of_another_pod_is_refused(body: dict[str, Any], code: int) -> None:
    ask = asker()
    await ask.ok("POST", PODS, pod())
    assert (await ask("POST", f"{PODS}/p/binding", body))[0] == code
    assert (await ask("POST", f"{PODS}/absent/binding", body))[0] == 404


async def _running(ask: Asker, name: str = "p", *, ready: bool = True) -> dict[str, Any]:
    await ask.ok("POST", PODS, pod(name, labels={"app": "web"}))
    await ask.ok("POST", f"{PODS}/{name}/binding", {"target": {"name": "n"}})
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    running: dict[str, Any] = await ask.ok(
        "PATCH", f"{PODS}/{name}/status", {"status": {"phase": "Running", "conditions": conditions}}, media=MERGE
    )
    return running


async def _budget(ask: Asker, name: str, *, policy: str | None = None, **status: int) -> None:
    spec = {"minAvailable": 1, "selector": {"matchExpressions": [{"key": "app", "operator": "In", "values": ["web"]}]}}
    if policy:
        spec["unhealthyPodEvictionPolicy"] = policy
    await ask.ok("POST", BUDGETS, {"metadata": {"name": name}, "spec": spec})
    await ask.ok("PATCH", f"{BUDGETS}/{name}/status", {"status": {"observedGeneration": 1, **status}}, media=MERGE)


async def _evict(ask: Asker, name: str = "p", **options: Any) -> tuple[int, Any]:
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}, "deleteOptions": options}
    return await ask("POST", f"{PODS}/{name}/eviction", body)


async def test_an_evicted_pod_is_deleted_with_a_condition_that_gives_the_reason() -> None:
    ask = asker()
    await _running(ask)
    status, answer = await _evict(ask, gracePeriodSeconds=7)
    assert (status, answer["status"]) == (201, "Success")
    pod = await ask.ok("GET", f"{PODS}/p")
    assert pod["metadata"]["deletionGracePeriodSeconds"] == 7
    assert next(item["reason"] for item in pod["status"]["conditions"] if item["type"] == "DisruptionTarget") == "EvictionByEvictionAPI"
    assert (await _evict(ask))[0] == 201


async def test_a_budget_allows_the_number_of_evictions_in_its_status() -> None:
    ask = asker()
    await _running(ask, "p")
    await _running(ask, "q")
    await _budget(ask, "web", disruptionsAllowed=1, currentHealthy=2, desiredHealthy=1)
    assert (await _evict(ask, "p", dryRun=["All"]))[0] == 201
    assert (await _evict(ask, "p"))[0] == 201
    budget_status = (await ask.ok("GET", f"{BUDGETS}/web"))["status"]
    assert (budget_status["disruptionsAllowed"], list(budget_status["disruptedPods"])) == (0, ["p"])
    status, answer = await _evict(ask, "q")
    assert (status, answer["reason"]) == (429, "TooManyRequests")
    assert answer["message"] == "Cannot evict pod as it would violate the pod's disruption budget."
    assert answer["details"]["causes"][0]["reason"] == "DisruptionBudget"
    assert "deletionTimestamp" not in (await ask.ok("GET", f"{PODS}/q"))["metadata"]


async def test_a_budget_whose_status_is_outdated_allows_no_eviction() -> None:
    ask = asker()
    await _running(ask)
    await _budget(ask, "web", disruptionsAllowed=1)
    await ask.ok("PATCH", f"{BUDGETS}/web", {"spec": {"minAvailable": 2}}, media=MERGE)
    status, answer = await _evict(ask)
    assert (status, answer["details"]["retryAfterSeconds"]) == (429, 10)
    assert "still being processed" in answer["details"]["causes"][0]["message"]


async def test_an_eviction_of_a_pod_with_two_budgets_is_a_server_error() -> None:
    ask = asker()
    await _running(ask)
    for name in ("a", "b"):
        await _budget(ask, name, disruptionsAllowed=1)
    status, answer = await _evict(ask)
    assert (status, "more than one PodDisruptionBudget" in answer["message"]) == (500, True)


async def test_budgets_protect_neither_pending_nor_ended_pods() -> None:
    ask = asker()
    await _budget(ask, "web", disruptionsAllowed=0)
    await ask.ok("POST", PODS, pod("waits", labels={"app": "web"}))
    assert (await _evict(ask, "waits"))[0] == 201
    await _running(ask, "done")
    await ask.ok("PATCH", f"{PODS}/done/status", {"status": {"phase": "Failed"}}, media=MERGE)
    assert (await _evict(ask, "done"))[0] == 201


async def test_an_unhealthy_pod_is_evicted_if_the_policy_or_the_healthy_count_of_the_budget_allows_it() -> None:
    ask = asker()
    await _running(ask, "p", ready=False)
    await _budget(ask, "web", disruptionsAllowed=0, currentHealthy=0, desiredHealthy=1)
    assert (await _evict(ask))[0] == 429
    await ask.ok("PATCH", f"{BUDGETS}/web/status", {"status": {"currentHealthy": 1}}, media=MERGE)
    assert (await _evict(ask))[0] == 201
    await ask.ok("DELETE", f"{BUDGETS}/web")
    await _running(ask, "q", ready=False)
    await _budget(ask, "always", policy="AlwaysAllow", disruptionsAllowed=0, desiredHealthy=1)
    assert (await _evict(ask, "q"))[0] == 201


@pytest.mark.parametrize("precondition", [{"uid": "other"}, {"resourceVersion": "1"}])
async def test_an_eviction_with_the_uid_of_another_pod_of_that_name_is_a_conflict(precondition: dict[str, str]) -> None:
    ask = asker()
    await _running(ask)
    status, answer = await _evict(ask, preconditions=precondition)
    assert (status, answer["reason"]) == (409, "Conflict")
    assert (await _evict(ask, "absent"))[0] == 404


async def test_an_eviction_must_name_the_pod_in_its_path() -> None:
    ask = asker()
    await _running(ask)
    assert (await ask("POST", f"{PODS}/p/eviction", {"metadata": {"name": "q"}}))[0] == 400


@pytest.mark.parametrize(("method", "part"), [("GET", "log"), ("POST", "exec"), ("POST", "portforward"), ("PATCH", "ephemeralcontainers")])
async def test_requests_that_need_running_containers_such_as_exec_are_refused_with_the_reason(method: str, part: str) -> None:
    ask = asker()
    assert (await ask(method, f"{PODS}/p/{part}"))[0] == 404
    await ask.ok("POST", PODS, pod())
    status, answer = await ask(method, f"{PODS}/p/{part}")
    assert (status, answer["message"]) == (400, f"{part} of pod p: pods of this cluster are only simulated, no container runs in them")
