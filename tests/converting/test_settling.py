"""The objects that are moved with prometheus-adapter to the namespace that its APIService refers to."""

from base64 import b64encode
from typing import Any

import pytest
import yaml

from gpuscaler.converting.converter import convert
from gpuscaler.converting.reading import read
from gpuscaler.serving.certificates import CertificateAuthority

Json = dict[str, Any]
NOW = 1_767_225_600.0
INSTEAD = "or remove --tls-cert-file: gpuscaler metrics makes a certificate itself"


def deployment(**spec: Any) -> Json:
    container = {
        "name": "a",
        "image": "k8s-prometheus-adapter:1",
        "args": ["--tls-cert-file=/certs/serving.crt", "--tls-private-key-file=/certs/serving.key"],
        **spec.pop("container", {}),
    }
    pods = {"serviceAccountName": "adapter", "containers": [container], "volumes": [volume("certs")], **spec}
    template = {"metadata": {"labels": {"app": "adapter"}}, "spec": pods}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "adapter"},
        "spec": {"selector": {"matchLabels": {"app": "adapter"}}, "template": template},
    }


def volume(secret: str, **more: Any) -> Json:
    return {"name": secret, "secret": {"secretName": secret, **more}}


def manifest_of(kind: str, name: str, namespace: str = "", version: str = "v1", **fields: Any) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name} | ({"namespace": namespace} if namespace else {}), **fields}


def secret(*hosts: str, namespace: str = "") -> Json:
    pem = CertificateAuthority("test", now=NOW).issue("server", hosts=hosts).certificate
    return manifest_of("Secret", "certs", namespace, data={"serving.crt": b64encode(pem).decode(), "serving.key": ""})


def binding(kind: str, role: str, *, namespace: str = "", subject: str = "kube-system", account: str = "adapter") -> Json:
    manifest = manifest_of(kind, f"b-{role}", namespace, "rbac.authorization.k8s.io/v1")
    manifest["roleRef"] = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind.removesuffix("Binding"), "name": role}
    manifest["subjects"] = [{"kind": "ServiceAccount", "name": account, "namespace": subject}]
    return manifest


SERVICE = manifest_of("Service", "adapter", spec={"selector": {"app": "adapter"}, "ports": [{"port": 443}]})
ACCOUNT = manifest_of("ServiceAccount", "adapter")
API = {
    "apiVersion": "apiregistration.k8s.io/v1",
    "kind": "APIService",
    "metadata": {"name": "v1beta1.custom.metrics.k8s.io"},
    "spec": {
        "group": "custom.metrics.k8s.io",
        "version": "v1beta1",
        "groupPriorityMinimum": 100,
        "versionPriority": 100,
        "service": {"name": "adapter", "namespace": "monitoring"},
    },
}


def move(*objects: Json) -> tuple[dict[str, Json], list[str]]:
    """The objects by kind and name, and the notes, after prometheus-adapter moved to the namespace of its APIService."""
    source = yaml.safe_dump_all([*objects, SERVICE, ACCOUNT, API])
    manifests, notes = convert(read(source), image="ours:1")
    return {f"{manifest['kind']}/{manifest['metadata']['name']}": manifest for manifest in manifests}, [
        f"{note.where}: {note.text}" for note in notes
    ]


def namespace_of(manifest: Json) -> str | None:
    return manifest["metadata"].get("namespace")  # type: ignore[no-any-return]


def test_role_bindings_name_the_moved_service_account_and_are_in_the_namespaces_of_their_roles() -> None:
    manifests, notes = move(
        deployment(),
        secret("adapter.monitoring.svc"),
        binding("ClusterRoleBinding", "reader"),
        binding("RoleBinding", "extension-apiserver-authentication-reader", namespace="kube-system"),
        binding("RoleBinding", "own"),
        manifest_of("Role", "own", version="rbac.authorization.k8s.io/v1", rules=[]),
        binding("ClusterRoleBinding", "autoscaler", account="horizontal-pod-autoscaler"),
    )
    subjects = {name: manifest["subjects"][0]["namespace"] for name, manifest in manifests.items() if "subjects" in manifest}
    assert subjects == {
        "ClusterRoleBinding/b-reader": "monitoring",
        "RoleBinding/b-extension-apiserver-authentication-reader": "monitoring",
        "RoleBinding/b-own": "monitoring",
        "ClusterRoleBinding/b-autoscaler": "kube-system",
    }
    assert namespace_of(manifests["RoleBinding/b-extension-apiserver-authentication-reader"]) == "kube-system"
    assert namespace_of(manifests["RoleBinding/b-own"]) == namespace_of(manifests["Role/own"]) == "monitoring"
    assert "ClusterRoleBinding b-reader: its subject ServiceAccount adapter is in monitoring now, not in kube-system" in notes


