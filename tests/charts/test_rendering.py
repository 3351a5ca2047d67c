"""The chart rendered by the real helm for various values."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.charts.rendering import CHART, SMALL, Object, call, merge_values, refusal, render, text

from gpuscaler.cli import exporter as cli
from gpuscaler.kube.resources import WATCHED
from gpuscaler.settings import load_settings

pytestmark = pytest.mark.charts

READS = {"get", "list", "watch"}
CERTIFIED = {"address": ":8443", "certificate": "/tls/tls.crt", "key": "/tls/tls.key"}
JANE = {"kind": "User", "name": "jane", "apiGroup": "rbac.authorization.k8s.io"}
MONITORING = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
SAME_NAMESPACE: Object = {"podSelector": {}}


def deployment(more: dict[str, Any] | None = None, **place: str) -> Object:
    (only,) = [obj for name, obj in render(more, **place).items() if name.startswith("Deployment/")]
    return only


def container(more: dict[str, Any] | None = None) -> Object:
    (spec,) = deployment(more)["spec"]["template"]["spec"]["containers"]
    assert isinstance(spec, dict)
    return spec


def rules(more: dict[str, Any] | None = None) -> list[Object]:
    """Return the rules of the controller's account."""
    roles = [obj for name, obj in render(more).items() if name.startswith(("ClusterRole/", "Role/")) and not name.endswith("-reader")]
    return [rule for role in roles for rule in role["rules"]]


def on_aws(more: dict[str, Any]) -> dict[str, Object]:
    """Render the chart with pools from the account."""
    documents = yaml.safe_load_all(
        text({"config": merge_values({"region": "us-east-1", "cloud": "aws", "aws": {"cluster": "prod"}}, more)})
    )
    return {f"{obj['kind']}/{obj['metadata']['name']}": obj for obj in documents if obj}


def verbs(more: dict[str, Any] | None = None) -> set[str]:
    return {verb for rule in rules(more) for verb in rule["verbs"]}


@pytest.mark.parametrize("values", [{}, SMALL, {"config": {"cloud": "simulated"}, "controller": {"dryRun": True}}])
def test_helm_lint_reports_nothing(values: dict[str, Any]) -> None:
    done = call("lint", "--strict", str(CHART), values=values)

    assert done.returncode == 0, done.stdout
    assert [line for line in done.stdout.splitlines() if line.startswith(("[WARNING]", "[ERROR]"))] == []


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"config": {"pools": [{"name": "gpu"}]}}, "/config/pools/0"),
        ({"config": {"pools": [{"name": "gpu", "types": ["g5.xlarge"], "markets": ["cheap"]}]}}, "/config/pools/0/markets/0"),
        ({"config": {"pace": {"debounce": "soon"}}}, "/config/pace/debounce"),
        ({"config": {"leaderElection": {}}}, "leaderElection"),
        ({"config": {"pools": []}}, "/config/pools"),
        ({"config": {"cloud": None}}, "config.cloud: saw none"),
        ({"config": {"cloud": "mainframe"}}, "/config/cloud"),
        ({"config": {"namespace": "elsewhere"}}, "config.namespace: saw elsewhere, expected gpuscaler"),
        ({"config": {"leader_election": {"enabled": False}}}, "controller.replicas: saw 2"),
        ({"config": {"http": {"address": "127.0.0.1:8080"}}}, "config.http.address: saw 127.0.0.1:8080"),
        ({"config": {"http": {"address": "[::1]:8080"}}}, "config.http.address: saw [::1]:8080"),
        ({"config": {"http": {"address": ":0"}}}, "config.http.address: saw :0"),
        ({"config": {"pages": {"address": ":8081"}}}, "config.pages.address: saw :8081, expected a loopback address"),
        ({"config": {"pages": {"authenticated": {"address": ":8443"}}}}, "/config/pages/authenticated"),
        ({"config": {"pages": {"authenticated": {**CERTIFIED, "address": ":0"}}}}, "config.pages.authenticated.address: saw :0"),
        ({"controller": {"readers": ["jane"]}}, "/controller/readers/0"),
        ({"controller": {"replicas": 0}}, "/controller/replicas"),
        ({"controller": {"replica": 3}}, "replica"),
        ({"controller": {"nodeSelector": {"zone": 1}}}, "/controller/nodeSelector/zone"),
        # Their nodes could not be drained any more.
        ({"controller": {"podDisruptionBudget": {"maxUnavailable": 0}}}, "/controller/podDisruptionBudget/maxUnavailable"),
        ({"controller": {"podDisruptionBudget": {"maxUnavailable": "0%"}}}, "/controller/podDisruptionBudget/maxUnavailable"),
        # Selectors would not find their pods.
        ({"controller": {"podLabels": {"app.kubernetes.io/name": "x"}}}, "/controller/podLabels"),
        ({"commonLabels": {"app.kubernetes.io/component": "x"}}, "/commonLabels"),
        ({"image": {"digest": "latest"}}, "/image/digest"),
        ({"serviceMonitor": {"interval": "often"}}, "/serviceMonitor/interval"),
        ({"exporter": {"interval": "1m"}}, "/exporter/interval"),
        ({"exporter": {"kubeletFolder": "kubelet"}}, "/exporter/kubeletFolder"),
    ],
)
def test_invalid_values_are_rejected_with_their_path(values: dict[str, Any], words: str) -> None:
    assert words in refusal(values)


