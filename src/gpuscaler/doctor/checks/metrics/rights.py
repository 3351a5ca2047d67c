"""Rights between the API server, the programs that serve metrics, and autoscalers.

Sources: "Set up an extension API server" of the Kubernetes documentation; ``bootstrappolicy`` of Kubernetes 1.35 (the role
system:controller:horizontal-pod-autoscaler may read all metrics).
"""

from collections.abc import Collection, Iterable, Iterator
from typing import Final, NamedTuple

from gpuscaler.doctor.checks.checking import Check, in_part
from gpuscaler.doctor.checks.metrics.programs import CUSTOM, EXTERNAL, METRICS_GROUPS, Serving, space_of
from gpuscaler.doctor.commands import kubectl_patch
from gpuscaler.doctor.documents import Document, template_of
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, INFO, Finding, Fix, Unchecked

_DELEGATOR: Final = "system:auth-delegator"
_READER: Final = "extension-apiserver-authentication-reader"
_CONTROLLER: Final = "system:controller:horizontal-pod-autoscaler"


class _Account(NamedTuple):
    """A service account."""

    namespace: str
    name: str

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    @property
    def groups(self) -> frozenset[str]:
        return frozenset(("system:serviceaccounts", f"system:serviceaccounts:{self.namespace}", "system:authenticated"))


