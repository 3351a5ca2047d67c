"""Identities that clouds give to ServiceAccounts: roles of AWS, workload identity of Azure and Google."""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gpuscaler.doctor.checks.checking import WORKLOADS, Check
from gpuscaler.doctor.checks.identity.credentials import GUID, SECRETS, credential_of, is_guid
from gpuscaler.doctor.checks.identity.pod_identities import ASSOCIATION, CREDENTIALS_URI, associated, has_agent
from gpuscaler.doctor.checks.pods.owners import CHANGEABLE
from gpuscaler.doctor.checks.programs import NODE_AUTOSCALERS, Program, account_of, programs, workloads
from gpuscaler.doctor.checks.trusting import may_help, verify
from gpuscaler.doctor.commands import ObjectName, kubectl_annotate, patch_template, restart
from gpuscaler.doctor.documents import TEMPLATES, Document, containers_of
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, INFO, WARNING, Finding, Fix

_AWS_ROLE, _AZURE_CLIENT, _AZURE_TENANT = (
    "eks.amazonaws.com/role-arn",
    "azure.workload.identity/client-id",
    "azure.workload.identity/tenant-id",
)
_GOOGLE_ACCOUNT = "iam.gke.io/gcp-service-account"
_AZURE_USE = "azure.workload.identity/use"
_TOKEN_FILES = ("AWS_WEB_IDENTITY_TOKEN_FILE", "AZURE_FEDERATED_TOKEN_FILE")


class _Annotation(NamedTuple):
    pattern: re.Pattern[str]
    expected: str
    #: The cloud that reads it, and the words of keys that probably mean it.
    cloud: str
    start: str


_ANNOTATIONS: Mapping[str, _Annotation] = {
    _AWS_ROLE: _Annotation(
        re.compile(r"arn:aws(-[a-z]+)*:iam::\d{12}:role/[\w+=,.@/-]+"), "arn:aws:iam::ACCOUNT:role/NAME", "aws", "eks.amazonaws.com/"
    ),
    _AZURE_CLIENT: _Annotation(GUID, "the client ID of the identity, a GUID", "azure", "azure.workload.identity/"),
    _GOOGLE_ACCOUNT: _Annotation(
        re.compile(r"[a-z0-9-]+@[a-z0-9.:-]+\.iam\.gserviceaccount\.com"), "NAME@PROJECT.iam.gserviceaccount.com", "gcp", "iam.gke.io/"
    ),
}
#: Other keys of the same projects.
_OTHER_KEYS = (
    "eks.amazonaws.com/audience", "eks.amazonaws.com/token-expiration", "eks.amazonaws.com/sts-regional-endpoints",
    "azure.workload.identity/service-account-token-expiration", "iam.gke.io/return-principal-id-as-email", _AZURE_TENANT, _AZURE_USE,
)  # fmt: skip
#: The audiences of projected tokens, by the variable with the path of the token.
_AUDIENCES = {"AWS_WEB_IDENTITY_TOKEN_FILE": "sts.amazonaws.com", "AZURE_FEDERATED_TOKEN_FILE": "api://AzureADTokenExchange"}
_REFUSED = "the cloud refuses all requests: no machine is bought or removed"
_TRUST = "the trust of the role or identity in the cloud has to name system:serviceaccount:{}:{}"


def find_malformed_annotations(evidence: Evidence) -> Iterable[Finding]:
    """D28: annotations of ServiceAccounts that name no role or identity, or have a key that nothing reads."""
    for account in evidence.of("ServiceAccount"):
        annotations = account.annotations
        for key, value in annotations.items():
            known = _ANNOTATIONS.get(key)
            if known is not None and not known.pattern.fullmatch(value):
                bare = value.strip().strip("'\"").strip()
                commands = (kubectl_annotate(account, key, bare),) if known.pattern.fullmatch(bare) else ()
                advice = "" if commands else "set the value that the cloud shows"
                yield _annotation(account, key, seen=_short(value), expected=known.expected, commands=commands, advice=advice)
            elif key == _AZURE_TENANT and not is_guid(value):
                yield _annotation(
                    account, key, seen=_short(value), expected="the ID of the tenant, a GUID", advice="set the value that Azure shows"
                )
            elif key == "eks.amazonaws.com/audience" and not value.startswith("sts.amazonaws.com"):
                accepted = kubectl_annotate(account, key, "sts.amazonaws.com")
                yield _annotation(account, key, seen=_short(value), expected="sts.amazonaws.com", commands=(accepted,))
            elif key not in _OTHER_KEYS and (meant := _meant(key, value)) and meant not in annotations:
                renamed = (kubectl_annotate(account, meant, value), kubectl_annotate(account, key, None))
                yield _annotation(account, key, seen=f"the key {key}", expected=f"the key {meant}", commands=renamed)


