"""References between workloads, ServiceAccounts, bindings and roles that do not agree, as after a move to another namespace."""

import json
from collections.abc import Iterable

from gpuscaler.doctor.checks.checking import WORKLOADS, Check
from gpuscaler.doctor.checks.identity.rights import BINDINGS, NEEDS, is_built_in, role_of
from gpuscaler.doctor.checks.programs import account_of, programs, workloads
from gpuscaler.doctor.checks.trusting import may_help, verify
from gpuscaler.doctor.commands import kubectl_apply, kubectl_patch
from gpuscaler.doctor.documents import TEMPLATES, Document
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import ABSENCE, CRITICAL, INFO, NAMESPACE, WARNING, Finding, Fix

#: The label of roles and bindings that the API server makes itself, some for controllers that run elsewhere.
_DEFAULTS = "kubernetes.io/bootstrapping"


def find_missing_accounts(evidence: Evidence) -> Iterable[Finding]:
    """D31: workloads whose ServiceAccount does not exist in their namespace."""
    existing = {(item.namespace or "default", item.name) for item in evidence.of("ServiceAccount")}
    # Each namespace has an account: where none is, they were not read.
    read = {namespace for namespace, _ in existing}
    awaited = _awaited(evidence)
    namespaces: dict[str, list[str]] = {}
    for namespace, name in existing:
        namespaces.setdefault(name, []).append(namespace)
    for document, template in workloads(evidence):
        name, namespace = account_of(template), document.namespace or "default"
        if name == "default" or (namespace, name) in existing:
            continue
        if namespace not in read and name not in namespaces:
            continue
        elsewhere = ", ".join(sorted(namespaces.get(name, []))[:3])
        metadata = json.dumps({"name": name, "namespace": namespace})
        made = kubectl_apply(f"apiVersion: v1\nkind: ServiceAccount\nmetadata: {metadata}")
        # Bindings from elsewhere may give the new account more than those who may make its pods have.
        safe = may_help(evidence, namespace) or (awaited is not None and (namespace, name) not in awaited)
        yield Finding(
            "D31",
            WARNING if document.number("spec", "replicas") == 0 else CRITICAL,
            document.title,
            ".".join((*TEMPLATES[document.kind], "spec", "serviceAccountName")),
            f"{name}, which is in namespace {elsewhere} only" if elsewhere else f"{name}, which does not exist",
            "a ServiceAccount in the namespace of the pods",
            "the API server refuses to create the pods",
            Fix((made,), "bind its roles to it, too")
            if safe
            else Fix(advice="create it if these pods may have the rights that bindings from elsewhere give to an account of this name"),
            document.place,
            relies_on=NAMESPACE if elsewhere else ABSENCE,
        )


def _awaited(evidence: Evidence) -> set[tuple[str, str]] | None:
    """The accounts that bindings give rights beyond the account's namespace; None if the bindings were not read."""
    if any(kind in evidence.unread for kind in BINDINGS):
        return None
    found: set[tuple[str, str]] = set()
    for binding in evidence.of(*BINDINGS):
        within = binding.namespace if binding.kind == "RoleBinding" else None
        for subject in binding.parts("subjects"):
            # As subjects_of names them, an account may also be a user.
            namespace, _, name = subject.text("name").removeprefix("system:serviceaccount:").partition(":")
            if subject.text("kind") == "ServiceAccount":
                namespace, name = subject.text("namespace") or binding.namespace, subject.text("name")
            if name and namespace != within:
                found.add((namespace, name))
    return found


