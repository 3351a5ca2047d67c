"""What a caller may not do: write in locked resource groups, write with an old ETag."""

from gpuscaler.embedded.azure.contents import Contents
from gpuscaler.embedded.azure.state import ResourceGroup
from gpuscaler.embedded.azure.wire.errors import AzureError, refusal
from gpuscaler.embedded.azure.wire.requests import Call

_CLIENT = "gpuscaler"
_OBJECT = "00000000-0000-0000-0000-0000000000aa"


def check_lock(account: Contents, group: ResourceGroup, action: str, scope: str) -> None:
    """Raise :class:`AzureError` if callers may not do ``action`` in ``group``."""
    if group.locked:
        raise _locked(group, scope)
    if not group.read_only_for_users:
        return
    code = account.conditions.lockdown
    if code == "ScopeLocked":
        raise _locked(group, scope)
    client = f"The client '{_CLIENT}' with object id '{_OBJECT}'"
    if code == "AuthorizationFailed":
        text = f"{client} does not have authorization to perform action '{action}' over scope '{scope}' or the scope is invalid."
        raise refusal(code, f"{text} If access was recently granted, please refresh your credentials.", status=403)
    text = f"{client} has permission to perform action '{action}' on scope '{scope}'; however, the access is denied because of the deny"
    raise refusal(code, f"{text} assignment with name 'Deny assignment for AKS node resource group {group.name}'.", status=403)


def _locked(group: ResourceGroup, scope: str) -> AzureError:
    text = f"The scope '{scope}' cannot perform write operation because following scope(s) are locked: '{group.id}'."
    return refusal("ScopeLocked", f"{text} Please remove the lock and try again.", status=409)


def check_etag(call: Call, etag: str, *, exists: bool = True) -> None:
    """Raise :class:`AzureError` (412) if the call's ``If-Match`` is not ``etag``, or it has ``If-None-Match: *`` and it exists."""
    wanted = call.if_match
    if wanted and (not exists or (wanted != "*" and wanted.strip('"') != etag.strip('"'))):
        text = f"The Etag provided in if-match header {wanted} does not match etag {etag if exists else 'null'} of resource."
        raise refusal("PreconditionFailed", text, status=412)
    if exists and call.request.headers.get("if-none-match", "").strip() == "*":
        raise refusal("PreconditionFailed", f"The resource exists with etag {etag}.", status=412)
