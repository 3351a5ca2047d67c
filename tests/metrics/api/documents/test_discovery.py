"""Discovery by kube-aggregator and clients, and probes."""

from pathlib import Path

import pytest
from tests.metrics.api.scene import scene

from gpuscaler.metrics.sources.values import MetricInfo

pytestmark = pytest.mark.looptime(False)

CUSTOM, EXTERNAL = "custom.metrics.k8s.io", "external.metrics.k8s.io"
#: The Accept header of kube-aggregator in Kubernetes 1.35.
V2 = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
ACCEPT = f"{V2},application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList,application/json"


async def test_both_groups_are_listed_with_their_versions(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        groups = (await made.get("/apis")).json
        assert groups["kind"] == "APIGroupList"
        assert [[group["name"], [version["version"] for version in group["versions"]]] for group in groups["groups"]] == [
            [CUSTOM, ["v1beta2", "v1beta1"]],
            [EXTERNAL, ["v1beta1"]],
        ]
        api_group = (await made.get(f"/apis/{CUSTOM}")).json
        assert (api_group["kind"], api_group["name"]) == ("APIGroup", CUSTOM)
        assert api_group["preferredVersion"] == {"groupVersion": f"{CUSTOM}/v1beta2", "version": "v1beta2"}


async def test_a_group_that_another_program_owns_is_not_served(tmp_path: Path) -> None:
    async with scene(tmp_path, groups=frozenset({CUSTOM})) as made:
        made.source.outside = ["queue_length"]
        assert [group["name"] for group in (await made.get("/apis")).json["groups"]] == [CUSTOM]
        assert [group["metadata"]["name"] for group in (await made.get("/apis", headers=[("Accept", ACCEPT)])).json["items"]] == [CUSTOM]
        for path in (EXTERNAL, f"{EXTERNAL}/v1beta1", f"{EXTERNAL}/v1beta1/namespaces/n/queue_length"):
            assert (await made.get(f"/apis/{path}")).status == 404


async def test_resource_lists_of_metrics_have_exactly_the_expected_bytes(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.source.infos.append(MetricInfo("nodes", False, "duty_cycle_current"))
        made.source.outside = ["queue_length"]
        assert (await made.get(f"/apis/{CUSTOM}/v1beta1")).body == (
            b'{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"custom.metrics.k8s.io/v1beta1","resources":['
            b'{"name":"pods/duty_cycle_current","singularName":"","namespaced":true,"kind":"MetricValueList","verbs":["get"]},'
            b'{"name":"nodes/duty_cycle_current","singularName":"","namespaced":false,"kind":"MetricValueList","verbs":["get"]}]}\n'
        )
        assert (await made.get(f"/apis/{EXTERNAL}/v1beta1")).json["resources"] == [
            {"name": "queue_length", "singularName": "", "namespaced": True, "kind": "ExternalMetricValueList", "verbs": ["get"]}
        ]


async def test_discovery_returns_no_empty_resource_list_even_without_metrics(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.source.infos = []
        for path in (f"{CUSTOM}/v1beta1", f"{CUSTOM}/v1beta2", f"{EXTERNAL}/v1beta1"):
            assert len((await made.get(f"/apis/{path}")).json["resources"]) == 1
        everything = (await made.get("/apis", headers=[("Accept", ACCEPT)])).json
        assert all(len(version["resources"]) == 1 for group in everything["items"] for version in group["versions"])


async def test_a_resource_has_one_scope_even_if_the_source_reports_two(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.source.infos = [MetricInfo("pods", True, "a"), MetricInfo("pods", False, "b"), MetricInfo("pods", True, "c")]
        assert [resource["name"] for resource in (await made.get(f"/apis/{CUSTOM}/v1beta2")).json["resources"]] == ["pods/a", "pods/c"]


async def test_aggregated_discovery_lists_all_groups_in_one_response_with_an_etag(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.source.outside = ["queue_length"]
        first = await made.get("/apis", headers=[("Accept", ACCEPT)])
        assert (first.headers["content-type"], first.json["kind"]) == (V2, "APIGroupDiscoveryList")
        assert first.json["apiVersion"] == "apidiscovery.k8s.io/v2"
        custom, external = first.json["items"]
        assert custom["versions"][0] == {
            "version": "v1beta2",
            "resources": [
                {
                    "resource": "pods",
                    "responseKind": {"group": "", "version": "", "kind": ""},
                    "scope": "Namespaced",
                    "singularResource": "",
                    "verbs": [],
                    "subresources": [
                        {
                            "subresource": "duty_cycle_current",
                            "responseKind": {"group": "", "version": "", "kind": "MetricValueList"},
                            "verbs": ["get"],
                        }
                    ],
                }
            ],
            "freshness": "Current",
        }
        assert [resource["resource"] for resource in external["versions"][0]["resources"]] == ["queue_length"]
        tag = first.headers["etag"]
        again = await made.get("/apis", headers=[("Accept", ACCEPT), ("If-None-Match", tag)])
        assert (again.status, again.body, again.headers["etag"]) == (304, b"", tag)
        made.source.infos.append(MetricInfo("pods", True, "power_watts"))
        later = await made.get("/apis", headers=[("Accept", ACCEPT), ("If-None-Match", tag)])
        assert (later.status, later.headers["etag"] == tag) == (200, False)


@pytest.mark.parametrize(
    ("accept", "content"),
    [
        ("application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList", V2.replace("v2", "v2beta1")),
        ("application/json; as=APIGroupDiscoveryList; v=v2; g=apidiscovery.k8s.io", V2),
        ("application/json;g=apidiscovery.k8s.io;v=v9;as=APIGroupDiscoveryList,*/*", "application/json"),
        (f"application/vnd.kubernetes.protobuf;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,{V2}", V2),
        (f"application/json,{V2}", "application/json"),
        ("*/*", "application/json"),
    ],
)
async def test_discovery_uses_the_first_supported_format_of_the_accept_header(tmp_path: Path, accept: str, content: str) -> None:
    async with scene(tmp_path) as made:
        assert (await made.get("/apis", headers=[("Accept", accept)])).headers["content-type"] == content


async def test_api_paths_are_described_in_openapi_v2_and_v3(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        old = await made.get("/openapi/v2")
        assert (old.json["swagger"], len(old.json["paths"])) == ("2.0", 7)
        again = await made.get("/openapi/v2", headers=[("If-None-Match", old.headers["etag"])])
        assert (again.status, again.body) == (304, b"")
        index = (await made.get("/openapi/v3")).json["paths"]
        assert sorted(index) == [f"apis/{CUSTOM}/v1beta1", f"apis/{CUSTOM}/v1beta2", f"apis/{EXTERNAL}/v1beta1"]
        for name, place in index.items():
            described = (await made.get(place["serverRelativeURL"])).json
            assert described["openapi"] == "3.0.0"
            assert all(path.startswith(f"/{name}/") for path in described["paths"])
            assert all(path in old.json["paths"] for path in described["paths"])


async def test_probes_answer_ok_or_name_the_failing_check(tmp_path: Path) -> None:
    trouble = {"rules": ""}
    async with scene(tmp_path, alive={"loop": lambda: ""}, ready={"rules": lambda: trouble["rules"]}) as made:
        assert (await made.ask("/readyz", None)).body == b"ok"
        assert (await made.ask("/readyz?verbose", None)).body == b"[+]ping ok\n[+]loop ok\n[+]rules ok\nreadyz check passed\n"
        trouble["rules"] = "no series yet"
        failed = await made.ask("/readyz", None)
        assert (failed.status, failed.body) == (500, b"[+]ping ok\n[+]loop ok\n[-]rules failed: reason withheld\nreadyz check failed\n")
        assert b"[-]rules failed: no series yet\n" in (await made.get("/readyz")).body
        assert (await made.ask("/healthz", None)).status == 200
        assert (await made.get("/readyz/loop")).body == b"ok"
        assert (await made.get("/readyz/rules")).status == 500
        assert (await made.get("/readyz/other")).status == 404
