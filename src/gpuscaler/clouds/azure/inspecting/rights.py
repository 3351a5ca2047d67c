"""What Azure's roles allow the identity that gpuscaler runs as, at each scope where it needs something."""

import asyncio
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from gpuscaler.clouds.azure.api.arm import Arm
from gpuscaler.clouds.azure.api.ids import cluster_path, group_path
from gpuscaler.clouds.azure.api.rights import CLUSTER, NODES, RIGHTS, SUBSCRIPTION
from gpuscaler.clouds.azure.inspecting.inspection import RIGHT, Inspection, entries_of
from gpuscaler.model.azure_names import fold_id

_VERSION: Final = "2022-04-01"
_ABOVE: Final = "/providers/microsoft.management/managementgroups/"

Json = Mapping[str, Any]


def scopes_of(subscription: str, groups: Iterable[str], cluster_group: str, cluster: str) -> Iterator[tuple[str, str]]:
    """(where in the sense of a right, scope): resource groups with machines, the AKS cluster, the subscription."""
    for group in groups:
        yield NODES, group_path(subscription, group)
    if cluster:
        yield CLUSTER, cluster_path(subscription, cluster_group, cluster)
    yield SUBSCRIPTION, f"/subscriptions/{subscription}"


async def read_rights(arm: Arm, subscription: str, scopes: Sequence[tuple[str, str]], identity: Json, inspection: Inspection) -> None:
    """Read whether ``identity`` may do what gpuscaler needs at ``scopes``; each right at each scope is a document.

    ``Role`` is the definition of a role of the user's own that is assigned right there, to which what is missing can be added: one that is
    assigned above would open more. Assignments to groups that the identity is a member of count, too; deny assignments are not looked at.
    """
    principal = str(_object(identity.get("properties")).get("principalId") or "")
    path = f"/subscriptions/{subscription}/providers/Microsoft.Authorization/roleAssignments"
    parameters = {"$filter": f"assignedTo('{principal}')"}
    where = f"subscription {subscription}"
    listed = await inspection.ask(RIGHT, where, arm.pages(path, version=_VERSION, parameters=parameters))
    if listed is None:
        return
    assigned = [_object(assignment.get("properties")) for assignment in entries_of(listed)]
    idents = list(dict.fromkeys(ident for item in assigned if isinstance(ident := item.get("roleDefinitionId"), str)))
    replies = await asyncio.gather(*(inspection.ask(RIGHT, ident, arm.read(ident, version=_VERSION)) for ident in idents))
    if None in replies:
        # What an unknown role allows is unknown, and so is what is missing.
        return
    roles = {
        ident: _object(_object(reply.body).get("properties")) for ident, reply in zip(idents, replies, strict=True) if reply is not None
    }
    for kind, scope in scopes:
        there = [roles[str(item["roleDefinitionId"])] for item in assigned if _covers(item.get("scope"), scope)]
        here = [roles[str(item["roleDefinitionId"])] for item in assigned if fold_id(str(item.get("scope"))) == fold_id(scope)]
        own = next((role for role in here if role.get("type") == "CustomRole"), None)
        for right in RIGHTS:
            if kind in right.scopes:
                entry = {"Action": right.action, "Purpose": right.purpose, "Where": kind, "Scope": scope}
                allowed = any(_allows(role, right.action) for role in there)
                inspection.add(RIGHT, [entry], Allowed=allowed, Changes=right.changes, Identity=identity.get("name"), Role=own)


def _covers(given: Any, scope: str) -> bool:
    """Whether an assignment at ``given`` applies at ``scope``. Those of management groups are listed only where they do."""
    text = fold_id(given) if isinstance(given, str) else "-"
    return text in ("", "/") or text.startswith(_ABOVE) or f"{fold_id(scope)}/".startswith(f"{text.rstrip('/')}/")


def _allows(role: Json, action: str) -> bool:
    for permission in entries_of(role.get("permissions")):
        if _matches(permission.get("actions"), action) and not _matches(permission.get("notActions"), action):
            return True
    return False


def _matches(patterns: Any, action: str) -> bool:
    texts = (text for text in patterns if isinstance(text, str)) if isinstance(patterns, list) else ()
    return any(re.fullmatch(re.escape(text.lower()).replace(r"\*", ".*"), action.lower()) for text in texts)


def _object(value: Any) -> Json:
    return value if isinstance(value, Mapping) else {}
