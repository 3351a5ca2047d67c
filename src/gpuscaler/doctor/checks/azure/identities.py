"""Workload identity on the side of Azure: the webhook, federated credentials, service principals. The cluster's side is in ``identity``."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from gpuscaler.doctor.checks.azure.account import CLUSTER, az, azure_check
from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.checks.trusting import may_help, verify
from gpuscaler.doctor.documents import TEMPLATES, Document, template_of
from gpuscaler.doctor.evidence import ACCOUNT, Evidence
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding, Fix, Unchecked

IDENTITY = "azure/Identity"
_CLIENT_ID, _USE = "azure.workload.identity/client-id", "azure.workload.identity/use"
_AUDIENCE = "api://AzureADTokenExchange"
_UUID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
#: The Deployment of the webhook that puts tokens into pods; AKS and its chart name it so.
_WEBHOOK: Final = "azure-wi-webhook-controller-manager"


def _uses_identity(document: Document) -> bool:
    template = template_of(document)
    return template is not None and template.labels.get(_USE) == "true"


def find_webhook(evidence: Evidence) -> Iterable[Finding]:
    """D28: clusters in which nothing puts tokens into pods."""
    if not any(_uses_identity(document) for document in evidence.of(*TEMPLATES)):
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
        # Who may write there can name any identity in an annotation; only the credential makes it theirs.
        finding = _credential(account, identity, issuer, safe=may_help(evidence, account.namespace or "default"))
        if finding is not None:
            yield finding


def _credential(account: Document, identity: Document, issuer: str, *, safe: bool) -> Finding | None:
    """What is wrong with the credential for a ServiceAccount."""
    subject = f"system:serviceaccount:{account.namespace}:{account.name}"
    credentials = identity.parts("Credentials")
    own = [item for item in credentials if item.text("properties", "subject") == subject]
    right = [item for item in own if not issuer or item.text("properties", "issuer") == issuer]
    parts = identity.text("id").split("/")
    place = ("--identity-name", identity.text("name"), "--resource-group", parts[4] if len(parts) > 4 else "")
    subscription = identity.text("Subscription")
    title = f"Identity {place[-1]}/{identity.text('name')}"

    def accepted(command: str) -> Fix:
        if safe:
            return Fix((command,))
        return Fix(
            advice=f"{verify(f'ServiceAccount {account.name}', account.namespace)}; then correct the identity's federated credential"
        )

    if not own:
        subjects = ", ".join(item.text("properties", "subject") for item in credentials[:3])
        name = f"{account.namespace}-{account.name}"[:120]
        options = ("--name", name, *place, "--issuer", issuer or "ISSUER", "--subject", subject, "--audiences", _AUDIENCE)
        command = az("identity", "federated-credential", "create", *options, subscription=subscription)
        seen = f"credentials for {subjects}" if subjects else "no credential"
        fix = accepted(command) if issuer or not safe else Fix(advice=f"for the cluster's issuer: {command}")
        return _refused(title, "subject", seen, subject, fix)
    update = ("identity", "federated-credential", "update", "--name", own[0].text("name"), *place)
    if not right:
        fix = accepted(az(*update, "--issuer", issuer, subscription=subscription))
        return _refused(title, f"issuer of {own[0].text('name')}", own[0].text("properties", "issuer"), issuer, fix)
    audiences = right[0].texts("properties", "audiences")
    if audiences and _AUDIENCE not in audiences:
        fix = accepted(az(*update, "--audiences", _AUDIENCE, subscription=subscription))
        return _refused(title, f"audiences of {right[0].text('name')}", ", ".join(audiences), _AUDIENCE, fix)
    return None


def _refused(title: str, field: str, seen: str, expected: str, fix: Fix) -> Finding:
    effect = "Entra refuses the token of the ServiceAccount, so every call of Azure fails (AADSTS70021 or AADSTS700213)"
    return Finding("D28", CRITICAL, title, field, seen, expected, effect, fix)


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
    azure_check("D27", "service principals of clusters", (), find_service_principal),
    Check("D28", "the webhook of workload identity", (ACCOUNT, CLUSTER, *_PODS), find_webhook),
    azure_check("D28", "federated credentials of identities", (IDENTITY, "ServiceAccount"), find_federation),
)
