"""Conversion of old manifests to versions that are served now."""

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from gpuscaler.cli import main
from gpuscaler.cli.metrics import metrics
from gpuscaler.converting.converter import convert
from gpuscaler.converting.reading import ManifestError, read
from gpuscaler.converting.writing import write
from gpuscaler.metrics.rules.reading import read_rules

ROOT = Path(__file__).parents[2]
Json = dict[str, Any]


def converted(text: str) -> tuple[list[Json], list[str]]:
    objects, notes = convert(read(text), image="ours:1")
    return objects, [f"{note.where}: {note.text}" for note in notes]


def convert_one(text: str) -> Json:
    objects, _ = converted(text)
    (only,) = objects
    return only


def autoscaler(version: str, spec: str, annotations: str = "{}") -> str:
    return f"""
apiVersion: autoscaling/{version}
kind: HorizontalPodAutoscaler
metadata: {{name: web, annotations: {annotations}}}
spec:
  scaleTargetRef: {{apiVersion: apps/v1, kind: Deployment, name: web}}
  maxReplicas: 4
  {spec}
status: {{currentReplicas: 1}}
"""


@pytest.mark.parametrize(
    ("metric", "becomes"),
    [
        (
            "{type: Resource, resource: {name: cpu, targetAverageUtilization: 60}}",
            {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 60}}},
        ),
        (
            "{type: Resource, resource: {name: memory, targetAverageValue: 1Gi}}",
            {"type": "Resource", "resource": {"name": "memory", "target": {"type": "AverageValue", "averageValue": "1Gi"}}},
        ),
        (
            "{type: Pods, pods: {metricName: duty, targetAverageValue: 40, selector: {matchLabels: {a: b}}}}",
            {
                "type": "Pods",
                "pods": {
                    "metric": {"name": "duty", "selector": {"matchLabels": {"a": "b"}}},
                    "target": {"type": "AverageValue", "averageValue": 40},
                },
            },
        ),
        (
            "{type: Object, object: {metricName: h, targetValue: 2k, target: {apiVersion: extensions/v1beta1, kind: Ingress, name: in}}}",
            {
                "type": "Object",
                "object": {
                    "describedObject": {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "name": "in"},
                    "metric": {"name": "h"},
                    "target": {"type": "Value", "value": "2k"},
                },
            },
        ),
        (
            "{type: Object, object: {metricName: hits, target: {kind: Service, name: front}, targetValue: 1, averageValue: 5}}",
            {
                "type": "Object",
                "object": {
                    "describedObject": {"apiVersion": "v1", "kind": "Service", "name": "front"},
                    "metric": {"name": "hits"},
                    "target": {"type": "AverageValue", "averageValue": 5},
                },
            },
        ),
        (
            "{type: External, external: {metricName: queue, metricSelector: {matchLabels: {q: jobs}}, targetAverageValue: 30}}",
            {
                "type": "External",
                "external": {
                    "metric": {"name": "queue", "selector": {"matchLabels": {"q": "jobs"}}},
                    "target": {"type": "AverageValue", "averageValue": 30},
                },
            },
        ),
        (
            "{type: ContainerResource, containerResource: {name: cpu, container: app, targetAverageUtilization: 50}}",
            {
                "type": "ContainerResource",
                "containerResource": {"name": "cpu", "container": "app", "target": {"type": "Utilization", "averageUtilization": 50}},
            },
        ),
    ],
)
def test_metrics_of_v2beta1_become_those_of_v2(metric: str, becomes: Json) -> None:
    manifest = convert_one(autoscaler("v2beta1", f"metrics: [{metric}]"))
    assert manifest["apiVersion"] == "autoscaling/v2"
    assert manifest["spec"]["metrics"] == [becomes]
    assert "status" not in manifest