def _meant(key: str, value: str) -> str:
    """The annotation that ``key``, which nothing reads, probably means."""
    for known, annotation in _ANNOTATIONS.items():
        if key != known and annotation.pattern.fullmatch(value) and (key.startswith(annotation.start) or key == known.split("/")[1]):
            return known
    return ""


def _short(value: str) -> str:
    return repr(value if len(value) <= 80 else f"{value[:77]}…")


def _annotation(account: Document, key: str, *, seen: str, expected: str, commands: tuple[str, ...] = (), advice: str = "") -> Finding:
    field = f"metadata.annotations[{key}]"
    return Finding("D28", CRITICAL, account.title, field, seen, expected, _REFUSED, Fix(commands, advice), account.place)


def find_unbound_workloads(evidence: Evidence) -> Iterable[Finding]:
    """D28: pods that run as another ServiceAccount than the one with the identity, or lack the label that asks for its token."""
    accounts = {(item.namespace or "default", item.name): item for item in evidence.of("ServiceAccount")}
    bound = {name: _identity(account) for name, account in accounts.items() if _identity(account)}
    known = {program.workload.key: program for program in programs(evidence) if program.name in NODE_AUTOSCALERS}
    everyone = tuple(workloads(evidence))
    by_association = associated(evidence)
    # An association that could not be read shows neither in the account nor, before its pods run, in the cluster.
    hidden = ASSOCIATION in evidence.unread and has_agent(evidence)
    in_use = {(document.namespace or "default", account_of(template)) for document, template in everyone}
    for document, template in everyone:
        program = known.get(document.key)
        name = (document.namespace or "default", account_of(template))
        misplaced = {key: value for key, value in (document.annotations | template.annotations).items() if key in _ANNOTATIONS}
        if name in by_association:
            continue
        if misplaced and name in accounts and not (misplaced.keys() & accounts[name].annotations.keys()):
            yield _misplaced(document, accounts[name], misplaced)
        elif name in bound:
            if _AZURE_CLIENT in bound[name] and template.labels.get(_AZURE_USE) != "true" and not _has_token(template):
                yield _unlabelled(document)
        elif template.labels.get(_AZURE_USE) == "true":
            if not _has_variable(template, "AZURE_CLIENT_ID"):
                yield _nameless(document, name)
        elif program is not None and not _has_keys(template) and not (hidden and program.cloud in ("", "aws")):
            yield from _of_another(program, name, bound, in_use, safe=may_help(evidence, name[0]))


def _identity(account: Document) -> dict[str, str]:
    return {key: value for key, value in account.annotations.items() if key in _ANNOTATIONS and value}


def _has_variable(template: Document, *names: str) -> bool:
    return any(variable.text("name") in names for _, container in containers_of(template) for variable in container.parts("env"))


def _has_token(template: Document) -> bool:
    return _has_variable(template, *_TOKEN_FILES)


def _has_keys(template: Document) -> bool:
    """Whether the pods have credentials of another kind."""
    return any(
        container.parts("envFrom") or any(credential_of(variable.text("name")) in SECRETS for variable in container.parts("env"))
        for _, container in containers_of(template)
    )


