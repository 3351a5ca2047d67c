"""The objects that get, with prometheus-adapter, the namespace that its APIService names, and those that are only reported."""

from base64 import b64encode
from typing import Any

import pytest
import yaml

from gpuscaler.converting.adapters.settling import fix_namespaces
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


def role_of(kind: str, name: str, *resources: str, verbs: tuple[str, ...] = ("get", "list", "watch")) -> Json:
    rule = {"apiGroups": [""], "resources": list(resources), "verbs": list(verbs)}
    return manifest_of(kind, name, version="rbac.authorization.k8s.io/v1", rules=[rule])


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
    """The objects by kind and name, and the notes, after prometheus-adapter got the namespace of its APIService."""
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
        binding("ClusterRoleBinding", "system:auth-delegator"),
        binding("RoleBinding", "extension-apiserver-authentication-reader", namespace="kube-system"),
        binding("RoleBinding", "adapter-resource-reader"),
        role_of("Role", "adapter-resource-reader", "pods"),
        binding("ClusterRoleBinding", "autoscaler", account="horizontal-pod-autoscaler"),
    )
    subjects = {name: manifest["subjects"][0]["namespace"] for name, manifest in manifests.items() if "subjects" in manifest}
    assert subjects == {
        "ClusterRoleBinding/b-system:auth-delegator": "monitoring",
        "RoleBinding/b-extension-apiserver-authentication-reader": "monitoring",
        "RoleBinding/b-adapter-resource-reader": "monitoring",
        "ClusterRoleBinding/b-autoscaler": "kube-system",
    }
    assert namespace_of(manifests["RoleBinding/b-extension-apiserver-authentication-reader"]) == "kube-system"
    own = [namespace_of(manifests[f"{name}adapter-resource-reader"]) for name in ("RoleBinding/b-", "Role/")]
    assert own == ["monitoring", "monitoring"]
    assert (
        "ClusterRoleBinding b-system:auth-delegator: its subject ServiceAccount adapter is in monitoring now, not in kube-system" in notes
    )


def test_a_role_binding_of_a_service_account_with_the_same_name_in_another_namespace_is_not_changed() -> None:
    manifests, _ = move(
        deployment(), manifest_of("ServiceAccount", "adapter", "kube-system"), binding("ClusterRoleBinding", "system:auth-delegator")
    )
    assert manifests["ClusterRoleBinding/b-system:auth-delegator"]["subjects"][0]["namespace"] == "kube-system"


def test_a_needed_secret_gets_the_namespace_and_a_missing_one_is_reported() -> None:
    container = {"envFrom": [{"secretRef": {"name": "tokens"}}, {"configMapRef": {"name": "maybe", "optional": True}}]}
    manifests, notes = move(deployment(container=container, imagePullSecrets=[{"name": "pull"}]), secret("adapter.monitoring.svc"))
    assert namespace_of(manifests["Secret/certs"]) == "monitoring"
    assert "Secret certs: added the namespace monitoring, where the pods that need it run" in notes
    lacking = [note for note in notes if "which is not among these objects" in note]
    assert lacking == [
        f"Deployment monitoring/adapter: its pods need the Secret {name}, "
        "which is not among these objects: make sure that it is in monitoring"
        for name in ("pull", "tokens")
    ]


@pytest.mark.parametrize("namespace", ["old", ""])
def test_a_secret_that_other_pods_need_stays_and_must_be_copied(namespace: str) -> None:
    other = deployment(container={"image": "other"}, serviceAccountName="other")
    other["metadata"] = {"name": "other"} | ({"namespace": namespace} if namespace else {})
    other["spec"]["template"]["metadata"]["labels"] = {"app": "other"}
    manifests, notes = move(deployment(), other, secret("adapter.monitoring.svc", namespace=namespace))
    assert namespace_of(manifests["Secret/certs"]) == (namespace or None)
    here = f"here it is {f'in {namespace}' if namespace else 'without a namespace'}, where other pods need it too: copy it"
    needed = f"it needs the Secret certs in monitoring, where the pods that need it run; {here}. Nothing was moved"
    assert f"Deployment monitoring/adapter: {needed}" in notes


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
        "Certificate", "serving", version="cert-manager.io/v1", spec={"secretName": "certs", "dnsNames": ["adapter.kube-system.svc"]}
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


