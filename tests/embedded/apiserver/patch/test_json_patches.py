"""The four kinds of patch."""

from typing import Any

import pytest
from tests.embedded.asking import APPLY, CONFIG_MAPS, MERGE, NODES, OPERATIONS, PODS, STRATEGIC, Asker, asker, config_map, node, pod

from gpuscaler.embedded.apiserver.patch.json_patches import json_patch, merge
from gpuscaler.embedded.apiserver.patch.strategic import strategic_merge
from gpuscaler.embedded.apiserver.wire.failures import Failure


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    # RFC 7386, appendix A
    [
        ({"a": "b"}, {"a": "c"}, {"a": "c"}),
        ({"a": "b"}, {"b": "c"}, {"a": "b", "b": "c"}),
        ({"a": "b", "b": "c"}, {"a": None}, {"b": "c"}),
        ({"a": ["b"]}, {"a": "c"}, {"a": "c"}),
        ({"a": {"b": "c"}}, {"a": {"b": "d", "c": None}}, {"a": {"b": "d"}}),
        ({"a": [{"b": "c"}]}, {"a": [1]}, {"a": [1]}),
        (["a", "b"], ["c", "d"], ["c", "d"]),
        ({"e": None}, {"a": 1}, {"e": None, "a": 1}),
        ([1, 2], {"a": "b", "c": None}, {"a": "b"}),
        ({}, {"a": {"bb": {"ccc": None}}}, {"a": {"bb": {}}}),
    ],
)
def test_merge_patches_follow_rfc_7386(target: Any, patch: Any, result: Any) -> None:
    assert merge(target, patch) == result


@pytest.mark.parametrize(
    ("operations", "result"),
    [
        ([{"op": "add", "path": "/b", "value": 1}], {"a": {"x": [1, 2]}, "b": 1}),
        ([{"op": "add", "path": "/a/x/1", "value": 9}], {"a": {"x": [1, 9, 2]}}),
        ([{"op": "add", "path": "/a/x/-", "value": 9}], {"a": {"x": [1, 2, 9]}}),
        ([{"op": "remove", "path": "/a/x/0"}], {"a": {"x": [2]}}),
        ([{"op": "replace", "path": "/a/x", "value": []}], {"a": {"x": []}}),
        ([{"op": "replace", "path": "", "value": {}}], {}),
        ([{"op": "copy", "from": "/a/x", "path": "/c~1d"}], {"a": {"x": [1, 2]}, "c/d": [1, 2]}),
        ([{"op": "move", "from": "/a/x", "path": "/y"}, {"op": "test", "path": "/y/1", "value": 2}], {"a": {}, "y": [1, 2]}),
    ],
)
def test_json_patch_operations_are_applied_in_order(operations: Any, result: Any) -> None:
    before = {"a": {"x": [1, 2]}}
    assert json_patch(before, operations) == result
    assert before == {"a": {"x": [1, 2]}}


@pytest.mark.parametrize(
    ("operations", "code"),
    [
        ({"op": "add"}, 400),
        ([{"op": "steal", "path": "/a"}], 400),
        ([{"op": "remove", "path": "/b"}], 422),
        ([{"op": "remove", "path": "/a/x/7"}], 422),
        ([{"op": "remove", "path": ""}], 422),
        ([{"op": "add", "path": "a", "value": 1}], 422),
        ([{"op": "add", "path": "/a/x/0/q", "value": 1}], 422),
        ([{"op": "test", "path": "/a/x/0", "value": 5}], 422),
    ],
)
def test_a_json_patch_operation_that_cannot_be_applied_is_refused(operations: Any, code: int) -> None:
    with pytest.raises(Failure) as caught:
        json_patch({"a": {"x": [1, 2]}}, operations)
    assert caught.value.code == code