def test_a_chart_without_pools_reports_what_is_missing() -> None:
    done = call("template", "gpuscaler", str(CHART), values={})

    assert done.returncode != 0
    assert "config.pools: saw none" in done.stderr


def test_a_chart_without_a_cloud_lists_the_clouds() -> None:
    done = call("template", "gpuscaler", str(CHART), values={"config": {**SMALL["config"], "cloud": None}})

    assert done.returncode != 0
    assert "config.cloud: saw none, expected aws, azure or simulated" in done.stderr


@pytest.mark.parametrize("history", [{}, {"history": None}, {"history": {"decisions": 10}}, {"history": {"folder": "/elsewhere"}}])
def test_the_controller_can_read_its_settings_and_write_its_history(history: dict[str, Any], tmp_path: Path) -> None:
    data = render({"config": {**history, "leader_election": {"name": "one"}}})["ConfigMap/gpuscaler-controller"]["data"]
    path = tmp_path / "run.yaml"
    path.write_text(data["run.yaml"])
    settings = load_settings(path)

    assert list(data) == ["run.yaml"]
    assert [pool.name for pool in settings.policy.pools] == ["gpu"]
    assert settings.leader_election.name == "one"
    assert settings.history.folder == ("/elsewhere" if history.get("history") == {"folder": "/elsewhere"} else "/var/lib/gpuscaler")


def test_the_pod_runs_the_controller_on_its_settings() -> None:
    spec = container()
    mounts = {mount["mountPath"]: mount for mount in spec["volumeMounts"]}

    assert spec["args"] == ["run", "--config=/etc/gpuscaler/run.yaml"]
    assert spec["image"].startswith("gpuscaler:")
    # A mounted single file is never updated.
    assert "subPath" not in mounts["/etc/gpuscaler"]
    assert not mounts["/var/lib/gpuscaler"].get("readOnly")


def test_a_digest_takes_precedence_over_a_tag() -> None:
    digest = "sha256:" + "0" * 64

    assert container({"image": {"repository": "mirror/gpuscaler", "tag": "v9", "digest": digest}})["image"] == f"mirror/gpuscaler@{digest}"
    assert container({"image": {"repository": "mirror/gpuscaler", "tag": "v9"}})["image"] == "mirror/gpuscaler:v9"


@pytest.mark.parametrize(
    ("config", "restarts"),
    [
        ({"pools": [{"name": "other", "types": ["g5.xlarge"]}]}, False),
        ({"pace": {"debounce": "1s"}}, False),
        ({"log": {"level": "debug"}}, False),
        ({"rate_limit": {"qps": 10}}, True),
        ({"leader_election": {"name": "other"}}, True),
        ({"simulated": {"seed": 2}}, True),
    ],
)
def test_pods_restart_only_for_settings_that_require_it(config: dict[str, Any], restarts: bool) -> None:
    before, after = (deployment({"config": settings})["spec"]["template"] for settings in ({}, config))

    assert (before != after) is restarts


