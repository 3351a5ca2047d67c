"""Checks of Secrets, identities and rights: no value is shown, values that are right are left alone, and rights are those of RBAC."""

import base64
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.doctor.corpus import FOLDER, NOW, objects_of

from gpuscaler.cli.doctor.printing import report_json
from gpuscaler.cli.doctor.reading import evidence_of_objects
from gpuscaler.doctor.checks.all_checks import CHECKS
from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.checks.identity.needed_rights import needed_rights
from gpuscaler.doctor.checks.identity.rights import Account, Right, rights_in
from gpuscaler.doctor.checks.programs import Program, programs
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, INFO, WARNING, Finding, Report
from gpuscaler.doctor.running import run_checks
from gpuscaler.kube.resources import WATCHED

Json = dict[str, Any]
KEY_ID, SECRET_KEY = "AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY"
GUID = "0f3a1b7c-2222-3333-4444-555555555555"
CHART = Path(__file__).parents[2] / "charts" / "gpuscaler" / "templates"
RBAC = "rbac.authorization.k8s.io"


def look_at(*objects: Json) -> Report:
    return run_checks(evidence_of_objects(objects, now=NOW), CHECKS)


def found(*objects: Json, check: str) -> list[Finding]:
    return [finding for finding in look_at(*objects).findings if finding.check == check]


def secret(**data: str) -> Json:
    encoded = {key.replace("_", "-"): base64.b64encode(value.encode()).decode() for key, value in data.items()}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "keys", "namespace": "default"}, "data": encoded}


def account(name: str, namespace: str = "default", **annotations: str) -> Json:
    return {"kind": "ServiceAccount", "metadata": {"name": name, "namespace": namespace, "annotations": annotations}}


def deployment(*, account: str = "default", replicas: int = 1, volumes: list[Json] | None = None, **container: Any) -> Json:
    containers = [{"name": "main", "image": "example.com/a:1", **container}]
    spec = {"serviceAccountName": account, "containers": containers, "volumes": volumes or []}
    metadata = {"name": "main", "namespace": "default"}
    return {"kind": "Deployment", "metadata": metadata, "spec": {"replicas": replicas, "template": {"spec": spec}}}


def variable(name: str, key: str, **more: Any) -> Json:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": "keys", "key": key, **more}}}


def role(*rules: Json, kind: str = "ClusterRole", namespace: str = "", name: str = "role", **more: Any) -> Json:
    return {"kind": kind, "metadata": {"name": name, "namespace": namespace, **more.pop("metadata", {})}, "rules": list(rules), **more}


def binding(*subjects: Json, kind: str = "ClusterRoleBinding", of: str = "ClusterRole", namespace: str = "", role: str = "role") -> Json:
    metadata = {"name": "binding", "namespace": namespace}
    return {"kind": kind, "metadata": metadata, "roleRef": {"apiGroup": RBAC, "kind": of, "name": role}, "subjects": list(subjects)}


def rule(group: str, resource: str, *verbs: str, names: tuple[str, ...] = ()) -> Json:
    return {"apiGroups": [group], "resources": [resource], "verbs": list(verbs), **({"resourceNames": list(names)} if names else {})}


def allows(right: Right, *objects: Json) -> bool:
    rights = rights_in(evidence_of_objects(objects, now=NOW))
    assert rights is not None
    return rights.allows(Account("a", "it"), right)


IT: Json = {"kind": "ServiceAccount", "name": "it", "namespace": "a"}


def values_of(objects: list[Json]) -> set[str]:
    """All values of Secrets and of variables, encoded and not."""
    values = set()
    for item in objects:
        if item["kind"] == "Secret":
            for encoded in (item.get("data") or {}).values():
                values |= {encoded, decoded(encoded), decoded(decoded(encoded))}
            values |= set((item.get("stringData") or {}).values())
        values |= set(re.findall(r"(?:value: |password=|secret_access_key = )([^\s,}]{8,})", yaml.dump(item)))
    return {value.strip() for value in values if len(value.strip()) >= 8 and value.strip() not in ("$(OTHER)", "pictures")}