def _misplaced(document: Document, account: Document, annotations: Mapping[str, str]) -> Finding:
    return Finding(
        "D28",
        CRITICAL,
        document.title,
        "metadata.annotations",
        f"{', '.join(sorted(annotations))} on the workload",
        "on its ServiceAccount, where the cloud reads it",
        "the pods get no identity of the cloud",
        Fix(tuple(kubectl_annotate(account, key, value) for key, value in annotations.items()), "restart the pods"),
        document.place,
    )


def _unlabelled(document: Document) -> Finding:
    patch = {"metadata": {"labels": {_AZURE_USE: "true"}}}
    return Finding(
        "D28",
        CRITICAL,
        document.title,
        ".".join((*TEMPLATES[document.kind], "metadata", f"labels[{_AZURE_USE}]")),
        "no such label",
        "true, because its ServiceAccount has an identity",
        "the pods get no token of workload identity, and Azure refuses their requests",
        Fix((patch_template(document, patch),)) if document.kind in CHANGEABLE else Fix(advice="add the label and create it again"),
        document.place,
    )


def _nameless(document: Document, name: tuple[str, str]) -> Finding:
    return Finding(
        "D28",
        WARNING,
        f"ServiceAccount {name[0]}/{name[1]}",
        f"metadata.annotations[{_AZURE_CLIENT}]",
        "no such annotation",
        "the client ID of the identity, because pods ask for its token",
        "AZURE_CLIENT_ID is not set in its pods: only programs that know their identity by themselves can sign in",
        Fix(advice=f"annotate it; {_TRUST.format(*name)}"),
        document.place,
    )


def _of_another(
    program: Program,
    name: tuple[str, str],
    bound: Mapping[tuple[str, str], Mapping[str, str]],
    in_use: set[tuple[str, str]],
    *,
    safe: bool,
) -> Iterator[Finding]:
    """A ServiceAccount with an identity that no pod uses, of the same name in another namespace or of the program's name in this one."""
    same = next((other for other in bound if other[1] == name[1] != "default" and other not in in_use), None)
    if same is not None:
        account = ObjectName("ServiceAccount", *name)
        yield Finding(
            "D28",
            CRITICAL,
            account.title,
            "metadata.annotations",
            f"no identity of the cloud, while ServiceAccount {same[0]}/{same[1]} has one that no pod uses",
            f"the identity in namespace {name[0]}, where {program.name} runs",
            _REFUSED,
            Fix(tuple(kubectl_annotate(account, key, value) for key, value in bound[same].items()), _TRUST.format(*name))
            if safe
            else Fix(advice=f"{verify(program.name, name[0])}; then annotate its account, too; {_TRUST.format(*name)}"),
            program.workload.place,
        )
        return
    own = [other for other in bound if other[0] == name[0] and other not in in_use]
    if len(own) == 1 and program.workload.kind in CHANGEABLE:
        yield Finding(
            "D28",
            CRITICAL,
            program.workload.title,
            ".".join((*TEMPLATES[program.workload.kind], "spec", "serviceAccountName")),
            name[1],
            f"{own[0][1]}, which has an identity of the cloud and no pods",
            _REFUSED,
            Fix(
                (patch_template(program.workload, {"spec": {"serviceAccountName": own[0][1]}}),), "its rights have to be those of this one"
            ),
            program.workload.place,
        )


def find_pods_without_token(evidence: Evidence) -> Iterable[Finding]:
    """D28: running pods without the token of their ServiceAccount's identity: they are older than it, or nothing adds it here."""
    accounts = {(item.namespace, item.name): item.annotations for item in evidence.of("ServiceAccount")}
    seen: set[str] = set()
    for pod in evidence.of("Pod"):
        annotations = accounts.get((pod.namespace, account_of(pod)), {})
        wanted = "AWS_WEB_IDENTITY_TOKEN_FILE" if _AWS_ROLE in annotations else ""
        wanted = "AZURE_FEDERATED_TOKEN_FILE" if pod.labels.get(_AZURE_USE) == "true" else wanted
        if not wanted or pod.text("status", "phase") != "Running" or _has_variable(pod, wanted, CREDENTIALS_URI):
            continue
        owner = _owner(pod)
        if owner.title in seen:
            continue
        seen.add(owner.title)
        yield Finding(
            "D28",
            CRITICAL,
            owner.title,
            f"spec.containers[*].env[{wanted}]",
            "none in its running pods, although their ServiceAccount has an identity",
            "the path of a token, which a webhook of the cloud adds to new pods",
            "the pods act with the rights of their node, or with none",
            Fix(
                (restart(owner),) if owner.kind in CHANGEABLE else (),
                "if new pods lack it, too: the webhook is missing (amazon-eks-pod-identity-webhook, azure-workload-identity)",
            ),
            pod.place,
        )


