"""Requests about the server itself: groups, kinds, tables."""

from typing import Any

import pytest
from tests.embedded.asking import NODES, PODS, TABLE, asker, config_map, node, pod

from gpuscaler.embedded.apiserver.kinds import KINDS
from gpuscaler.embedded.apiserver.kubectl.columns import human_duration
from gpuscaler.embedded.apiserver.kubectl.pod_words import pod_status
from gpuscaler.kube import resources

AGGREGATED = {"accept": "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json"}


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
async def test_the_embedded_server_reports_that_it_is_healthy(path: str) -> None:
    assert await asker()("GET", path) == (200, "ok")


async def test_the_reported_kubernetes_version_supports_streamed_lists() -> None:
    version = await asker().ok("GET", "/version")
    assert (version["major"], int(version["minor"]) >= 34) == ("1", True)


async def test_both_forms_of_discovery_list_every_kind() -> None:
    ask = asker()
    legacy = {("v1", item["name"]) for item in (await ask.ok("GET", "/api/v1"))["resources"]}
    for group in (await ask.ok("GET", "/apis"))["groups"]:
        for version in group["versions"]:
            listed = await ask.ok("GET", f"/apis/{version['groupVersion']}")
            legacy |= {(version["groupVersion"], item["name"]) for item in listed["resources"]}
    aggregated = set()
    for path in ("/api", "/apis"):
        for group in (await ask.ok("GET", path, headers=AGGREGATED))["items"]:
            for version in group["versions"]:
                name = "/".join(filter(None, (group["metadata"].get("name"), version["version"])))
                for item in version["resources"]:
                    parts = [f"{item['resource']}/{part['subresource']}" for part in item["subresources"]]
                    aggregated |= {(name, kind) for kind in (item["resource"], *parts)}
    assert legacy == aggregated
    assert legacy >= {(kind.api_version, kind.plural) for kind in KINDS} | {("v1", "pods/eviction"), ("apps/v1", "deployments/scale")}


async def test_every_kind_that_our_client_watches_in_clusters_is_served() -> None:
    ask = asker()
    for resource in resources.WATCHED:
        status, _ = await ask("GET", resource.path())
        assert status == 200 or resource.optional, resource


async def test_openapi_declares_field_validation_by_the_server() -> None:
    ask = asker()
    index = (await ask.ok("GET", "/openapi/v3"))["paths"]
    document = await ask.ok("GET", index["apis/apps/v1"]["serverRelativeURL"])
    operation = document["paths"]["/apis/apps/v1/namespaces/{namespace}/deployments/{name}"]["patch"]
    assert operation["x-kubernetes-group-version-kind"] == {"group": "apps", "version": "v1", "kind": "Deployment"}
    assert "fieldValidation" in {parameter["name"] for parameter in operation["parameters"]}
    explained = document["components"]["schemas"]["Deployment"]
    assert explained["x-kubernetes-group-version-kind"] == [operation["x-kubernetes-group-version-kind"]]
    assert "see https://kubernetes.io/docs/reference/kubernetes-api/" in explained["description"]
    assert (await ask("GET", "/openapi/v3/apis/none/v1"))[0] == 404
    assert await ask("GET", "/openapi/v2") == (200, "\n\x032.0")


