"""The roles that EKS Pod Identity gives to ServiceAccounts, and whom gpuscaler's own role trusts."""

from collections.abc import Iterable, Mapping
from typing import Any

from gpuscaler.clouds.aws.inspecting.inspection import Inspection

ASSOCIATION = "aws/PodIdentityAssociation"
#: A ServiceAccount: its namespace and name.
Account = tuple[str, str]


def read_pod_identities(cluster: str, regions: Iterable[str], accounts: Iterable[Account], inspection: Inspection) -> str:
    """Read the associations of the EKS cluster ``cluster``; returns the role of the first of ``accounts`` that has one, else "".

    An association of one of ``accounts`` has a ``roleArn``, and ``Trust``, the role's trust policy; ``Unread`` says why it has none. A
    cluster that EKS does not have has no associations.
    """
    found: list[dict[str, Any]] = []
    for region in regions if cluster else ():
        part = Inspection(inspection.calls)
        entries = part.pages(
            ASSOCIATION, "eks", region, "ListPodIdentityAssociations", "associations", more="nextToken", clusterName=cluster
        )
        if entries is None and "ResourceNotFoundException" in part.unread[ASSOCIATION]:
            continue
        inspection.merge(part)
        found += [{**entry, "Region": region} for entry in entries or ()]
        if entries is not None:
            break
    wanted = tuple(accounts)
    described = [_described(entry, inspection) if _account(entry) in wanted else entry for entry in found]
    inspection.add(ASSOCIATION, described)
    roles = {_account(entry): entry.get("targetRoleArn") or entry.get("roleArn") for entry in described}
    return next((str(roles[account]) for account in wanted if roles.get(account)), "")


def _account(entry: Mapping[str, Any]) -> Account:
    return str(entry.get("namespace")), str(entry.get("serviceAccount"))


def _described(entry: dict[str, Any], inspection: Inspection) -> dict[str, Any]:
    """``entry`` with the role and its trust policy."""
    region, part = entry["Region"], Inspection(inspection.calls)
    ask = {"clusterName": entry.get("clusterName"), "associationId": entry.get("associationId")}
    reply = inspection.read(ASSOCIATION, "eks", region, "DescribePodIdentityAssociation", **ask)
    described = {**entry, **((reply or {}).get("association") or {})}
    if role := str(described.get("roleArn") or ""):
        trust = part.read(ASSOCIATION, "iam", region, "GetRole", RoleName=role.rpartition("/")[2])
        described["Trust"] = ((trust or {}).get("Role") or {}).get("AssumeRolePolicyDocument")
    return described | ({"Unread": part.unread[ASSOCIATION]} if ASSOCIATION in part.unread else {})