def find_stale_subjects(evidence: Evidence) -> Iterable[Finding]:
    """D31: bindings that name a ServiceAccount where it does not exist."""
    existing = {(item.namespace or "default", item.name) for item in evidence.of("ServiceAccount")}
    if not existing:
        return
    used: dict[str, set[str]] = {}
    for document, template in workloads(evidence):
        used.setdefault(account_of(template), set()).add(document.namespace or "default")
    known = {(program.namespace, program.account) for program in programs(evidence)}
    spaces = {item.name for item in evidence.of("Namespace")}
    read = {namespace for namespace, _ in existing}
    for binding in evidence.of(*BINDINGS):
        if _DEFAULTS in binding.labels or binding.name.startswith("system:"):
            continue
        subjects = binding.parts("subjects")
        named = {(subject.text("namespace") or binding.namespace, subject.text("name")) for subject in subjects}
        for index, subject in enumerate(subjects):
            name, namespace = subject.text("name"), subject.text("namespace") or binding.namespace
            if subject.text("kind") != "ServiceAccount" or (namespace, name) in existing or not name:
                continue
            users = sorted(where for where in used.get(name, ()) if name != "default" and (where, name) not in named)
            # Known programs first, then pods that can run because their account exists.
            best = [where for where in users if (where, name) in known] or [where for where in users if (where, name) in existing] or users
            if len(best) == 1:
                within = binding.namespace if binding.kind == "RoleBinding" else None
                safe = may_help(evidence, best[0], within=within)
                yield _moved(binding, index, best[0], known=(best[0], name) in known, safe=safe)
            elif namespace in read or (spaces and namespace not in spaces):
                yield _left(binding, index, namespace, gone=bool(spaces) and namespace not in spaces)


def _moved(binding: Document, index: int, to: str, *, known: bool, safe: bool) -> Finding:
    operation = {"op": "add", "path": f"/subjects/{index}/namespace", "value": to}
    namespace = binding.parts("subjects")[index].text("namespace") or binding.namespace
    # An account of the same name elsewhere may belong to another program, which must not get the rights.
    certain = safe and (known or binding.namespace == to)
    return Finding(
        "D31",
        CRITICAL if known else WARNING,
        binding.title,
        f"subjects[{index}].namespace",
        f"{namespace}, where the ServiceAccount does not exist",
        f"{to}, where pods use it" if safe else "the namespace of the program that needs these rights",
        "the pods have none of the rights of the role",
        Fix((kubectl_patch(binding, [operation], strategy="json"),))
        if certain
        else Fix(advice=f"{verify('the program', to)}; then correct the namespace, else delete the binding"),
        binding.place,
    )


def _left(binding: Document, index: int, namespace: str, *, gone: bool) -> Finding:
    return Finding(
        "D31",
        INFO,
        binding.title,
        f"subjects[{index}]",
        f"a ServiceAccount in namespace {namespace}, which does not exist" if gone else "a ServiceAccount that does not exist",
        "a ServiceAccount that exists",
        "no pod has these rights now, and a user who makes a ServiceAccount of this name gets them",
        Fix(advice="correct the subject, or delete the binding if its program is gone"),
        binding.place,
    )


def find_missing_roles(evidence: Evidence) -> Iterable[Finding]:
    """D31: bindings of roles that do not exist."""
    if not evidence.of("ClusterRole"):
        return
    roles = {(role.kind, role.namespace, role.name) for role in evidence.of("Role", "ClusterRole")}
    spaces: dict[str, list[str]] = {}
    for _, namespace, name in roles:
        spaces.setdefault(name, []).append(f"namespace {namespace}" if namespace else "the whole cluster, as a ClusterRole")
    known = {(program.namespace, program.account) for program in programs(evidence)}
    for binding in evidence.of(*BINDINGS):
        role = role_of(binding)
        if role in roles or is_built_in(role) or not role[2]:
            continue
        subjects = {(subject.text("namespace") or binding.namespace, subject.text("name")) for subject in binding.parts("subjects")}
        elsewhere = f"; there is one in {', '.join(sorted(spaces[role[2]])[:2])}" if role[2] in spaces else ""
        yield Finding(
            "D31",
            CRITICAL if subjects & known else WARNING,
            binding.title,
            "roleRef",
            f"{role[0]} {role[2]}, which does not exist{f' in namespace {role[1]}' if role[1] else ''}{elsewhere}",
            "a role that exists",
            "the subjects have none of its rights",
            Fix(advice="create the role; a binding cannot change its role, so delete it and create another one for another role"),
            binding.place,
        )


CHECKS = (
    Check("D31", "ServiceAccounts of workloads", ("ServiceAccount",), find_missing_accounts, reads=WORKLOADS, on_files=True),
    Check("D31", "subjects of bindings", ("ServiceAccount", *BINDINGS), find_stale_subjects, reads=(*WORKLOADS, "Namespace")),
    Check("D31", "roles of bindings", NEEDS, find_missing_roles),
)
