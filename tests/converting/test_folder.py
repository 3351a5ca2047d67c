"""Files that are converted together: what stays as it was, what is left out, and that a second conversion changes nothing."""

import json
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuscaler.converting.folder import Conversion, convert_files

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "docs" / "examples").glob("*.yaml"))

OLD = """\
# The web tier.
apiVersion: extensions/v1beta1  # of 2017
kind: Deployment
metadata:
  name: web
spec:
  # Two, since one is none.
  replicas: 2
  template:
    metadata:
      labels: {app: web}
    spec:
      containers:
        - {name: web, image: "web:1"}
      volumes:
        - {name: keys, secret: {secretName: keys, defaultMode: 0440}}
"""
NEW = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}  # as it is
data: {limit: 1e3, mode: 0644, version: 1.10}
"""


def convert(*files: tuple[str, str]) -> Conversion:
    return convert_files(files, image="ours:1")


def only(text: str, name: str = "a.yaml") -> str:
    (file,) = convert((name, text)).files
    return file.text


def messages(*files: tuple[str, str]) -> list[str]:
    return [str(message) for message in convert(*files).messages]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_what_was_converted_is_not_changed_again(example: Path) -> None:
    text = example.read_text(encoding="utf-8")
    once = only(text)
    again = convert((example.name, once)) if once else None
    assert again is None or again.files[0].text == once
    if example.name != "hpa-of-2018.yaml":
        assert once in ("", text)


def test_the_manifests_of_gpuscaler_itself_need_no_change() -> None:
    text = (ROOT / "deploy" / "gpuscaler.yaml").read_text(encoding="utf-8")
    done = convert(("gpuscaler.yaml", text))
    assert done.files[0].text == done.stream == text
    assert done.messages == ()


def test_a_file_that_needs_no_change_is_written_byte_for_byte() -> None:
    text = f"\ufeff%YAML 1.1\n---\n{NEW}\r\n...\n--- # next\n{NEW.replace('settings', 'other')}"
    assert only(text) == text
    assert messages(("a.yaml", text)) == []


def test_comments_and_unusual_numbers_stay_where_a_document_is_edited() -> None:
    text = only(OLD)
    assert text == OLD.replace("extensions/v1beta1", "apps/v1").replace(
        "  template:\n", "  selector:\n    matchLabels:\n      app: web\n  template:\n"
    )


def test_documents_beside_a_changed_one_stay_as_they_are() -> None:
    text = only(f"{NEW}---\n{OLD}---\n{NEW}")
    assert text.startswith(NEW)
    assert text.endswith(f"---\n{NEW}")


def test_comments_that_are_lost_where_a_document_is_written_again_are_reported() -> None:
    text = """\
# Scales with load.
apiVersion: autoscaling/v2beta1
kind: HorizontalPodAutoscaler
metadata: {name: web, labels: {version: 1.10}}
spec:
  maxReplicas: 16
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  metrics:
    - type: Pods  # per pod
      pods: {metricName: duty, targetAverageValue: 40}