@pytest.mark.parametrize(
    ("target", "patch", "result"),
    [
        (
            {"containers": [{"name": "a", "image": "1"}]},
            {"containers": [{"name": "b"}]},
            {"containers": [{"name": "a", "image": "1"}, {"name": "b"}]},
        ),
        (
            {"containers": [{"name": "a", "image": "1"}]},
            {"containers": [{"name": "a", "tty": True}]},
            {"containers": [{"name": "a", "image": "1", "tty": True}]},
        ),
        ({"env": [{"name": "a"}, {"name": "b"}]}, {"env": [{"name": "a", "$patch": "delete"}]}, {"env": [{"name": "b"}]}),
        ({"env": [{"name": "a"}]}, {"env": [{"$patch": "replace"}, {"name": "c"}]}, {"env": [{"name": "c"}]}),
        ({"ports": [{"containerPort": 80}]}, {"ports": [{"containerPort": 81}]}, {"ports": [{"containerPort": 80}, {"containerPort": 81}]}),
        ({"ports": [{"port": 80, "name": "a"}]}, {"ports": [{"port": 80, "name": "b"}]}, {"ports": [{"port": 80, "name": "b"}]}),
        (
            {"conditions": [{"type": "Ready", "status": "False"}]},
            {"conditions": [{"type": "Ready", "status": "True"}]},
            {"conditions": [{"type": "Ready", "status": "True"}]},
        ),
        ({"taints": [{"key": "a"}]}, {"taints": [{"key": "b"}]}, {"taints": [{"key": "b"}]}),
        ({"tolerations": [{"key": "a"}]}, {"tolerations": [{"key": "b"}]}, {"tolerations": [{"key": "b"}]}),
        ({"args": ["a"]}, {"args": ["b"]}, {"args": ["b"]}),
        ({"finalizers": ["a"]}, {"finalizers": ["a", "b"]}, {"finalizers": ["a", "b"]}),
        ({"finalizers": ["a", "b"]}, {"$deleteFromPrimitiveList/finalizers": ["a"]}, {"finalizers": ["b"]}),
        ({"a": {"b": 1, "c": 2}}, {"a": {"$patch": "replace", "d": 3}}, {"a": {"d": 3}}),
        ({"a": {"b": 1}}, {"a": {"$patch": "delete"}}, {"a": {}}),
        (
            {"volumes": [{"name": "v", "emptyDir": {}}]},
            {"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}]},
            {"volumes": [{"name": "v", "hostPath": {"path": "/"}}]},
        ),
        (
            {"env": [{"name": "a"}, {"name": "b"}]},
            {"$setElementOrder/env": [{"name": "c"}, {"name": "b"}, {"name": "a"}], "env": [{"name": "c"}]},
            {"env": [{"name": "c"}, {"name": "b"}, {"name": "a"}]},
        ),
        ({"labels": {"a": "b", "c": "d"}}, {"labels": {"a": None}}, {"labels": {"c": "d"}}),
        ({}, {"spec": {"containers": [{"name": "a", "tty": None}]}}, {"spec": {"containers": [{"name": "a"}]}}),
    ],
)
def test_strategic_merge_patches_merge_lists_by_their_keys(target: Any, patch: Any, result: Any) -> None:
    assert strategic_merge(target, patch) == result


@pytest.mark.parametrize("patch", [{"a": {"$patch": "shred"}}, {"$shred": 1}, {"containers": [{"image": "x"}]}])
def test_an_unknown_patch_directive_or_list_element_is_a_bad_request(patch: Any) -> None:
    with pytest.raises(Failure) as caught:
        strategic_merge({"containers": [{"name": "a"}]}, patch)
    assert caught.value.code == 400


@pytest.mark.parametrize(
    ("media", "patch"),
    [
        (MERGE, {"spec": {"unschedulable": True}}),
        (STRATEGIC, {"spec": {"unschedulable": True}}),
        (OPERATIONS, [{"op": "add", "path": "/spec/unschedulable", "value": True}]),
    ],
)
async def test_every_kind_of_patch_cordons_a_node(media: str, patch: Any) -> None:
    ask = asker()
    await ask.ok("POST", NODES, node())
    changed = await ask.ok("PATCH", f"{NODES}/n", patch, media=media)
    assert changed["spec"]["unschedulable"] is True
    assert (await ask.ok("GET", NODES, fieldSelector="spec.unschedulable=true"))["items"]


@pytest.mark.parametrize(
    ("path", "patch", "media", "code"),
    [
        (f"{NODES}/absent", {}, MERGE, 404),
        (f"{NODES}/n", [1], MERGE, 400),
        (f"{NODES}/n", {}, "application/json", 415),
        (f"{NODES}/n", {}, "text/plain", 415),
        (f"{NODES}/n", [{"op": "replace", "path": "", "value": 1}], OPERATIONS, 400),
        (f"{NODES}/n", {"metadata": {"resourceVersion": "1"}}, MERGE, 409),
        (f"{NODES}/n", {"metadata": {"name": "m"}}, MERGE, 400),
        (f"{NODES}/n", {"metadata": {"uid": "other"}}, MERGE, 409),
    ],
)
async def test_an_invalid_patch_is_refused(path: str, patch: Any, media: str, code: int) -> None:
    ask = asker()
    await ask.ok("POST", NODES, node())
    assert (await ask("PATCH", path, patch, media=media))[0] == code


async def test_custom_kinds_reject_strategic_merge_patches() -> None:
    ask = asker()
    groups = "/apis/scheduling.x-k8s.io/v1alpha1/namespaces/default/podgroups"
    await ask.ok("POST", groups, {"metadata": {"name": "g"}, "spec": {"minMember": 2}})
    assert (await ask("PATCH", f"{groups}/g", {"spec": {"minMember": 3}}, media=STRATEGIC))[0] == 415
    assert (await ask.ok("PATCH", f"{groups}/g", {"spec": {"minMember": 3}}, media=MERGE))["spec"] == {"minMember": 3}


async def test_a_pod_is_nominated_through_its_status() -> None:
    ask = asker()
    await ask.ok("POST", PODS, pod())
    changed = await ask.ok("PATCH", f"{PODS}/p/status", {"status": {"nominatedNodeName": "n"}}, media=MERGE)
    assert changed["status"]["nominatedNodeName"] == "n"
    assert changed["status"]["phase"] == "Pending"


async def _apply(ask: Asker, manager: str, data: dict[str, str], **query: Any) -> tuple[int, Any]:
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data}
    return await ask("PATCH", f"{CONFIG_MAPS}/c", body, media=APPLY, fieldManager=manager, **query)