def spread(namespace: str, *, subject: str) -> list[Json]:
    """What prometheus-adapter needs, in ``namespace``; empty for none."""
    labels = {"matchLabels": {"app": "adapter"}}
    token = manifest_of("Secret", "token", namespace, type="kubernetes.io/service-account-token")
    token["metadata"]["annotations"] = {"kubernetes.io/service-account.name": "adapter"}
    account = {**manifest_of("ServiceAccount", "adapter", namespace), "imagePullSecrets": [{"name": "pull"}]}
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "adapter"}
    return [
        {**SERVICE, "metadata": manifest_of("Service", "adapter", namespace)["metadata"]},
        account,
        secret("adapter.new.svc", namespace=namespace),
        manifest_of("Secret", "pull", namespace),
        token,
        manifest_of("NetworkPolicy", "adapter", namespace, "networking.k8s.io/v1", spec={"podSelector": labels}),
        manifest_of("PodDisruptionBudget", "adapter", namespace, "policy/v1", spec={"selector": labels, "maxUnavailable": 1}),
        manifest_of("HorizontalPodAutoscaler", "adapter", namespace, "autoscaling/v2", spec={"scaleTargetRef": target}),
        binding("ClusterRoleBinding", "system:auth-delegator", subject=subject),
    ]


@pytest.mark.parametrize("workload", [deployment(), {**deployment(), "metadata": {"name": "adapter", "namespace": "new"}}])
def test_all_objects_without_a_namespace_get_the_one_that_the_api_service_names(workload: Json) -> None:
    manifests, notes = settle(workload, *spread("", subject="old"), api("new"))
    for name, manifest in manifests.items():
        assert namespace_of(manifest) == (None if name.startswith(("APIService", "ClusterRole")) else "new"), name
    assert manifests["ClusterRoleBinding/b-system:auth-delegator"]["subjects"][0]["namespace"] == "new"
    assert "Service adapter: added the namespace new, where the pods that it selects run" in notes


def unchanged(*objects: Json) -> list[str]:
    """What is reported as not working about ``objects``, which stay as they are except for the workloads."""
    manifests, notes = convert(objects, image="ours:1")
    for before, after in zip(objects, manifests, strict=True):
        assert after["kind"] == "Deployment" or after == before
    return [f"{note.where}: {note.text}" for note in notes if note.failed]


@pytest.mark.parametrize("namespace", ["old", ""])
@pytest.mark.parametrize("evidence", [[], [api("old")]], ids=["none", "another"])
def test_nothing_follows_a_workload_whose_namespace_no_api_service_names(namespace: str, evidence: list[Json]) -> None:
    failed = unchanged(placed(deployment(), "new"), *spread(namespace, subject="old"), *evidence)
    for kind, name in (("Service", "adapter"), ("ServiceAccount", "adapter"), ("Secret", "certs"), ("NetworkPolicy", "adapter")):
        assert any(f"Deployment new/adapter: it needs the {kind} {name} in new, " in note for note in failed), kind


def test_objects_with_another_namespace_than_the_known_one_are_reported_and_not_moved() -> None:
    failed = unchanged(placed(deployment(), "new"), placed(SERVICE, "new"), api("new"), *spread("old", subject="old")[1:])
    needed = [note.partition("it needs the ")[2].partition(" in new")[0] for note in failed]
    assert needed == ["NetworkPolicy adapter", "PodDisruptionBudget adapter", "HorizontalPodAutoscaler adapter", *needed[3:]]
    assert sorted(needed[3:]) == ["Secret certs", "ServiceAccount adapter"]


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("subject", ["ci", ""])
@pytest.mark.parametrize(
    ("role", "definitions"),
    [
        ("cluster-admin", []),
        ("cluster-admin", [role_of("ClusterRole", "cluster-admin", "pods")]),
        ("resource-reader", []),
        ("resource-reader", [role_of("ClusterRole", "resource-reader", "secrets")]),
        ("resource-reader", [role_of("ClusterRole", "resource-reader", "pods", verbs=("create",))]),
        ("resource-reader", [role_of("ClusterRole", "resource-reader", "pods"), role_of("ClusterRole", "resource-reader", "*")]),
    ],
)
def test_rights_that_the_adapter_is_not_known_to_need_are_never_bound_to_its_account(
    role: str, definitions: list[Json], subject: str, *, known: bool
) -> None:
    bound = binding("ClusterRoleBinding", role, subject=subject)
    failed = unchanged(placed(deployment(), "new"), placed(SERVICE, "new"), bound, *definitions, *([api("new")] if known else []))
    assert len(failed) == 1
    assert "It was not changed, since" in failed[0]


