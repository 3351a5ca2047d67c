"""References of pods to Secrets and ConfigMaps: those that do not exist, lie in another namespace, or lack the key."""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from gpuscaler.doctor.checks.checking import WORKLOADS, Check, Find
from gpuscaler.doctor.checks.identity.credentials import AWS_ID, AWS_SECRET, AZURE_ID, AZURE_SECRET, AZURE_TENANT, credential_of, simple
from gpuscaler.doctor.checks.pods.owners import CHANGEABLE
from gpuscaler.doctor.checks.programs import workloads
from gpuscaler.doctor.commands import patch_template
from gpuscaler.doctor.documents import TEMPLATES, Document, containers_of
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import ABSENCE, CRITICAL, NAMESPACE, WARNING, Finding, Fix
from gpuscaler.model.similar import Similar

#: ConfigMaps that are in each namespace of a cluster, and in no file.
_EVERYWHERE = ("kube-root-ca.crt", "openshift-service-ca.crt")
#: The variables that the libraries of clouds read.
_VARIABLES: Mapping[str, str] = {
    AWS_ID: "AWS_ACCESS_KEY_ID",
    AWS_SECRET: "AWS_SECRET_ACCESS_KEY",
    AZURE_ID: "AZURE_CLIENT_ID",
    AZURE_SECRET: "AZURE_CLIENT_SECRET",
    AZURE_TENANT: "AZURE_TENANT_ID",
}
#: The name of a Secret with a token that Kubernetes before 1.24 made for each ServiceAccount.
_MADE_TOKEN = re.compile(r".+-token-[bcdfghjklmnpqrstvwxz2456789]{5}")
_Rename = Callable[[str, str], dict[str, Any]]
#: Kinds whose pod template may be patched.
_PATCHED = (*CHANGEABLE, "CronJob", "ReplicationController")


class _Existing:
    """The objects of a kind, by namespace and name, and what resembles their names and keys."""

    def __init__(self, items: Iterable[Document]) -> None:
        self.by_namespace: dict[str, dict[str, Document]] = defaultdict(dict)
        self.namespaces: dict[str, list[str]] = defaultdict(list)
        self.similar = Similar()
        for item in items:
            self.by_namespace[item.namespace or "default"][item.name] = item
            self.namespaces[item.name].append(item.namespace or "default")

        self._having: dict[tuple[str, str], list[str]] = {}

    def get(self, namespace: str, name: str) -> Document | None:
        return self.by_namespace.get(namespace, {}).get(name)

    def near(self, namespace: str, name: str, key: str) -> str:
        """The object of ``namespace`` with ``key`` whose name resembles ``name``; empty if there is none."""
        group = (namespace, key)
        if group not in self._having:
            self._having[group] = [other for other, item in self.by_namespace.get(namespace, {}).items() if _has(item, key)]
        return next(iter(self.similar.to(name, self._having[group], group=group)), "")


class _Reference(NamedTuple):
    """A reference to ``key`` of the object ``name``, any key if it is empty. ``rename`` is the patch of the pod template to others."""

    field: str
    name: str
    key: str
    rename: _Rename | None
    variable: str = ""
    is_volume: bool = False


def _find_missing(kind: str) -> Find:
    def find(evidence: Evidence) -> Iterable[Finding]:
        existing = _Existing(evidence.of(kind))
        for document, template in workloads(evidence):
            for reference in _references(template, kind):
                if finding := _problem(kind, document, reference, existing):
                    yield finding

    return find


