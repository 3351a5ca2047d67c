"""Deletion: grace, finalizers, preconditions, dependents."""

from typing import Any

import pytest
from tests.embedded.asking import CONFIG_MAPS, MERGE, NODES, PODS, Asker, asker, config_map, node, pod

SETS = "/apis/apps/v1/namespaces/default/replicasets"


async def _bound(ask: Asker, name: str = "p", **spec: Any) -> dict[str, Any]:
    await ask.ok("POST", PODS, pod(name, **spec))
    await ask.ok("POST", f"{PODS}/{name}/binding", {"target": {"name": "n"}})
    bound: dict[str, Any] = await ask.ok("GET", f"{PODS}/{name}")
    return bound


async def _gone(ask: Asker, path: str) -> bool:
    status, _ = await ask("GET", path)
    return status == 404


async def test_an_object_without_finalizers_is_removed_at_once() -> None:
    ask = asker()
    await ask.ok("POST", CONFIG_MAPS, config_map())
    await ask.ok("DELETE", f"{CONFIG_MAPS}/c")
    assert await _gone(ask, f"{CONFIG_MAPS}/c")
    assert (await ask("DELETE", f"{CONFIG_MAPS}/c"))[1]["message"] == 'configmaps "c" not found'


async def test_an_unbound_pod_is_removed_at_once() -> None:
    ask = asker()
    await ask.ok("POST", PODS, pod())
    await ask.ok("DELETE", f"{PODS}/p")
    assert await _gone(ask, f"{PODS}/p")


