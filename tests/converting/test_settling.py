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
    return settle(*objects, SERVICE, ACCOUNT, API)


def settle(*objects: Json) -> tuple[dict[str, Json], list[str]]:
    """The objects by kind and name, and the notes, after they were converted. A second conversion changes nothing."""
    source = yaml.safe_dump_all(objects)
    first, _ = convert(read(source), image="ours:1")
    assert convert(first, image="ours:1")[0] == first
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
    lacking = [note for note in notes if "which is not among these objects" in note]
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
    assert not [note for note in notes if "which is not among these objects" in note or "make sure that the certificate" in note]


def test_a_role_with_all_verbs_on_metrics_is_reported_and_not_changed() -> None:
    role = manifest_of("ClusterRole", "wide", version="rbac.authorization.k8s.io/v1")
    role["rules"] = [{"apiGroups": ["custom.metrics.k8s.io"], "resources": ["*"], "verbs": ["*"]}]
    manifests, notes = move(deployment(), role)
    assert manifests["ClusterRole/wide"]["rules"] == role["rules"]
    assert "ClusterRole wide: rules[0] allows every verb on custom.metrics.k8s.io; get and list are enough to read metrics" in notes


def placed(manifest: Json, namespace: str) -> Json:
    """A copy of ``manifest`` in ``namespace``."""
    return {**manifest, "metadata": {**manifest["metadata"], "namespace": namespace}}


def with_spec(manifest: Json, **fields: Any) -> Json:
    return {**manifest, "spec": {**manifest.get("spec", {}), **fields}}


def api(namespace: str) -> Json:
    return with_spec(API, service={"name": "adapter", "namespace": namespace})


def test_a_new_namespace_that_nothing_creates_is_reported() -> None:
    _, notes = move(deployment(), secret("adapter.monitoring.svc"))
    missing = "no Namespace monitoring is among these objects: run kubectl create namespace monitoring if there is none"
    assert f"Deployment monitoring/adapter: {missing}" in notes
    _, notes = move(deployment(), manifest_of("Namespace", "monitoring"))
    assert not [note for note in notes if "create namespace" in note]


def test_a_workload_without_a_namespace_gets_that_of_its_service() -> None:
    manifests, _ = settle(deployment(), placed(SERVICE, "monitoring"), ACCOUNT, API)
    assert namespace_of(manifests["Deployment/adapter"]) == namespace_of(manifests["ServiceAccount/adapter"]) == "monitoring"


def test_all_objects_end_in_the_namespace_of_the_workload() -> None:
    labels = {"matchLabels": {"app": "adapter"}}
    scaler = with_spec(
        manifest_of("HorizontalPodAutoscaler", "adapter", "old", "autoscaling/v2"),
        scaleTargetRef={"apiVersion": "apps/v1", "kind": "Deployment", "name": "adapter"},
    )
    token = manifest_of("Secret", "token", "old", type="kubernetes.io/service-account-token")
    token["metadata"]["annotations"] = {"kubernetes.io/service-account.name": "adapter"}
    manifests, notes = settle(
        placed(deployment(), "new"),
        placed(SERVICE, "old"),
        {**placed(ACCOUNT, "old"), "imagePullSecrets": [{"name": "pull"}]},
        api("old"),
        secret("adapter.new.svc", namespace="old"),
        manifest_of("Secret", "pull", "old"),
        token,
        manifest_of("NetworkPolicy", "adapter", "old", "networking.k8s.io/v1", spec={"podSelector": labels}),
        manifest_of("PodDisruptionBudget", "adapter", version="policy/v1", spec={"selector": labels, "maxUnavailable": 1}),
        scaler,
        binding("ClusterRoleBinding", "reader", subject="old"),
        binding("RoleBinding", "own", namespace="old", subject="old"),
    )
    moved = ("Service/adapter", "ServiceAccount/adapter", "Secret/certs", "Secret/pull", "Secret/token", "NetworkPolicy/adapter")
    for name in (*moved, "PodDisruptionBudget/adapter", "HorizontalPodAutoscaler/adapter"):
        assert namespace_of(manifests[name]) == "new", name
    assert manifests["APIService/v1beta1.custom.metrics.k8s.io"]["spec"]["service"]["namespace"] == "new"
    assert [manifests[f"{kind}/b-{role}"]["subjects"][0]["namespace"] for kind, role in (("ClusterRoleBinding", "reader"),)] == ["new"]
    assert "APIService v1beta1.custom.metrics.k8s.io: its Service adapter is in new, not in old" in notes
    assert "Service new/adapter: moved from old to new, where the pods that it selects run" in notes
    alone = "it grants rights in old only, and the account is in new now: if its role is about the namespace of the account, move both"
    assert f"RoleBinding old/b-own: {alone}" in notes