async def test_server_side_apply_creates_changes_and_removes_fields() -> None:
    ask = asker()
    assert (await _apply(ask, "me", {"a": "1", "b": "2"}))[0] == 201
    await ask.ok("PATCH", f"{CONFIG_MAPS}/c", {"data": {"theirs": "3"}}, media=MERGE)
    status, obj = await _apply(ask, "me", {"a": "9"})
    assert (status, obj["data"]) == (200, {"a": "9", "theirs": "3"})
    entry = obj["metadata"]["managedFields"][0]
    assert (entry["manager"], entry["operation"], entry["fieldsV1"]) == ("me", "Apply", {"f:data": {"f:a": {}}})


async def test_repeating_a_server_side_apply_changes_nothing() -> None:
    ask = asker()
    _, first = await _apply(ask, "me", {"a": "1"})
    assert (await _apply(ask, "me", {"a": "1"})) == (200, first)


async def test_two_managers_that_apply_the_same_field_conflict_unless_forced() -> None:
    ask = asker()
    await _apply(ask, "one", {"a": "1", "b": "1"})
    status, answer = await _apply(ask, "two", {"a": "2"})
    assert (status, answer["reason"]) == (409, "Conflict")
    assert answer["message"] == 'Apply failed with 1 conflict: conflict with "one": .data.a'
    assert answer["details"]["causes"] == [{"reason": "FieldManagerConflict", "message": 'conflict with "one"', "field": ".data.a"}]
    status, obj = await _apply(ask, "two", {"a": "2"}, force="true")
    assert (status, obj["data"]) == (200, {"a": "2", "b": "1"})
    _, obj = await _apply(ask, "one", {"b": "1"})
    assert obj["data"] == {"a": "2", "b": "1"}


async def test_a_field_with_two_managers_stays_until_both_stop_applying_it() -> None:
    ask = asker()
    for manager in ("one", "two"):
        assert (await _apply(ask, manager, {"a": "1"}))[0] in (200, 201)
    assert (await _apply(ask, "one", {}))[1]["data"] == {"a": "1"}
    assert "a" not in (await _apply(ask, "two", {}))[1]["data"]


async def test_server_side_apply_of_a_status_merges_conditions_by_type() -> None:
    ask = asker()
    await ask.ok("POST", PODS, pod())
    await ask.ok("PATCH", f"{PODS}/p/status", {"status": {"conditions": [{"type": "A", "status": "True"}]}}, media=MERGE)
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "status": {"conditions": [{"type": "B", "status": "True"}]}}
    changed = await ask.ok("PATCH", f"{PODS}/p/status", body, media=APPLY, fieldManager="me")
    assert [item["type"] for item in changed["status"]["conditions"]] == ["A", "B"]
    without = {**body, "status": {}}
    changed = await ask.ok("PATCH", f"{PODS}/p/status", without, media=APPLY, fieldManager="me")
    assert [item["type"] for item in changed["status"]["conditions"]] == ["A"]


@pytest.mark.parametrize(
    ("body", "query"),
    [
        (config_map(), {}),
        ({"kind": "Pod", "apiVersion": "v1"}, {"fieldManager": "me"}),
        ([1], {"fieldManager": "me"}),
        ({**config_map(), "metadata": {"name": "c", "managedFields": [{}]}}, {"fieldManager": "me"}),
    ],
)
async def test_server_side_apply_without_a_manager_or_of_another_kind_is_refused(body: Any, query: dict[str, Any]) -> None:
    assert (await asker()("PATCH", f"{CONFIG_MAPS}/c", body, media=APPLY, **query))[0] == 400