def _owner(pod: Document) -> ObjectName:
    for owner in pod.parts("metadata", "ownerReferences"):
        if owner.flag("controller"):
            suffix = f"-{pod.labels.get('pod-template-hash', '')}"
            if owner.text("kind") == "ReplicaSet" and len(suffix) > 1 and owner.text("name").endswith(suffix):
                return ObjectName("Deployment", pod.namespace, owner.text("name").removesuffix(suffix))
            return ObjectName(owner.text("kind"), pod.namespace, owner.text("name"))
    return ObjectName("Pod", pod.namespace, pod.name)


def find_wrong_audiences(evidence: Evidence) -> Iterable[Finding]:
    """D28: tokens that a template projects itself, for another audience than the cloud accepts."""
    for document, template in workloads(evidence):
        variables = {
            variable.text("name"): variable.text("value")
            for _, container in containers_of(template)
            for variable in container.parts("env")
            if variable.text("name") in _AUDIENCES
        }
        for name, path in variables.items():
            for volume in template.parts("spec", "volumes"):
                for source in volume.parts("projected", "sources"):
                    token = source.part("serviceAccountToken")
                    if token.text("path") and path.endswith(f"/{token.text('path')}") and token.text("audience") != _AUDIENCES[name]:
                        yield Finding(
                            "D28",
                            CRITICAL,
                            document.title,
                            ".".join(
                                (*TEMPLATES[document.kind], "spec", f"volumes[{volume.text('name')}]", "serviceAccountToken.audience")
                            ),
                            token.text("audience") or "none, which is the API server",
                            _AUDIENCES[name],
                            "the cloud does not accept the token",
                            Fix(advice=f"set audience: {_AUDIENCES[name]}, or let the webhook of the cloud add the whole volume"),
                            document.place,
                        )


def find_node_identities(evidence: Evidence) -> Iterable[Finding]:
    """D28: autoscalers on EKS that have no identity of their own, so that they act as their node."""
    eks = any(label.startswith("eks.amazonaws.com/") for node in evidence.of("Node") for label in node.labels)
    accounts = {(item.namespace or "default", item.name): item for item in evidence.of("ServiceAccount")}
    if has_agent(evidence) or not eks or not accounts:
        return
    for program in programs(evidence):
        account = accounts.get((program.namespace, program.account))
        has = account is not None and _AWS_ROLE in account.annotations
        if program.name in NODE_AUTOSCALERS and program.cloud == "aws" and not has and not _has_keys(program.template):
            yield Finding(
                "D28",
                INFO,
                program.workload.title,
                "spec.template.spec.serviceAccountName",
                "a ServiceAccount without a role, in a cluster without the agent of Pod Identity",
                "a role of its own",
                "it acts with the rights of its node: all pods there may do what it may do, and with a hop limit of 1 it may do nothing",
                Fix(advice="install the add-on eks-pod-identity-agent and associate a role, or annotate the ServiceAccount (IRSA)"),
                program.workload.place,
            )


CHECKS = (
    Check("D28", "annotations of ServiceAccounts for clouds", ("ServiceAccount",), find_malformed_annotations),
    Check("D28", "identities of pods in the cloud", ("ServiceAccount",), find_unbound_workloads, reads=WORKLOADS),
    Check("D28", "tokens of running pods", ("ServiceAccount", "Pod"), find_pods_without_token),
    Check("D28", "audiences of projected tokens", (), find_wrong_audiences, reads=WORKLOADS),
    Check("D28", "autoscalers that act as their node", ("ServiceAccount", "Node", "DaemonSet"), find_node_identities),
)