class _Rights:
    """Who may do what, by the bindings."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._roles = {(role.kind, role.namespace, role.name): role for role in evidence.of("ClusterRole", "Role")}

    def knows(self, account: _Account) -> bool:
        """Whether bindings of the account, or all of a cluster, were read: every cluster has system:auth-delegator."""
        bindings = self._evidence.of("ClusterRoleBinding", "RoleBinding")
        return ("ClusterRole", "", _DELEGATOR) in self._roles or any(_binds(binding, account) for binding in bindings)

    def may(self, account: _Account, *, verb: str, group: str, resource: str, namespace: str = "", name: str = "") -> bool:
        """Whether the account may do something in ``namespace``, empty for the whole cluster."""
        bindings = [*self._evidence.of("ClusterRoleBinding")]
        if namespace:
            bindings += [binding for binding in self._evidence.of("RoleBinding") if space_of(binding) == namespace]
        return any(
            _allows(rule, verb=verb, group=group, resource=resource, name=name)
            for binding in bindings
            if _binds(binding, account)
            for rule in self._rules(binding)
        )

    def _rules(self, binding: Document) -> Iterable[Document]:
        kind, name = binding.text("roleRef", "kind"), binding.text("roleRef", "name")
        role = self._roles.get((kind, binding.namespace if kind == "Role" else "", name))
        if role is None:
            # A role that was not read may allow everything.
            return _BUILT_IN.get(name, (_rule(["*"], ["*"], ["*"]),) if kind in self._evidence.unread else ())
        return role.parts("rules")


def _rule(groups: list[str], resources: list[str], verbs: list[str]) -> Document:
    return Document({"apiGroups": groups, "resources": resources, "verbs": verbs})


#: Roles that every cluster has, for evidence without them.
_BUILT_IN: Final = {
    "cluster-admin": (_rule(["*"], ["*"], ["*"]),),
    _DELEGATOR: (
        _rule(["authentication.k8s.io"], ["tokenreviews"], ["create"]),
        _rule(["authorization.k8s.io"], ["subjectaccessreviews"], ["create"]),
    ),
    _READER: (_rule([""], ["configmaps"], ["get", "list", "watch"]),),
}


def _binds(binding: Document, account: _Account) -> bool:
    for subject in binding.parts("subjects"):
        kind, name = subject.text("kind"), subject.text("name")
        if kind == "ServiceAccount" and (subject.text("namespace") or space_of(binding), name) == account:
            return True
        if (kind == "Group" and name in account.groups) or (kind == "User" and name == account.user):
            return True
    return False


def _allows(rule: Document, *, verb: str, group: str, resource: str, name: str) -> bool:
    names = rule.texts("resourceNames")
    return (
        _has(rule.texts("verbs"), verb)
        and _has(rule.texts("apiGroups"), group)
        and _has(rule.texts("resources"), resource)
        and (not names or name in names)
    )


def _has(entries: Collection[str], entry: str) -> bool:
    return "*" in entries or entry in entries


def find_missing_rights(evidence: Evidence) -> Iterator[Finding | Unchecked]:
    """D31: programs behind APIServices that may not verify who asks, and autoscalers that may not read metrics."""
    serving, rights = Serving(evidence), _Rights(evidence)
    yield from in_part("D31", "rights of metrics programs by roles", evidence, "ClusterRole", "Role", "Deployment")
    seen: set[str] = set()
    for api_service in evidence.of("APIService"):
        service = serving.service_of(api_service) if api_service.text("spec", "group") in METRICS_GROUPS else None
        for workload in serving.behind(service) if service is not None else ():
            template = template_of(workload) or Document({})
            name = template.text("spec", "serviceAccountName") or template.text("spec", "serviceAccount") or "default"
            account = _Account(space_of(workload), name)
            if workload.kind not in ("Pod", "ReplicaSet") and workload.title not in seen and rights.knows(account):
                seen.add(workload.title)
                yield from _of_program(workload, account, rights)
    role = evidence.find("ClusterRole", "", _CONTROLLER)
    # Without the role, these are not all roles of a cluster.
    if role is not None:
        account = _Account("kube-system", "horizontal-pod-autoscaler")
        groups = sorted({item.text("spec", "group") for item in evidence.of("APIService")} & {CUSTOM, EXTERNAL})
        lacking = [group for group in groups if not rights.may(account, verb="list", group=group, resource="*")]
        if lacking:
            yield _of_autoscalers(account, lacking)


def _of_program(workload: Document, account: _Account, rights: _Rights) -> Iterator[Finding]:
    may_delegate = rights.may(account, verb="create", group="authorization.k8s.io", resource="subjectaccessreviews")
    if not may_delegate:
        binding = _binding("ClusterRoleBinding", account, role=_DELEGATOR)
        effect = "it cannot ask the API server whether a request is allowed, and refuses all"
        yield _missing(workload, account, right="create subjectaccessreviews.authorization.k8s.io", effect=effect, binding=binding)
    configuration = "extension-apiserver-authentication"
    if not rights.may(account, verb="get", group="", resource="configmaps", namespace="kube-system", name=configuration):
        binding = _binding("RoleBinding", account, role=_READER)
        effect = "it does not know the certificate by which the API server introduces users, and does not start or refuses all requests"
        right = f"get the ConfigMap kube-system/{configuration}"
        yield _missing(workload, account, right=right, effect=effect, binding=binding)


def _of_autoscalers(account: _Account, groups: list[str]) -> Finding:
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


def _missing(workload: Document, account: _Account, *, right: str, effect: str, binding: str) -> Finding:
    return Finding(
        "D31",
        CRITICAL,
        workload.title,
        "spec.template.spec.serviceAccountName",
        f"{account.name}, which may not {right}",
        f"an account that may {right}",
        effect,
        Fix((binding,)),
        workload.place,
    )


def _binding(kind: str, account: _Account, *, role: str) -> str:
    """The command that makes a binding of ``kind`` for the account, of the role of the same scope; a RoleBinding in kube-system."""
    name = role if role == _CONTROLLER else f"{account.namespace}-{account.name}:{role}"
    space = "\n  namespace: kube-system" if kind == "RoleBinding" else ""
    return f"""kubectl apply --filename - <<'EOF'
apiVersion: rbac.authorization.k8s.io/v1
kind: {kind}
metadata:
  name: "{name}"{space}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: {kind.removesuffix("Binding")}
  name: "{role}"
subjects:
- kind: ServiceAccount
  name: "{account.name}"
  namespace: "{account.namespace}"
EOF"""


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
