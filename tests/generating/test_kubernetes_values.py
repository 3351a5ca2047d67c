"""Values of the chart: the run file in them, the identity of the controller, and the rules of the metrics API."""

from typing import Any

import pytest
import yaml
from tests.generating.corpus import FOLDER, NAMES, description, generated, objects

from gpuscaler.cli.doctor.manifests import known_machines, problems_of_rules
from gpuscaler.doctor.manifests.reading import read_manifests
from gpuscaler.doctor.manifests.running import lint_manifests
from gpuscaler.generating.bundle import files_of
from gpuscaler.generating.description.reading import read_description
from gpuscaler.metrics.rules.reading import read_rules
from gpuscaler.settings import parse_settings

#: 26 November 2026.
NOW = 1_795_651_200.0
#: Series of gpuscaler's exporter and of vLLM, of one pod each.
SERIES = {
    "nvidia_gpu_duty_cycle": {"uuid": "GPU-1", "pod_name": "p", "namespace_name": "n", "node_name": "a"},
    "nvidia_gpu_memory_used_bytes": {"uuid": "GPU-1", "pod_name": "p", "namespace_name": "n", "node_name": "a"},
    "vllm:num_requests_waiting": {"pod": "p", "namespace": "n"},
}


def values(name: str, path: str = "gpuscaler/values.yaml") -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load(generated(name)[path].text(explain=False))
    return content


@pytest.mark.parametrize("name", NAMES)
def test_the_doctor_finds_nothing_and_knows_every_file(name: str) -> None:
    files = [(path, file.text(explain=True)) for path, file in generated(name).items() if path.endswith(".yaml")]
    report = lint_manifests(read_manifests(files, now=NOW, machines=known_machines(), read_rules=problems_of_rules))
    assert [(finding.check, finding.object, finding.seen) for finding in report.findings] == []
    assert report.unchecked == ()


@pytest.mark.parametrize("name", NAMES)
def test_the_run_file_is_valid_and_limited(name: str) -> None:
    shape = description(name)
    settings = parse_settings(generated(name)["gpuscaler/values.yaml"].text(explain=True))
    assert settings.cloud == shape.cloud
    limits = settings.policy.limits
    assert limits is not None
    expected = sum(group.max * group.gpus for group in shape.groups) if shape.controller.gpus is None else shape.controller.gpus
    assert limits.gpus == expected
    assert limits.dollars_per_hour == (shape.controller.dollars_per_hour or 100)
    if shape.cloud == "aws":
        assert (settings.aws.cluster, settings.aws.regions) == (shape.cluster.name, (shape.cluster.region,))
        assert settings.aws.queue_url
    else:
        (subscription,) = settings.azure.subscriptions
        assert (subscription.cluster.name, subscription.cluster.resource_group) == (shape.cluster.name, shape.cluster.resource_group)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("cloud: aws\ncluster: {name: a, region: us-east-1}", "aws eks create-access-entry --region us-east-1 --cluster-name a"),
        ("cloud: aws\ntool: terraform\ncluster: {name: a, region: us-east-1, create: false}", "--kubernetes-groups"),
        ("cloud: aws\ntool: kops\ncluster: {name: a.example.com, region: us-east-1}", "oidcGroupsClaim"),
        ("cloud: azure\ncluster: {name: a, region: eastus}", "Azure Kubernetes Service Cluster User"),
        ("cloud: azure\ncluster: {name: a, region: eastus, create: false}", "--enable-aad"),
    ],
)
def test_how_people_become_members_of_a_teams_group_is_said_before_it_is_used(head: str, expected: str) -> None:
    type_ = "g5.xlarge" if "aws" in head else "Standard_NC4as_T4_v3"
    pools = f"gpu_pools:\n- {{name: train, types: [{type_}]}}\n"
    group = "9f3c1e52-7c7b-4a44-8d1f-111122223333"
    for team, said in ((f"{{name: vision, gpus: 8, group: {group}}}", True), ("{name: vision, gpus: 8}", False)):
        files = {file.path: file for file in files_of(read_description(f"{head}\n{pools}teams:\n- {team}\n"))}
        edit = files["kubernetes/teams.yaml"].edit
        assert (expected in edit, group in edit) == (said, said)


def test_only_irsa_and_workload_identity_need_annotations() -> None:
    assert "controller" not in values("s1-eksctl"), "a Pod Identity association names the account, not the other way round"
    account = values("s1-self-managed")["controller"]["serviceAccount"]
    assert account["annotations"] == {"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/gpuscaler-eks-own"}
    controller = values("s2-azure")["controller"]
    assert set(controller["serviceAccount"]["annotations"]) == {"azure.workload.identity/client-id"}
    assert controller["podLabels"] == {"azure.workload.identity/use": "true"}


