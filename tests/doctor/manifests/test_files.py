"""Files of several objects, of other programs, and odd ones; patches of them."""

import time
from collections.abc import Callable, Iterable

import pytest

from gpuscaler.cli.doctor.manifests import problems_of_rules
from gpuscaler.doctor.findings import Finding
from gpuscaler.doctor.manifests.reading import Machine, read_manifests
from gpuscaler.doctor.manifests.running import lint_manifests
from gpuscaler.model.reading.errors import Problem

POD = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: default\n  labels: {{gpu: true}}\nspec: {{containers: []}}\n"


def found(*texts: str, read_rules: Callable[[str], Iterable[Problem]] = lambda _: ()) -> list[Finding]:
    files = [(f"{number}.yaml", text) for number, text in enumerate(texts)]
    report = lint_manifests(read_manifests(files, now=0.0, machines={"a.large": Machine(1, 4, 16)}, read_rules=read_rules))
    assert not [entry for entry in report.unchecked if "please report it" in entry.reason]
    return list(report.findings)


def test_lines_count_from_the_beginning_of_the_file() -> None:
    findings = found(POD.format(name="a") + "---\n" + POD.format(name="b"))

    assert [(finding.object, finding.place) for finding in findings] == [("Pod default/a", "0.yaml:6"), ("Pod default/b", "0.yaml:14")]


def test_a_document_that_is_not_yaml_does_not_hide_the_others() -> None:
    findings = found("a: b: c\n---\n" + POD.format(name="a"))

    assert [finding.check for finding in findings] == ["L1", "L5"]


def test_json_objects_may_follow_each_other() -> None:
    text = '{"apiVersion": "policy/v1beta1", "kind": "PodDisruptionBudget",\n "metadata": {"name": "a"}}\n'

    assert [finding.place for finding in found(text + text)] == ["0.yaml:1", "0.yaml:3"]


def test_lists_may_be_nested() -> None:
    inner = POD.format(name="a")
    for depth in range(1, 6):
        inner = "apiVersion: v1\nkind: List\nitems:\n- " + inner.rstrip("\n").replace("\n", "\n  ") + "\n"

        assert [finding.object for finding in found(inner)] == ["Pod default/a"], depth


def test_a_template_of_helm_is_not_checked_and_says_so() -> None:
    report = lint_manifests(read_manifests([("t.yaml", "{{ if .Values.a }}\napiVersion: v1\n{{ end }}\n")], now=0.0))

    assert not report.findings
    (unchecked,) = report.unchecked
    assert unchecked.message == "could not check t.yaml:1 because it is a template of Helm; look at what helm template prints"


def test_aliases_that_expand_without_limit_are_not_followed() -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 10)}]" for level in range(1, 9)]

    report = lint_manifests(read_manifests([("bomb.yaml", "\n".join(lines))], now=0.0))

    assert "aliases" in report.unchecked[0].reason


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- 1\n- {kind: 7}\n",
        "kind: List\nitems: 3\n",
        "kind: Deployment\napiVersion: extensions/v1beta1\nspec: [1]\n",
        "kind: Deployment\napiVersion: apps/v1\nspec: {template: {spec: {containers: {a: b}, nodeSelector: 4, tolerations: x}}}\n",
        "kind: ClusterConfig\napiVersion: eksctl.io/v1alpha5\nnodeGroups: {a: b}\nmanagedNodeGroups: [1, {instanceTypes: [2]}]\n",
        "kind: ClusterConfig\napiVersion: eksctl.io/v1alpha5\nnodeGroups: [{tags: [1], labels: 2, taints: 3, iam: 4}]\n",
        "kind: InstanceGroup\napiVersion: kops.k8s.io/v1alpha2\nspec: {taints: [3], mixedInstancesPolicy: {instances: 4}, minSize: many}\n",
        "properties: {agentPoolProfiles: [3, {vmSize: 7}]}\n",
        "kind: APIService\napiVersion: v1\nspec: {service: 3}\n---\nkind: ClusterRoleBinding\napiVersion: v1\nsubjects: 7\n",
        "kind: ClusterConfiguration\napiVersion: v1\ncontrollerManager: {extraArgs: [3, {name: 4}]}\n",
        "kind: ConfigMap\napiVersion: v1\ndata: {a: 'rules: [{seriesQuery: 3, name: 4, metricsQuery: []}]'}\n",
        "prometheus: {url: 'http://a:1'}\nrules: {custom: [3, {seriesQuery: 'a', name: 7}]}\nsettings: {aws: 3}\n",
        "autoDiscovery: 3\nextraArgs: 4\nexpanderPriorities: 5\nrbac: {serviceAccountAnnotations: 3, serviceAccount: 4}\n",
    ],
)
def test_odd_objects_do_not_break_a_rule(text: str) -> None:
    found(text)