def decoded(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode("latin-1")
    except ValueError:
        return ""


@pytest.mark.parametrize("path", sorted((FOLDER / "broken").glob("d2[67]-*.yaml")), ids=lambda path: path.stem)
def test_no_value_of_a_secret_is_shown_not_even_a_part(path: Path) -> None:
    objects = objects_of(path)
    shown = json.dumps(report_json(look_at(*objects)))

    for value in values_of(objects):
        assert not [value[at : at + 6] for at in range(len(value) - 5) if value[at : at + 6] in shown], path


def test_the_error_of_a_check_that_reads_secrets_shows_nothing_of_them() -> None:
    def fail(_: Evidence) -> list[Finding]:
        raise ValueError("hunter2")

    (entry,) = run_checks(Evidence(NOW), [Check("D26", "Secrets", ("Secret",), fail)]).unchecked

    assert entry.reason == "the check failed with ValueError; please report it"


def test_checks_that_read_secrets_never_run_in_the_controller() -> None:
    assert not [check.title for check in CHECKS if "Secret" in check.needs and check.continuous]


def test_secrets_that_cannot_be_read_are_never_ok() -> None:
    evidence = Evidence(NOW, unread={"Secret": "there is no permission to list secrets"})

    unchecked = {entry.check for entry in run_checks(evidence, CHECKS).unchecked}

    assert {"D26", "D27"} <= unchecked


def test_values_that_are_right_are_left_alone() -> None:
    storage = base64.b64encode(bytes(range(64))).decode()
    others = {"ca": "-----BEGIN CERTIFICATE-----\nAAAA\n", "password": "hunter2\n", "token": base64.b64encode(b"a long text").decode()}
    right = (
        secret(aws_access_key_id=KEY_ID, aws_secret_access_key=SECRET_KEY),
        secret(AWS_ACCESS_KEY_ID="minio", AWS_SECRET_ACCESS_KEY="minio123minio123"),
        secret(client_id=GUID, client_secret="aBc8Q~ExampleExampleExampleExample.xampl", tenant_id=GUID),
        secret(client_id="grafana\n", client_secret="any text\n"),
        secret(azurestorageaccountkey=storage),
        secret(**others),
    )

    for one in right:
        assert not found(one, check="D26"), one


def test_a_key_that_a_pod_takes_for_a_credential_is_checked_under_any_name() -> None:
    pod = deployment(env=[variable("AWS_ACCESS_KEY_ID", "user"), variable("AWS_SECRET_ACCESS_KEY", "word")])

    fields = {finding.field for finding in found(pod, secret(user=f"{KEY_ID}\n", word=f"{SECRET_KEY}\r\n"), check="D26")}

    assert fields == {"data[user]", "data[word]"}


def test_values_of_helm_and_wrapped_base64_are_no_mistakes() -> None:
    release = secret(release="anything") | {"type": "helm.sh/release.v1"}
    wrapped = secret() | {"data": {"aws-secret-access-key": f"{base64.b64encode(SECRET_KEY.encode()).decode()[:20]}\n"}}
    wrapped["data"]["aws-secret-access-key"] += base64.b64encode(SECRET_KEY.encode()).decode()[20:]

    assert not found(release, check="D26")
    assert not found(wrapped, check="D26")


def test_a_reference_that_is_optional_or_of_a_pod_that_is_finished_may_be_missing() -> None:
    missing = {"secretKeyRef": {"name": "none", "key": "a"}}
    pod = {"kind": "Pod", "metadata": {"name": "p", "namespace": "default"}, "status": {"phase": "Succeeded"}}
    pod["spec"] = {"containers": [{"name": "main", "env": [{"name": "A", "valueFrom": missing}]}]}
    root: list[Json] = [{"name": "ca", "projected": {"sources": [{"configMap": {"name": "kube-root-ca.crt"}}]}}]

    assert not found(deployment(env=[variable("A", "a", optional=True)]), check="D26")
    assert not found(deployment(envFrom=[{"secretRef": {"name": "none", "optional": True}}]), check="D26")
    assert not found(pod, check="D26")
    assert not found(deployment(volumes=root), check="D26")


def test_a_deployment_without_replicas_has_a_warning_only() -> None:
    (finding,) = found(deployment(env=[variable("A", "a")], replicas=0), check="D26")

    assert finding.severity == WARNING


def test_keys_of_another_cloud_under_names_of_aws_are_no_swap() -> None:
    env = [variable("AWS_ACCESS_KEY_ID", "accessKeyId"), variable("AWS_SECRET_ACCESS_KEY", "accessKeySecret")]
    keys = secret() | {"data": {key: base64.b64encode(b"text").decode() for key in ("accessKeyId", "accessKeySecret")}}

    assert not found(deployment(env=env), keys, check="D26")


@pytest.mark.parametrize(
    ("name", "value"),
    [("HF_TOKEN", "$(TOKEN)"), ("TLS_PRIVATE_KEY", "tls.key"), ("API_KEY", "EMPTY"), ("PASSWORD", ""), ("USE_PASSWORD", "true")],
)
def test_values_that_are_no_credentials(name: str, value: str) -> None:
    assert not found(deployment(env=[{"name": name, "value": value}]), check="D27")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "hf_abcdefghij"),
        ("DATABASE", "postgres://me:correct-horse@db/x"),
        ("A", "DefaultEndpointsProtocol=https;AccountKey=" + "a" * 44),
    ],
)
def test_values_that_are_credentials_by_name_or_by_shape(name: str, value: str) -> None:
    assert found(deployment(env=[{"name": name, "value": value}]), check="D27")


