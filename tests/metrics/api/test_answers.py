"""Metrics over HTTP: every path, selector, body and error is as clients of prometheus-adapter expect."""

from pathlib import Path

import pytest
from tests.metrics.api.scene import NOW, pod, scene

from gpuscaler.metrics.sources.values import EVERYTHING, MetricInfo, Rejected, Unavailable, UnknownMetric, Value
from gpuscaler.model.selector_text import parse_selector

pytestmark = pytest.mark.looptime(False)

V1, V2 = "/apis/custom.metrics.k8s.io/v1beta1", "/apis/custom.metrics.k8s.io/v1beta2"
EXTERNAL = "/apis/external.metrics.k8s.io/v1beta1"


async def test_custom_metrics_v1beta1_values_have_exactly_the_expected_bytes(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.source.values = [pod("p", "10500m"), pod("q", "42", window_seconds=180)]
        answer = await made.get(f"{V1}/namespaces/default/pods/%2A/duty_cycle_current")
        assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
        assert answer.body == (
            b'{"kind":"MetricValueList","apiVersion":"custom.metrics.k8s.io/v1beta1","metadata":{},"items":['
            b'{"describedObject":{"kind":"Pod","namespace":"default","name":"p","apiVersion":"/v1"},"metricName":"duty_cycle_current",'
            b'"timestamp":"2026-01-01T00:00:00Z","value":"10500m","selector":null},'
            b'{"describedObject":{"kind":"Pod","namespace":"default","name":"q","apiVersion":"/v1"},"metricName":"duty_cycle_current",'
            b'"timestamp":"2026-01-01T00:00:00Z","window":180,"value":"42","selector":null}]}\n'
        )


async def test_custom_metrics_v1beta2_values_have_exactly_the_expected_bytes(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.source.infos.append(MetricInfo("nodes", False, "power_watts"))
        made.source.values = [Value("power_watts", "1k", NOW, "nodes", "", "n1", 0)]
        answer = await made.get(f"{V2}/nodes/n1/power_watts?metricLabelSelector=gpu%3D0%2Ckind+in+%28a%2Cb%29")
        assert answer.body == (
            b'{"kind":"MetricValueList","apiVersion":"custom.metrics.k8s.io/v1beta2","metadata":{},"items":['
            b'{"describedObject":{"kind":"Node","name":"n1","apiVersion":"/v1"},"metric":{"name":"power_watts","selector":'
            b'{"matchLabels":{"gpu":"0"},"matchExpressions":[{"key":"kind","operator":"In","values":["a","b"]}]}},'
            b'"timestamp":"2026-01-01T00:00:00Z","windowSeconds":0,"value":"1k"}]}\n'
        )
        assert made.source.asked[-1]["selector"] == parse_selector("gpu=0,kind in (a,b)")


async def test_external_metrics_values_have_exactly_the_expected_bytes(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.source.outside = ["queue_length"]
        made.source.values = [Value("queue_length", "7", NOW, labels={"queue": "b", "cluster": "x"}), Value("queue_length", "1", NOW)]
        answer = await made.get(f"{EXTERNAL}/namespaces/default/queue_length?labelSelector=queue%3Db")
        assert answer.headers["content-type"] == "application/json"
        assert answer.body == (
            b'{"kind":"ExternalMetricValueList","apiVersion":"external.metrics.k8s.io/v1beta1","metadata":{},"items":[{"metricName":'
            b'"queue_length","metricLabels":{"cluster":"x","queue":"b"},"timestamp":"2026-01-01T00:00:00Z","value":"7"}]}\n'
        )
        nothing = await made.get(f"{EXTERNAL}/namespaces/default/queue_length?labelSelector=queue%3Dnone")
        assert (nothing.status, nothing.json["items"]) == (200, [])


@pytest.mark.parametrize("star", ["*", "%2A", "%2a"])
async def test_a_star_as_the_name_in_any_encoding_requests_all_objects_matching_the_selector(tmp_path: Path, star: str) -> None:
    async with scene(tmp_path) as made:
        made.source.values = [pod("a", "1"), pod("b", "2"), pod("c", "3", "other")]
        made.source.labels = {("default", "a"): {"app": "x"}, ("default", "b"): {"app": "y"}}
        path = f"{V1}/namespaces/default/pods/{star}/duty_cycle_current"
        chosen = await made.get(f"{path}?labelSelector=app+in+%28x%29&timeout=5s&limit=10&resourceVersion=0")
        assert [item["describedObject"]["name"] for item in chosen.json["items"]] == ["a"]
        assert [item["describedObject"]["name"] for item in (await made.get(path)).json["items"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("namespaces/n/pods/p/m", {"group_resource": "pods", "namespace": "n", "name": "p"}),
        ("namespaces/n/jobs.batch/j/m", {"group_resource": "jobs.batch", "namespace": "n", "name": "j"}),
        ("namespaces/n/pods./p/m", {"group_resource": "pods", "namespace": "n", "name": "p"}),
        ("namespaces/n/deployments/d/m", {"group_resource": "deployments.apps", "namespace": "n", "name": "d"}),
        ("namespaces/n/Deployment/d/m", {"group_resource": "deployments.apps", "namespace": "n", "name": "d"}),
        ("namespaces/n/ingresses.networking/i/m", {"group_resource": "ingresses.networking.k8s.io", "namespace": "n", "name": "i"}),
        ("namespaces/n/rollouts/r/m", {"group_resource": "rollouts.argoproj.io", "namespace": "n", "name": "r"}),
        ("namespaces/n/rollouts.argoproj/r/m", {"group_resource": "rollouts.argoproj.io", "namespace": "n", "name": "r"}),
        ("namespaces/n/widgets/w/m", {"group_resource": "widgets", "namespace": "n", "name": "w"}),
        ("nodes/x/m", {"group_resource": "nodes", "namespace": "", "name": "x"}),
        ("nodes/*/m", {"group_resource": "nodes", "namespace": "", "labels": EVERYTHING}),
        ("namespaces/n/metrics/m", {"group_resource": "namespaces", "namespace": "", "name": "n"}),
        ("namespaces/*/metrics/m", {"group_resource": "namespaces", "namespace": "", "labels": EVERYTHING}),
        ("namespaces/n/pods/p/m/", {"group_resource": "pods", "namespace": "n", "name": "p"}),
    ],
)
async def test_each_url_path_requests_the_metric_that_it_names(tmp_path: Path, path: str, asked: dict[str, object]) -> None:
    async with scene(tmp_path) as made:
        made.source.infos.append(MetricInfo("rollouts.argoproj.io", True, "m"))
        for version in (V1, V2):
            await made.get(f"{version}/{path}")
            assert made.source.asked[-1] == {"metric": "m", "selector": EVERYTHING, **asked}


async def test_a_deployment_without_its_group_is_described_in_full_but_not_in_errors(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.source.infos.append(MetricInfo("deployments.apps", True, "load"))
        made.source.values = [Value("load", "3", NOW, "deployments.apps", "n", "d")]
        items = (await made.get(f"{V2}/namespaces/n/deployments/d/load")).json["items"]
        assert [(item["describedObject"], item["value"]) for item in items] == [
            ({"kind": "Deployment", "namespace": "n", "name": "d", "apiVersion": "apps/v1"}, "3")
        ]
        unknown = await made.get(f"{V2}/namespaces/n/deployments/d/other")
        assert (unknown.status, unknown.json["message"]) == (404, "the server could not find the metric other for deployments")
        absent = await made.get(f"{V2}/namespaces/n/deployments/other/load")
        assert (absent.status, absent.json["message"]) == (404, "the server could not find the metric load for deployments other")
        # Rights are checked for the resource in the path, as the API server reads it.
        assert made.reviewing.specs[-1]["resourceAttributes"]["resource"] == "deployments"


@pytest.mark.parametrize(
    ("query", "phrase"),
    [
        ("labelSelector=app+in+x", "unable to parse requirement: found 'x' expected: '('"),
        ("metricLabelSelector=%2C", "unable to parse requirement: found ',', expected: identifier"),
        ("fieldSelector=metadata.name%3Dother", "fieldSelector metadata.name doesn't match requested name"),
        ("fieldSelector=status.phase%3DRunning", "fieldSelector metadata.name doesn't match requested name"),
    ],
)
async def test_a_query_that_cannot_be_parsed_is_a_bad_request(tmp_path: Path, query: str, phrase: str) -> None:
    async with scene(tmp_path) as made:
        answer = await made.get(f"{V1}/namespaces/n/pods/p/m?{query}")
        assert (answer.status, answer.json["reason"], answer.json["message"]) == (400, "BadRequest", phrase)
        assert made.source.asked == []


async def test_a_field_selector_that_repeats_the_name_is_accepted(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.source.values = [pod("p", "1")]
        answer = await made.get(f"{V1}/namespaces/default/pods/p/duty_cycle_current?fieldSelector=metadata.name%3Dp")
        assert [item["value"] for item in answer.json["items"]] == ["1"]


async def test_errors_have_the_texts_of_prometheus_adapter(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.source.outside = ["queue_length"]
        unknown = await made.get(f"{V1}/namespaces/default/pods/*/m")
        assert unknown.body == (
            b'{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",'
            b'"message":"the server could not find the metric m for pods","reason":"NotFound","code":404}\n'
        )
        answered = await made.get(f"{V1}/namespaces/default/pods/gone/duty_cycle_current")
        assert answered.json["message"] == "the server could not find the metric duty_cycle_current for pods gone"
        outside = await made.get(f"{EXTERNAL}/namespaces/default/other")
        assert (outside.status, outside.json["reason"]) == (404, "NotFound")


async def test_an_error_of_the_source_is_answered_with_an_error_and_never_with_a_number(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        path = f"{V1}/namespaces/default/pods/*/duty_cycle_current"
        made.source.values = [pod("a", "1")]
        assert (await made.get(path)).status == 200
        for error, code, phrase in (
            (Unavailable(""), 500, "Internal error occurred: unable to fetch metrics"),
            (Unavailable("prometheus is away"), 500, "Internal error occurred: unable to fetch metrics: prometheus is away"),
            (Rejected("gpus>4 cannot be said in PromQL"), 400, "gpus>4 cannot be said in PromQL"),
            (UnknownMetric("no pod matches"), 404, "the server could not find the metric duty_cycle_current for pods: no pod matches"),
        ):
            made.source.error = error
            answer = await made.get(path)
            assert (answer.status, answer.json["code"], answer.json["message"]) == (code, code, phrase)


async def test_an_internal_error_is_reported_without_details(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.source.values = [pod("a", "1")]
        made.source.labels = None  # type: ignore[assignment]
        answer = await made.get(f"{V1}/namespaces/default/pods/*/duty_cycle_current")
        assert (answer.status, answer.json["reason"]) == (500, "InternalError")
        assert "NoneType" not in answer.json["message"]


@pytest.mark.parametrize(
    ("method", "path", "code"),
    [
        ("GET", f"{V1}/namespaces/n/pods", 400),
        ("GET", f"{V1}/namespaces/n", 404),
        ("GET", f"{V1}/namespaces/n//p/m", 404),
        ("GET", f"{V1}/namespaces/n/pods/p/m/more", 404),
        ("GET", f"{V1}//nodes/n/m", 404),
        ("GET", "/apis/custom.metrics.k8s.io/v1/nodes/n/m", 404),
        ("GET", f"{EXTERNAL}/queue_length", 404),
        ("GET", "/openapi/v3/apis/custom.metrics.k8s.io/v1", 404),
        ("GET", "/nothing", 404),
        ("GET", "//apis", 404),
        ("POST", f"{V1}/namespaces/n/pods/p/m", 405),
        ("DELETE", "/apis", 405),
    ],
)
async def test_unknown_paths_are_refused_and_never_redirected(tmp_path: Path, method: str, path: str, code: int) -> None:
    async with scene(tmp_path) as made:
        answer = await made.get(path, method=method)
        assert answer.status == code
        assert "location" not in answer.headers
        assert made.source.asked == []


async def test_a_changed_value_is_served_instead_of_a_cached_response(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        path = f"{V2}/namespaces/default/pods/*/duty_cycle_current"
        for text in ("1", "1", "2"):
            made.source.values = [pod("a", text)]
            assert [item["value"] for item in (await made.get(path)).json["items"]] == [text]


async def test_long_label_selectors_are_accepted(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.source.values = [pod("a", "1"), pod("b", "2")]
        made.source.labels = {("default", "a"): {"job": "j-4999"}, ("default", "b"): {"job": "other"}}
        selector = "job+in+%28" + "%2C".join(f"j-{number}" for number in range(5000)) + "%29"
        answer = await made.get(f"{V1}/namespaces/default/pods/*/duty_cycle_current?labelSelector={selector}")
        assert [item["describedObject"]["name"] for item in answer.json["items"]] == ["a"]


async def test_the_pretty_parameter_changes_only_whitespace(tmp_path: Path) -> None:
    async with scene(tmp_path) as made:
        made.source.values = [pod("a", "1")]
        path = f"{V1}/namespaces/default/pods/a/duty_cycle_current"
        plain, pretty = await made.get(path), await made.get(f"{path}?pretty=true")
        assert b'\n  "kind": "MetricValueList"' in pretty.body
        assert plain.json == pretty.json
