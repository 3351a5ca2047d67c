"""Access tokens for Azure Resource Manager: workload identity, a client secret, or a managed identity.

Neither a token nor a secret is ever part of an error, a log entry or a representation. A token is kept until five minutes before it
expires; if a new one cannot be had then, the old one serves until its end.

https://learn.microsoft.com/entra/identity-platform/v2-oauth2-client-creds-grant-flow (third case: federated credential),
https://learn.microsoft.com/entra/identity/managed-identities-azure-resources/how-to-use-vm-token and, for the numbers of errors,
https://learn.microsoft.com/entra/identity-platform/reference-error-codes
"""

import asyncio
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote, quote_plus, urlencode, urlsplit

import msgspec

from gpuscaler.clouds.azure.api.errors import clean
from gpuscaler.clouds.azure.api.http import BrokenError, Http, HttpReply, UnsentError, is_loopback
from gpuscaler.clouds.azure.api.throttling import retry_after_of
from gpuscaler.clouds.protocol import THROTTLED, UNAUTHORISED, UNKNOWN, CloudError

#: Microsoft's public cloud.
ENDPOINT_URL, AUTHORITY_URL, METADATA_URL = (
    "https://management.azure.com",
    "https://login.microsoftonline.com",
    "http://169.254.169.254",
)
#: How long before its end a token is replaced, at most half of its life, and how long a failure is not repeated, in seconds.
EARLY_SECONDS, FAILURE_SECONDS = 300.0, 5.0
_LONGEST_ANSWER, _LONGEST_FILE = 256 * 2**10, 64 * 2**10
_ASSERTION_TYPE: Final = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
_WEBHOOK: Final = (
    'the workload identity webhook sets it in pods with the label azure.workload.identity/use: "true" whose ServiceAccount has the '
    "annotation azure.workload.identity/client-id"
)
_NUMBER: Final = re.compile(r"AADSTS(\d{4,8})")
_TOKEN: Final = re.compile(r"[\x21-\x7e]{1,65536}")
_TRACE: Final = re.compile(r"\s*(?:Trace ID|Correlation ID|Timestamp):.*", re.IGNORECASE | re.DOTALL)
#: What was expected and what to do, by the number of Microsoft Entra's error. ``{client}`` and ``{tenant}`` are those that were sent.
_REMEDIES: Final[dict[str, str]] = {
    "700016": "no application or identity {client} in tenant {tenant}; correct AZURE_CLIENT_ID or AZURE_TENANT_ID",
    "700024": "an expired token of the ServiceAccount, expected a current one; kubelet renews the file, so check this node's clock",
    "90002": "no tenant {tenant}; correct AZURE_TENANT_ID, or AZURE_AUTHORITY_HOST in a national cloud",
    "900023": "{tenant} where the id of a tenant is expected; correct AZURE_TENANT_ID",
    "7000215": "a wrong client secret of {client}, expected its value, not its id; correct AZURE_CLIENT_SECRET",
    "7000222": "an expired client secret of {client}; make a new one, or use workload identity, which needs none",
    "7000218": "no client secret or token for {client}; set AZURE_CLIENT_SECRET or AZURE_FEDERATED_TOKEN_FILE",
    "7000112": "a disabled application {client}; enable it in Microsoft Entra",
    "500011": "no service with the address of settings' azure.endpoint_url in tenant {tenant}; correct it",
    "53003": "a Conditional Access policy that blocks {client}; exclude this workload identity",
    "50027": "a file in AZURE_FEDERATED_TOKEN_FILE that holds no token of a ServiceAccount",
}
_FEDERATION: Final = (
    "no federated credential of {client} for this ServiceAccount ({what} differs), expected one with the OIDC issuer of the cluster, the "
    "subject system:serviceaccount:NAMESPACE:NAME and the audience api://AzureADTokenExchange; gpuscaler generate azure-role prints one"
)
_FEDERATION_ERRORS: Final = {
    "70021": "issuer, subject or audience",
    "700211": "the issuer",
    "700212": "the audience",
    "700213": "the subject",
    "7002131": "the subject",
}


class Credentials(Protocol):
    """Where access tokens come from."""

    async def token(self) -> str:
        """A valid access token. Raises CloudError, ``unauthorised`` if Microsoft Entra refuses one."""
        ...

    def reject(self, token: str) -> None:
        """Azure did not accept ``token``: the next one is a new one."""
        ...


class FixedToken:
    """One token that never changes, for a simulated account."""

    def __init__(self, token: str) -> None:
        self._token = token

    async def token(self) -> str:
        return self._token

    def reject(self, token: str) -> None:
        """Nothing: there is no other."""


class Exchange(Protocol):
    """Asks for a new token: the answer, and texts in it that may be quoted nowhere."""

    #: The name of this way in errors, the client (an identity's id) and the tenant.
    name: str
    client: str
    tenant: str

    async def __call__(self) -> tuple[HttpReply, tuple[str, ...]]: ...