def test_static_keys_are_an_info_where_no_identity_is_known() -> None:
    keys = secret(AWS_ACCESS_KEY_ID=KEY_ID, AWS_SECRET_ACCESS_KEY=SECRET_KEY) | {"data": {}}
    autoscaler = deployment(image="registry.k8s.io/autoscaling/cluster-autoscaler:v1.34.0", command=["./cluster-autoscaler"])
    autoscaler["spec"]["template"]["spec"]["containers"][0]["env"] = [variable("AWS_SECRET_ACCESS_KEY", "s")]

    (finding,) = found(autoscaler, keys, check="D27")

    assert finding.severity == INFO


def test_a_key_that_is_optional_and_does_not_exist_is_no_key() -> None:
    keys = secret(AWS_SECRET_ACCESS_KEY=SECRET_KEY)
    autoscaler = deployment(image="registry.k8s.io/autoscaling/cluster-autoscaler:v1.34.0", command=["./cluster-autoscaler"])
    autoscaler["spec"]["template"]["spec"]["containers"][0]["env"] = [variable("AWS_SECRET_ACCESS_KEY", "other", optional=True)]

    assert not found(autoscaler, keys, check="D27")

    autoscaler["spec"]["template"]["spec"]["containers"][0]["env"] = [
        variable("AWS_SECRET_ACCESS_KEY", "AWS-SECRET-ACCESS-KEY", optional=True)
    ]

    assert found(autoscaler, keys, check="D27")


def test_an_azure_client_id_of_the_container_needs_no_annotation() -> None:
    pod = deployment(account="it", env=[{"name": "AZURE_CLIENT_ID", "value": GUID}])
    pod["spec"]["template"]["metadata"] = {"labels": {"azure.workload.identity/use": "true"}}

    assert not found(pod, account("it"), check="D28")


def test_a_pod_with_the_token_of_its_role_is_no_finding() -> None:
    env = [{"name": "AWS_WEB_IDENTITY_TOKEN_FILE", "value": "/token"}]
    pod: Json = {"kind": "Pod", "metadata": {"name": "p", "namespace": "default"}, "status": {"phase": "Running"}}
    pod["spec"] = {"serviceAccountName": "it", "containers": [{"name": "main", "env": env}]}
    role_of_aws = account("it", **{"eks.amazonaws.com/role-arn": "arn:aws-us-gov:iam::123456789012:role/path/it"})

    assert not found(pod, role_of_aws, check="D28")
    pod["spec"]["containers"] = [{"name": "main"}]
    assert found(pod, role_of_aws, check="D28")