def test_the_rights_of_an_account_that_other_pods_run_as_stay_although_no_service_account_is_among_the_objects() -> None:
    other = placed(deployment(container={"image": "other"}), "ci")
    assert not unchanged(placed(deployment(), "new"), other, binding("ClusterRoleBinding", "system:auth-delegator", subject="ci"))


def test_webhooks_and_api_services_are_not_directed_to_a_namespace_that_only_a_workload_names() -> None:
    webhook = manifest_of("ValidatingWebhookConfiguration", "w", version="admissionregistration.k8s.io/v1")
    webhook["webhooks"] = [{"name": "a", "clientConfig": {"service": {"name": "adapter", "namespace": "old"}}}]
    failed = unchanged(placed(deployment(), "new"), placed(SERVICE, "new"), api("old"), webhook)
    (only,) = failed
    where = "it names the Service adapter in old, where none is among these objects; Deployment new/adapter has one in new"
    assert only.startswith(f"APIService v1beta1.custom.metrics.k8s.io: {where}. It was not changed: write namespace: new if")


def test_a_workload_without_a_namespace_that_is_not_alone_behind_the_service_gets_none() -> None:
    second = {**deployment(), "metadata": {"name": "second"}}
    _, notes = convert([deployment(), second, SERVICE, API], image="ours:1")
    assert [note.text for note in notes if note.failed] == [
        "its namespace is not stated, and 2 workloads are behind the Service in monitoring: state it"
    ] * 2


def test_an_api_that_two_objects_give_to_different_services_is_no_evidence() -> None:
    failed = unchanged(placed(deployment(), "new"), placed(SERVICE, "new"), api("new"), api("old"), secret("adapter.new.svc"))
    assert any("it needs the Secret certs in new" in note for note in failed)


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
    here = "where the pods that run as it are; here it is in old, where other pods need it too: copy it. Nothing was moved"
    assert f"Deployment new/adapter: it needs the ServiceAccount adapter in new, {here}" in notes


def certificate(name: str, secret_name: str) -> Json:
    spec = {"secretName": secret_name, "dnsNames": ["adapter.old.svc"], "issuerRef": {"name": "ca"}}
    return manifest_of("Certificate", name, "old", "cert-manager.io/v1", spec=spec)


def test_certificates_and_issuers_of_another_namespace_stay_with_their_keys() -> None:
    issuer = manifest_of("Issuer", "ca", "old", "cert-manager.io/v1", spec={"ca": {"secretName": "ca-key"}})
    injected = api("new")
    injected["metadata"] = {"name": "v1beta1.custom.metrics.k8s.io", "annotations": {"cert-manager.io/inject-ca-from": "old/serving"}}
    rest = [issuer, manifest_of("Secret", "ca-key", "old"), injected]
    failed = unchanged(placed(deployment(), "new"), placed(SERVICE, "new"), certificate("serving", "certs"), *rest)
    instead = "here Certificate serving in old makes it: write a Certificate in new, too, for adapter.new.svc"
    assert failed == [f"Deployment new/adapter: its pods need the Secret certs in new; {instead}"]
    here = certificate("serving", "certs")
    del here["metadata"]["namespace"]
    _, notes = settle(placed(deployment(), "new"), placed(SERVICE, "new"), here, *rest)
    lacking = "its Issuer ca has to be in new, too, and here it is Issuer ca in old: write one there, or use a ClusterIssuer"
    assert f"Certificate new/serving: {lacking}" in notes


def test_many_adapters_are_converted_in_a_time_that_grows_with_their_number() -> None:
    count, looked = 400, 0

    class Counting(dict[str, Any]):
        def get(self, key: str, default: Any = None, /) -> Any:
            nonlocal looked
            looked += key == "metadata"
            return super().get(key, default)

    def lot(count: int) -> int:
        nonlocal looked
        looked, objects = 0, []
        for number in range(count):
            workload, service = placed(deployment(), f"n{number}"), placed(SERVICE, f"n{number}")
            objects += [Counting(workload), Counting(service), Counting(binding("ClusterRoleBinding", f"r{number}"))]
        fix_namespaces(list(objects), lambda *_, **__: None)
        return looked

    assert lot(count) < 2.5 * lot(count // 2)


def test_the_certificate_of_a_flag_with_its_value_in_the_next_word_is_checked() -> None:
    container = {"args": ["--tls-cert-file", "/certs/serving.crt", "--tls-private-key-file", "/certs/serving.key"]}
    _, notes = move(deployment(container=container), secret("adapter.kube-system.svc"))
    assert [note for note in notes if "saw a certificate for adapter.kube-system.svc, expected adapter.monitoring.svc" in note]
