"""Commands that findings print neither mean something else than they seem to, nor help a tenant whose objects ask for them."""

import json
import shlex
from typing import Any

import pytest
from tests.doctor.corpus import look_at

from gpuscaler.doctor import commands
from gpuscaler.doctor.checks.aws.account import AwsGroup
from gpuscaler.doctor.commands import ObjectName
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.findings import Finding, Fix
from gpuscaler.doctor.smoke.job import SmokeTest

Json = dict[str, Any]


@pytest.mark.parametrize(
    "target",
    [
        ObjectName("APIService", "", "--all"),
        ObjectName("ConfigMap", "--all-namespaces", "settings"),
        ObjectName("Pod", "default", "pod/other"),
        ObjectName("Pod", "default", "web\nrm"),
        ObjectName("pod,secret", "default", "web"),
        ObjectName("--all", "default", "web"),
    ],
    ids=repr,
)
def test_no_command_is_made_about_a_name_that_kubectl_takes_for_something_else(target: ObjectName) -> None:
    made = (
        commands.kubectl_delete(target),
        commands.kubectl_patch(target, {}),
        commands.kubectl_label(target, "a", "b"),
        commands.kubectl_annotate(target, "a", None),
        commands.restart(target),
        commands.rewrite_secret(target, "key"),
        commands.swap_in_secret(target, "a", "b"),
    )

    assert not any(made)


def test_no_command_is_made_of_keys_and_texts_that_end_their_place_in_it() -> None:
    pod = ObjectName("Pod", "default", "web")

    assert not commands.kubectl_label(pod, "--all", None)
    assert not commands.kubectl_taint("--all", "a=b:NoSchedule")
    assert not commands.kubectl_taint("node", "--all")
    assert not commands.kubectl_apply("a: b\nEOF\ntouch owned")
    assert not commands.rewrite_secret(ObjectName("Secret", "default", "keys"), 'a"}}{{.data}}')


def test_a_finding_without_a_safe_command_says_that_a_person_has_to_mend_it() -> None:
    fix = Fix(("kubectl delete pod web", commands.kubectl_delete(ObjectName("Pod", "", "--all"))), "restart it")

    assert fix.commands == ()
    assert fix.advice.startswith("mend it by hand")
    assert fix.advice.endswith("; restart it")


def test_the_command_that_removes_a_smoke_test_has_its_namespace_as_one_word() -> None:
    assert shlex.split(SmokeTest(name="test", namespace="a; b").removal_command)[4] == "a; b"


def test_names_with_commas_stay_names_in_commands_of_the_aws_cli() -> None:
    group = AwsGroup(Document({"AutoScalingGroupName": "a,Key=b", "Region": "eu-west-1"}))

    (tag,) = json.loads(shlex.split(group.tag_command({"key,Value=x": "1,PropagateAtLaunch=false"}))[4])
    (gone,) = json.loads(shlex.split(group.untag_command("key,x"))[4])

    assert (tag["Key"], tag["Value"], tag["PropagateAtLaunch"]) == ("key,Value=x", "1,PropagateAtLaunch=false", True)
    assert tag["ResourceId"] == gone["ResourceId"] == "a,Key=b"
    assert gone["Key"] == "key,x"


@pytest.mark.parametrize("namespace", ["x; reboot", "$(reboot)"])
def test_commands_in_advice_are_quoted(namespace: str) -> None:
    objects = [
        _object("APIService", "v1beta1.metrics.k8s.io", spec={**_METRICS, "service": {**_METRICS["service"], "namespace": namespace}}),
        _object("Service", "x", namespace, spec={"selector": {"app": "x"}, "ports": [{"port": 443}]}),
        _object("Endpoints", "x", namespace, subsets=[]),
        _workload(namespace, "example.org/metrics-server"),
    ]

    (finding,) = _findings("D42", objects)

    assert f"--namespace '{namespace}'" in finding.fix.advice


def _object(kind: str, name: str, namespace: str = "", **fields: Any) -> Json:
    return {"kind": kind, "metadata": {"name": name, **({"namespace": namespace} if namespace else {})}, **fields}