def _problem(kind: str, document: Document, reference: _Reference, existing: _Existing) -> Finding | None:
    target = existing.get(document.namespace or "default", reference.name)
    if target is None:
        return None if reference.name in _EVERYWHERE else _missing(kind, document, reference, existing)
    if not reference.key:
        return None
    name = reference.name
    keys = [str(key) for field in ("data", "stringData", "binaryData") for key in target.part(field).data]
    if reference.key not in keys:
        near = _near(reference.key, keys, existing.similar)
        return _finding(
            document,
            reference,
            seen=f"key {reference.key} of {kind} {name}, which has {_listed(keys)}",
            expected=f"key {near}" if near else f"a key that {kind} {name} has",
            fix=_fix(document, reference, (name, near) if near else None, f"correct the key, or add it to the {kind}"),
        )
    beside = frozenset(keys)
    wanted, given = credential_of(reference.variable), credential_of(reference.key, beside)
    if wanted != given and wanted[:3] == given[:3] != "":
        near = next((key for key in keys if credential_of(key, beside) == wanted), "")
        return _finding(
            document,
            reference,
            seen=f"{reference.variable} from key {reference.key}, the {given}",
            expected=f"key {near}" if near else f"the key of the {wanted}",
            fix=_fix(document, reference, (name, near) if near else None, "correct the key"),
            effect="the cloud refuses all requests",
        )
    return None


def _missing(kind: str, document: Document, reference: _Reference, existing: _Existing) -> Finding:
    namespace, name = document.namespace or "default", reference.name
    severity, relies_on = CRITICAL, ""
    elsewhere = sorted(existing.namespaces.get(name, ()))
    seen, expected, near = f"{kind} {name}, which does not exist", f"a {kind} that exists", ""
    advice = f"create the {kind}, or correct its name"
    if elsewhere:
        seen = f"{kind} {name}, which is in namespace {', '.join(elsewhere[:3])}"
        expected = f"a {kind} in namespace {namespace}, that of the pod"
        advice = f"create the {kind} in namespace {namespace} too, or move the pods to the namespace where it is"
        relies_on = NAMESPACE
    elif kind == "Secret" and _MADE_TOKEN.fullmatch(name):
        seen = f"Secret {name}, a token that Kubernetes no longer makes"
        expected = "a projected token, which the kubelet mounts and renews"
        advice = (
            "remove the volume or variable: pods have a token at /var/run/secrets/kubernetes.io/serviceaccount, users one with "
            "kubectl create token; since Kubernetes 1.24, no Secrets are made for ServiceAccounts"
        )
    else:
        near = existing.near(namespace, name, reference.key)
        expected = f"{kind} {near}" if near else expected
        # Operators make Secrets of certificates after the pods, which wait for their volumes.
        severity = WARNING if reference.is_volume and not near else CRITICAL
        relies_on = ABSENCE
    fix = _fix(document, reference, (near, reference.key) if near else None, advice)
    return _finding(document, reference, seen=seen, expected=expected, fix=fix, severity=severity, relies_on=relies_on)


def _has(item: Document, key: str) -> bool:
    return not key or any(key in item.part(field).data for field in ("data", "stringData", "binaryData"))


def _near(key: str, keys: list[str], similar: Similar) -> str:
    """The key that ``key`` probably means: that of the same credential, of the same letters, or a similar one."""
    credential, beside = credential_of(key), frozenset(keys)
    for other in keys:
        if simple(other) == simple(key) or (credential and credential_of(other, beside) == credential):
            return other
    return next(iter(similar.to(key, keys, cutoff=0.8)), "")


def _listed(keys: list[str]) -> str:
    return f"{', '.join(sorted(keys)[:5])}{' and more' if len(keys) > 5 else ''}" if keys else "no keys"


def _fix(document: Document, reference: _Reference, to: tuple[str, str] | None, advice: str) -> Fix:
    """The patch that lets ``reference`` refer ``to`` another object and key; ``advice`` if that is unknown or cannot be patched."""
    if to is None or reference.rename is None or document.kind not in _PATCHED:
        return Fix(advice=advice)
    return Fix((patch_template(document, {"spec": reference.rename(*to)}),))


def _finding(
    document: Document,
    reference: _Reference,
    *,
    seen: str,
    expected: str,
    fix: Fix,
    severity: str = CRITICAL,
    effect: str = "the containers never start",
    relies_on: str = "",
) -> Finding:
    path = ".".join((*TEMPLATES[document.kind], reference.field))
    severity = WARNING if document.number("spec", "replicas") == 0 else severity
    return Finding("D26", severity, document.title, path, seen, expected, effect, fix, document.place, relies_on=relies_on)