@pytest.mark.parametrize(
    ("right", "granted"),
    [
        (Right("list", "", "pods"), True),
        (Right("list", "apps", "pods"), False),
        (Right("delete", "", "pods"), False),
        (Right("create", "", "pods/eviction"), True),
        (Right("create", "", "pods/binding"), False),
        (Right("get", "", "configmaps", name="one"), True),
        (Right("get", "", "configmaps", name="two"), False),
        (Right("get", "", "configmaps"), False),
        (Right("patch", "batch", "jobs/status"), True),
        (Right("anything", "all", "things"), True),
    ],
)
def test_rights_are_those_of_the_rules(right: Right, *, granted: bool) -> None:
    rules = (
        rule("", "pods", "list", "watch"),
        rule("", "*/eviction", "create"),
        rule("", "configmaps", "get", names=("one",)),
        rule("batch", "jobs/*", "patch"),
        rule("all", "*", "*"),
    )

    assert allows(right, role(*rules), binding(IT)) is granted


@pytest.mark.parametrize(
    "subject",
    [
        {"kind": "User", "name": "system:serviceaccount:a:it"},
        {"kind": "Group", "name": "system:serviceaccounts:a"},
        {"kind": "Group", "name": "system:serviceaccounts"},
        {"kind": "Group", "name": "system:authenticated"},
    ],
)
def test_accounts_have_the_rights_of_their_user_and_groups(subject: Json) -> None:
    assert allows(Right("list", "", "pods"), role(rule("", "pods", "list")), binding(subject))


def test_a_role_binding_grants_rights_in_its_namespace_only() -> None:
    here = binding({"kind": "ServiceAccount", "name": "it"}, kind="RoleBinding", namespace="a")

    assert allows(Right("list", "", "pods", "a"), role(rule("", "pods", "list")), here)
    assert not allows(Right("list", "", "pods", "b"), role(rule("", "pods", "list")), here)
    assert not allows(Right("list", "", "pods"), role(rule("", "pods", "list")), here)


def test_roles_are_aggregated_where_no_controller_has_done_it() -> None:
    whole = role(name="whole", aggregationRule={"clusterRoleSelectors": [{"matchLabels": {"part": "yes"}}]})
    part = role(rule("", "pods", "list"), metadata={"labels": {"part": "yes"}})

    assert allows(Right("list", "", "pods"), whole, part, binding(IT, role="whole"))


def test_cluster_admin_is_known_without_its_document() -> None:
    assert allows(Right("list", "", "pods"), role(), binding(IT, role="cluster-admin"))


def gpuscaler(*arguments: str) -> Program:
    (program,) = programs(evidence_of_objects([deployment(account="it", image="ghcr.io/gpuscaler:1", args=["run", *arguments])], now=NOW))
    return program


def test_gpuscaler_needs_a_right_to_all_that_it_watches() -> None:
    needed = {(right.group, right.resource) for right in needed_rights(gpuscaler()) if right.verb == "watch"}
    optional = {"scheduling.k8s.io", "resource.k8s.io"}

    missing = [item for item in WATCHED if (item.group, item.plural) not in needed and not item.optional and item.group not in optional]

    assert not missing


@pytest.mark.parametrize("component", ["controller", "metrics"])
def test_the_chart_grants_what_gpuscaler_needs(component: str) -> None:
    text = re.sub(r"{{.*?}}", "", (CHART / component / "roles.yaml").read_text(), flags=re.DOTALL)
    rules = [rule for item in yaml.safe_load_all(text) if item and item.get("rules") for rule in item["rules"]]
    named = [{**rule, "resourceNames": [name for name in rule["resourceNames"] if name]} for rule in rules if rule.get("resourceNames")]
    reader = rule("", "configmaps", "get", names=("extension-apiserver-authentication",))
    rules = [rule for rule in rules if not rule.get("resourceNames")] + named + [reader]
    bound = binding({**IT, "namespace": "default"})
    started = deployment(account="it", image="ghcr.io/gpuscaler:1", args=["run" if component == "controller" else "metrics"])

    assert not found(started, role(*rules), bound, account("it"), check="D31")
    assert found(started, role(), bound, account("it"), check="D31")


