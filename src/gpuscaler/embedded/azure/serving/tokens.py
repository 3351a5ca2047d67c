"""Tokens: the identity platform's endpoint, the managed identity's endpoint of the Instance Metadata Service, and their check."""

import json
from base64 import urlsafe_b64decode
from typing import Any, Final
from urllib.parse import parse_qsl

from gpuscaler.embedded.azure.compute.views import iso
from gpuscaler.embedded.azure.contents import Contents
from gpuscaler.embedded.azure.wire.errors import bad_request, refusal
from gpuscaler.embedded.azure.wire.requests import Call, Reply, Request, Route

#: Seconds for which tokens are valid.
_LIFE: Final = 3599


def _token(account: Contents, call: Call) -> Reply:
    """The client credentials grant, with a secret or a federated token."""
    form = dict(parse_qsl(call.request.body.decode(errors="replace")))
    tenant = call.names["tenant"].lower()
    if tenant != account.tenant.lower():
        text = f"AADSTS90002: Tenant '{call.names['tenant']}' not found. Check to make sure you have the correct tenant ID."
        return _denied(account, "invalid_request", text, 90002, status=400)
    if form.get("grant_type") != "client_credentials" or not form.get("client_id"):
        text = "AADSTS900144: The request body must contain the following parameter: 'client_id'."
        return _denied(account, "invalid_request", text, 900144, status=400)
    if account.clients is not None and form["client_id"] not in account.clients:
        text = f"AADSTS700016: Application with identifier '{form['client_id']}' was not found in the directory '{account.tenant}'."
        return _denied(account, "unauthorized_client", text, 700016, status=400)
    if not form.get("scope", "").endswith("/.default"):
        text = f"AADSTS1002012: The provided value for scope {form.get('scope', '')} is not valid."
        return _denied(account, "invalid_scope", text, 1002012, status=400)
    assertion = form.get("client_assertion", "")
    if assertion and (expiry := _expiry(assertion)) is not None and expiry < account.time:
        text = (
            f"AADSTS700024: Client assertion is not within its valid time range. Current time: {iso(account.time)}, assertion valid until "
            f"{iso(expiry)}. Review the documentation at https://learn.microsoft.com/entra/identity-platform/certificate-credentials ."
        )
        return _denied(account, "invalid_client", text, 700024)
    if not assertion and (not form.get("client_secret") or form["client_secret"] in account.wrong_secrets):
        text = "AADSTS7000215: Invalid client secret provided. Ensure the secret being sent in the request is the client secret value."
        return _denied(account, "invalid_client", text, 7000215)
    return Reply({"token_type": "Bearer", "expires_in": _LIFE, "ext_expires_in": _LIFE, "access_token": issue(account)})


def issue(account: Contents) -> str:
    """A new token."""
    token = f"eyJ0eXAiOiJKV1QifQ.{account.number():08x}.simulated"
    account.tokens[token] = account.time + _LIFE
    return token


def _expiry(assertion: str) -> float | None:
    """The time ``exp`` in a federated token, None if it is unreadable."""
    parts = assertion.split(".")
    try:
        claims = json.loads(urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
        return float(claims["exp"])
    except (IndexError, ValueError, KeyError, TypeError):
        return None


def _denied(account: Contents, error: str, text: str, number: int, *, status: int = 401) -> Reply:
    ident = account.uuid()
    description = f"{text} Trace ID: {ident} Correlation ID: {ident} Timestamp: {iso(account.time)}"
    content: dict[str, Any] = {"error": error, "error_description": description, "error_codes": [number], "timestamp": iso(account.time)}
    return Reply({**content, "trace_id": ident, "correlation_id": ident}, status=status)


def _managed_identity(account: Contents, call: Call) -> Reply:
    if call.request.headers.get("metadata", "").lower() != "true":
        return Reply({"error": "invalid_request", "error_description": "Required metadata header not specified"}, status=400)
    if not call.query.get("resource"):
        raise bad_request("Required audience parameter not specified", code="invalid_request")
    wanted = call.query.get("client_id", "")
    if wanted and account.clients is not None and wanted not in account.clients:
        return Reply({"error": "invalid_request", "error_description": "Identity not found"}, status=400)
    reply = {"access_token": issue(account), "client_id": wanted, "expires_in": str(_LIFE), "expires_on": str(int(account.time) + _LIFE)}
    return Reply({**reply, "not_before": str(int(account.time)), "resource": call.query["resource"], "token_type": "Bearer"})


def check(account: Contents, request: Request) -> None:
    """Raise :class:`AzureError` if the caller's token is unknown or expired, if the account checks them."""
    if account.conditions.authorization == "any":
        return
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        text = "Authentication failed. The 'Authorization' header is missing."
        raise refusal("AuthenticationFailed", text, status=401, headers=_challenge(account))
    expiry = account.tokens.get(token)
    if expiry is None:
        raise refusal("InvalidAuthenticationToken", "The access token is invalid.", status=401, headers=_challenge(account))
    if expiry <= account.time:
        text = f"The access token expiry UTC time '{iso(expiry)}' is earlier than current UTC time '{iso(account.time)}'."
        raise refusal("ExpiredAuthenticationToken", text, status=401, headers=_challenge(account))


def _challenge(account: Contents) -> dict[str, str]:
    return {"www-authenticate": f'Bearer authorization_uri="https://login.microsoftonline.com/{account.tenant}", error="invalid_token"'}


ROUTES: Final = (
    Route("POST", "/{tenant}/oauth2/v2.0/token", _token, versioned=False),
    Route("GET", "/metadata/identity/oauth2/token", _managed_identity, versioned=False),
)