def _references(template: Document, kind: str) -> Iterator[_Reference]:
    """All references of a pod template to objects of ``kind`` that are not optional."""
    part, whole = ("secretKeyRef", "secretRef") if kind == "Secret" else ("configMapKeyRef", "configMapRef")
    for path, container in containers_of(template):
        for variable in container.parts("env"):
            reference = variable.part("valueFrom", part)
            if reference.text("name") and not reference.flag("optional"):
                name = variable.text("name")
                rename = _rename_variable(path, container.text("name"), name, part)
                yield _Reference(f"{path}.env[{name}]", reference.text("name"), reference.text("key"), rename, name)
        for source in container.parts("envFrom"):
            reference = source.part(whole)
            if reference.text("name") and not reference.flag("optional"):
                yield _Reference(f"{path}.envFrom", reference.text("name"), "", None)
    for volume in template.parts("spec", "volumes"):
        own = volume.part("secret") if kind == "Secret" else volume.part("configMap")
        for source in (own, *(item.part(kind[0].lower() + kind[1:]) for item in volume.parts("projected", "sources"))):
            name = source.text("secretName") or source.text("name")
            if name and not source.flag("optional"):
                field = f"spec.volumes[{volume.text('name')}]"
                keys = [item.text("key") for item in source.parts("items")] or [""]
                yield from (_Reference(field, name, key, None, is_volume=True) for key in keys)


def _rename_variable(path: str, container: str, variable: str, part: str) -> _Rename:
    containers = "initContainers" if "initContainers" in path else "containers"

    def patch(name: str, key: str) -> dict[str, Any]:
        entry = {"name": variable, "valueFrom": {part: {"name": name, "key": key}}}
        return {containers: [{"name": container, "env": [entry]}]}

    return patch


def find_wrong_variables(evidence: Evidence) -> Iterable[Finding]:
    """D26: Secrets whose keys become variables with names that no library of a cloud reads."""
    secrets = {(item.namespace or "default", item.name): item for item in evidence.of("Secret")}
    for document, template in workloads(evidence):
        for path, container in containers_of(template):
            have = {variable.text("name") for variable in container.parts("env")}
            for source in container.parts("envFrom"):
                name, prefix = source.text("secretRef", "name"), source.text("prefix")
                secret = secrets.get((document.namespace or "default", name))
                if secret is None:
                    continue
                keys = [str(key) for field in ("data", "stringData") for key in secret.part(field).data]
                have |= {prefix + key for key in keys}
                beside = frozenset(keys)
                wrong = {key: _VARIABLES[credential] for key in keys if (credential := credential_of(key, beside)) in _VARIABLES}
                wrong = {key: variable for key, variable in wrong.items() if variable not in have and not key.startswith("ARM_")}
                if wrong:
                    yield _wrong_variables(document, path, container, name, wrong)


def _wrong_variables(document: Document, path: str, container: Document, secret: str, wrong: Mapping[str, str]) -> Finding:
    entries = [{"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}} for key, variable in wrong.items()]
    containers = "initContainers" if "initContainers" in path else "containers"
    patch = {"spec": {containers: [{"name": container.text("name"), "env": entries}]}}
    usable = document.kind in _PATCHED
    return Finding(
        "D26",
        WARNING,
        document.title,
        ".".join((*TEMPLATES[document.kind], path, "envFrom")),
        f"variables {', '.join(sorted(wrong))}",
        ", ".join(sorted(wrong.values())),
        "libraries of the cloud find no credentials",
        Fix((patch_template(document, patch),) if usable else (), "" if usable else "name the keys of the Secret like the variables"),
        document.place,
    )


CHECKS = (
    Check("D26", "Secrets that pods refer to", ("Secret",), _find_missing("Secret"), reads=WORKLOADS, on_files=True),
    Check("D26", "ConfigMaps that pods refer to", ("ConfigMap",), _find_missing("ConfigMap"), reads=WORKLOADS, on_files=True),
    Check("D26", "names of variables from Secrets", ("Secret",), find_wrong_variables, reads=WORKLOADS, on_files=True),
)