def test_the_annotations_of_a_v1_autoscaler_are_converted() -> None:
    annotations = """{
      autoscaling.alpha.kubernetes.io/metrics: '[{"type":"Pods","pods":{"metricName":"duty","targetAverageValue":"40"}}]',
      autoscaling.alpha.kubernetes.io/behavior: '{"ScaleDown":{"stabilizationWindowSeconds":60}}',
      autoscaling.alpha.kubernetes.io/conditions: '[]', team: ml}"""
    manifest = convert_one(autoscaler("v1", "targetCPUUtilizationPercentage: 70", annotations))
    assert manifest["metadata"]["annotations"] == {"team": "ml"}
    assert manifest["spec"]["metrics"] == [
        {"type": "Resource", "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 70}}},
        {"type": "Pods", "pods": {"metric": {"name": "duty"}, "target": {"type": "AverageValue", "averageValue": "40"}}},
    ]
    assert manifest["spec"]["behavior"] == {"scaleDown": {"stabilizationWindowSeconds": 60}}
    assert "targetCPUUtilizationPercentage" not in manifest["spec"]


def test_a_v2beta2_autoscaler_already_has_the_fields() -> None:
    spec = "metrics: [{type: Pods, pods: {metric: {name: duty}, target: {type: AverageValue, averageValue: 40}}}]"
    assert convert_one(autoscaler("v2beta2", spec))["spec"] == convert_one(autoscaler("v2", spec))["spec"]


@pytest.mark.parametrize(
    ("version", "spec", "annotations", "why"),
    [
        ("v2beta1", "metrics: [{type: Pods, pods: {metricName: duty}}]", "{}", "without a target"),
        ("v2beta1", "metrics: [{type: Pods}]", "{}", "of the type Pods without pods"),
        ("v1", "", "{autoscaling.alpha.kubernetes.io/metrics: '{'}", "that is not a JSON list"),
    ],
)
def test_an_object_that_cannot_be_converted_stays_unchanged_with_the_reason(version: str, spec: str, annotations: str, why: str) -> None:
    text = autoscaler(version, spec, annotations)
    objects, notes = converted(text)
    assert objects == [yaml.safe_load(text)]
    assert "not converted" in notes[-1]
    assert why in notes[-1]


def test_a_deployment_without_a_selector_gets_one_from_its_pod_labels() -> None:
    manifest = convert_one("""
apiVersion: extensions/v1beta1
kind: Deployment
metadata: {name: web}
spec: {rollbackTo: {revision: 1}, template: {metadata: {labels: {app: web}}, spec: {containers: []}}}
""")
    assert manifest["apiVersion"] == "apps/v1"
    assert manifest["spec"]["selector"] == {"matchLabels": {"app": "web"}}
    assert "rollbackTo" not in manifest["spec"]


def test_a_workload_without_labels_cannot_be_converted() -> None:
    objects, notes = converted("{apiVersion: apps/v1beta2, kind: ReplicaSet, metadata: {name: web}, spec: {template: {}}}")
    assert objects[0]["apiVersion"] == "apps/v1beta2"
    assert "add spec.template.metadata.labels" in notes[0]


def test_the_default_update_strategy_of_an_old_version_is_written_out() -> None:
    template = "template: {metadata: {labels: {a: b}}}"
    daemons = convert_one(
        f"{{apiVersion: extensions/v1beta1, kind: DaemonSet, metadata: {{name: x}}, spec: {{templateGeneration: 2, {template}}}}}"
    )
    assert daemons["spec"]["updateStrategy"] == {"type": "OnDelete"}
    assert "templateGeneration" not in daemons["spec"]
    sets = convert_one(f"{{apiVersion: apps/v1beta1, kind: StatefulSet, metadata: {{name: x}}, spec: {{{template}}}}}")
    assert (sets["spec"]["updateStrategy"], sets["spec"]["serviceName"]) == ({"type": "OnDelete"}, "x")
    later = convert_one(f"{{apiVersion: apps/v1beta2, kind: DaemonSet, metadata: {{name: x}}, spec: {{{template}}}}}")
    assert "updateStrategy" not in later["spec"]


def test_the_backends_of_an_ingress_are_converted() -> None:
    manifest = convert_one("""
apiVersion: extensions/v1beta1
kind: Ingress
metadata: {name: web, annotations: {kubernetes.io/ingress.class: nginx}}
spec:
  backend: {serviceName: rest, servicePort: http}
  rules:
  - http: {paths: [{path: /x, backend: {serviceName: web, servicePort: 80}}, {backend: {serviceName: y, servicePort: 1}}]}
  - host: b.example
""")
    assert manifest["apiVersion"] == "networking.k8s.io/v1"
    assert manifest["spec"]["defaultBackend"] == {"service": {"name": "rest", "port": {"name": "http"}}}
    assert manifest["spec"]["rules"][0]["http"]["paths"] == [
        {"path": "/x", "backend": {"service": {"name": "web", "port": {"number": 80}}}, "pathType": "ImplementationSpecific"},
        {"path": "/", "backend": {"service": {"name": "y", "port": {"number": 1}}}, "pathType": "ImplementationSpecific"},
    ]


@pytest.mark.parametrize(
    ("old", "kind", "new"),
    [
        ("apiregistration.k8s.io/v1beta1", "APIService", "apiregistration.k8s.io/v1"),
        ("rbac.authorization.k8s.io/v1beta1", "RoleBinding", "rbac.authorization.k8s.io/v1"),
        ("batch/v1beta1", "CronJob", "batch/v1"),
        ("policy/v1beta1", "PodDisruptionBudget", "policy/v1"),
        ("extensions/v1beta1", "NetworkPolicy", "networking.k8s.io/v1"),
    ],
)
def test_only_the_version_changes_if_the_fields_are_the_same(old: str, kind: str, new: str) -> None:
    spec = "{groupPriorityMinimum: 1, versionPriority: 1}"
    objects, notes = converted(f"{{apiVersion: {old}, kind: {kind}, metadata: {{name: x, namespace: n}}, spec: {spec}}}")
    assert objects[0]["apiVersion"] == new
    assert notes == [f"{kind} n/x: {old} became {new}"]


@pytest.mark.parametrize(
    ("version", "kind"),
    [
        ("policy/v1beta1", "PodSecurityPolicy"),
        ("apiextensions.k8s.io/v1beta1", "CustomResourceDefinition"),
        ("admissionregistration.k8s.io/v1beta1", "MutatingWebhookConfiguration"),
        ("certificates.k8s.io/v1beta1", "CertificateSigningRequest"),
    ],
)
def test_objects_of_removed_versions_with_other_fields_stay_unchanged_with_a_note(version: str, kind: str) -> None:
    text = f"{{apiVersion: {version}, kind: {kind}, metadata: {{name: x}}}}"
    objects, notes = converted(text)
    assert objects == [yaml.safe_load(text)]
    assert notes[0].startswith(f"{kind} x: not converted: ")


@pytest.mark.parametrize(
    "text",
    [
        (
            "apiVersion: autoscaling/v1\nkind: HorizontalPodAutoscaler\nmetadata: {name: x}\n"
            "spec: {maxReplicas: 3, targetCPUUtilizationPercentage: 060, scaleTargetRef: {kind: Deployment, name: x}}\n"
        ),
        (
            "apiVersion: extensions/v1beta1\nkind: Deployment\nmetadata: {name: x}\n"
            "spec:\n  template:\n    metadata: {labels: {app: x, version: 1.10}}\n    spec: {containers: [{name: a, image: b}]}\n"
        ),
        (
            "apiVersion: extensions/v1beta1\nkind: Deployment\nmetadata: {name: x}\nspec:\n  selector: {matchLabels: {version: 1.5}}\n"
            "  template:\n    metadata: {labels: {version: 1.5}}\n    spec: {containers: [{name: a, image: b}]}\n"
        ),
    ],
)
def test_numbers_keep_their_value_and_selectors_agree_with_labels(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(text)
    done = CliRunner().invoke(main, ["convert", str(tmp_path / "a.yaml")])
    assert done.exit_code == 0, done.output
    spec = yaml.safe_load(done.stdout)["spec"]
    if "template" in spec:
        assert spec["selector"]["matchLabels"] == spec["template"]["metadata"]["labels"]
        assert all(isinstance(value, str) for value in spec["selector"]["matchLabels"].values())
    else:
        assert spec["metrics"][0]["resource"]["target"]["averageUtilization"] == 48


def test_objects_of_current_versions_stay_unchanged() -> None:
    text = """
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: ConfigMap, metadata: {name: a}, data: {x: "1"}}
- {apiVersion: apps/v1, kind: Deployment, metadata: {name: b}, spec: {template: {metadata: {labels: {a: b}}}}}
- {apiVersion: example.org/v1, kind: Odd, spec: [1, 2], metadata: null}
- {apiVersion: v1, kind: Pod, metadata: {name: c}, spec: {containers: [{name: x, image: prometheus}], nodeSelector: null}}
"""
    objects, notes = converted(text)
    assert objects == yaml.safe_load(text)["items"]
    assert notes == []


def test_booleans_and_numbers_are_quoted_where_text_is_required() -> None:
    manifest = convert_one("""
apiVersion: batch/v1
kind: CronJob
metadata: {name: x, labels: {release: 1.5}, annotations: {since: 7, until: 2020-01-02}}
spec:
  jobTemplate:
    spec:
      template:
        metadata: {labels: {gpu: yes}}
        spec: {nodeSelector: {gpu: true}, containers: [{name: c, env: [{name: N, value: 3}]}]}
""")
    assert manifest["metadata"]["labels"] == {"release": "1.5"}
    assert manifest["metadata"]["annotations"] == {"since": "7", "until": "2020-01-02"}
    template = manifest["spec"]["jobTemplate"]["spec"]["template"]
    assert template["metadata"]["labels"] == {"gpu": "true"}
    assert template["spec"]["nodeSelector"] == {"gpu": "true"}
    assert template["spec"]["containers"][0]["env"] == [{"name": "N", "value": "3"}]


def test_the_value_of_a_quoted_variable_is_not_shown() -> None:
    pod = "{apiVersion: v1, kind: Pod, metadata: {name: x}, spec: {containers: [{name: c, env: [{name: DB_PASSWORD, value: 48151623}]}]}}"
    _, notes = converted(pod)
    assert notes == ["Pod x: quoted the environment variable DB_PASSWORD"]


def test_the_removed_flag_of_kube_controller_manager_is_left_out() -> None:
    manifest = convert_one("""
apiVersion: v1
kind: Pod
metadata: {name: kube-controller-manager, namespace: kube-system}
spec: {containers: [{name: c, command: [kube-controller-manager, --horizontal-pod-autoscaler-use-rest-clients=true, --v=2]}]}
""")
    assert manifest["spec"]["containers"][0]["command"] == ["kube-controller-manager", "--v=2"]


@pytest.mark.parametrize(
    "image",
    [
        "registry.k8s.io/prometheus-adapter/prometheus-adapter:v0.12.0",
        "quay.io/coreos/k8s-prometheus-adapter-amd64:v0.4.1",
        "directxman12/k8s-prometheus-adapter",
        "mirror.example/prometheus-adapter@sha256:0",
    ],
)
def test_a_prometheus_adapter_deployment_is_replaced_by_gpuscaler_with_the_same_flags(image: str) -> None:
    manifest = convert_one(f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: adapter}}
spec:
  template:
    spec:
      containers: [{{name: a, image: "{image}", command: [/adapter, --secure-port=6443], args: [--v=6, --config=/c.yaml, -v=1]}}]
""")
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    assert container == {"name": "a", "image": "ours:1", "args": ["metrics", "--secure-port=6443", "--config=/c.yaml"]}


def test_the_old_manifests_of_the_example_are_converted_to_served_versions() -> None:
    objects, notes = converted((ROOT / "docs" / "examples" / "hpa-of-2018.yaml").read_text(encoding="utf-8"))
    by_kind = {f"{manifest['kind']}/{manifest['metadata']['name']}": manifest for manifest in objects}
    assert not [manifest for manifest in objects if "beta" in manifest["apiVersion"]]
    adapter = by_kind["Deployment/custom-metrics-apiserver"]
    assert adapter["metadata"]["namespace"] == by_kind["Service/custom-metrics-apiserver"]["metadata"]["namespace"] == "kube-system"
    assert by_kind["ConfigMap/adapter-config"]["metadata"]["namespace"] == "kube-system"
    assert "namespace" not in by_kind["Deployment/serving"]["metadata"]
    assert by_kind["ClusterRole/custom-metrics-resource-reader"]["rules"][0]["verbs"] == ["get", "list", "watch"]
    rules = read_rules(by_kind["ConfigMap/adapter-config"]["data"]["config.yaml"])
    assert [rule.metric("nvidia_gpu_duty_cycle") for rule in rules.rules] == ["duty_cycle_over_time", "duty_cycle_current"]
    assert not rules.problems
    assert any("insecureSkipTLSVerify" in note for note in notes)


def test_the_prometheus_adapter_command_line_of_the_example_is_accepted() -> None:
    objects, _ = converted((ROOT / "docs" / "examples" / "hpa-of-2018.yaml").read_text(encoding="utf-8"))
    (container,) = next(manifest for manifest in objects if manifest["kind"] == "Deployment")["spec"]["template"]["spec"]["containers"]
    command, *words = container["args"]
    parsed = metrics.make_context(command, words).params
    assert parsed["prometheus_url"] == ("http://prometheus-svc.kube-system.svc.cluster.local:9090/",)
    assert str(parsed["config"]) == "/etc/adapter/config.yaml"


def test_a_flag_keeps_its_value_from_the_next_argument() -> None:
    manifest = convert_one("""
apiVersion: v1
kind: Pod
metadata: {name: adapter}
spec: {containers: [{name: a, image: prometheus-adapter, args: [--v, 10, --logtostderr, --config, /c.yaml]}]}
""")
    (container,) = manifest["spec"]["containers"]
    assert container["args"] == ["metrics", "--v", "10", "--config", "/c.yaml"]


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield (*path, key)
        yield from places(member, (*path, key))


@pytest.mark.parametrize("odd", [[1], {"a": 1}, True, "x", None])
def test_an_object_with_a_field_of_the_wrong_type_does_not_affect_other_objects(odd: Any) -> None:
    text = (ROOT / "docs" / "examples" / "hpa-of-2018.yaml").read_text(encoding="utf-8")
    whole = [*read(text), *read(autoscaler("v1", "targetCPUUtilizationPercentage: 50"))]
    for number, described in enumerate(whole):
        for path in places(described):
            if path not in (("kind",), ("apiVersion",)):
                objects = [copy.deepcopy(item) if item is described else item for item in whole]
                parent: Any = objects[number]
                for key in path[:-1]:
                    parent = parent[key]
                parent[path[-1]] = odd
                done, _ = convert(objects, image="ours:1")
                assert [manifest["apiVersion"] for manifest in done].count("autoscaling/v2") >= 1


def test_a_service_with_a_namespace_is_not_moved() -> None:
    text = """
{apiVersion: v1, kind: Service, metadata: {name: s, namespace: monitoring}}
---
{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1beta1.custom.metrics.k8s.io},
 spec: {group: custom.metrics.k8s.io, version: v1beta1, groupPriorityMinimum: 1, versionPriority: 1, service: {name: s, namespace: other}}}
