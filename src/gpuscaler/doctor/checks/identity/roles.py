"""Rights that programs lack, and rights that are too wide."""

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from gpuscaler.doctor.checks.checking import WORKLOADS, Check
from gpuscaler.doctor.checks.identity.needed_rights import needed_rights
from gpuscaler.doctor.checks.identity.rights import BINDINGS, NEEDS, Account, Right, Rights, rights_in, subjects_of
from gpuscaler.doctor.checks.programs import NODE_AUTOSCALERS, Program, programs
from gpuscaler.doctor.checks.trusting import may_help, verify
from gpuscaler.doctor.commands import ObjectName, kubectl_apply
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding, Fix

_RBAC = "rbac.authorization.k8s.io"
#: For how many kinds of objects a finding names the rights.
_NAMED = 6
#: Without these, Cluster Autoscaler may go on: it depends on the version and on the volumes of pods.
_LESS = ("volumeattachments", "csistoragecapacities")


def find_missing_rights(evidence: Evidence) -> Iterable[Finding]:
    """D31: rights that the ServiceAccount of a known program lacks."""
    rights = rights_in(evidence)
    if rights is None:
        return
    misdirected = _misdirected(evidence)
    for program in programs(evidence):
        account = Account(program.namespace, program.account)
        # Bindings of an account of this name in another namespace are a finding of their own.
        if rights.is_unknown(account) or (not _has_own(rights, account) and account.name in misdirected):
            continue
        missing = [right for right in needed_rights(program) if not rights.allows(account, right)]
        if missing:
            yield _missing(program, account, missing, safe=may_help(evidence, account.namespace))


def _has_own(rights: Rights, account: Account) -> bool:
    return any(True for _ in rights.rules_of(account))


def _misdirected(evidence: Evidence) -> set[str]:
    """The names of accounts that a binding names in a namespace where they do not exist, or may not exist if that could not be read."""
    unread = "ServiceAccount" in evidence.unread
    existing = {(item.namespace or "default", item.name) for item in evidence.of("ServiceAccount")}
    return {
        subject.text("name")
        for binding in evidence.of(*BINDINGS)
        for subject in binding.parts("subjects")
        if (existing or unread) and subject.text("kind") == "ServiceAccount"
        and (subject.text("namespace") or binding.namespace, subject.text("name")) not in existing
    }  # fmt: skip


def _missing(program: Program, account: Account, missing: list[Right], *, safe: bool) -> Finding:
    verbs: dict[str, list[str]] = defaultdict(list)
    for right in missing:
        verbs[right.object].append(right.verb)
    named = ", ".join(f"{' and '.join(allowed)} {name}" for name, allowed in list(verbs.items())[:_NAMED])
    more = f" and {len(verbs) - _NAMED} more" if len(verbs) > _NAMED else ""
    less = all(right.resource in _LESS for right in missing)
    return Finding(
        "D31",
        WARNING if less else CRITICAL,
        ObjectName("ServiceAccount", *account).title,
        "Roles and their bindings",
        f"no right to {named}{more}",
        f"the rights that {program.name} needs",
        f"{program.name} does not start its work, or fails in the midst of it",
        Fix((kubectl_apply("\n---\n".join(_granting(account, missing))),), "if a Helm release made the roles, upgrade it instead")
        if safe
        else Fix(advice=f"{verify(program.name, account.namespace)}; then upgrade its Helm release, or add the rights to its roles"),
        program.workload.place,
    )


def _granting(account: Account, rights: Iterable[Right]) -> Iterator[str]:
    """The roles and bindings, as YAML, that grant ``rights``."""
    by_namespace: dict[str, list[Right]] = defaultdict(list)
    for right in rights:
        by_namespace[right.namespace].append(right)
    for namespace, members in by_namespace.items():
        prefix = "" if namespace else "Cluster"
        name = f"{account.name}-more-rights" if namespace else f"{account.namespace}-{account.name}-more-rights"
        metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
        yield _yaml({"apiVersion": f"{_RBAC}/v1", "kind": f"{prefix}Role", "metadata": metadata, "rules": _rules(members)})
        yield _yaml(
            {
                "apiVersion": f"{_RBAC}/v1",
                "kind": f"{prefix}RoleBinding",
                "metadata": metadata,
                "roleRef": {"apiGroup": _RBAC, "kind": f"{prefix}Role", "name": name},
                "subjects": [{"kind": "ServiceAccount", "name": account.name, "namespace": account.namespace}],
            }
        )


def _rules(rights: list[Right]) -> list[dict[str, list[str]]]:
    """The rules of a role, those of the same group, name and verbs in one."""
    verbs: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for right in rights:
        verbs[right.group, right.resource, right.name].append(right.verb)
    resources: dict[tuple[str, str, tuple[str, ...]], list[str]] = defaultdict(list)
    for (group, resource, name), allowed in verbs.items():
        resources[group, name, tuple(allowed)].append(resource)
    return [
        {"apiGroups": [group], "resources": names, "verbs": list(allowed), **({"resourceNames": [name]} if name else {})}
        for (group, name, allowed), names in resources.items()
    ]


def _yaml(document: dict[str, Any]) -> str:
    """One key a line; values as JSON, which YAML includes: names in files may be any text."""
    return "\n".join(f"{key}: {json.dumps(value)}" for key, value in document.items())


def find_wide_roles(evidence: Evidence) -> Iterable[Finding]:
    """D31: programs that may do everything."""
    rights = rights_in(evidence)
    if rights is None:
        return
    seen: set[Account] = set()
    for program in programs(evidence):
        account = Account(program.namespace, program.account)
        own = subjects_of(account)[:2]
        if account not in seen and any(_is_everything(rule) for where, rule in rights.rules_of_subjects(own) if not where):
            seen.add(account)
            yield _wide(program, account)


def _is_everything(rule: Document) -> bool:
    return all("*" in rule.texts(field) for field in ("apiGroups", "resources", "verbs"))


def _wide(program: Program, account: Account) -> Finding:
    effect = "an attacker in its pod owns the cluster, with all Secrets"
    if program.name in NODE_AUTOSCALERS:
        effect += ", and it runs on a node with pods of users"
    return Finding(
        "D31",
        WARNING,
        ObjectName("ServiceAccount", *account).title,
        "Roles and their bindings",
        "all verbs on all resources, as cluster-admin has them",
        f"only the rights that {program.name} needs",
        effect,
        Fix(advice=f"bind the roles of the chart of {program.name}, then delete the wide binding"),
        program.workload.place,
    )


CHECKS = (
    Check("D31", "rights of autoscalers and of metrics APIs", NEEDS, find_missing_rights, reads=(*WORKLOADS, "ServiceAccount")),
    Check("D31", "rights that are too wide", NEEDS, find_wide_roles, reads=WORKLOADS, on_files=True),
)
