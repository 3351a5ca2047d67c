"""Workload identity of pods on Azure: labels, annotations, federated credentials; and keys where an identity would do."""

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from gpuscaler.doctor.checks.azure.account import CLUSTER, az, azure_check
from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.commands import kubectl_annotate, kubectl_patch
from gpuscaler.doctor.documents import TEMPLATES, Document, containers_of, template_of
from gpuscaler.doctor.evidence import ACCOUNT, Evidence
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding, Fix, Unchecked

IDENTITY = "azure/Identity"
_CLIENT_ID, _USE = "azure.workload.identity/client-id", "azure.workload.identity/use"
_AUDIENCE = "api://AzureADTokenExchange"
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
#: The Deployment of the webhook that puts tokens into pods; AKS and its chart name it so.
_WEBHOOK: Final = "azure-wi-webhook-controller-manager"
_UNIDENTIFIED = "its pods get no token of the identity, so every call of Azure is refused"
#: Variables of Azure's SDKs, tools and examples that hold a secret.
_SECRETS: Final = frozenset(
    "AZURE_CLIENT_SECRET ARM_CLIENT_SECRET AZURE_STORAGE_KEY AZURE_STORAGE_ACCOUNT_KEY STORAGE_ACCOUNT_KEY AZURE_STORAGE_CONNECTION_STRING "
    "AZURE_STORAGE_ACCESS_KEY AZURE_STORAGE_SAS_TOKEN".split()
)


class Workload(NamedTuple):
    """Something that makes pods, and its pod template."""

    document: Document
    template: Document

    @property
    def account(self) -> tuple[str, str]:
        """(namespace, name) of its ServiceAccount."""
        return self.document.namespace, self.template.text("spec", "serviceAccountName") or "default"

    @property
    def uses_identity(self) -> bool:
        return self.template.labels.get(_USE) == "true"


def _workloads(evidence: Evidence) -> Iterator[Workload]:
    for document in evidence.of(*TEMPLATES):
        owners = document.parts("metadata", "ownerReferences")
        template = template_of(document)
        if template is not None and not any(owner.flag("controller") for owner in owners):
            yield Workload(document, template)


def find_labels(evidence: Evidence) -> Iterator[Finding]:
    """D28: pods without the label or the annotation that gives them a token."""
    accounts = {(account.namespace, account.name): account for account in evidence.of("ServiceAccount")}
    for account in accounts.values():
        client_id = account.annotations.get(_CLIENT_ID)
        if client_id is not None and not _UUID.fullmatch(client_id):
            mended = client_id.strip().strip("'\"").strip()
            yield Finding(
                "D28",
                CRITICAL,
                account.title,
                f"metadata.annotations[{_CLIENT_ID}]",
                repr(client_id[:60]),
                "the client id of an identity: 32 hexadecimal digits in five groups, nothing else",
                _UNIDENTIFIED,
                Fix((kubectl_annotate(account, _CLIENT_ID, mended),))
                if _UUID.fullmatch(mended)
                else Fix(advice="az identity show --name NAME --resource-group GROUP --query clientId prints it"),
            )
    for workload in _workloads(evidence):
        own = accounts.get(workload.account)
        if own is None:
            continue
        named = _CLIENT_ID in own.annotations
        if named and not workload.uses_identity:
            yield _unlabelled(workload)
        elif workload.uses_identity and not named and not _names_client(workload.template):
            yield Finding(
                "D28",
                WARNING,
                own.title,
                f"metadata.annotations[{_CLIENT_ID}]",
                f"no annotation, although pods with it have the label {_USE}",
                "the client id of the identity that its pods use",
                "AZURE_CLIENT_ID is not set in its pods: only programs that know their identity by themselves can sign in",
                Fix(advice=f"annotate it: `kubectl annotate serviceaccount {own.name} --namespace {own.namespace} {_CLIENT_ID}=ID`"),
            )


def _names_client(template: Document) -> bool:
    return any(env.text("name") == "AZURE_CLIENT_ID" for _, container in containers_of(template) for env in container.parts("env"))