"""
    objects, notes = converted(text)
    assert objects == list(yaml.safe_load_all(text))
    assert notes == []


def test_written_objects_are_read_back_unchanged() -> None:
    objects: list[Json] = [
        {"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": "x\ny: é\n", "b": "yes", "c": "1"}},
        {"apiVersion": "v1", "kind": "X"},
    ]
    assert read(write(objects)) == objects
    assert "a: |\n" in write(objects)


@pytest.mark.parametrize("value", ["N", "y", "1e3", "0x1F", "010", "1_000", "1:30", "+1", ".5", "yes", "null", "2020-01-01", "0o7"])
def test_strings_stay_strings_for_other_yaml_parsers(value: str) -> None:
    assert f"a: '{value}'" in write([{"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": value}}])


@pytest.mark.parametrize("value", ["x\x85y", "a\u2028b\nc", "a\rb\n", "\u2029- x\n"])
def test_line_breaks_of_unicode_stay_in_their_text(value: str) -> None:
    objects = [{"apiVersion": "v1", "kind": "ConfigMap", "data": {"a": value}}]
    assert read(write(objects)) == objects
    assert yaml.safe_load(write(objects)) == objects[0]


def test_an_anchor_is_converted_separately_in_each_place() -> None:
    text = "{apiVersion: v1, kind: List, items: [&x {apiVersion: batch/v1beta1, kind: CronJob, metadata: {name: a}}, *x]}"
    objects, _ = converted(text)
    assert [manifest["apiVersion"] for manifest in objects] == ["batch/v1", "batch/v1"]
    assert "*" not in write(objects)


@pytest.mark.parametrize("text", ["a: [", "- 1", "text", "{apiVersion: v1}", "kind: Pod", "{apiVersion: v1, kind: List, items: [1]}"])
def test_a_file_without_kubernetes_objects_is_refused(text: str) -> None:
    with pytest.raises(ManifestError, match=r"saw (no|invalid)"):
        read(text)


def test_an_empty_file_is_accepted() -> None:
    assert converted("---\n---\n# nothing\n") == ([], [])
    assert write([]) == ""