@pytest.mark.parametrize("name", NAMES)
def test_the_exporter_is_a_release_of_its_own(name: str) -> None:
    exporter = values(name, "gpuscaler/exporter-values.yaml")
    assert (exporter["controller"]["enabled"], exporter["exporter"]["enabled"]) == (False, True)
    assert exporter["exporter"].get("runtimeClassName", "") == ("nvidia" if name == "s0-kops" else "")
    assert ("scheduledEvents" in exporter["exporter"]) == (name == "s2-azure")


def test_the_rules_make_the_metric_of_the_autoscaler() -> None:
    rules = read_rules(yaml.safe_dump(values("s3-metrics", "gpuscaler/metrics-rules.yaml")["metrics"]["rules"]))
    assert rules.problems == ()
    made = {
        rule.metric(series): {rule.labelling.label(resource) for resource in rule.labelling.resources(labels)}
        for rule in rules.rules
        for series, labels in SERIES.items()
        if rule.accepts(series) and rule.metric(series)
    }
    (autoscaler,) = (obj for obj in objects(generated("s3-metrics")) if obj["kind"] == "HorizontalPodAutoscaler")
    (metric,) = autoscaler["spec"]["metrics"]
    assert metric["pods"]["metric"]["name"] in made
    assert {"duty_cycle_over_time", "memory_used_bytes_current", "vllm_num_requests_waiting"} <= set(made)


def test_nothing_of_the_metrics_api_without_a_prometheus() -> None:
    assert not {path for path in generated("s1-eksctl") if "metrics" in path or "hpa" in path}
    assert "metrics" not in values("s1-eksctl")
    (deployment,) = (obj for obj in objects(generated("s1-eksctl")) if obj["kind"] == "Deployment")
    assert deployment["spec"]["replicas"] == 2
    (scaled,) = (obj for obj in objects(generated("s3-metrics")) if obj["kind"] == "Deployment")
    assert "replicas" not in scaled["spec"], "the autoscaler sets it"


@pytest.mark.parametrize(
    ("url", "namespace"),
    [
        ("http://prometheus.observability.svc:9090", "observability"),
        ("http://prometheus-server.metrics.svc.cluster.local", "metrics"),
        ("https://prometheus.example.com", "monitoring"),
    ],
)
def test_the_namespace_of_prometheus_may_reach_the_metrics(url: str, namespace: str) -> None:
    text = (FOLDER / "s3-metrics.yaml").read_text().replace("http://prometheus.monitoring.svc:9090", url)
    files = {file.path: file for file in files_of(read_description(text))}
    policies = [obj for obj in objects(files) if obj["kind"] == "NetworkPolicy" and obj["metadata"]["name"] == "monitoring"]
    admitted = [policy["spec"]["ingress"][0]["from"][0]["namespaceSelector"]["matchLabels"] for policy in policies]
    assert admitted == [{"kubernetes.io/metadata.name": namespace}]
    scrapers = yaml.safe_load(files["gpuscaler/values.yaml"].text(explain=False))["networkPolicy"]["scrapers"]
    assert scrapers == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}]


@pytest.mark.parametrize(("name", "count"), [("s0-kops", 0), ("s1-eksctl", 1), ("s2-azure", 1), ("s4-terraform", 1)])
def test_a_device_plugin_where_nothing_else_installs_one(name: str, count: int) -> None:
    plugins = [obj for obj in objects(generated(name)) if obj["kind"] == "DaemonSet"]
    assert len(plugins) == count
    for plugin in plugins:
        taints = {taint.key for taint in description(name).node_taints(description(name).groups)} | {"gpuscaler.io/arriving"}
        spec = plugin["spec"]["template"]["spec"]
        assert taints <= {toleration["key"] for toleration in spec["tolerations"]}
        assert plugin["metadata"]["name"] == "nvidia-device-plugin-daemonset"


def test_on_kops_only_nodes_that_its_own_plugin_does_not_reach_get_another() -> None:
    text = (FOLDER / "s0-kops.yaml").read_text() + (
        "- {name: own, types: [g5.xlarge], markets: [on-demand], teams: [vision]}\nteams: [{name: vision}]\n"
    )
    files = {file.path: file for file in files_of(read_description(text))}
    (plugin,) = (obj for obj in objects(files) if obj["kind"] == "DaemonSet")
    spec = plugin["spec"]["template"]["spec"]
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "kops.k8s.io/instancegroup", "operator": "In", "values": ["own-on-demand-a"]}]
    assert spec["runtimeClassName"] == "nvidia"
    assert plugin["metadata"]["name"] != "nvidia-device-plugin-daemonset", "kOps would change it back"
