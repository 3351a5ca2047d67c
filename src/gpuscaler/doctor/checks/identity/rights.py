"""What ServiceAccounts may do, evaluated from Roles and their bindings as the API server does it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import Evidence

ROLES, BINDINGS = ("ClusterRole", "Role"), ("ClusterRoleBinding", "RoleBinding")
#: The kinds without which nothing can be said about rights.
NEEDS = (*ROLES, *BINDINGS)
#: ClusterRoles that every cluster has, and files do not.
_BUILT_IN = ("admin", "edit", "view")
DELEGATOR, READER = "system:auth-delegator", "extension-apiserver-authentication-reader"


def _rule(group: str, resource: str, *verbs: str) -> Document:
    return Document({"apiGroups": [group], "resources": [resource], "verbs": list(verbs)})


#: The rules of roles that every cluster has, for evidence without them. Source: ``bootstrappolicy`` of Kubernetes 1.35.
_KNOWN: Mapping[tuple[str, str, str], tuple[Document, ...]] = {
    ("ClusterRole", "", "cluster-admin"): (_rule("*", "*", "*"),),
    ("ClusterRole", "", DELEGATOR): (
        _rule("authentication.k8s.io", "tokenreviews", "create"),
        _rule("authorization.k8s.io", "subjectaccessreviews", "create"),
    ),
    ("Role", "kube-system", READER): (_rule("", "configmaps", "get", "list", "watch"),),
}


class Account(NamedTuple):
    """The name of a ServiceAccount."""

    namespace: str
    name: str


class Right(NamedTuple):
    """To ``verb`` the ``resource`` of ``group``, such as ``pods/eviction``.

    In ``namespace``, or in all if it is empty; only the object ``name`` if it is not empty.
    """

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    @property
    def object(self) -> str:
        """What it is about: ``leases.coordination.k8s.io cluster-autoscaler in kube-system``."""
        where = f" in {self.namespace}" if self.namespace else ""
        return f"{self.resource}{f'.{self.group}' if self.group else ''}{f' {self.name}' if self.name else ''}{where}"


@dataclass(slots=True)
class Rights:
    """The rules of each account, with the namespace in which they hold, empty for all; and the bindings whose role does not exist."""

    _rules: Mapping[str, list[tuple[str, Document]]] = field(default_factory=dict)
    #: The subjects of bindings of roles that are not known.
    unknown: frozenset[str] = frozenset()

    def rules_of(self, account: Account) -> Iterator[tuple[str, Document]]:
        return self.rules_of_subjects(subjects_of(account))

    def rules_of_subjects(self, subjects: Iterable[str]) -> Iterator[tuple[str, Document]]:
        for subject in subjects:
            yield from self._rules.get(subject, ())

    def allows(self, account: Account, right: Right) -> bool:
        return any(where in ("", right.namespace) and _covers(rule, right) for where, rule in self.rules_of(account))

    def is_unknown(self, account: Account) -> bool:
        """Whether the account has a role whose rules are not known."""
        return any(subject in self.unknown for subject in subjects_of(account))


def subjects_of(account: Account) -> tuple[str, ...]:
    """The subjects of bindings that stand for ``account``."""
    return (
        f"ServiceAccount {account.namespace}/{account.name}",
        f"User system:serviceaccount:{account.namespace}:{account.name}",
        f"Group system:serviceaccounts:{account.namespace}",
        "Group system:serviceaccounts",
        "Group system:authenticated",
    )


def subject_of(subject: Document, binding: Document) -> str:
    """The subject as in :func:`subjects_of`. In a RoleBinding, an account without a namespace is in that of the binding."""
    if subject.text("kind") == "ServiceAccount":
        return f"ServiceAccount {subject.text('namespace') or binding.namespace}/{subject.text('name')}"
    return f"{subject.text('kind')} {subject.text('name')}"


def _covers(rule: Document, right: Right) -> bool:
    names = rule.texts("resourceNames")
    parent, _, sub = right.resource.partition("/")
    resources = rule.texts("resources")
    return (
        _has(rule.texts("verbs"), right.verb)
        and _has(rule.texts("apiGroups"), right.group)
        and (_has(resources, right.resource) or (bool(sub) and f"*/{sub}" in resources) or (bool(sub) and f"{parent}/*" in resources))
        and (not names or right.name in names)
    )


def _has(listed: tuple[str, ...], wanted: str) -> bool:
    return wanted in listed or "*" in listed


def rights_in(evidence: Evidence) -> Rights | None:
    """The rights of all accounts; None if no ClusterRole was read, although each cluster has many."""
    if not evidence.of("ClusterRole"):
        return None
    roles = dict(_rules(evidence))
    rules: dict[str, list[tuple[str, Document]]] = {}
    unknown: set[str] = set()
    for binding in evidence.of(*BINDINGS):
        role = role_of(binding)
        granted = roles.get(role, _KNOWN.get(role))
        where = binding.namespace if binding.kind == "RoleBinding" else ""
        for subject in binding.parts("subjects"):
            name = subject_of(subject, binding)
            if granted is None:
                unknown.add(name)
            rules.setdefault(name, []).extend((where, rule) for rule in granted or ())
    return Rights(rules, frozenset(unknown))


def role_of(binding: Document) -> tuple[str, str, str]:
    """Kind, namespace and name of the role of a binding."""
    kind = binding.text("roleRef", "kind")
    return (kind, binding.namespace if kind == "Role" else "", binding.text("roleRef", "name"))


def is_built_in(role: tuple[str, str, str]) -> bool:
    """Whether every cluster has the role."""
    kind, _, name = role
    return name.startswith("system:") or name == READER or (kind == "ClusterRole" and name in ("cluster-admin", *_BUILT_IN))


def _rules(evidence: Evidence) -> Iterator[tuple[tuple[str, str, str], tuple[Document, ...]]]:
    cluster_roles = evidence.of("ClusterRole")
    for role in evidence.of(*ROLES):
        rules = role.parts("rules")
        if not rules and role.has("aggregationRule"):
            # In a cluster, its controller has filled in the rules.
            selectors = [selector.pairs("matchLabels") for selector in role.parts("aggregationRule", "clusterRoleSelectors")]
            rules = tuple(_aggregated(cluster_roles, selectors))
        yield (role.kind, role.namespace if role.kind == "Role" else "", role.name), rules


def _aggregated(roles: Iterable[Document], selectors: list[dict[str, str]]) -> Iterator[Document]:
    for role in roles:
        labels = role.labels
        if any(selector and selector.items() <= labels.items() for selector in selectors):
            yield from role.parts("rules")