@pytest.mark.parametrize(
    ("config", "restarts"),
    [
        ({"pools": [{"name": "gpu-spot", "max": 3}]}, False),
        ({"aws": {"cluster": "other"}}, True),
        ({"aws": {"queue_url": "https://sqs.us-east-1.amazonaws.com/123456789012/gpuscaler"}}, True),
        ({"region": "us-west-2"}, True),
    ],
)
def test_pods_on_aws_restart_for_another_account_or_region(config: dict[str, Any], restarts: bool) -> None:
    before, after = (on_aws(settings)["Deployment/gpuscaler-controller"]["spec"]["template"] for settings in ({}, config))

    assert (before != after) is restarts


def test_with_aws_no_pools_are_required_and_no_permissions_for_the_simulated_cloud_granted(tmp_path: Path) -> None:
    made = on_aws({})
    path = tmp_path / "run.yaml"
    path.write_text(made["ConfigMap/gpuscaler-controller"]["data"]["run.yaml"])
    settings = load_settings(path)
    nodes = {
        verb
        for rule in made["ClusterRole/gpuscaler:gpuscaler-controller"]["rules"]
        if {"nodes", "nodes/status"} & set(rule["resources"])
        for verb in rule["verbs"]
    }

    assert (settings.cloud, settings.aws.cluster, settings.aws.regions) == ("aws", "prod", ("us-east-1",))
    assert nodes == {"list", "watch", "get", "patch", "delete"}
    assert "gpuscaler-simulated-cloud" not in yaml.safe_dump(made["Role/gpuscaler-controller"])


def test_the_controller_does_not_depend_on_cluster_dns_and_reads_services_from_the_api_server() -> None:
    def read(url: str) -> Object:
        made = on_aws({"aws": {"endpoint_url": url}})
        return {name: obj["rules"] for name, obj in made.items() if name.startswith("Role/") and name.endswith("-endpoint")}

    service = {"apiGroups": [""], "resources": ["services"], "resourceNames": ["aws"], "verbs": ["get"]}
    metrics = render({"metrics": {"enabled": True, "prometheusUrl": "http://p"}})["Deployment/gpuscaler-metrics"]

    assert deployment()["spec"]["template"]["spec"]["dnsPolicy"] == "Default"
    assert deployment({"controller": {"dnsPolicy": "ClusterFirst"}})["spec"]["template"]["spec"]["dnsPolicy"] == "ClusterFirst"
    # Prometheus is a Service, so the metrics API does not have to work without the cluster's DNS.
    assert "dnsPolicy" not in metrics["spec"]["template"]["spec"]
    assert read("http://aws.lab.svc:4566") == {"Role/gpuscaler:gpuscaler-controller-endpoint": [service]}
    assert (
        on_aws({"aws": {"endpoint_url": "http://aws.lab.svc"}})["Role/gpuscaler:gpuscaler-controller-endpoint"]["metadata"]["namespace"]
        == "lab"
    )
    assert read("https://aws.lab.svc") == read("http://10.0.0.7:4566") == read("http://aws.example.com") == {}


AZURE = {"subscriptions": [{"id": "00000000-0000-0000-0000-000000000000", "cluster": {"name": "prod", "resource_group": "rg"}}]}


def on_azure(**more: str) -> dict[str, Object]:
    """Render the chart with pools from a subscription, and ``more`` keys of the mapping ``azure``."""
    documents = yaml.safe_load_all(text({"config": {"cloud": "azure", "azure": {**AZURE, **more}}}))
    return {f"{obj['kind']}/{obj['metadata']['name']}": obj for obj in documents if obj}


def test_with_azure_no_pools_are_required_and_pods_may_be_bound(tmp_path: Path) -> None:
    made = on_azure()
    path = tmp_path / "run.yaml"
    path.write_text(made["ConfigMap/gpuscaler-controller"]["data"]["run.yaml"])

    assert load_settings(path).azure.subscriptions[0].cluster.name == "prod"
    assert any("pods/binding" in rule["resources"] for obj in made.values() for rule in obj.get("rules", ()))


def test_pods_on_azure_restart_for_another_setting_of_the_account() -> None:
    before, after = (made["Deployment/gpuscaler-controller"]["spec"]["template"] for made in (on_azure(), on_azure(api="vmss")))

    assert before != after