def _unlabelled(workload: Workload) -> Finding:
    seen = workload.template.labels.get(_USE)
    path = "metadata" if workload.document.kind == "Pod" else "spec.template.metadata"
    patch: dict[str, object] = {"metadata": {"labels": {_USE: "true"}}}
    for name in reversed(TEMPLATES[workload.document.kind]):
        patch = {name: patch}
    return Finding(
        "D28",
        CRITICAL,
        workload.document.title,
        f"{path}.labels[{_USE}]",
        "no label" if seen is None else seen,
        "true, since its ServiceAccount names an identity",
        _UNIDENTIFIED,
        Fix(advice="add the label to its template, and create it again: the template of a Job and labels for a running Pod have no effect")
        if workload.document.kind in ("Job", "Pod")
        else Fix((kubectl_patch(workload.document, patch),)),
    )


def find_webhook(evidence: Evidence) -> Iterable[Finding]:
    """D28: clusters in which nothing puts tokens into pods."""
    if not any(workload.uses_identity for workload in _workloads(evidence)):
        return
    if any(deployment.name == _WEBHOOK for deployment in evidence.of("Deployment")):
        return
    for cluster in evidence.of(CLUSTER):
        issuer = cluster.flag("properties", "oidcIssuerProfile", "enabled")
        if issuer and cluster.flag("properties", "securityProfile", "workloadIdentity", "enabled"):
            continue
        place = ("--resource-group", cluster.text("ResourceGroup"), "--name", cluster.text("name"))
        command = az(
            "aks", "update", *place, "--enable-oidc-issuer", "--enable-workload-identity", subscription=cluster.text("Subscription")
        )
        yield Finding(
            "D28",
            CRITICAL,
            f"ManagedCluster {cluster.text('ResourceGroup')}/{cluster.text('name')}",
            "securityProfile.workloadIdentity.enabled" if issuer else "oidcIssuerProfile.enabled",
            "false",
            f"true, since there are pods with the label {_USE}",
            "nothing puts tokens of identities into pods, so every call of Azure is refused",
            Fix((command,)),
        )


def find_federation(evidence: Evidence) -> Iterator[Finding | Unchecked]:
    """D28: identities that do not accept the tokens of the ServiceAccounts that name them."""
    identities = {identity.text("properties", "clientId").lower(): identity for identity in evidence.of(IDENTITY)}
    issuers = [issuer for cluster in evidence.of(CLUSTER) if (issuer := cluster.text("properties", "oidcIssuerProfile", "issuerURL"))]
    # With several clusters it is not known which one this is.
    issuer = issuers[0] if len(issuers) == 1 else ""
    for account in evidence.of("ServiceAccount"):
        client_id = account.annotations.get(_CLIENT_ID, "").strip()
        identity = identities.get(client_id.lower())
        if not _UUID.fullmatch(client_id):
            continue
        if identity is None:
            if IDENTITY not in evidence.unread and evidence.of("azure/Settings"):
                reason = f"no managed identity with the client id {client_id} is in the subscriptions of the run file"
                yield Unchecked("D28", f"the federated credentials of {account.title}", f"{reason}; it may be an application")
            continue
        finding = _credential(account, identity, issuer)
        if finding is not None:
            yield finding