def _workload(namespace: str, image: str, account: str = "default", *words: str, kind: str = "Deployment", replicas: int = 1) -> Json:
    pod = {"serviceAccountName": account, "containers": [{"name": "c", "image": image, "command": ["run", *words]}]}
    template = {"metadata": {"labels": {"app": "x"}}, "spec": pod}
    return _object(kind, "x", namespace, spec={"replicas": replicas, "selector": {"matchLabels": {"app": "x"}}, "template": template})


def _binding(role: str, subject: tuple[str, str], kind: str = "ClusterRoleBinding", namespace: str = "") -> Json:
    subjects = [{"kind": "ServiceAccount", "namespace": subject[0], "name": subject[1]}]
    return _object(kind, "old", namespace, roleRef={"kind": "ClusterRole", "name": role}, subjects=subjects)


def _findings(check: str, objects: list[Json]) -> list[Finding]:
    found = [finding for finding in look_at(objects).findings if finding.check == check]
    assert found, f"{check} finds nothing: the case is not the one that is meant"
    return found


#: What every cluster has, so that rights are known.
_RBAC = [
    _object("ClusterRole", "view", rules=[]),
    _object("ClusterRole", "system:auth-delegator", rules=[]),
    _object("Role", "r", "ci", rules=[]),
    _binding("view", ("ci", "default")),
    _binding("view", ("ci", "default"), "RoleBinding", "ci"),
    _object("ServiceAccount", "default", "ci"),
]