class TokenSource:
    """Credentials that get tokens from ``exchange`` and keep them."""

    def __init__(self, exchange: Exchange, now: Callable[[], float]) -> None:
        self._exchange, self._now = exchange, now
        self._token, self._renew_at, self._ends_at = "", 0.0, 0.0
        self._failure: tuple[float, CloudError] | None = None
        self._lock = asyncio.Lock()

    async def token(self) -> str:
        if self._token and self._now() < self._renew_at:
            return self._token
        async with self._lock:
            now = self._now()
            if self._token and now < self._renew_at:
                return self._token
            if self._failure is None or not 0 <= now - self._failure[0] < FAILURE_SECONDS:
                self._failure = await self._renew()
            if self._failure is not None and not (self._token and now < self._ends_at):
                error = self._failure[1]
                raise CloudError(error.cause, error.detail, retry_after=error.retry_after)
            return self._token

    def reject(self, token: str) -> None:
        if token == self._token:
            self._token, self._failure = "", None

    async def _renew(self) -> tuple[float, CloudError] | None:
        """The failure, None if there is a new token."""
        at = self._now()
        try:
            reply, secrets = await self._exchange()
        except CloudError as error:
            return at, error
        fields = _decoded(reply.body)
        token = fields.get("access_token")
        if reply.status == 200 and isinstance(token, str) and _TOKEN.fullmatch(token):
            lifetime = _lifetime(fields, at)
            self._token, self._ends_at = token, at + lifetime
            self._renew_at = self._ends_at - min(EARLY_SECONDS, lifetime / 2)
            return None
        return at, _refusal(self._exchange, reply, fields, secrets, at)


class _Secret:
    """A value that no representation shows."""

    __slots__ = ("value",)

    def __init__(self, value: str) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "***"


class ClientExchange:
    """A token for an application or a user-assigned identity: by a ServiceAccount's token in a file, or by a client secret."""

    def __init__(self, http: Http, *, tenant: str, client: str, scope: str, authority: str, file: str = "", secret: str = "") -> None:
        self.name = "workload identity" if file else "the client secret"
        self.client, self.tenant = client, tenant
        self._http, self._scope, self._authority, self._file, self._secret = http, scope, authority, file, _Secret(secret)

    async def __call__(self) -> tuple[HttpReply, tuple[str, ...]]:
        fields = {"grant_type": "client_credentials", "client_id": self.client, "scope": self._scope}
        if self._file:
            # The file is read each time: kubelet replaces the token in it long before it expires.
            proof = await asyncio.to_thread(_read_token, self._file)
            fields |= {"client_assertion_type": _ASSERTION_TYPE, "client_assertion": proof}
        else:
            proof = self._secret.value
            fields["client_secret"] = proof
        url = f"{self._authority}/{quote(self.tenant, safe='')}/oauth2/v2.0/token"
        headers = {"content-type": "application/x-www-form-urlencoded"}
        return await _send(self._http, self.name, "POST", url, headers=headers, body=urlencode(fields).encode()), (proof,)


class MetadataExchange:
    """A token for the managed identity of this machine; ``client`` chooses one of several."""

    name = "the managed identity"

    def __init__(self, http: Http, *, resource: str, client: str = "", url: str = METADATA_URL) -> None:
        self.client, self.tenant = client, ""
        query = {"api-version": "2018-02-01", "resource": resource, **({"client_id": client} if client else {})}
        self._http, self._url = http, f"{url}/metadata/identity/oauth2/token?{urlencode(query)}"

    async def __call__(self) -> tuple[HttpReply, tuple[str, ...]]:
        return await _send(self._http, self.name, "GET", self._url, headers={"metadata": "true"}, direct=True), ()


class Unusable:
    """Credentials that are not complete: every call says what is missing."""

    def __init__(self, detail: str) -> None:
        self._detail = detail

    async def token(self) -> str:
        raise CloudError(UNAUTHORISED, self._detail)

    def reject(self, token: str) -> None:
        """Nothing: there is none."""


def credentials_from(environ: Mapping[str, str], http: Http, now: Callable[[], float], *, endpoint_url: str = ENDPOINT_URL) -> Credentials:
    """The credentials that ``environ`` describes, for Azure Resource Manager at ``endpoint_url``.

    With AZURE_FEDERATED_TOKEN_FILE it is workload identity, else with AZURE_CLIENT_SECRET that secret, else the managed identity, for which
    AZURE_CLIENT_ID may choose one. What is missing is said when a token is wanted.
    """
    resource = endpoint_url.rstrip("/")
    file, secret = environ.get("AZURE_FEDERATED_TOKEN_FILE", ""), environ.get("AZURE_CLIENT_SECRET", "")
    client, tenant = environ.get("AZURE_CLIENT_ID", "").strip(), environ.get("AZURE_TENANT_ID", "").strip()
    if not file and not secret:
        url = (environ.get("AZURE_POD_IDENTITY_AUTHORITY_HOST") or METADATA_URL).rstrip("/")
        return TokenSource(MetadataExchange(http, resource=f"{resource}/", client=client, url=url), now)
    variable = "AZURE_FEDERATED_TOKEN_FILE" if file else "AZURE_CLIENT_SECRET"
    for name, value in (("AZURE_CLIENT_ID", client), ("AZURE_TENANT_ID", tenant)):
        if not value:
            return Unusable(f"credentials of Azure: saw {variable} without {name}, expected both" + (f"; {_WEBHOOK}" if file else ""))
    authority = (environ.get("AZURE_AUTHORITY_HOST") or AUTHORITY_URL).rstrip("/")
    authority = authority if "://" in authority else f"https://{authority}"
    # Secrets go over a network without TLS only to a simulated account, whose endpoint says the same.
    if urlsplit(authority).scheme != "https" and not (is_loopback(authority) or urlsplit(endpoint_url).scheme == "http"):
        return Unusable(
            f"credentials of Azure: saw AZURE_AUTHORITY_HOST={clean(authority, 100)}, expected https://…; nothing was sent there"
        )
    exchange = ClientExchange(
        http, tenant=tenant, client=client, scope=f"{resource}/.default", authority=authority, file=file, secret=secret
    )
    return TokenSource(exchange, now)


