"""Rights between the API server, the programs that serve metrics, and autoscalers.

Sources: "Set up an extension API server" of the Kubernetes documentation; ``bootstrappolicy`` of Kubernetes 1.35 (the role
system:controller:horizontal-pod-autoscaler may read all metrics).
"""

import json
from collections.abc import Iterator
from typing import Final

from gpuscaler.doctor.checks.checking import Check, in_part
from gpuscaler.doctor.checks.identity.rights import DELEGATOR, READER, Account, Right, Rights, rights_in
from gpuscaler.doctor.checks.metrics.programs import CUSTOM, EXTERNAL, METRICS_GROUPS, Serving, space_of
from gpuscaler.doctor.checks.programs import account_of
from gpuscaler.doctor.checks.trusting import may_help, verify
from gpuscaler.doctor.commands import kubectl_apply, kubectl_patch
from gpuscaler.doctor.documents import Document, template_of
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, INFO, Finding, Fix, Unchecked

_CONTROLLER: Final = "system:controller:horizontal-pod-autoscaler"


def find_missing_rights(evidence: Evidence) -> Iterator[Finding | Unchecked]:
    """D31: programs behind APIServices that may not verify who asks, and autoscalers that may not read metrics."""
    yield from in_part("D31", "rights of metrics programs by roles", evidence, "ClusterRole", "Role", "Deployment")
    rights = rights_in(evidence)
    if rights is None:
        return
    serving, seen = Serving(evidence), set[str]()
    for api_service in evidence.of("APIService"):
        service = serving.service_of(api_service) if api_service.text("spec", "group") in METRICS_GROUPS else None
        for workload in serving.behind(service) if service is not None else ():
            account = Account(space_of(workload), account_of(template_of(workload) or Document({})))
            if workload.kind not in ("Pod", "ReplicaSet") and workload.title not in seen and _knows(evidence, rights, account):
                seen.add(workload.title)
                yield from _of_program(workload, account, rights, safe=may_help(evidence, account.namespace))
    # Without the role of the autoscaler's controller, these are not all roles of a cluster.
    if evidence.find("ClusterRole", "", _CONTROLLER) is not None:
        account = Account("kube-system", "horizontal-pod-autoscaler")
        groups = sorted({item.text("spec", "group") for item in evidence.of("APIService")} & {CUSTOM, EXTERNAL})
        lacking = [group for group in groups if not rights.allows(account, Right("list", group, "*"))]
        if lacking:
            yield _of_autoscalers(account, lacking)


def _knows(evidence: Evidence, rights: Rights, account: Account) -> bool:
    """Whether bindings of the account, or all of a cluster, were read: every cluster has system:auth-delegator."""
    bound = any(True for _ in rights.rules_of(account))
    return not rights.is_unknown(account) and (bound or evidence.find("ClusterRole", "", DELEGATOR) is not None)


def _of_program(workload: Document, account: Account, rights: Rights, *, safe: bool) -> Iterator[Finding]:
    if not rights.allows(account, Right("create", "authorization.k8s.io", "subjectaccessreviews")):
        fix = _bound("ClusterRoleBinding", account, DELEGATOR, safe=safe)
        effect = "it cannot ask the API server whether a request is allowed, and refuses all"
        yield _missing(workload, account, right="create subjectaccessreviews.authorization.k8s.io", effect=effect, fix=fix)
    configuration = "extension-apiserver-authentication"
    if not rights.allows(account, Right("get", "", "configmaps", "kube-system", configuration)):
        fix = _bound("RoleBinding", account, READER, safe=safe)
        effect = "it does not know the certificate by which the API server introduces users, and does not start or refuses all requests"
        right = f"get the ConfigMap kube-system/{configuration}"
        yield _missing(workload, account, right=right, effect=effect, fix=fix)


def _bound(kind: str, account: Account, role: str, *, safe: bool) -> Fix:
    """How the account gets the role, by a binding of ``kind``."""
    if safe:
        return Fix((_binding(kind, account, role=role),))
    where = "in kube-system" if kind == "RoleBinding" else "for the cluster"
    return Fix(advice=f"{verify('the program', account.namespace)}; then make a {kind} {where} that gives its account the role {role}")


def _of_autoscalers(account: Account, groups: list[str]) -> Finding:
    binding = _binding("ClusterRoleBinding", account, role=_CONTROLLER)
    return Finding(
        "D31",
        CRITICAL,
        f"ServiceAccount {account.namespace}/{account.name}",
        "its rights",
        f"no right to list {', '.join(groups)}",
        f"the rights of ClusterRole {_CONTROLLER}",
        "no HorizontalPodAutoscaler can read such metrics",
        Fix((binding,)),
    )


def _missing(workload: Document, account: Account, *, right: str, effect: str, fix: Fix) -> Finding:
    return Finding(
        "D31",
        CRITICAL,
        workload.title,
        "spec.template.spec.serviceAccountName",
        f"{account.name}, which may not {right}",
        f"an account that may {right}",
        effect,
        fix,
        workload.place,
    )


def _binding(kind: str, account: Account, *, role: str) -> str:
    """The command that makes a binding of ``kind`` for the account, of the role of the same scope; a RoleBinding in kube-system."""
    name = role if role == _CONTROLLER else f"{account.namespace}-{account.name}:{role}"
    metadata = {"name": name, **({"namespace": "kube-system"} if kind == "RoleBinding" else {})}
    document = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": kind,
        "metadata": metadata,
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind.removesuffix("Binding"), "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account.name, "namespace": account.namespace}],
    }
    # Values as JSON, which YAML includes: names may be any text.
    return kubectl_apply("\n".join(f"{key}: {json.dumps(value)}" for key, value in document.items()))


def find_wide_roles(evidence: Evidence) -> Iterator[Finding]:
    """D31: roles that allow more on metrics than to read them. The chart of prometheus-adapter has one."""
    for role in evidence.of("ClusterRole"):
        if role.name.startswith("system:"):
            continue
        for index, rule in enumerate(role.parts("rules")):
            groups = rule.texts("apiGroups")
            if groups and all(group in (CUSTOM, EXTERNAL) for group in groups) and "*" in rule.texts("verbs"):
                patch = [{"op": "replace", "path": f"/rules/{index}/verbs", "value": ["get", "list", "watch"]}]
                yield Finding(
                    "D31",
                    INFO,
                    role.title,
                    f"rules[{index}].verbs",
                    f"* on {', '.join(groups)}",
                    "get, list and watch",
                    "metrics can only be read: the role allows what a later version might add",
                    Fix((kubectl_patch(role, patch, strategy="json"),)),
                    role.place,
                )


CHECKS = (
    Check(
        "D31",
        "rights between metrics programs and autoscalers",
        ("APIService", "Service", "ClusterRoleBinding", "RoleBinding"),
        find_missing_rights,
    ),
    Check("D31", "roles for metrics", ("ClusterRole",), find_wide_roles, on_files=True),
)