def test_rights_are_not_looked_at_where_no_role_was_read() -> None:
    assert not found(deployment(account="it", image="ghcr.io/gpuscaler:1", args=["run"]), check="D31")


def test_bindings_that_the_api_server_makes_may_name_accounts_that_are_elsewhere() -> None:
    made = binding({"kind": "ServiceAccount", "name": "route-controller", "namespace": "kube-system"})
    made["metadata"] |= {"name": "system:controller:route-controller", "labels": {"kubernetes.io/bootstrapping": "rbac-defaults"}}

    assert not found(made, account("default"), role(), check="D31")


def test_rights_are_not_offered_to_an_account_of_the_same_name_that_may_be_another_program() -> None:
    (finding,) = found(
        deployment(account="it"), account("it"), account("default", "a"), role(rule("", "secrets", "list")), binding(IT), check="D31"
    )

    assert finding.severity == WARNING
    assert not finding.fix.commands


def test_missing_rights_of_a_program_are_critical_without_a_binding() -> None:
    (finding,) = found(deployment(account="it", image="ghcr.io/gpuscaler:1", args=["run"]), account("it"), role(), check="D31")

    assert finding.severity == CRITICAL
    assert finding.object == "ServiceAccount default/it"


ODD: tuple[Any, ...] = (None, True, 5, -1, 1e300, "text", "=", "\ud800", [], ["text"], [None], [{}], {}, {"a": {"b": []}}, {"kind": 3})
KINDS = ("Secret", "ConfigMap", "ServiceAccount", "ClusterRole", "Role", "ClusterRoleBinding", "RoleBinding", "Lease", "NodePool")
WORKLOADS = ("Pod", "Deployment", "CronJob", "ReplicationController")
FIELDS = ("metadata", "data", "stringData", "rules", "subjects", "roleRef", "spec", "aggregationRule", "type", "immutable")
PARTS = ("containers", "volumes", "env", "envFrom", "image", "command", "args", "serviceAccountName")


def test_odd_documents_break_no_check() -> None:
    named = {"name": "cluster-autoscaler-priority-expander", "namespace": "kube-system", "annotations": {"a": 1}}
    documents = {kind: tuple(Document({"kind": kind, "metadata": named, field: odd}) for field in FIELDS for odd in ODD) for kind in KINDS}
    documents["Secret"] += tuple(Document({"kind": "Secret", "data": {"aws-access-key-id": odd, "b": odd}}) for odd in ODD)
    documents["ConfigMap"] += tuple(Document({"kind": "ConfigMap", "metadata": named, "data": {"priorities": odd}}) for odd in ODD)
    for kind in WORKLOADS:
        specs = [{part: odd} for part in PARTS for odd in ODD] + [
            {"containers": [{"name": "a", part: odd}]} for part in PARTS for odd in ODD
        ]
        image = {"name": "a", "image": "registry.k8s.io/autoscaling/cluster-autoscaler:v1.34.0"}
        specs += [{"containers": [{**image, part: odd}], "volumes": [{"name": odd}]} for part in ("env", "command", "args") for odd in ODD]
        specs += [
            {"containers": [{**image, "args": [f"--{name}={text}"]}]}
            for name in ("nodes", "max-node-provision-time")
            for text in ("", ":", "x")
        ]
        path: Json = {"spec": {"template": {}}} if kind != "Pod" else {}
        documents[kind] = tuple(
            Document(
                {"kind": kind, **path, "spec": {**spec, "template": {"spec": spec}, "jobTemplate": {"spec": {"template": {"spec": spec}}}}}
            )
            for spec in specs
        )
    report = run_checks(Evidence(NOW, documents), CHECKS)

    assert not [entry.message for entry in report.unchecked]
