"""The access to one API server: address, proxy, trusted authorities and credentials, found where kubectl finds them."""

import base64
import binascii
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import SplitResult, quote, urlsplit

from gpuscaler.kube import kubeconfig, proxies
from gpuscaler.kube.credentials import Credentials, FixedCredentials, RequestCredentials, TokenFile, basic_header, bearer_header
from gpuscaler.kube.errors import AccessError
from gpuscaler.kube.exec_plugin import GROUP, ExecPlugin, PluginCommand
from gpuscaler.kube.kubeconfig import Entry, SelectedContext, WireCluster, WireExec, WireUser
from gpuscaler.kube.tls import Tls

#: What to use instead of a kind of credentials that Kubernetes 1.26 removed.
_REPLACEMENTS = MappingProxyType(
    {
        "gcp": "install gke-gcloud-auth-plugin and run `gcloud container clusters get-credentials`",
        "azure": "install kubelogin and run `kubelogin convert-kubeconfig`",
        "oidc": "use an exec plugin such as kubectl-oidc_login",
    }
)


@dataclass(frozen=True, slots=True)
class Access:
    """Everything that a transport needs; it reads nothing else. ``source`` names the origin of these settings in messages.

    ``server`` is a URL that may have a path, ``proxy`` a URL or empty, and ``namespace`` that of the context or pod. ``warnings`` are for
    users. ``compress`` asks for gzipped answers, which pays off for a distant server. ``in_pod`` means that this is a pod's own access.
    """

    server: str
    source: str
    tls: Tls = field(default_factory=Tls)
    credentials: Credentials = field(default_factory=FixedCredentials)
    namespace: str = "default"
    proxy: str = field(default="", repr=False)
    headers: tuple[tuple[str, str], ...] = ()
    compress: bool = False
    warnings: tuple[str, ...] = ()
    in_pod: bool = False


def from_kubeconfig(
    files: Sequence[Path],
    *,
    context: str = "",
    environ: Mapping[str, str],
    attended: bool = False,
    now: Callable[[], float] = time.time,
) -> Access:
    """The access that one context of the merged files describes: the one named ``context``, else the current one.

    ``environ`` supplies proxies and the environment of exec plugins; ``attended`` means that a user is at a terminal and a plugin may ask
    them. Files are read here once, so that mistakes show immediately. Raises :class:`AccessError`, which names the object, and never a
    secret.
    """
    chosen = kubeconfig.read_kubeconfig(files).choose(context)
    cluster, user = chosen.cluster, chosen.user
    server = _server(cluster, chosen)
    secure = server.scheme == "https"
    tls = _tls(cluster, user)
    if secure:
        tls.context()
    warnings = []
    if tls.insecure and secure:
        warnings.append(f"{cluster}: insecure-skip-tls-verify is set: anyone between us and the server can read and change everything")
    if user and user.value != WireUser() and not secure:
        # kubectl does the same: anyone on the network path could read the credentials.
        warnings.append(f"{cluster}: the server {server.geturl()} has no TLS, so the credentials of {user} are not sent")
    url = cluster.value.proxy_url
    return Access(
        server=server.geturl().rstrip("/"),
        source=str(chosen.context),
        tls=tls,
        credentials=_credentials(chosen, tls, environ=environ, attended=attended, now=now) if user and secure else FixedCredentials(),
        namespace=chosen.context.value.namespace or "default",
        proxy=proxies.checked_proxy(url, f"{cluster}: proxy-url") if url else proxies.proxy_of(server, environ),
        headers=_impersonation(user) if user and secure else (),
        compress=not cluster.value.disable_compression,
        warnings=tuple(warnings),
    )


def _server(cluster: Entry[WireCluster], chosen: SelectedContext) -> SplitResult:
    text = (cluster.value.server or "").strip()
    if not text:
        raise AccessError(f"{cluster}: saw no server, expected a URL such as https://HOST:6443; add it")
    if "://" not in text:
        # As in client-go: a bare host is reached over TLS only if other settings imply TLS.
        user = chosen.user.value if chosen.user else WireUser()
        has_tls_settings = (
            cluster.value.certificate_authority or cluster.value.certificate_authority_data or cluster.value.insecure_skip_tls_verify
        )
        has_certificate = user.client_certificate or user.client_certificate_data
        text = f"{'https' if has_tls_settings or has_certificate else 'http'}://{text}"
    try:
        parts = urlsplit(text)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0 and not parts.query
    except ValueError:
        usable = False
    if not usable or "@" in parts.netloc:
        raise AccessError(f"{cluster}: saw a server that is not a server URL, expected https://HOST:PORT; correct it")
    return parts