@pytest.mark.parametrize("kind", ["ClusterRoleBinding", "RoleBinding"])
def test_a_binding_is_not_moved_to_an_account_of_a_tenant_that_names_its_image_like_a_known_program(kind: str) -> None:
    objects = [
        *_RBAC,
        _object("ClusterRole", "cluster-admin", rules=[{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]),
        _binding("cluster-admin", ("ci", "deployer"), kind, "" if kind == "ClusterRoleBinding" else "ci"),
        _object("ServiceAccount", "deployer", "tenant"),
        _workload("tenant", "evil.example/cluster-autoscaler:v1.33.0", "deployer", replicas=0),
    ]

    findings = _findings("D31", objects)

    assert not any(finding.fix.commands for finding in findings)
    assert any("verify first that the program in namespace tenant" in finding.fix.advice for finding in findings)


@pytest.mark.parametrize(
    "image", ["evil.example/cluster-autoscaler:v1.33.0", "evil.example/karpenter:v1.3.0", "evil.example/prometheus-adapter"]
)
def test_a_tenant_that_names_its_image_like_an_autoscaler_gets_no_rights(image: str) -> None:
    flags = ("--namespace=kube-system", "--status-config-map-name=aws-auth")
    account = _object("ServiceAccount", "x", "tenant")

    assert not any(
        finding.fix.commands for finding in _findings("D31", [*_RBAC, account, _workload("tenant", f"evil.example/{image}", "x", *flags)])
    )


def test_an_account_with_rights_that_wait_for_it_is_not_created_for_a_tenant() -> None:
    objects = [*_RBAC, _object("ServiceAccount", "default", "tenant"), _workload("tenant", "example.org/web", "deployer")]
    expected = ("kubectl apply",)

    assert [finding.fix.commands[0][:13] for finding in _findings("D31", objects)] == list(expected)
    waiting = _findings("D31", [*objects, _binding("view", ("tenant", "deployer"))])
    assert not any(finding.fix.commands for finding in waiting)


def test_a_program_behind_an_api_service_of_a_tenant_is_bound_to_no_role_of_the_cluster() -> None:
    service = {"namespace": "tenant", "name": "x", "port": 443}
    objects = [
        *_RBAC,
        _object("APIService", "v1beta1.custom.metrics.k8s.io", spec={"group": "custom.metrics.k8s.io", "service": service}),
        _object("Service", "x", "tenant", spec={"ports": [{"port": 443}], "selector": {"app": "x"}}),
        _workload("tenant", "example.org/adapter"),
        _object("ServiceAccount", "default", "tenant"),
    ]

    assert not any(finding.fix.commands for finding in _findings("D31", objects))


_PRIORITIES = "cluster-autoscaler-priority-expander"
_EXPANDER = ("--expander=priority",)


def test_priorities_of_a_tenant_are_not_copied_to_the_autoscaler_of_the_cluster_nor_its_own_taken_away() -> None:
    autoscaler = _workload("kube-system", "registry.k8s.io/autoscaling/cluster-autoscaler:v1.33.0", "default", *_EXPANDER)
    theirs = _object("ConfigMap", _PRIORITIES, "tenant", data={"priorities": "99: [.*p5.*]"})
    own = _object("ConfigMap", _PRIORITIES, "kube-system", data={"priorities": "10: [.*spot.*]"})
    claiming = _workload("tenant", "evil.example/cluster-autoscaler:v1.33.0", "default", *_EXPANDER, "--namespace=tenant")

    for objects in ([autoscaler, theirs], [own, claiming]):
        assert not any(finding.fix.commands for finding in _findings("D36", objects))


def test_the_flags_of_a_tenant_put_no_priorities_into_a_namespace_of_the_system() -> None:
    similar = _object("ConfigMap", "my-priorities", "kube-system", data={"priorities": "10: [.*]"})
    claiming = _workload("tenant", "evil.example/cluster-autoscaler:v1.33.0", "default", *_EXPANDER, "--namespace=kube-system")

    assert not any(finding.fix.commands for finding in _findings("D36", [similar, claiming]))


def test_a_copy_of_priorities_has_no_other_key_and_the_original_is_kept() -> None:
    data = {"priorities": "10: [.*]", "webhook": "https://hooks.example/s3cr3t"}
    autoscaler = _workload("kube-system", "registry.k8s.io/autoscaling/cluster-autoscaler:v1.33.0", "default", *_EXPANDER)

    (finding,) = _findings("D36", [_object("ConfigMap", "my-priorities", "kube-system", data=data), autoscaler])

    assert len(finding.fix.commands) == 1
    assert "kubectl apply" in finding.fix.commands[0]
    assert "s3cr3t" not in str(finding)


def test_a_text_that_is_no_priorities_is_not_printed_to_give_it_another_key() -> None:
    autoscaler = _workload("kube-system", "registry.k8s.io/autoscaling/cluster-autoscaler:v1.33.0", "default", *_EXPANDER)

    (finding,) = _findings("D36", [_object("ConfigMap", _PRIORITIES, "kube-system", data={"token": "s3cr3t"}), autoscaler])

    assert not finding.fix.commands
    assert "s3cr3t" not in str(finding)


def test_commands_for_priorities_in_another_namespace_do_not_undo_each_other() -> None:
    autoscaler = _workload("kube-system", "registry.k8s.io/autoscaling/cluster-autoscaler:v1.33.0", "default", *_EXPANDER)
    findings = _findings("D36", [_object("ConfigMap", _PRIORITIES, "default", data={"priority": "10: [.*]"}), autoscaler])

    assert [command.split()[1] for finding in findings for command in finding.fix.commands] == ["patch"]


def test_a_plugin_of_the_cluster_is_not_deleted_because_of_one_in_another_namespace() -> None:
    labels = {"kubernetes.io/hostname": "g1", "nvidia.com/gpu.present": "true"}
    node = _object("Node", "g1", status={"capacity": {"nvidia.com/gpu": "1", "pods": "9"}})
    node["metadata"]["labels"] = labels
    theirs = _workload("tenant", "evil.example/nvidia/k8s-device-plugin:v0.17.0", kind="DaemonSet")
    theirs["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "z", "uid": "z", "controller": True}]
    own = _workload("kube-system", "nvcr.io/nvidia/k8s-device-plugin:v0.17.0", kind="DaemonSet")

    for objects in ([node, own, theirs], [node, theirs, own]):
        assert not any(finding.fix.commands for finding in _findings("D14", objects))
    # An owner of another kind makes it no part of GPU operator.
    theirs["metadata"]["namespace"] = "kube-system"
    theirs["metadata"]["name"] = "theirs"
    assert _findings("D14", [node, theirs, own]) == _findings(
        "D14", [node, {**theirs, "metadata": {**theirs["metadata"], "ownerReferences": []}}, own]
    )


_METRICS: Json = {"group": "metrics.k8s.io", "service": {"namespace": "kube-system", "name": "x", "port": 443}}
_MISSING: Json = {"conditions": [{"type": "Available", "status": "False", "reason": "ServiceNotFound"}]}


@pytest.mark.parametrize(
    ("image", "namespace", "moved"),
    [
        ("evil.example/other", "tenant", False),
        ("evil.example/metrics-server", "tenant", False),
        ("example.org/other", "kube-system", False),
        ("registry.k8s.io/metrics-server/metrics-server:v0.8.0", "kube-system", True),
    ],
)
def test_an_api_is_led_only_to_a_known_program_in_a_namespace_of_the_system(image: str, namespace: str, moved: bool) -> None:
    spec = {**_METRICS, "service": {**_METRICS["service"], "namespace": "gone"}}
    objects = [
        _object("APIService", "v1beta1.metrics.k8s.io", spec=spec, status=_MISSING),
        _object("Service", "x", namespace, spec={"selector": {"app": "x"}, "ports": [{"port": 443}]}),
        _workload(namespace, image),
    ]

    (finding,) = _findings("D42", objects)

    assert bool(finding.fix.commands) == moved
    assert moved or f"Service x in namespace {namespace}" in finding.fix.advice


@pytest.mark.parametrize(("namespace", "changed"), [("tenant", False), ("kube-system", True), ("monitoring", True), ("metrics", True)])
def test_a_prometheus_of_a_tenant_does_not_get_the_questions_of_others(namespace: str, changed: bool) -> None:
    objects = [
        _object("Service", "kubernetes", "default", spec={"ports": [{"port": 443}]}),
        _object("Service", "prometheus", namespace, spec={"selector": {"app": "p"}, "ports": [{"port": 9090}]}),
        _workload("metrics", "prometheus-adapter", "default", "--prometheus-url=http://prom-server.monitoring.svc:9090/"),
    ]

    (finding,) = _findings("D45", objects)

    assert bool(finding.fix.commands) == changed


@pytest.mark.parametrize(("namespace", "labelled"), [("tenant", False), ("kube-system", True)])
def test_nodes_get_no_label_because_a_plugin_of_a_tenant_selects_it(namespace: str, labelled: bool) -> None:
    ready = [{"type": "Ready", "status": "True"}]
    node = _object("Node", "g1", status={"capacity": {"cpu": "4", "pods": "9"}, "conditions": ready})
    node["metadata"] |= {"creationTimestamp": "2026-11-30T00:00:00Z", "labels": {"nvidia.com/gpu.present": "true"}}
    plugin = _workload(namespace, "example.org/nvidia/k8s-device-plugin:v0.17.0", kind="DaemonSet")
    plugin["spec"]["template"]["spec"]["nodeSelector"] = {"team": "finance"}

    commands_of = [command for finding in _findings("D13", [node, plugin]) for command in finding.fix.commands]

    assert bool(commands_of) == labelled


@pytest.mark.parametrize(("namespace", "given"), [("tenant", False), ("kube-system", True)])
def test_the_identity_of_an_autoscaler_is_not_given_to_one_in_the_namespace_of_a_tenant(namespace: str, given: bool) -> None:
    role = {"eks.amazonaws.com/role-arn": "arn:aws:iam::123456789012:role/autoscaler"}
    old = _object("ServiceAccount", "x", "autoscaling")
    old["metadata"]["annotations"] = role
    new = _object("ServiceAccount", "x", namespace)
    autoscaler = _workload(namespace, "example.org/cluster-autoscaler:v1.34.0", "x", "--cloud-provider=aws")

    (finding,) = _findings("D28", [old, new, autoscaler])

    assert bool(finding.fix.commands) == given