"""
    (file,) = (done := convert(("a.yaml", text))).files
    assert file.text.startswith("# Scales with load.\napiVersion: autoscaling/v2\n")
    assert "per pod" not in file.text
    assert "comments within it are lost" in str(done.messages[-1])
    assert yaml.safe_load(file.text)["metadata"]["labels"]["version"] == "1.10"


def test_numbers_of_a_document_that_is_written_again_keep_their_meaning() -> None:
    deployment = (
        "{apiVersion: apps/v1beta1, kind: Deployment, metadata: {name: a}, spec: {template: {metadata: {labels: {a: b}}, spec: SPEC}}}"
    )
    text = only(deployment.replace("SPEC", "{volumes: [{name: v, secret: {secretName: s, defaultMode: 0440}}], x: 1e3, z: -007}"))
    spec = text[text.index("spec:\n      volumes") :]
    assert "defaultMode: 0440\n" in spec
    assert "x: 1e3\n" in spec
    assert "z: -007\n" in spec


def test_json_stays_json() -> None:
    old = {"apiVersion": "batch/v1beta1", "kind": "CronJob", "metadata": {"name": "a", "labels": {"gpu": True}}}
    text = only(json.dumps({"apiVersion": "v1", "kind": "List", "items": [old, old]}), "a.json")
    assert [item["apiVersion"] for item in json.loads(text)["items"]] == ["batch/v1", "batch/v1"]
    assert json.loads(only(json.dumps(old, indent="\t"), "a.json"))["metadata"]["labels"] == {"gpu": "true"}


def test_json_in_the_stream_is_read_as_yaml() -> None:
    done = convert(("a.json", json.dumps(yaml.safe_load(NEW), indent="\t")), ("b.yaml", OLD))
    first, second = yaml.safe_load_all(done.stream)
    assert (first["kind"], second["apiVersion"]) == ("ConfigMap", "apps/v1")


def test_the_last_documents_of_files_without_a_line_end_do_not_run_together() -> None:
    stream = convert(("a.yaml", NEW.rstrip()), ("b.yaml", NEW.rstrip()), ("c.yaml", "")).stream
    assert [item["kind"] for item in yaml.safe_load_all(stream)] == ["ConfigMap", "ConfigMap"]


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("c.yaml", "{apiVersion: eksctl.io/v1alpha5, kind: ClusterConfig, metadata: {name: a}}", "a file of eksctl (ClusterConfig)"),
        ("c.yaml", "{apiVersion: kops.k8s.io/v1alpha2, kind: InstanceGroup}", "an object of kOps (InstanceGroup)"),
        ("values.yaml", "replicaCount: 2", "no apiVersion and kind"),
        ("Chart.yaml", "{apiVersion: v2, name: x, version: 1.0.0}", "the Chart.yaml of a Helm chart"),
        ("run.yaml", "{cloud: aws, aws: {cluster: a}}", "a pools file or run file of gpuscaler"),
        ("a.yaml", "just text", "no apiVersion and kind, but text"),
        ("a.yaml", "[1, 2]", "no apiVersion and kind, but a list"),
        ("a.yaml", "apiVersion: v1", "no kind"),
    ],
)
def test_a_document_that_is_no_kubernetes_object_is_left_out_and_named(name: str, text: str, what: str) -> None:
    done = convert((name, f"{text}\n"), ("b.yaml", NEW))
    assert [file.text for file in done.files] == ["", NEW]
    assert [str(message) for message in done.messages] == [f"{name}:1: left out: saw {what}, expected an object of Kubernetes"]
    assert not done.failed


def test_a_kustomization_is_kept_beside_its_files_and_is_not_in_the_stream() -> None:
    text = "apiVersion: kustomize.config.k8s.io/v1beta1\nkind: Kustomization\nresources: [web.yaml]\n"
    done = convert(("kustomization.yaml", text), ("web.yaml", OLD))
    assert done.files[0].text == text
    assert "Kustomization" not in done.stream
    assert "saw a file of kustomize (Kustomization); check what it names and patches" in str(done.messages[0])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a: [", "line"),
        ("kind: {{ .Values.kind }}\napiVersion: v1\n", "it is a template of Helm; convert what helm template prints"),
        ("apiVersion: v1\nkind: Pod\nkind: Job\n", "line 3: saw this key a second time"),
        ("apiVersion: v1\nkind: Pod\nmetadata: &a {labels: *a}\n", "is inside the value that it refers to"),
        (f"apiVersion: v1\nkind: Pod\nspec: {'[' * 200}{']' * 200}\n", "nested more than 50 deep"),
        ("{apiVersion: v1, kind: List, items: [{apiVersion: v1, kind: Pod}, 1]}", "expected an object in the List"),
        ("apiVersion: v1\nkind: Pod\n...\napiVersion: v1\n", "did not find expected <document start>"),
        ("\x00\x01", "characters that are not printable"),
    ],
)
def test_a_document_that_cannot_be_read_is_left_out_and_does_not_affect_the_others(text: str, why: str) -> None:
    done = convert(("bad.yaml", f"{text}\n---\n{NEW}"))
    assert done.files[0].text == f"---\n{NEW}"
    assert done.failed
    assert str(done.messages[0]).startswith("bad.yaml:1: left out: ")
    assert why in str(done.messages[0])


def test_a_template_of_a_chart_is_left_out_even_if_it_is_valid_yaml() -> None:
    done = convert(("chart/templates/a.yaml", '{apiVersion: v1, kind: Pod, metadata: {name: "{{ .Release.Name }}"}}\n'))
    assert done.files[0].text == ""
    assert "it is a template of Helm" in str(done.messages[0])


def test_aliases_that_expand_without_limit_are_not_expanded() -> None:
    levels = "".join(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]\n" for level in range(1, 12))
    done = convert(("a.yaml", f"a0: &a0 [x]\n{levels}"))
    assert "its aliases expand to more than 1,000,000 values" in str(done.messages[0])


@pytest.mark.parametrize(
    ("version", "kind", "why"),
    [
        ("karpenter.sh/v1", "NodePool", "an object of Karpenter; how to move from Karpenter: docs/how-to/move-from-karpenter.md"),
        ("example.org/v1", "Odd", "a kind that Kubernetes itself does not have; check that its API version is still served"),
        ("apps/v1", "Deploymnet", "expected a kind of the API group apps; correct the kind or the apiVersion"),
    ],
)
def test_an_object_of_an_unknown_kind_passes_through_with_a_warning(version: str, kind: str, why: str) -> None:
    text = f"apiVersion: {version}\nkind: {kind}\nmetadata: {{name: x, namespace: n}}\n"
    assert only(text) == text
    assert messages(("a.yaml", f"{NEW}---\n{text}")) == [f"a.yaml:6: {kind} n/x: passed through unchanged: saw {version} {kind}, {why}"]


def test_messages_name_the_file_and_the_line_of_the_object() -> None:
    listed = "apiVersion: v1\nkind: List\nitems:\n- {apiVersion: batch/v1beta1, kind: CronJob, metadata: {name: x}}\n"
    assert messages(("b/a.yaml", f"{NEW}---\n{listed}")) == ["b/a.yaml:9: CronJob x: batch/v1beta1 became batch/v1"]


def test_objects_in_different_files_are_converted_together() -> None:
    api = """{apiVersion: apiregistration.k8s.io/v1, kind: APIService, metadata: {name: v1beta1.custom.metrics.k8s.io}, spec: {group:
      custom.metrics.k8s.io, version: v1beta1, groupPriorityMinimum: 1, versionPriority: 1, service: {name: s, namespace: moni}}}\n"""
    pods = "{metadata: {labels: {a: b}}, spec: {containers: [{name: a, image: prometheus-adapter}]}}"
    spec = f"{{selector: {{matchLabels: {{a: b}}}}, template: {pods}}}"
    adapter = f"{{apiVersion: apps/v1, kind: Deployment, metadata: {{name: a}}, spec: {spec}}}\n"
    service = "{apiVersion: v1, kind: Service, metadata: {name: s}, spec: {selector: {a: b}}}\n"
    files = {file.name: file.text for file in convert(("1.yaml", api), ("2.yaml", adapter), ("3.yaml", service)).files}
    assert files["1.yaml"] == api
    assert [yaml.safe_load(files[name])["metadata"]["namespace"] for name in ("2.yaml", "3.yaml")] == ["moni", "moni"]


_TEXTS = st.text("ab:#'\"{}[]-\n 0", max_size=6) | st.sampled_from(["yes", "0644", "1e3"])
_SCALARS = st.none() | st.booleans() | st.integers(-9, 99) | _TEXTS
_VALUES = st.recursive(
    _SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcxy"), inner, max_size=3), max_leaves=8
)
_VERSIONS = ["v1", "extensions/v1beta1", "apps/v1beta2", "autoscaling/v2beta1", "batch/v1beta1", "example.org/v1"]
_OBJECTS = st.fixed_dictionaries(
    {
        "apiVersion": st.sampled_from(_VERSIONS),
        "kind": st.sampled_from(["Deployment", "ConfigMap", "CronJob", "HorizontalPodAutoscaler", "Ingress", "Pod", "Odd"]),
        "metadata": st.fixed_dictionaries({"name": st.sampled_from(["a", "b"]), "labels": _VALUES}),
        "spec": _VALUES,
    }
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(_OBJECTS, max_size=3), st.sampled_from([None, True, False]))
def test_converting_what_was_converted_changes_nothing(objects: list[dict[str, object]], flow: bool | None) -> None:
    text = yaml.safe_dump_all(objects, default_flow_style=flow, sort_keys=False)
    once = only(text)
    assert only(once) == once
    assert len(list(yaml.safe_load_all(once))) == len(objects)


def test_a_number_that_would_become_text_is_not_written_again() -> None:
    spec = "{template: {metadata: {labels: {a: b}}, spec: {containers: [{name: c, ports: [{containerPort: 0x50}]}]}}}"
    text = f"{{apiVersion: extensions/v1beta1, kind: Deployment, metadata: {{name: x}}, spec: {spec}}}\n"
    done = convert_files([("a.yaml", text)], image="ours:1")
    assert done.failed
    assert done.files[0].text == text
    assert any("saw 0x50, which would become text" in message.text for message in done.messages)
    assert "'0x50'" in convert_files([("a.yaml", text.replace("0x50", "'0x50'"))], image="ours:1").files[0].text