async def test_a_bound_pod_stays_until_its_kubelet_deletes_it_without_grace_period() -> None:
    ask = asker()
    await _bound(ask, terminationGracePeriodSeconds=60)
    leaving = await ask.ok("DELETE", f"{PODS}/p")
    assert leaving["metadata"]["deletionTimestamp"] == "2026-01-01T00:01:00Z"
    assert leaving["metadata"]["deletionGracePeriodSeconds"] == 60
    assert await ask.ok("DELETE", f"{PODS}/p") == leaving
    sooner = await ask.ok("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 5})
    assert sooner["metadata"]["deletionGracePeriodSeconds"] == 5
    await ask.ok("DELETE", f"{PODS}/p", gracePeriodSeconds="0")
    assert await _gone(ask, f"{PODS}/p")


async def test_a_finished_pod_gets_no_grace_period() -> None:
    ask = asker()
    await _bound(ask)
    await ask.ok("PATCH", f"{PODS}/p/status", {"status": {"phase": "Succeeded"}}, media=MERGE)
    await ask.ok("DELETE", f"{PODS}/p")
    assert await _gone(ask, f"{PODS}/p")


async def test_a_deleted_object_stays_until_its_finalizers_are_removed() -> None:
    ask = asker()
    held = config_map()
    held["metadata"]["finalizers"] = ["example.com/hold"]
    await ask.ok("POST", CONFIG_MAPS, held)
    leaving = await ask.ok("DELETE", f"{CONFIG_MAPS}/c")
    assert leaving["metadata"]["deletionTimestamp"]
    assert await ask.ok("DELETE", f"{CONFIG_MAPS}/c") == leaving
    await ask.ok("PATCH", f"{CONFIG_MAPS}/c", {"metadata": {"finalizers": None}}, media=MERGE)
    assert await _gone(ask, f"{CONFIG_MAPS}/c")


@pytest.mark.parametrize("precondition", [{"uid": "other"}, {"resourceVersion": "1"}])
async def test_a_deletion_with_a_failed_precondition_is_a_conflict(precondition: dict[str, str]) -> None:
    ask = asker()
    await ask.ok("POST", CONFIG_MAPS, config_map())
    status, answer = await ask("DELETE", f"{CONFIG_MAPS}/c", {"preconditions": precondition})
    assert (status, answer["reason"]) == (409, "Conflict")
    assert not await _gone(ask, f"{CONFIG_MAPS}/c")


async def test_an_object_is_deleted_if_its_preconditions_hold() -> None:
    ask = asker()
    metadata = (await ask.ok("POST", CONFIG_MAPS, config_map()))["metadata"]
    wanted = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
    await ask.ok("DELETE", f"{CONFIG_MAPS}/c", {"preconditions": wanted})
    assert await _gone(ask, f"{CONFIG_MAPS}/c")


@pytest.mark.parametrize("options", [{"gracePeriodSeconds": "soon"}, {"propagationPolicy": "Sideways"}])
async def test_invalid_delete_options_are_refused(options: dict[str, str]) -> None:
    ask = asker()
    await ask.ok("POST", CONFIG_MAPS, config_map())
    assert (await ask("DELETE", f"{CONFIG_MAPS}/c", options))[0] in (400, 422)


async def _family(ask: Asker) -> None:
    """A ReplicaSet ``s`` with a pod ``p``."""
    template = {"spec": {"containers": [{"name": "c"}]}}
    owner = await ask.ok("POST", SETS, {"metadata": {"name": "s"}, "spec": {"template": template}})
    child = pod()
    child["metadata"]["ownerReferences"] = [{"kind": "ReplicaSet", "apiVersion": "apps/v1", "name": "s", "uid": owner["metadata"]["uid"]}]
    await ask.ok("POST", PODS, child)


@pytest.mark.parametrize("propagation", ["Background", "Foreground"])
async def test_dependents_are_deleted_with_their_owner(propagation: str) -> None:
    ask = asker()
    await _family(ask)
    await ask.ok("DELETE", f"{SETS}/s", {"propagationPolicy": propagation})
    assert await _gone(ask, f"{SETS}/s")
    assert await _gone(ask, f"{PODS}/p")


async def test_orphaned_dependents_stay_without_owner_references() -> None:
    ask = asker()
    await _family(ask)
    await ask.ok("DELETE", f"{SETS}/s", {"propagationPolicy": "Orphan"})
    assert (await ask.ok("GET", f"{PODS}/p"))["metadata"]["ownerReferences"] == []


async def test_a_dependent_of_two_owners_stays_as_long_as_one_of_them() -> None:
    ask = asker()
    owners = [(await ask.ok("POST", CONFIG_MAPS, config_map(name)))["metadata"]["uid"] for name in ("a", "b")]
    child = config_map("child")
    child["metadata"]["ownerReferences"] = [{"uid": uid} for uid in owners]
    await ask.ok("POST", CONFIG_MAPS, child)
    await ask.ok("DELETE", f"{CONFIG_MAPS}/a")
    assert not await _gone(ask, f"{CONFIG_MAPS}/child")
    await ask.ok("DELETE", f"{CONFIG_MAPS}/b")
    assert await _gone(ask, f"{CONFIG_MAPS}/child")


async def test_a_collection_is_deleted_by_selector() -> None:
    ask = asker()
    for name, labels in (("a", {"go": "yes"}), ("b", {"go": "yes"}), ("c", {})):
        await ask.ok("POST", PODS, pod(name, labels=labels))
    answer = await ask.ok("DELETE", PODS, labelSelector="go=yes")
    assert [item["metadata"]["name"] for item in answer["items"]] == ["a", "b"]
    assert [item["metadata"]["name"] for item in (await ask.ok("GET", PODS))["items"]] == ["c"]


async def test_a_namespace_is_deleted_with_its_contents_and_the_initial_ones_stay() -> None:
    ask = asker()
    await ask.ok("POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})
    await ask.ok("POST", CONFIG_MAPS.replace("default", "team"), config_map())
    await ask.ok("DELETE", "/api/v1/namespaces/team")
    assert await _gone(ask, f"{CONFIG_MAPS.replace('default', 'team')}/c")
    status, answer = await ask("DELETE", "/api/v1/namespaces/default")
    assert (status, answer["reason"]) == (403, "Forbidden")


async def test_deleting_a_node_leaves_its_pods() -> None:
    ask = asker()
    await ask.ok("POST", NODES, node())
    await _bound(ask)
    await ask.ok("DELETE", f"{NODES}/n")
    assert not await _gone(ask, f"{PODS}/p")