async def test_access_reviews_allow_everything_to_every_accepted_client() -> None:
    ask = asker()
    access = await ask.ok("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", {})
    rules = await ask.ok("POST", "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", {})
    review = await ask.ok("POST", "/apis/authentication.k8s.io/v1/selfsubjectreviews", {})
    assert access["status"] == {"allowed": True}
    assert rules["status"]["resourceRules"] == [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}]
    assert review["status"]["userInfo"]["username"] == "gpuscaler-embedded"
    assert (await ask("GET", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"))[0] == 405


async def test_a_list_can_be_a_table() -> None:
    ask = asker()
    await ask.ok("POST", PODS, pod(labels={"a": "b"}))
    table = await ask.ok("GET", PODS, headers=TABLE)
    columns = [column["name"] for column in table["columnDefinitions"] if not column["priority"]]
    assert columns == ["Name", "Ready", "Status", "Restarts", "Age"]
    row = table["rows"][0]
    assert row["cells"][:5] == ["p", "0/1", "Pending", "0", "0s"]
    assert (row["object"]["kind"], row["object"]["metadata"]["labels"]) == ("PartialObjectMetadata", {"a": "b"})
    assert int(table["metadata"]["resourceVersion"]) > 1


@pytest.mark.parametrize(("include", "kind"), [("Object", "Pod"), ("None", None)])
async def test_table_rows_contain_the_requested_part_of_the_object(include: str, kind: str | None) -> None:
    ask = asker()
    await ask.ok("POST", PODS, pod())
    row = (await ask.ok("GET", f"{PODS}/p", headers=TABLE, includeObject=include))["rows"][0]
    assert row.get("object", {}).get("kind") == kind
    assert (await ask("GET", PODS, headers=TABLE, includeObject="Half"))[0] == 400


async def test_every_kind_has_a_table_with_a_cell_for_each_column() -> None:
    ask = asker()
    skipped = {"Node": node(), "Pod": pod(), "ConfigMap": config_map()}
    for kind in KINDS:
        body = skipped.get(kind.kind) or {"metadata": {"name": "x"}, "spec": {}}
        path = f"{kind.root}/namespaces/default/{kind.plural}" if kind.namespaced else f"{kind.root}/{kind.plural}"
        if kind.group != "events.k8s.io":
            await ask.ok("POST", path, body)
        table = await ask.ok("GET", path, headers=TABLE)
        assert table["rows"], kind
        assert all(len(row["cells"]) == len(table["columnDefinitions"]) for row in table["rows"])


async def test_the_table_row_of_a_node_shows_whether_it_is_ready_and_cordoned() -> None:
    ask = asker()
    body = node(unschedulable=True)
    body["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
    body["metadata"]["labels"] = {"node-role.kubernetes.io/gpu": ""}
    await ask.ok("POST", NODES, body)
    assert (await ask.ok("GET", NODES, headers=TABLE))["rows"][0]["cells"][:3] == ["n", "Ready,SchedulingDisabled", "gpu"]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "<invalid>"), (-1, "0s"), (0, "0s"), (119, "119s"), (120, "2m"), (130, "2m10s"), (600, "10m"), (10_800, "3h"), (11_000, "3h3m"),
     (30_000, "8h"), (172_800, "2d"), (180_000, "2d2h"), (864_000, "10d"), (63_072_000, "2y"), (64_000_000, "2y10d"), (300_000_000, "9y")],
)  # fmt: skip
def test_ages_in_tables_are_formatted_as_in_kubernetes(seconds: int, text: str) -> None:
    assert human_duration(seconds) == text


def _container(**state: Any) -> dict[str, Any]:
    return {"ready": "running" in state, "state": state}


@pytest.mark.parametrize(
    ("status", "word"),
    [
        ({"phase": "Running", "containerStatuses": [_container(running={})]}, "Running"),
        ({"phase": "Running", "containerStatuses": [_container(waiting={"reason": "CrashLoopBackOff"})]}, "CrashLoopBackOff"),
        ({"phase": "Failed", "containerStatuses": [_container(terminated={"exitCode": 3})]}, "ExitCode:3"),
        ({"phase": "Failed", "containerStatuses": [_container(terminated={"exitCode": 137, "signal": 9})]}, "Signal:9"),
        ({"phase": "Succeeded", "containerStatuses": [_container(terminated={"exitCode": 0, "reason": "Completed"})]}, "Completed"),
        ({"phase": "Running", "containerStatuses": [_container(terminated={"reason": "Completed"}), _container(running={})]}, "NotReady"),
        ({"phase": "Failed", "reason": "Evicted"}, "Evicted"),
        ({"phase": "Pending", "initContainerStatuses": [_container(terminated={"exitCode": 0}), _container(running={})]}, "Init:1/2"),
        ({"phase": "Pending", "initContainerStatuses": [_container(waiting={"reason": "ErrImagePull"})]}, "Init:ErrImagePull"),
        ({"phase": "Pending", "initContainerStatuses": [_container(terminated={"exitCode": 1, "reason": "Error"})]}, "Init:Error"),
        ({"phase": "Pending", "conditions": [{"type": "PodScheduled", "reason": "SchedulingGated"}]}, "SchedulingGated"),
    ],
)
def test_the_table_row_of_a_pod_summarises_its_status_as_kubernetes_does(status: dict[str, Any], word: str) -> None:
    pod = {"metadata": {"name": "p"}, "spec": {"initContainers": [{}, {}]}, "status": status}
    assert pod_status(pod, 0.0) == word
    ending = {**pod, "metadata": {"name": "p", "deletionTimestamp": "2026-01-01T00:00:00Z"}}
    assert pod_status(ending, 0.0) == (word if status["phase"] in ("Succeeded", "Failed") else "Terminating")