def _tls(cluster: Entry[WireCluster], user: Entry[WireUser] | None) -> Tls:
    settings = cluster.value
    user_settings = user.value if user else WireUser()
    insecure = bool(settings.insecure_skip_tls_verify)
    if insecure and (settings.certificate_authority or settings.certificate_authority_data):
        raise AccessError(
            f"{cluster}: saw insecure-skip-tls-verify together with a certificate-authority, expected one of the two; "
            "remove insecure-skip-tls-verify"
        )
    return Tls(
        owner=str(cluster),
        user=str(user),
        authority=_decode_pem(settings.certificate_authority_data, cluster, "certificate-authority-data"),
        authority_file=cluster.path(settings.certificate_authority),
        certificate=_decode_pem(user_settings.client_certificate_data, user, "client-certificate-data"),
        certificate_file=user.path(user_settings.client_certificate) if user else None,
        key=_decode_pem(user_settings.client_key_data, user, "client-key-data"),
        key_file=user.path(user_settings.client_key) if user else None,
        server_name=settings.tls_server_name or "",
        insecure=insecure,
    )


def _decode_pem(text: str | None, entry: object, setting: str) -> bytes:
    try:
        return base64.b64decode("".join((text or "").split()), validate=True)
    except (binascii.Error, ValueError):
        raise AccessError(
            f"{entry}: {setting}: saw something that is not base64, expected PEM in base64; get a new kubeconfig from the cluster"
        ) from None


def _credentials(chosen: SelectedContext, tls: Tls, *, environ: Mapping[str, str], attended: bool, now: Callable[[], float]) -> Credentials:
    """How the user authenticates, besides a client certificate. A token file wins over a token, and both over an exec plugin."""
    user = chosen.user
    assert user is not None
    user_settings = user.value
    if user_settings.auth_provider is not None:
        name = user_settings.auth_provider.name or ""
        replacement = _REPLACEMENTS.get(name, "use an exec plugin")
        raise AccessError(
            f"{user}: saw the auth-provider {name!r}, which Kubernetes removed in 1.26, "
            f"expected a token, a certificate or an exec plugin; {replacement}"
        )
    token_file = user.path(user_settings.token_file)
    if (user_settings.token or token_file) and (user_settings.username or user_settings.password):
        raise AccessError(f"{user}: saw a token and a username, expected one of the two; remove one")
    if token_file:
        return TokenFile(token_file, str(user))
    if user_settings.token:
        return FixedCredentials(RequestCredentials({"authorization": bearer_header(user_settings.token, str(user))}))
    if user_settings.username or user_settings.password:
        return FixedCredentials(
            RequestCredentials({"authorization": basic_header(user_settings.username or "", user_settings.password or "")})
        )
    if user_settings.exec is None:
        return FixedCredentials()
    return ExecPlugin(_exec_command(user_settings.exec, chosen, tls, attended=attended), environ, now)


def _exec_command(settings: WireExec, chosen: SelectedContext, tls: Tls, *, attended: bool) -> PluginCommand:
    user = chosen.user
    assert user is not None
    if settings.api_version == f"{GROUP}/v1" and not settings.interactive_mode:
        raise AccessError(f"{user}: exec: saw no interactiveMode, which {GROUP}/v1 needs, expected Never, IfAvailable or Always; add it")
    return PluginCommand(
        owner=str(user),
        api_version=settings.api_version or "",
        command=settings.command or "",
        folder=user.file.parent,
        args=tuple(settings.args or ()),
        env={variable.name: variable.value for variable in settings.env or ()},
        mode=settings.interactive_mode or "IfAvailable",
        attended=attended,
        hint=settings.install_hint or "",
        cluster=_cluster_info(chosen.cluster.value, tls) if settings.provide_cluster_info else None,
    )


def _cluster_info(cluster: WireCluster, tls: Tls) -> dict[str, Any]:
    """The cluster information for a plugin: ``spec.cluster`` of ExecCredential."""
    configs = [extension.extension for extension in cluster.extensions or () if extension.name == f"{GROUP}/exec"]
    info = {
        "server": cluster.server,
        "tls-server-name": tls.server_name,
        "insecure-skip-tls-verify": tls.insecure,
        "certificate-authority-data": base64.b64encode(tls.authorities()).decode(),
        "proxy-url": cluster.proxy_url,
        "disable-compression": cluster.disable_compression,
        "config": configs[0] if configs else None,
    }
    return {key: value for key, value in info.items() if value}


def _impersonation(user: Entry[WireUser]) -> tuple[tuple[str, str], ...]:
    user_settings = user.value
    candidates = [("impersonate-user", user_settings.as_user), ("impersonate-uid", user_settings.as_uid)]
    candidates += [("impersonate-group", group) for group in user_settings.as_groups or ()]
    for key, values in (user_settings.as_user_extra or {}).items():
        candidates += [(f"impersonate-extra-{quote(key.lower(), safe='')}", value) for value in values]
    headers = tuple((name, value) for name, value in candidates if value)
    if headers and not user_settings.as_user:
        raise AccessError(f"{user}: saw as-uid, as-groups or as-user-extra without as, expected the user to act as; add it")
    if not all(value.isprintable() for _, value in headers):
        raise AccessError(f"{user}: saw line breaks in the impersonation settings, expected one line each; correct it")
    return headers