def test_a_patch_keeps_comments_quotes_and_the_end_of_the_file() -> None:
    (finding,) = found("# mine\napiVersion: 'policy/v1beta1' # old\nkind: PodDisruptionBudget\nmetadata: {name: a}")

    assert "+apiVersion: 'policy/v1' # old\n" in finding.fix.patch
    assert [line for line in finding.fix.patch.splitlines() if line[:1] in "+-"][2:] == [
        "-apiVersion: 'policy/v1beta1' # old",
        "+apiVersion: 'policy/v1' # old",
    ]


def test_what_an_edit_of_lines_cannot_mend_has_advice() -> None:
    # The value is on the line after its key.
    (finding,) = found("apiVersion:\n  policy/v1beta1\nkind: PodDisruptionBudget\nmetadata: {name: a}\n")

    assert not finding.fix.patch
    assert "gpuscaler convert 0.yaml" in finding.fix.advice


def test_objects_outside_of_the_files_may_exist() -> None:
    text = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: a, namespace: x}
spec:
  template:
    spec:
      serviceAccountName: elsewhere
      containers:
      - {name: a, image: b, envFrom: [{secretRef: {name: elsewhere}}, {configMapRef: {name: elsewhere}}]}
---
apiVersion: v1
kind: Secret
metadata: {name: other, namespace: x}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: other, namespace: x}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: other, namespace: x}
"""

    assert not found(text)


def test_a_secret_in_another_namespace_is_certain_only_if_the_pod_has_one() -> None:
    secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: y}\n"
    pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a%s}\nspec: {containers: [{name: a, image: b, envFrom: [{secretRef: {name: s}}]}]}\n"

    (certain,) = found(secret, pod % ", namespace: x")
    (unsure,) = found(secret, pod % "")
    assert (certain.severity, unsure.severity) == ("critical", "warning")


def test_a_group_whose_cluster_has_the_autoscaler_of_kops_needs_no_tags() -> None:
    cluster = "apiVersion: kops.k8s.io/v1alpha2\nkind: Cluster\nmetadata: {name: c}\nspec: {clusterAutoscaler: {enabled: true}}\n"
    group = (
        "apiVersion: kops.k8s.io/v1alpha2\nkind: InstanceGroup\nmetadata:\n  name: g\n  labels: {kops.k8s.io/cluster: c}\n"
        "spec:\n  role: Node\n  machineType: a.large\n  minSize: 0\n  maxSize: 3\n  instanceProtection: true\n"
    )

    assert [finding.check for finding in found(group)] == ["L11"]
    assert not found(group, cluster)


def test_no_value_of_a_secret_is_shown() -> None:
    secret = "apiVersion: v1\nkind: Secret\nmetadata: {name: s, namespace: x}\nstringData:\n  a: 48151623\n  b: hidden\n---\n"

    findings = found(secret + "apiVersion: policy/v1beta1\nkind: PodDisruptionBudget\nmetadata: {name: a}\n")

    assert [finding.check for finding in findings] == ["L4", "L5"]
    assert findings[0].fix.patch
    assert "48151623" not in str(findings)
    assert "hidden" not in str(findings)


def test_no_patch_shows_a_credential_of_a_line_beside_it() -> None:
    text = (
        "apiVersion: v1\nkind: Pod\nmetadata: {name: a, namespace: x}\nspec:\n  containers:\n  - name: a\n    image: b\n    env:\n"
        "    - name: DB_PASSWORD\n      value: hidden\n    resources: {limits: {alpha.kubernetes.io/nvidia-gpu: 1}}\n"
    )
    findings = found(text)

    assert any(finding.fix.patch for finding in findings)
    assert "hidden" not in str(findings)


#: Each with a mistake that is not the credential's, and one of the credential itself. All credentials begin with "hidden" or 4815.
LEAKS = {
    "number-of-a-variable": "env:\n    - name: DB_PASSWORD\n      value: 48151623\n    - {name: ON, value: true}",
    "number-on-one-line": "env:\n    - {name: ON, value: true}\n    - {name: DB_PASS, value: 48151623}",
    "number-after-a-flag": 'args: ["--password", 48151623]\n    env: [{name: A, value: 1}]',
    "number-after-a-flag-in-a-list": "args:\n    - --token\n    - 48151623",
    "url-beside": "env:\n    - name: DATABASE\n      value: postgres://admin:hidden@db/prod\n    - name: A\n      value: true",
    "url-changed": "args: [-a, 1, 'postgres://admin:hidden@db/prod']",
    "short-name": "env:\n    - name: DB_PASS\n      value: hidden1\n    - name: A\n      value: true",
    "random": "env:\n    - name: SALT\n      value: hiddenAz09AzBy18CxDw27\n    - name: A\n      value: true",
    "private-key": (
        "env:\n    - name: TLS\n      value: |\n        -----BEGIN PRIVATE KEY-----\n\n\n\n        hidden\n    - name: A\n      value: true"
    ),
    "alias": "env:\n    - name: DB_PASSWORD\n      value: *hidden",
}


@pytest.mark.parametrize("container", LEAKS.values(), ids=LEAKS)
def test_no_credential_is_shown(container: str) -> None:
    findings = found(
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: a}}\nspec:\n  containers:\n  - name: a\n    image: b\n    {container}\n"
    )

    assert findings
    assert not [text for text in ("hidden", "4815") if text in str(findings)]


@pytest.mark.parametrize(
    "lines",
    [
        '  token: "hidden"\n  token: "hidden"',
        "  a: *hidden",
        "  a: 4815162342",
        "  a: !hidden 4815",
        "\ttoken: hidden",
        '  a: "hidden\n  b: [hidden',
    ],
)
def test_nothing_of_a_secret_is_shown(lines: str) -> None:
    findings = found(f"apiVersion: v1\nkind: Secret\nmetadata: {{name: a}}\nstringData:\n{lines}\n")

    assert not [text for text in ("hidden", "4815") if text in str(findings)]


def test_an_address_with_a_password_is_shown_without_it() -> None:
    text = POD.format(name="a").replace("containers: []", "containers: [{name: a, image: b, args: ['http://user:hidden@a', 3]}]")

    assert "hidden" not in str(found(text))
    (finding,) = found("apiVersion: v1\nkind: 'http://user:hidden@a'\nmetadata: {name: a, labels: {a: true}}\n")
    assert finding.object == "http://...@a a"


CHART = """\
prometheus: {url: "http://prometheus", port: 9090}
rules:
  custom:
  - seriesQuery: 'a{pod!=""}'
    name: {matches: "^b$"}
    metricsQuery: 'avg(<<.Series>>{<<.LabelMatchers>>}) by (<<.GroupBy>>)'
  - seriesQuery: 'b{pod!=""}'
    metricsQuery: 'avg(<<.Series>>{<<.LabelMatcher>>}) by (<<.GroupBy>>)'