def _credential(account: Document, identity: Document, issuer: str) -> Finding | None:
    """What is wrong with the credential for a ServiceAccount."""
    subject = f"system:serviceaccount:{account.namespace}:{account.name}"
    credentials = identity.parts("Credentials")
    own = [item for item in credentials if item.text("properties", "subject") == subject]
    right = [item for item in own if not issuer or item.text("properties", "issuer") == issuer]
    parts = identity.text("id").split("/")
    place = ("--identity-name", identity.text("name"), "--resource-group", parts[4] if len(parts) > 4 else "")
    subscription = identity.text("Subscription")
    title = f"Identity {place[-1]}/{identity.text('name')}"
    if not own:
        subjects = ", ".join(item.text("properties", "subject") for item in credentials[:3])
        name = f"{account.namespace}-{account.name}"[:120]
        options = ("--name", name, *place, "--issuer", issuer or "ISSUER", "--subject", subject, "--audiences", _AUDIENCE)
        command = az("identity", "federated-credential", "create", *options, subscription=subscription)
        seen = f"credentials for {subjects}" if subjects else "no credential"
        return _refused(title, "subject", seen, subject, Fix((command,)) if issuer else Fix(advice=f"for the cluster's issuer: {command}"))
    update = ("identity", "federated-credential", "update", "--name", own[0].text("name"), *place)
    if not right:
        fix = Fix((az(*update, "--issuer", issuer, subscription=subscription),))
        return _refused(title, f"issuer of {own[0].text('name')}", own[0].text("properties", "issuer"), issuer, fix)
    audiences = right[0].texts("properties", "audiences")
    if audiences and _AUDIENCE not in audiences:
        fix = Fix((az(*update, "--audiences", _AUDIENCE, subscription=subscription),))
        return _refused(title, f"audiences of {right[0].text('name')}", ", ".join(audiences), _AUDIENCE, fix)
    return None


def _refused(title: str, field: str, seen: str, expected: str, fix: Fix) -> Finding:
    effect = "Entra refuses the token of the ServiceAccount, so every call of Azure fails (AADSTS70021 or AADSTS700213)"
    return Finding("D28", CRITICAL, title, field, seen, expected, effect, fix)


def find_keys(evidence: Evidence) -> Iterator[Finding]:
    """D27: secrets of Azure in variables of containers."""
    for workload in _workloads(evidence):
        for path, container in containers_of(workload.template):
            for env in container.parts("env"):
                plain = bool(env.text("value"))
                if env.text("name") in _SECRETS and (plain or env.has("valueFrom", "secretKeyRef")):
                    yield _key(workload, f"{path}.env[{env.text('name')}]", plain=plain)


def _key(workload: Workload, field: str, *, plain: bool) -> Finding:
    return Finding(
        "D27",
        WARNING,
        workload.document.title,
        field,
        "a value in the manifest" if plain else "a value from a Secret",
        "no key: a managed identity with a role, and a federated credential for the ServiceAccount",
        "everyone who may read the workload has the key"
        if plain
        else "the key must be kept and renewed, and all who may read the Secret have it",
        Fix(advice="give the ServiceAccount an identity (AKS: Use workload identity), remove the variable, and change the key"),
    )


def find_service_principal(evidence: Evidence) -> Iterable[Finding]:
    """D27: clusters that sign in with a secret of a service principal."""
    for cluster in evidence.of(CLUSTER):
        client_id = cluster.text("properties", "servicePrincipalProfile", "clientId")
        if client_id and client_id.lower() != "msi":
            place = ("--resource-group", cluster.text("ResourceGroup"), "--name", cluster.text("name"))
            yield Finding(
                "D27",
                WARNING,
                f"ManagedCluster {cluster.text('ResourceGroup')}/{cluster.text('name')}",
                "servicePrincipalProfile.clientId",
                f"the service principal {client_id}",
                "msi",
                "its secret expires, and then no machine can be bought, and no disk or address be made",
                Fix((az("aks", "update", *place, "--enable-managed-identity", "--yes", subscription=cluster.text("Subscription")),)),
            )


_PODS = ("Deployment", "StatefulSet", "Pod")
CHECKS = (
    Check("D27", "secrets of Azure in variables", _PODS, find_keys),
    azure_check("D27", "service principals of clusters", (), find_service_principal),
    Check("D28", "pods with an identity of Azure", ("ServiceAccount", *_PODS), find_labels),
    Check("D28", "the webhook of workload identity", (ACCOUNT, CLUSTER, *_PODS), find_webhook),
    azure_check("D28", "federated credentials of identities", (IDENTITY, "ServiceAccount"), find_federation),
)