def test_the_address_of_a_simulated_azure_is_read_from_the_api_server() -> None:
    made = on_azure(endpoint_url="http://azure.lab.svc:4577")

    assert made["Role/gpuscaler:gpuscaler-controller-endpoint"]["rules"][0]["resourceNames"] == ["azure"]
    assert "Role/gpuscaler:gpuscaler-controller-endpoint" not in on_azure()


def test_admission_policies_restrict_the_controllers_writes_if_the_cluster_supports_them() -> None:
    def policies(more: dict[str, Any] | None = None, *words: str) -> set[str]:
        done = call("template", "gpuscaler", str(CHART), "--namespace", "one", *words, values=merge_values(SMALL, more or {}))
        assert done.returncode == 0, done.stderr
        made = [obj for obj in yaml.safe_load_all(done.stdout) if obj]
        bound = {obj["spec"]["policyName"] for obj in made if obj["kind"] == "ValidatingAdmissionPolicyBinding"}
        assert bound == {obj["metadata"]["name"] for obj in made if obj["kind"] == "ValidatingAdmissionPolicy"}
        return bound

    always = {f"gpuscaler-controller-{what}.one" for what in ("nodes", "pods", "memory", "leases")}

    assert policies() == always | {f"gpuscaler-controller-{what}.one" for what in ("played", "plugins")}
    assert policies({"config": {"cloud": "aws", "aws": {"cluster": "prod"}, "pools": None}}) == always
    assert policies({"controller": {"dryRun": True}}) == policies({"controller": {"admissionPolicy": {"enabled": False}}}) == set()
    # In that release the API is not stable, and its objects differ.
    assert policies({}, "--kube-version", "1.29.14") == set()


PEM = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"


def test_the_token_of_prometheus_is_sent_only_to_a_verified_server() -> None:
    asked = {"metrics": {"enabled": True, "prometheusUrl": "http://p"}, "serviceMonitor": {"enabled": True}}
    verified = merge_values(asked, {"metrics": {"tls": {"secretName": "tls", "caBundle": PEM}}})
    named = merge_values(asked, {"networkPolicy": {"apiServers": [MONITORING]}})

    def paths(values: dict[str, Any]) -> list[str]:
        (container,) = render(values)["Deployment/gpuscaler-metrics"]["spec"]["template"]["spec"]["containers"]
        return [argument for argument in container["args"] if argument.startswith("--authorization-always-allow-paths")]

    made = render(verified)
    (checked,) = made["ServiceMonitor/gpuscaler-metrics"]["spec"]["endpoints"]
    (open_,) = render(named)["ServiceMonitor/gpuscaler-metrics"]["spec"]["endpoints"]

    assert checked["bearerTokenFile"]
    assert checked["tlsConfig"] == {
        "serverName": "gpuscaler-metrics.gpuscaler.svc",
        "ca": {"configMap": {"name": "gpuscaler-metrics-authority", "key": "ca.crt"}},
    }
    assert made["ConfigMap/gpuscaler-metrics-authority"]["data"]["ca.crt"] == PEM
    assert "bearerTokenFile" not in open_
    assert paths(named) == ["--authorization-always-allow-paths=/healthz,/readyz,/livez,/metrics"]
    assert "ServiceMonitor/gpuscaler-metrics" not in render(asked)
    assert paths(verified) == paths(asked) == paths(merge_values(named, {"serviceMonitor": {"enabled": False}})) == []


def test_two_replicas_are_spread_and_at_most_one_is_disrupted() -> None:
    made = render()
    spec, budget = made["Deployment/gpuscaler-controller"]["spec"], made["PodDisruptionBudget/gpuscaler-controller"]["spec"]
    pod = spec["template"]
    apart = pod["spec"]["topologySpreadConstraints"]

    assert spec["replicas"] == 2
    assert budget["maxUnavailable"] == 1
    assert [constraint["topologyKey"] for constraint in apart] == ["kubernetes.io/hostname", "topology.kubernetes.io/zone"]
    for selector in (spec["selector"], budget["selector"], *(constraint["labelSelector"] for constraint in apart)):
        assert selector["matchLabels"].items() <= pod["metadata"]["labels"].items()


def test_a_single_replica_has_no_disruption_budget_that_would_block_drains_forever() -> None:
    made = render({"controller": {"replicas": 1}, "config": {"leader_election": {"enabled": False}}})

    assert [name for name in made if name.startswith("PodDisruptionBudget/")] == []
    assert not [rule for rule in made["Role/gpuscaler-controller"]["rules"] if "leases" in rule["resources"]]


