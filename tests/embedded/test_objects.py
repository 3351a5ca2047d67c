"""Objects are created, read, replaced and deleted as by a Kubernetes API server."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.embedded.asking import CONFIG_MAPS, MERGE, NODES, PODS, asker, config_map, node, pod, virtual_clock

from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.kube.transport import Request


async def test_a_created_object_has_uid_creation_time_and_revision_and_is_read_back_unchanged() -> None:
    ask = asker()
    status, made = await ask("POST", CONFIG_MAPS, config_map(a="1"))
    assert status == 201
    assert made["metadata"]["creationTimestamp"] == "2026-01-01T00:00:00Z"
    assert made["metadata"]["namespace"] == "default"
    assert made["metadata"]["uid"]
    assert int(made["metadata"]["resourceVersion"]) > 1
    assert await ask.ok("GET", f"{CONFIG_MAPS}/c") == made


async def test_generated_names_have_the_requested_prefix_and_are_unique() -> None:
    ask = asker()
    body = {**pod(), "metadata": {"generateName": "web-"}}
    names = {(await ask.ok("POST", PODS, body))["metadata"]["name"] for _ in range(20)}
    assert len(names) == 20
    assert all(name.startswith("web-") and len(name) == 9 for name in names)


@pytest.mark.parametrize(
    ("body", "code", "reason", "words"),
    [
        (config_map(), 409, "AlreadyExists", 'configmaps "c" already exists'),
        (config_map("Not Good"), 422, "Invalid", "metadata.name"),
        ({"kind": "ConfigMap"}, 422, "Invalid", "name or generateName is required"),
        (pod(), 400, "BadRequest", "cannot be handled as a ConfigMap"),
        ({**config_map("d"), "apiVersion": "v2"}, 400, "BadRequest", "does not match the expected API version (v1)"),
        ({**config_map("d"), "metadata": "d"}, 400, "BadRequest", "is an object"),
        ({**config_map("d"), "metadata": {"name": "d", "namespace": "other"}}, 400, "BadRequest", "does not match the namespace"),
        ({**config_map("d"), "metadata": {"name": "d", "resourceVersion": "3"}}, 400, "BadRequest", "resourceVersion should not be set"),
        (b"[1", 400, "BadRequest", "unrecognized"),
        (b'{"a":' * 200_000 + b"1" + b"}" * 200_000, 400, "BadRequest", "unrecognized"),
        (b"[1]", 400, "BadRequest", "must be of type object"),
    ],
)
async def test_an_invalid_creation_is_refused_with_a_status_that_says_why(body: object, code: int, reason: str, words: str) -> None:
    ask = asker()
    await ask.ok("POST", CONFIG_MAPS, config_map())
    status, answer = await ask("POST", CONFIG_MAPS, body)
    assert (status, answer["kind"], answer["code"], answer["reason"]) == (code, "Status", code, reason)
    assert words in answer["message"]


async def test_nothing_is_created_in_a_namespace_that_does_not_exist() -> None:
    status, answer = await asker()("POST", CONFIG_MAPS.replace("default", "nowhere"), config_map())
    assert (status, answer["message"]) == (404, 'namespaces "nowhere" not found')


async def test_an_object_in_an_unknown_format_is_refused() -> None:
    status, answer = await asker()("POST", CONFIG_MAPS, b"x", media="application/x-unknown")
    assert (status, answer["reason"]) == (415, "UnsupportedMediaType")


async def test_an_object_over_the_size_limit_is_refused() -> None:
    status, answer = await asker()("POST", CONFIG_MAPS, config_map(big="x" * 3_200_000))
    assert (status, answer["reason"]) == (413, "RequestEntityTooLarge")


async def test_fields_with_wrong_types_are_a_bad_request() -> None:
    status, answer = await asker()("POST", PODS, {**pod(), "spec": {"containers": [{"name": "c", "resources": "many"}]}})
    assert (status, answer["reason"]) == (400, "BadRequest")
    assert "cannot be decoded as Pod" in answer["message"]


async def test_an_object_can_be_sent_as_yaml() -> None:
    made = await asker().ok("POST", CONFIG_MAPS, b"metadata: {name: c}\ndata: {when: 2026-01-01}\n", media="application/yaml")
    assert made["data"] == {"when": "2026-01-01"}


async def test_a_dry_run_answers_like_a_write_and_stores_nothing() -> None:
    ask = asker()
    assert (await ask.ok("POST", CONFIG_MAPS, config_map(), dryRun="All"))["metadata"]["uid"]
    assert (await ask("GET", f"{CONFIG_MAPS}/c"))[0] == 404
    made = await ask.ok("POST", CONFIG_MAPS, config_map(a="1"))
    answered = await ask.ok("PUT", f"{CONFIG_MAPS}/c", config_map(a="2"), dryRun="All")
    assert (answered["data"], answered["metadata"]) == ({"a": "2"}, made["metadata"])
    await ask.ok("DELETE", f"{CONFIG_MAPS}/c", dryRun="All")
    assert (await ask.ok("GET", f"{CONFIG_MAPS}/c"))["data"] == {"a": "1"}


async def test_an_update_of_an_outdated_version_is_a_conflict() -> None:
    ask = asker()
    first = await ask.ok("POST", CONFIG_MAPS, config_map(a="1"))
    second = await ask.ok("PUT", f"{CONFIG_MAPS}/c", {**first, "data": {"a": "2"}})
    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])
    status, answer = await ask("PUT", f"{CONFIG_MAPS}/c", {**first, "data": {"a": "3"}})
    assert (status, answer["reason"]) == (409, "Conflict")
    assert answer["message"].startswith('Operation cannot be fulfilled on configmaps "c": the object has been modified')
    assert await ask.ok("GET", f"{CONFIG_MAPS}/c") == second


async def test_an_update_that_changes_nothing_makes_no_revision() -> None:
    ask = asker()
    made = await ask.ok("POST", CONFIG_MAPS, config_map(a="1"))
    assert await ask.ok("PUT", f"{CONFIG_MAPS}/c", made) == made


async def test_an_update_of_a_missing_object_is_not_found_except_that_it_creates_leases() -> None:
    ask = asker()
    assert (await ask("PUT", f"{CONFIG_MAPS}/c", config_map()))[0] == 404
    leases = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases"
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}}
    assert (await ask("PUT", f"{leases}/l", lease))[0] == 201
    status, answer = await ask("PUT", f"{leases}/l", lease)
    assert (status, answer["details"]["causes"][0]["field"]) == (422, "metadata.resourceVersion")


async def test_the_generation_counts_only_changes_of_the_spec() -> None:
    ask = asker()
    made = await ask.ok("POST", NODES, node())
    assert made["metadata"]["generation"] == 1
    labelled = await ask.ok("PUT", f"{NODES}/n", {**made, "metadata": {**made["metadata"], "labels": {"a": "b"}}})
    assert labelled["metadata"]["generation"] == 1
    cordoned = await ask.ok("PUT", f"{NODES}/n", {**labelled, "spec": {"unschedulable": True}})
    assert cordoned["metadata"]["generation"] == 2


async def test_a_status_is_written_only_through_its_subresource() -> None:
    ask = asker()
    made = await ask.ok("POST", PODS, pod())
    same = await ask.ok("PUT", f"{PODS}/p", {**made, "status": {"phase": "Running"}})
    assert same["status"]["phase"] == "Pending"
    changed = await ask.ok("PUT", f"{PODS}/p/status", {**made, "status": {"phase": "Running"}, "spec": {"nodeName": "n"}})
    assert changed["status"] == {"phase": "Running"}
    assert "nodeName" not in changed["spec"]


async def test_a_node_is_created_with_its_status_and_a_deployment_is_not() -> None:
    ask = asker()
    assert (await ask.ok("POST", NODES, node()))["status"] == {"capacity": {"cpu": "8"}}
    body = {"metadata": {"name": "d"}, "spec": {"template": {"spec": {"containers": []}}}, "status": {"replicas": 9}}
    made = await ask.ok("POST", "/apis/apps/v1/namespaces/default/deployments", body)
    assert "status" not in made
    assert made["spec"]["replicas"] == 1
    assert made["spec"]["template"]["spec"]["restartPolicy"] == "Always"


@pytest.mark.parametrize(
    "path", ["/api/v1/cats", "/apis/none/v1/pods", f"{PODS}/p/logs", f"{PODS}/p/status/x", "/nothing", "/api/v1/pods/p"]
)
async def test_an_unknown_path_is_not_found(path: str) -> None:
    status, answer = await asker()("GET", path)
    assert (status, answer["message"]) == (404, "the server could not find the requested resource")


@pytest.mark.parametrize(
    ("method", "path"), [("POST", f"{PODS}/p"), ("PUT", PODS), ("POST", "/api/v1/pods"), ("GET", f"{PODS}/p/eviction")]
)
async def test_an_unsupported_method_of_a_path_is_refused(method: str, path: str) -> None:
    assert (await asker()(method, path, pod()))[0] == 405


async def test_a_token_is_required_if_the_server_has_tokens() -> None:
    api = ApiServer(virtual_clock, tokens=["good"])
    assert (await asker(api)("GET", NODES))[0] == 401
    assert (await asker(api, token="bad")("GET", NODES))[1]["reason"] == "Unauthorized"
    assert (await asker(api, token="good")("GET", NODES))[0] == 200


async def test_loaded_objects_stay_unchanged_and_create_their_namespace() -> None:
    api = ApiServer(virtual_clock)
    running = {**pod(), "metadata": {"name": "p", "namespace": "team"}, "status": {"phase": "Running"}}
    assert api.load([running, node()]) == 2
    loaded = await asker(api).ok("GET", "/api/v1/namespaces/team/pods/p")
    assert loaded["status"] == {"phase": "Running"}
    with pytest.raises(ValueError, match="v1 Cat: unknown kind, expected one that this server stores"):
        api.load([{"apiVersion": "v1", "kind": "Cat", "metadata": {"name": "c"}}])


async def test_an_event_is_one_object_in_two_api_groups() -> None:
    ask = asker()
    core, new = "/api/v1/namespaces/default/events", "/apis/events.k8s.io/v1/namespaces/default/events"
    body = {"metadata": {"name": "e"}, "regarding": {"kind": "Pod", "name": "p"}, "note": "why", "reportingController": "me", "reason": "R"}
    made = await ask.ok("POST", new, body)
    assert (made["apiVersion"], made["note"]) == ("events.k8s.io/v1", "why")
    event = await ask.ok("GET", f"{core}/e")
    assert (event["apiVersion"], event["message"], event["involvedObject"]["name"]) == ("v1", "why", "p")
    changed = await ask.ok("PATCH", f"{new}/e", {"series": {"count": 2}}, media="application/merge-patch+json")
    assert (changed["series"], changed["note"]) == ({"count": 2}, "why")
    assert len((await ask.ok("GET", core, fieldSelector="involvedObject.name=p,reason=R"))["items"]) == 1
    assert (await ask.ok("GET", new, fieldSelector="regarding.name=p"))["items"][0]["note"] == "why"
    assert (await ask.ok("GET", new, fieldSelector="reportingController=you"))["items"] == []


async def test_a_secret_is_stored_in_base64_however_it_is_written() -> None:
    body = {"metadata": {"name": "s"}, "stringData": {"a": "b"}}
    made = await asker().ok("POST", "/api/v1/namespaces/default/secrets", body)
    assert (made["data"], made["type"], "stringData" in made) == ({"a": "Yg=="}, "Opaque", False)


async def test_empty_metadata_fields_are_dropped_and_do_not_count_as_a_change() -> None:
    ask = asker()
    made = await ask.ok("POST", CONFIG_MAPS, config_map(a="b"))
    empty = {**made, "metadata": {**made["metadata"], "labels": {}, "annotations": {}, "finalizers": []}}
    assert await ask.ok("PUT", f"{CONFIG_MAPS}/c", empty) == made


async def test_quantities_are_stored_as_text_however_they_were_written() -> None:
    limits = {"nvidia.com/gpu": 1, "cpu": 0.5, "memory": "1Gi", "example.com/whole": 2.0}
    containers = [{"name": "c", "resources": {"limits": limits}}]
    made = await asker().ok("POST", PODS, {"metadata": {"name": "p"}, "spec": {"containers": containers}})
    quantities = {"nvidia.com/gpu": "1", "cpu": "500m", "memory": "1Gi", "example.com/whole": "2"}
    assert made["spec"]["containers"][0]["resources"] == {"limits": quantities, "requests": quantities}


@pytest.mark.parametrize(
    ("plural", "version", "spec", "words"),
    [
        (
            "statefulsets",
            "apps/v1",
            {"persistentVolumeClaimRetentionPolicy": {"whenScaled": "Delete"}},
            "those of its volumeClaimTemplates remain",
        ),
        ("statefulsets", "apps/v1", {}, ""),
        ("deployments", "apps/v1", {}, ""),
        ("cronjobs", "batch/v1", {}, "no controller of this cluster creates Jobs for a CronJob"),
        ("horizontalpodautoscalers", "autoscaling/v2", {}, ""),
    ],
)
async def test_creating_an_object_that_nothing_acts_on_returns_a_warning(
    plural: str, version: str, spec: dict[str, Any], words: str
) -> None:
    body = msgspec.json.encode({"metadata": {"name": "x"}, "spec": spec})
    path = f"/apis/{version}/namespaces/default/{plural}"
    async with asker().transport.exchange(Request("POST", path, {}, {"content-type": "application/json"}, body)) as answer:
        assert answer.status == 201
    warning = answer.headers.get("warning", "")
    assert words in warning
    assert bool(warning) == bool(words)
    assert not words or warning.startswith('299 - "')


async def test_an_event_expires_an_hour_after_its_last_write() -> None:
    ask, events = asker(), "/api/v1/namespaces/default/events"

    async def write(name: str) -> None:
        await ask.ok("POST", events, {"metadata": {"name": name}, "involvedObject": {"kind": "Pod", "name": "p"}, "reason": "Told"})

    async def names() -> list[str]:
        return [item["metadata"]["name"] for item in (await ask.ok("GET", events))["items"]]

    await write("once")
    await write("again")
    await asyncio.sleep(1800.0)
    await ask.ok("PATCH", f"{events}/again", {"count": 2}, media=MERGE)
    await asyncio.sleep(1801.0)
    await write("later")
    assert await names() == ["again", "later"]
    await asyncio.sleep(1800.0)
    await write("last")
    assert await names() == ["last", "later"]