"""
QUOTED = 'apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {config.yaml: "rules:\\n- seriesQuery: a{}\\n  metricQuery: b\\n"}\n'


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CHART, [("rules.custom[1].metricsQuery", 8), ("rules.custom[0].name.matches", 5)]),
        (QUOTED, [("data.config.yaml: rules[0].metricQuery", 4)]),
    ],
)
def test_rules_have_the_fields_and_lines_of_the_file(text: str, expected: list[tuple[str, int]]) -> None:
    findings = [
        (item.field, int(item.place.rpartition(":")[2])) for item in found(text, read_rules=problems_of_rules) if item.check == "L17"
    ]

    assert set(expected) <= set(findings)
    assert all(line <= len(text.splitlines()) for _, line in findings)


RULE = "rules:\n- seriesQuery: {series}\n  name: {{matches: '{pattern}'}}\n  metricsQuery: '{query}'\n"


@pytest.mark.parametrize(
    ("series", "pattern", "query"),
    [
        ("a" * 60 + "_", "^(a|aa)+$", "x"),
        ("a" * 60 + "_", "^" + "a?" * 60 + "a" * 61 + "$", "x"),
        ("a" * 190, "^" + "(.*)b" * 8, "x"),
        ("a", "", "<<" * 200_000),
        ("a", "", "<<" + "".join(f".Field{number} " for number in range(20_000)) + ">>"),
    ],
)
def test_patterns_and_queries_of_rules_take_little_time(series: str, pattern: str, query: str) -> None:
    began = time.process_time()
    findings = found(RULE.format(series=series, pattern=pattern, query=query))

    assert time.process_time() - began < 10.0
    assert len(findings) <= 20


@pytest.mark.parametrize(
    ("pattern", "is_found"), [("^(.*)_total$", True), ("^http_(.*)_count$", False), (r"^(?:http|grpc)_(\w+)_count$", False), ("x{2}", True)]
)
def test_patterns_that_match_no_series_are_found(pattern: str, is_found: bool) -> None:
    assert [finding.check for finding in found(RULE.format(series="http_requests_count", pattern=pattern, query="x"))] == ["L17"] * is_found