def test_the_controller_pod_meets_the_restricted_standard_and_writes_only_to_its_volumes() -> None:
    pod, spec = deployment()["spec"]["template"]["spec"], container()

    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert spec["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
    assert {key for volume in pod["volumes"] for key in volume if key != "name"} == {"configMap", "emptyDir"}
    assert "cpu" not in spec["resources"]["limits"]


def test_the_service_accounts_token_is_mounted_only_by_the_controller_pod_itself() -> None:
    made = render({"controller": {"serviceAccount": {"annotations": {"example.com/role": "buyer"}}}})
    account, pod = made["ServiceAccount/gpuscaler-controller"], made["Deployment/gpuscaler-controller"]["spec"]["template"]["spec"]

    assert (account["automountServiceAccountToken"], pod["automountServiceAccountToken"]) == (False, True)
    assert pod["serviceAccountName"] == "gpuscaler-controller"
    assert account["metadata"]["annotations"] == {"example.com/role": "buyer"}


def test_an_existing_service_account_is_used_and_bound_to_the_roles() -> None:
    made = render({"controller": {"serviceAccount": {"create": False, "name": "buyer"}}})
    bound = [obj["subjects"] for obj in made.values() if "subjects" in obj]

    assert [name for name in made if name.startswith("ServiceAccount/")] == []
    assert made["Deployment/gpuscaler-controller"]["spec"]["template"]["spec"]["serviceAccountName"] == "buyer"
    # Cluster-wide, in its own namespace, in the namespace of priorities, and for device plugins and kubelets of the simulated cloud.
    assert bound == [[{"kind": "ServiceAccount", "name": "buyer", "namespace": "gpuscaler"}]] * 5


def test_the_controller_may_list_and_watch_every_resource_that_it_watches() -> None:
    reads = {
        (group, name)
        for rule in rules()
        if {"list", "watch"} <= set(rule["verbs"])
        for group in rule["apiGroups"]
        for name in rule["resources"]
    }

    assert reads == {(resource.group, resource.plural) for resource in WATCHED}


def test_no_role_has_a_wildcard_reads_secrets_or_may_write_roles() -> None:
    for rule in rules():
        assert "*" not in {*rule["verbs"], *rule["apiGroups"], *rule["resources"]}
        assert not {"secrets", "roles", "clusterroles", "pods/exec", "serviceaccounts/token"} & set(rule["resources"])


def test_a_dry_run_has_no_permission_to_write() -> None:
    assert "--dry-run" in container({"controller": {"dryRun": True}})["args"]
    assert verbs({"controller": {"dryRun": True}}) <= READS
    assert not verbs() <= READS


def pools(*steering: Any) -> list[dict[str, Any]]:
    """Return a pool for each value; None means a pool without the key."""
    return [
        {"name": f"pool-{number}", "types": ["g5.xlarge"], **({} if choice is None else {"steering": choice})}
        for number, choice in enumerate(steering)
    ]


@pytest.mark.parametrize(
    ("config", "binds"),
    [
        ({}, True),
        ({"steering": "bind"}, True),
        ({"steering": "off"}, False),
        ({"steering": False}, False),
        ({"pools": pools("nominate", False)}, False),
        ({"pools": pools("nominate", None)}, True),
        ({"steering": "nominate", "pools": pools(None, "bind")}, True),
    ],
)
def test_permission_to_bind_is_granted_unless_no_pool_needs_it(config: dict[str, Any], binds: bool) -> None:
    assert any("pods/binding" in rule["resources"] for rule in rules({"config": config})) == binds


@pytest.mark.parametrize(("config", "binds"), [({}, True), ({"steering": "nominate"}, False)])
def test_with_pools_discovered_on_aws_a_setting_decides_whether_pods_may_be_bound(config: dict[str, Any], binds: bool) -> None:
    granted = [rule for obj in on_aws(config).values() for rule in obj.get("rules", ())]

    assert any("pods/binding" in rule["resources"] for rule in granted) == binds


def test_without_simulated_kubelets_no_single_pod_may_be_read() -> None:
    def got(kubelet: bool) -> set[str]:
        return {
            name for rule in rules({"config": {"simulated": {"kubelet": kubelet}}}) if "get" in rule["verbs"] for name in rule["resources"]
        }

    assert got(kubelet=True) - got(kubelet=False) == {"pods"}


def test_the_controller_may_write_its_own_objects_only_by_name_and_in_its_namespace() -> None:
    made = render({"config": {"leader_election": {"name": "one"}}}, namespace="machines")
    named = {
        (resource, verb, name)
        for rule in made["Role/gpuscaler-controller"]["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }

    elsewhere = {name for name, obj in made.items() if obj["metadata"].get("namespace", "machines") != "machines"}
    priorities = "machines:gpuscaler-controller-priorities"
    # The simulated cloud, with nodes simulated by gpuscaler itself, writes in two namespaces of the cluster.
    played = {f"machines:gpuscaler-controller-{what}" for what in ("device-plugins", "kubelets")}

    assert elsewhere == {f"{kind}/{name}" for kind in ("Role", "RoleBinding") for name in (priorities, *played)}
    assert made[f"Role/{priorities}"]["rules"] == [
        {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["cluster-autoscaler-priority-expander"], "verbs": ["get"]}
    ]
    assert {name for resource, _, name in named if resource == "leases" and name} == {"one"}
    assert {(resource, verb) for resource, verb, name in named if not name} == {("configmaps", "create"), ("leases", "create")}


def test_releases_in_two_namespaces_share_no_cluster_scoped_object() -> None:
    first, second = (
        {name for name, obj in render(namespace=namespace).items() if "namespace" not in obj["metadata"]} for namespace in ("one", "other")
    )

    assert first
    assert not first & second


def test_long_release_names_are_shortened_so_that_pod_host_names_are_valid() -> None:
    name = deployment(release="a-release-with-a-name-as-long-as-helm-lets-it-be-53")["metadata"]["name"]

    assert len(f"{name}-0123456789-abcde") <= 63


def test_probes_and_pages_follow_the_address_and_the_certificate() -> None:
    spec = container({"config": {"http": {"address": "0.0.0.0:9443", "certificate": "/tls/tls.crt", "key": "/tls/tls.key"}}})

    assert [port["containerPort"] for port in spec["ports"]] == [9443]
    assert spec["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http", "scheme": "HTTPS"}
    assert spec["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http", "scheme": "HTTPS"}


def test_without_served_ports_there_are_no_probes() -> None:
    values = {"config": {"http": {"enabled": False}}, "serviceMonitor": {"enabled": True}}

    assert not {"ports", "livenessProbe", "readinessProbe"} & set(container(values))
    assert [name for name in render(values) if name.startswith(("Service/", "ServiceMonitor/"))] == []


def test_the_controller_has_a_service_monitor_only_if_requested() -> None:
    assert "ServiceMonitor/gpuscaler-controller" not in render()

    made = render({"serviceMonitor": {"enabled": True, "interval": "15s", "labels": {"release": "prometheus"}}})
    monitor, service = made["ServiceMonitor/gpuscaler-controller"], made["Service/gpuscaler-controller"]

    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    assert monitor["spec"]["endpoints"] == [{"port": "http", "path": "/metrics", "scheme": "http", "interval": "15s"}]
    assert monitor["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()


EXPORTER: dict[str, Any] = {"controller": {"enabled": False}, "exporter": {"enabled": True}}


def test_only_configured_readers_may_forward_ports_and_read_the_status() -> None:
    role = render()["Role/gpuscaler-reader"]
    bound = render({"controller": {"readers": [JANE]}})["RoleBinding/gpuscaler-reader"]
    allowed = {(resource, verb) for rule in role["rules"] for resource in rule["resources"] for verb in rule["verbs"]}

    assert {("pods/portforward", "get"), ("pods/portforward", "create"), ("configmaps", "get")} <= allowed
    assert "RoleBinding/gpuscaler-reader" not in render()
    assert (bound["roleRef"]["name"], bound["subjects"]) == ("gpuscaler-reader", [JANE])


def test_authenticated_pages_have_a_port_and_permission_for_token_reviews() -> None:
    objects = render({"config": {"pages": {"authenticated": CERTIFIED}}, "controller": {"readers": [JANE]}})
    (container,) = objects["Deployment/gpuscaler-controller"]["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    reviews = objects["ClusterRoleBinding/gpuscaler:gpuscaler-controller-reviews"]

    assert ports == {"http": 8080, "pages": 8443}
    assert {port["name"] for port in objects["Service/gpuscaler-controller"]["spec"]["ports"]} == {"http", "pages"}
    assert reviews["roleRef"]["name"] == "system:auth-delegator"
    assert objects["ClusterRoleBinding/gpuscaler:gpuscaler-reader"]["subjects"] == [JANE]
    (paths,) = objects["ClusterRole/gpuscaler:gpuscaler-reader"]["rules"]
    assert paths == {"nonResourceURLs": ["/status", "/why/*", "/decisions", "/decisions/*"], "verbs": ["get"]}
    assert not [name for name in render() if "reviews" in name or name.startswith("ClusterRole/gpuscaler:gpuscaler-reader")]


def policy(component: str, more: dict[str, Any] | None = None) -> dict[int, Any]:
    """Return the allowed clients per port of a component; None means all."""
    spec = render(more)[f"NetworkPolicy/gpuscaler-{component}"]["spec"]
    assert spec["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == component
    assert spec["policyTypes"] == ["Ingress"]
    return {rule["ports"][0]["port"]: rule.get("from") for rule in spec["ingress"]}


def test_metrics_are_reachable_only_from_the_same_namespace_and_monitoring() -> None:
    other = {"namespaceSelector": {"matchLabels": {"team": "sre"}}}

    assert policy("controller") == {8080: [SAME_NAMESPACE, MONITORING]}
    assert policy("controller", {"networkPolicy": {"scrapers": [other]}}) == {8080: [SAME_NAMESPACE, other]}
    assert policy("controller", {"config": {"http": {"enabled": False}}}) == {}
    assert policy("exporter", {"exporter": {"enabled": True, "port": 9401}}) == {9401: [SAME_NAMESPACE, MONITORING]}
    assert not [name for name in render({"networkPolicy": {"enabled": False}}) if name.startswith("NetworkPolicy/")]


def test_the_metrics_api_is_reachable_by_all_unless_addresses_of_api_servers_are_given() -> None:
    servers = {"ipBlock": {"cidr": "10.0.0.0/28"}}
    open_values = {"metrics": {"enabled": True, "prometheusUrl": "http://p"}, "exporter": {"enabled": True}}
    named = {**open_values, "networkPolicy": {"apiServers": [servers]}}

    assert policy("metrics", open_values) == {6443: None}
    assert policy("metrics", named) == {6443: [servers, SAME_NAMESPACE, MONITORING]}
    assert policy("exporter", named) == {9400: [SAME_NAMESPACE, MONITORING]}


def test_authenticated_pages_are_reachable_by_all_or_by_the_given_clients() -> None:
    config = {"config": {"pages": {"authenticated": CERTIFIED}}}

    assert policy("controller", config)[8443] is None
    assert policy("controller", {**config, "networkPolicy": {"pages": [MONITORING]}})[8443] == [MONITORING]


def exporter(more: dict[str, Any] | None = None) -> Object:
    spec = render(merge_values(EXPORTER, more or {}))["DaemonSet/gpuscaler-exporter"]["spec"]["template"]["spec"]
    assert isinstance(spec, dict)
    return spec


def test_the_exporter_is_installed_if_requested_and_does_not_depend_on_the_controller() -> None:
    assert [name for name in render() if "exporter" in name] == []
    kinds = ("DaemonSet", "NetworkPolicy", "Service", "ServiceAccount")
    assert sorted(render(EXPORTER)) == [f"{kind}/gpuscaler-exporter" for kind in kinds]
    assert len(render({"exporter": {"enabled": True}})) == len(render()) + len(kinds)


def test_the_exporters_arguments_are_valid_for_its_command() -> None:
    (spec,) = exporter({"exporter": {"interval": "500ms", "port": 9500, "askApiServer": True}})["containers"]
    words = cli.exporter.make_context("exporter", spec["args"][1:]).params

    assert spec["args"][0] == "exporter"
    assert (words["listen"], words["interval"], words["ask_api_server"]) == (("", 9500), 0.5, True)
    assert Path(words["kubelet_socket"]).parent in {Path(mount["mountPath"]) for mount in spec["volumeMounts"]}
    assert spec["ports"][0]["containerPort"] == 9500


def test_the_exporter_has_the_requested_mounts_all_read_only() -> None:
    least = exporter(
        {"exporter": {"mounts": {"devicePlugins": False, "containerLogs": False, "cgroups": False}, "kubeletFolder": "/data/kubelet"}}
    )
    most = exporter({"exporter": {"hostPID": True, "mounts": {"devicePlugins": True}}})

    assert [volume["hostPath"]["path"] for volume in least["volumes"]] == ["/data/kubelet/pod-resources"]
    assert len(most["volumes"]) == 4
    # Next to the checkpoint is the socket at which plugins register: anyone with access to the exporter could use it.
    assert "device-plugins" not in str(exporter())
    assert (least.get("hostPID"), most.get("hostPID")) == (None, True)
    for pod in (least, most):
        assert all(mount["readOnly"] for mount in pod["containers"][0]["volumeMounts"])
        assert pod["containers"][0]["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert not pod["containers"][0]["securityContext"].get("privileged")


def test_the_exporter_has_a_token_and_permissions_only_to_query_the_api_server() -> None:
    silent, asking = render(EXPORTER), render(merge_values(EXPORTER, {"exporter": {"askApiServer": True}}))
    (role,) = [obj for obj in asking.values() if obj["kind"] == "ClusterRole"]

    assert [obj for obj in silent.values() if "rules" in obj] == []
    assert [
        made["DaemonSet/gpuscaler-exporter"]["spec"]["template"]["spec"]["automountServiceAccountToken"] for made in (silent, asking)
    ] == [
        False,
        True,
    ]
    assert [(rule["resources"], rule["verbs"]) for rule in role["rules"]] == [(["pods"], ["list"]), (["resourceslices"], ["list"])]


def test_labels_of_the_exporters_metrics_take_precedence_over_scrape_labels() -> None:
    monitor = render(merge_values(EXPORTER, {"serviceMonitor": {"enabled": True}}))["ServiceMonitor/gpuscaler-exporter"]

    assert monitor["spec"]["endpoints"][0]["honorLabels"] is True


def test_extra_settings_and_labels_are_applied_to_the_pod() -> None:
    values = {
        "commonLabels": {"team": "platform", "tier": "any", "app.kubernetes.io/part-of": "gpus"},
        "imagePullSecrets": [{"name": "pull"}],
        "controller": {
            "extraEnv": [{"name": "HTTPS_PROXY", "value": "proxy:3128"}],
            "extraEnvFrom": [{"secretRef": {"name": "cloud"}}],
            "extraVolumes": [{"name": "tls", "secret": {"secretName": "tls"}}],
            "extraVolumeMounts": [{"name": "tls", "mountPath": "/tls"}],
            "extraArgs": ["--context=other"],
            "podLabels": {"tier": "infra"},
            "podAnnotations": {"a": "b"},
            "tolerations": [{"operator": "Exists"}],
        },
    }
    template, spec = deployment(values)["spec"]["template"], container(values)

    assert {"team": "platform", "tier": "infra", "app.kubernetes.io/part-of": "gpus"}.items() <= template["metadata"]["labels"].items()
    assert template["metadata"]["annotations"]["a"] == "b"
    assert template["spec"]["imagePullSecrets"] == [{"name": "pull"}]
    assert template["spec"]["tolerations"] == [{"operator": "Exists"}]
    assert spec["env"] == values["controller"]["extraEnv"]  # type: ignore[index]  # a literal above
    assert spec["envFrom"] == values["controller"]["extraEnvFrom"]  # type: ignore[index]
    assert spec["volumeMounts"][-1] == {"name": "tls", "mountPath": "/tls"}
    assert template["spec"]["volumes"][-1]["name"] == "tls"
    assert spec["args"][-1] == "--context=other"


def test_every_rendered_object_is_one_plain_yaml_document() -> None:
    assert {obj["apiVersion"] for obj in render({"serviceMonitor": {"enabled": True}}).values()} == {
        "v1",
        "apps/v1",
        "policy/v1",
        "rbac.authorization.k8s.io/v1",
        "networking.k8s.io/v1",
        "admissionregistration.k8s.io/v1",
        "monitoring.coreos.com/v1",
    }
    assert yaml.safe_load((CHART / "Chart.yaml").read_text())["type"] == "application"