def _read_token(file: str) -> str:
    """The ServiceAccount's token in a file."""
    try:
        with Path(file).open("rb") as opened:
            content = opened.read(_LONGEST_FILE + 1)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise CloudError(UNAUTHORISED, f"workload identity: cannot read AZURE_FEDERATED_TOKEN_FILE={file} ({reason}); {_WEBHOOK}") from None
    token = content.decode("ascii", "replace").strip()
    if not _TOKEN.fullmatch(token):
        raise CloudError(
            UNAUTHORISED, f"workload identity: saw no token in AZURE_FEDERATED_TOKEN_FILE={file}, expected one line; {_WEBHOOK}"
        )
    return token


async def _send(
    http: Http, name: str, method: str, url: str, *, headers: Mapping[str, str], body: bytes = b"", direct: bool = False
) -> HttpReply:
    try:
        return await http.request(method, url, headers=headers, body=body, longest=_LONGEST_ANSWER, direct=direct)
    except (UnsentError, BrokenError) as error:
        raise CloudError(UNKNOWN, f"{name} of Azure: {error}{_METADATA_HINT if direct else ''}") from None


_METADATA_HINT: Final = (
    "; expected the metadata service of an Azure VM, since neither AZURE_FEDERATED_TOKEN_FILE nor AZURE_CLIENT_SECRET is set"
)


def _decoded(body: bytes) -> Mapping[str, Any]:
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}


def _lifetime(fields: Mapping[str, Any], now: float) -> float:
    """For how many seconds a token is valid, at most a day: in ``expires_in`` or, as a time, in ``expires_on``; numbers may be texts."""
    for name, offset in (("expires_in", 0.0), ("expires_on", now)):
        text = str(fields.get(name, ""))
        if re.fullmatch(r"\d{1,12}(\.\d+)?", text, re.ASCII):
            return min(max(0.0, float(text) - offset), 86_400.0)
    return EARLY_SECONDS


def _refusal(exchange: Exchange, reply: HttpReply, fields: Mapping[str, Any], secrets: tuple[str, ...], now: float) -> CloudError:
    text = " ".join(str(fields.get(key) or "") for key in ("error", "error_description"))
    for secret in filter(None, secrets):
        text = text.replace(secret, "***").replace(quote(secret, safe=""), "***").replace(quote_plus(secret), "***")
    if reply.status == 200:
        return CloudError(
            UNKNOWN, f"{exchange.name} of Azure: saw an answer without a token, expected access_token; is a proxy in between?"
        )
    seen = clean(_TRACE.sub("", text)) or "no reason"
    wait = retry_after_of(reply.headers, now)
    if reply.status == 429:
        return CloudError(THROTTLED, f"{exchange.name} of Azure: too many requests for tokens: {seen}", retry_after=wait)
    if reply.status >= 500:
        return CloudError(UNKNOWN, f"{exchange.name} of Azure: answered {reply.status}: {seen}", retry_after=wait)
    number = next(iter(_NUMBER.findall(text)), "")
    remedy = _REMEDIES.get(number, "")
    if number in _FEDERATION_ERRORS:
        remedy = _FEDERATION.replace("{what}", _FEDERATION_ERRORS[number])
    if not remedy and not exchange.tenant and "identity" in text.lower():
        remedy = "no such identity on this machine; assign it to the VM or its scale set, or correct AZURE_CLIENT_ID"
    if not remedy and not exchange.tenant:
        remedy = (
            f"answer {reply.status} of this machine's metadata service, asked because neither AZURE_FEDERATED_TOKEN_FILE nor "
            "AZURE_CLIENT_SECRET is set, expected a token; set up workload identity, or assign an identity to the machine"
        )
    remedy = remedy.replace("{client}", clean(exchange.client, 80)).replace("{tenant}", clean(exchange.tenant, 80))
    prefix = f"{exchange.name} of Azure: "
    return CloudError(
        UNAUTHORISED, f"{prefix}saw {remedy} ({seen})" if remedy else f"{prefix}answered {reply.status}: {seen}", retry_after=wait
    )
