"""Calls about what surrounds machines: locks, autoscale settings, policies, identities. They are kept as they were put.

Only locks have an effect: a lock of a resource group refuses the writes in it (see :mod:`gpuscaler.embedded.azure.compute.guarding`).
"""

import re
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from gpuscaler.embedded.azure.compute.scale_sets import merged_json
from gpuscaler.embedded.azure.contents import Contents
from gpuscaler.embedded.azure.wire.errors import refusal
from gpuscaler.embedded.azure.wire.pages import page
from gpuscaler.embedded.azure.wire.requests import Call, Reply, Route
from gpuscaler.model.azure_names import fold_id

_LOCKS: Final = "Microsoft.Authorization/locks"
_KINDS: Final = (
    _LOCKS,
    "Microsoft.Insights/autoscalesettings",
    "Microsoft.Authorization/policyAssignments",
    "Microsoft.Authorization/policyDefinitions",
    "Microsoft.Authorization/policySetDefinitions",
    "Microsoft.Authorization/roleAssignments",
    "Microsoft.Authorization/roleDefinitions",
    "Microsoft.ManagedIdentity/userAssignedIdentities",
)
_ASSIGNED: Final = re.compile(r"assignedTo\('([^']*)'\)")
#: Kinds of which a resource group also shows what is assigned above it.
_INHERITED: Final = ("Microsoft.Authorization/policyAssignments",)


def put_document(account: Contents, ident: str, **fields: Any) -> None:
    """Keep a document with the id ``ident``, as if someone had put it."""
    account.documents[fold_id(ident)] = {"id": ident, "name": ident.rpartition("/")[2], **fields}
    _set_locks(account, ident)


def _listed(account: Contents, call: Call, kind: str) -> Iterator[dict[str, Any]]:
    """The documents of ``kind`` at the call's scope, and below it."""
    scope = fold_id(call.request.path.rpartition(f"/providers/{kind.partition('/')[0]}/")[0])
    marker = f"/providers/{fold_id(kind)}/"
    assigned = _ASSIGNED.fullmatch(call.query.get("$filter", ""))
    only_here = call.query.get("$filter") == "atScope()"
    for ident, document in account.documents.items():
        place, _, name = ident.rpartition(marker)
        if not name or "/" in name:
            continue
        below = place.startswith(f"{scope}/") and not only_here
        above = kind in _INHERITED and scope.startswith(f"{place}/")
        if (place == scope or below or above) and (not assigned or document["properties"].get("principalId") == assigned[1]):
            yield document


def _list(account: Contents, call: Call, *, kind: str) -> Reply:
    account.check_subscription(call.names["subscription"])
    if group := call.names.get("group"):
        account.group(call.names["subscription"], group)
    return page(call, list(_listed(account, call, kind)), account.conditions.page)


def _list_credentials(account: Contents, call: Call) -> Reply:
    prefix = fold_id(f"{call.request.path}/")
    return page(call, [document for ident, document in account.documents.items() if ident.startswith(prefix)], account.conditions.page)


def _get(account: Contents, call: Call) -> Reply:
    found = account.documents.get(fold_id(call.request.path))
    if found is None:
        raise refusal("ResourceNotFound", f"The resource '{call.request.path}' was not found.", status=404)
    return Reply(found)


def _put(account: Contents, call: Call) -> Reply:
    """A PUT replaces, a PATCH merges."""
    before = account.documents.get(fold_id(call.request.path), {}) if call.method == "PATCH" else {}
    fields = {key: value for key, value in merged_json(before, call.json()).items() if key not in ("id", "name")}
    put_document(account, call.request.path, **fields)
    return _get(account, call)


def _delete(account: Contents, call: Call) -> Reply:
    found = account.documents.pop(fold_id(call.request.path), None)
    _set_locks(account, call.request.path)
    return Reply(status=204 if found is None else 200)


def _set_locks(account: Contents, changed: str) -> None:
    """Groups are locked while a lock of them, or of their subscription, is there; other locks are shown only."""
    marker = f"/providers/{fold_id(_LOCKS)}/"
    if marker not in fold_id(changed):
        return
    places = {ident.rpartition(marker)[0] for ident in account.documents if marker in ident}
    for group in account.groups.values():
        group.locked = bool({fold_id(group.id), fold_id(group.id.partition("/resourceGroups/")[0])} & places)


_WHOLE: Final = "/subscriptions/{subscription}"
_GROUP: Final = f"{_WHOLE}/resourceGroups/{{group}}"
_RESOURCE: Final = f"{_GROUP}/providers/{{provider}}/{{type}}/{{resource}}"
_CREDENTIALS: Final = f"{_GROUP}/providers/Microsoft.ManagedIdentity/userAssignedIdentities/{{name}}/federatedIdentityCredentials"
_ACTS: Final = (("GET", _get), ("PUT", _put), ("PATCH", _put), ("DELETE", _delete))
ROUTES: Final = (
    *(Route("GET", f"{scope}/providers/{kind}", partial(_list, kind=kind), "read") for kind in _KINDS for scope in (_WHOLE, _GROUP)),
    *(
        Route(method, f"{scope}/providers/{kind}/{{name}}", act, "read" if method == "GET" else "write")
        for kind in _KINDS
        for scope in ("", _WHOLE, _GROUP, *((_RESOURCE,) if kind == _LOCKS else ()))
        for method, act in _ACTS
    ),
    Route("GET", _CREDENTIALS, _list_credentials, "read"),
    *(Route(method, f"{_CREDENTIALS}/{{credential}}", act, "read" if method == "GET" else "write") for method, act in _ACTS),
)