def test_a_role_binding_of_a_service_account_with_the_same_name_in_another_namespace_is_not_changed() -> None:
    manifests, _ = move(deployment(), manifest_of("ServiceAccount", "adapter", "kube-system"), binding("ClusterRoleBinding", "reader"))
    assert manifests["ClusterRoleBinding/b-reader"]["subjects"][0]["namespace"] == "kube-system"


def test_a_needed_secret_is_moved_and_a_missing_one_is_reported() -> None:
    container = {"envFrom": [{"secretRef": {"name": "tokens"}}, {"configMapRef": {"name": "maybe", "optional": True}}]}
    manifests, notes = move(
        deployment(container=container, imagePullSecrets=[{"name": "pull"}]), secret("adapter.monitoring.svc", namespace="old")
    )
    assert namespace_of(manifests["Secret/certs"]) == "monitoring"
    assert "Secret old/certs: moved from old to monitoring, where the pods that need it run" not in notes
    assert "Secret monitoring/certs: moved from old to monitoring, where the pods that need it run" in notes
    lacking = [note for note in notes if "not among these objects" in note]
    assert lacking == [
        f"Deployment monitoring/adapter: its pods need the Secret {name}, "
        "which is not among these objects: make sure that it is in monitoring"
        for name in ("pull", "tokens")
    ]


def test_a_secret_that_other_pods_need_stays_and_must_be_copied() -> None:
    other = deployment(container={"image": "other"})
    other["metadata"] = {"name": "other", "namespace": "old"}
    manifests, notes = move(deployment(), other, secret("adapter.monitoring.svc", namespace="old"))
    assert namespace_of(manifests["Secret/certs"]) == "old"
    assert (
        "Deployment monitoring/adapter: its pods need the Secret certs in monitoring; "
        "here it is in old, where other pods need it too: copy it" in notes
    )


@pytest.mark.parametrize("hosts", [("adapter.monitoring.svc",), ("*.monitoring.svc",), ("adapter.kube-system.svc",)])
def test_a_certificate_for_another_name_is_reported(hosts: tuple[str, ...]) -> None:
    _, notes = move(deployment(), secret(*hosts))
    wrong = (
        "Secret monitoring/certs: serving.crt: saw a certificate for adapter.kube-system.svc, expected adapter.monitoring.svc, "
        f"the name that the API server uses; reissue it for that name, {INSTEAD}"
    )
    assert [note for note in notes if "serving.crt" in note] == ([wrong] if "kube-system" in hosts[0] else [])


def test_a_certificate_missing_from_the_manifests_is_reported_for_a_manual_check() -> None:
    _, notes = move(deployment())
    expected = "make sure that the certificate serving.crt is for adapter.monitoring.svc, the name that the API server uses"
    assert f"Deployment monitoring/adapter: {expected}, {INSTEAD}" in notes


def test_a_cert_manager_certificate_gets_the_new_namespace_and_an_additional_dns_name() -> None:
    certificate = manifest_of(
        "Certificate", "serving", "kube-system", "cert-manager.io/v1", spec={"secretName": "certs", "dnsNames": ["adapter.kube-system.svc"]}
    )
    manifests, notes = move(deployment(), certificate)
    assert namespace_of(manifests["Certificate/serving"]) == "monitoring"
    assert manifests["Certificate/serving"]["spec"]["dnsNames"] == ["adapter.kube-system.svc", "adapter.monitoring.svc"]
    assert not [note for note in notes if "not among these objects" in note or "make sure that the certificate" in note]


def test_a_role_with_all_verbs_on_metrics_is_reported_and_not_changed() -> None:
    role = manifest_of("ClusterRole", "wide", version="rbac.authorization.k8s.io/v1")
    role["rules"] = [{"apiGroups": ["custom.metrics.k8s.io"], "resources": ["*"], "verbs": ["*"]}]
    manifests, notes = move(deployment(), role)
    assert manifests["ClusterRole/wide"]["rules"] == role["rules"]
    assert "ClusterRole wide: rules[0] allows every verb on custom.metrics.k8s.io; get and list are enough to read metrics" in notes