def test_webhooks_and_conversions_follow_a_moved_service_and_other_mentions_are_reported() -> None:
    reference = {"name": "adapter", "namespace": "old", "path": "/x"}
    other = {"name": "other", "namespace": "old"}
    webhook = manifest_of("ValidatingWebhookConfiguration", "w", version="admissionregistration.k8s.io/v1")
    webhook["webhooks"] = [{"name": "a", "clientConfig": {"service": dict(reference)}}, {"name": "b", "clientConfig": {"service": other}}]
    definition = manifest_of("CustomResourceDefinition", "d", version="apiextensions.k8s.io/v1")
    definition["spec"] = {"conversion": {"strategy": "Webhook", "webhook": {"clientConfig": {"service": dict(reference)}}}}
    ingress = manifest_of("Ingress", "in", "old", "networking.k8s.io/v1")
    ingress["spec"] = {"defaultBackend": {"service": {"name": "adapter", "port": {"number": 443}}}}
    scraper = manifest_of("ConfigMap", "scrape", "x", data={"prometheus.yml": "targets: ['https://adapter.old.svc:443']"})
    manifests, notes = settle(placed(deployment(), "new"), placed(SERVICE, "old"), api("old"), webhook, definition, ingress, scraper)
    services = [item["clientConfig"]["service"]["namespace"] for item in manifests["ValidatingWebhookConfiguration/w"]["webhooks"]]
    assert services == ["new", "old"]
    conversion = manifests["CustomResourceDefinition/d"]["spec"]["conversion"]
    assert conversion["webhook"]["clientConfig"]["service"]["namespace"] == "new"
    assert "ConfigMap x/scrape: it mentions adapter.old, and the Service is adapter.new now: correct it" in notes
    assert "Ingress old/in: it reaches Services of its own namespace only, and the Service adapter is in new now" in notes


def test_what_selects_pods_of_others_too_stays() -> None:
    other = placed(deployment(container={"image": "other"}), "old")
    manifests, _ = settle(
        placed(deployment(), "new"), other | {"metadata": {"name": "other", "namespace": "old"}}, placed(SERVICE, "old"), ACCOUNT
    )
    assert namespace_of(manifests["Service/adapter"]) == "old"


def test_an_account_that_other_pods_run_as_stays_and_must_be_copied() -> None:
    other = deployment(container={"image": "other"})
    other["metadata"] = {"name": "other", "namespace": "old"}
    manifests, notes = settle(
        placed(deployment(), "new"), other, placed(ACCOUNT, "old"), binding("ClusterRoleBinding", "reader", subject="old")
    )
    assert namespace_of(manifests["ServiceAccount/adapter"]) == "old"
    assert manifests["ClusterRoleBinding/b-reader"]["subjects"][0]["namespace"] == "old"
    here = "here it is in old, where other pods need it too: copy it"
    assert f"Deployment new/adapter: its pods run as the ServiceAccount adapter in new; {here}" in notes


def certificate(name: str, secret_name: str) -> Json:
    spec = {"secretName": secret_name, "dnsNames": ["adapter.old.svc"], "issuerRef": {"name": "ca"}}
    return manifest_of("Certificate", name, "old", "cert-manager.io/v1", spec=spec)


def test_the_issuer_of_a_moved_certificate_and_its_secret_follow_and_the_authority_is_injected_from_there() -> None:
    issuer = manifest_of("Issuer", "ca", "old", "cert-manager.io/v1", spec={"ca": {"secretName": "ca-key"}})
    injected = api("new")
    injected["metadata"] = {"name": "v1beta1.custom.metrics.k8s.io", "annotations": {"cert-manager.io/inject-ca-from": "old/serving"}}
    key = manifest_of("Secret", "ca-key", "old")
    manifests, notes = settle(placed(deployment(), "new"), SERVICE, certificate("serving", "certs"), issuer, key, injected)
    assert [namespace_of(manifests[name]) for name in ("Certificate/serving", "Issuer/ca", "Secret/ca-key")] == ["new"] * 3
    annotations = manifests["APIService/v1beta1.custom.metrics.k8s.io"]["metadata"]["annotations"]
    assert annotations == {"cert-manager.io/inject-ca-from": "new/serving"}

    _, notes = settle(placed(deployment(), "new"), SERVICE, certificate("serving", "certs"), certificate("other", "else"), issuer, key)
    assert "Certificate new/serving: its Issuer ca has to be in new, too: copy it, or use a ClusterIssuer" in notes


def test_the_certificate_of_a_flag_with_its_value_in_the_next_word_is_checked() -> None:
    container = {"args": ["--tls-cert-file", "/certs/serving.crt", "--tls-private-key-file", "/certs/serving.key"]}
    _, notes = move(deployment(container=container), secret("adapter.kube-system.svc"))
    assert [note for note in notes if "saw a certificate for adapter.kube-system.svc, expected adapter.monitoring.svc" in note]
