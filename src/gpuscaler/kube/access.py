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
from gpuscaler.kube.credentials import Credentials, Fixed, Presented, TokenFile, basic, bearer
from gpuscaler.kube.errors import AccessError
from gpuscaler.kube.exec_plugin import GROUP, Command, ExecPlugin
from gpuscaler.kube.kubeconfig import Chosen, Entry, WireCluster, WireExec, WireUser
from gpuscaler.kube.tls import Tls

#: What to use instead of a kind of credentials that Kubernetes 1.26 removed.
_INSTEAD = MappingProxyType(
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
    credentials: Credentials = field(default_factory=Fixed)
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
    chosen = kubeconfig.read(files).choose(context)
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
        credentials=_credentials(chosen, tls, environ=environ, attended=attended, now=now) if user and secure else Fixed(),
        namespace=chosen.context.value.namespace or "default",
        proxy=proxies.checked(url, f"{cluster}: proxy-url") if url else proxies.proxy_of(server, environ),
        headers=_impersonation(user) if user and secure else (),
        compress=not cluster.value.disable_compression,
        warnings=tuple(warnings),
    )


def _server(cluster: Entry[WireCluster], chosen: Chosen) -> SplitResult:
    text = (cluster.value.server or "").strip()
    if not text:
        raise AccessError(f"{cluster}: saw no server, expected a URL such as https://HOST:6443; add it")
    if "://" not in text:
        # As in client-go: a bare host is reached over TLS only if other settings imply TLS.
        user = chosen.user.value if chosen.user else WireUser()
        says_tls = cluster.value.certificate_authority or cluster.value.certificate_authority_data or cluster.value.insecure_skip_tls_verify
        certified = user.client_certificate or user.client_certificate_data
        text = f"{'https' if says_tls or certified else 'http'}://{text}"
    try:
        parts = urlsplit(text)
        usable = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0 and not parts.query
    except ValueError:
        usable = False
    if not usable or "@" in parts.netloc:
        raise AccessError(f"{cluster}: saw a server that is not a server URL, expected https://HOST:PORT; correct it")
    return parts


def _tls(cluster: Entry[WireCluster], user: Entry[WireUser] | None) -> Tls:
    said = cluster.value
    mine = user.value if user else WireUser()
    insecure = bool(said.insecure_skip_tls_verify)
    if insecure and (said.certificate_authority or said.certificate_authority_data):
        raise AccessError(
            f"{cluster}: saw insecure-skip-tls-verify together with a certificate-authority, expected one of the two; "
            "remove insecure-skip-tls-verify"
        )
    return Tls(
        owner=str(cluster),
        user=str(user),
        authority=_data(said.certificate_authority_data, cluster, "certificate-authority-data"),
        authority_file=cluster.path(said.certificate_authority),
        certificate=_data(mine.client_certificate_data, user, "client-certificate-data"),
        certificate_file=user.path(mine.client_certificate) if user else None,
        key=_data(mine.client_key_data, user, "client-key-data"),
        key_file=user.path(mine.client_key) if user else None,
        server_name=said.tls_server_name or "",
        insecure=insecure,
    )


def _data(text: str | None, entry: object, what: str) -> bytes:
    try:
        return base64.b64decode("".join((text or "").split()), validate=True)
    except (binascii.Error, ValueError):
        raise AccessError(
            f"{entry}: {what}: saw something that is not base64, expected PEM in base64; get a new kubeconfig from the cluster"
        ) from None


def _credentials(chosen: Chosen, tls: Tls, *, environ: Mapping[str, str], attended: bool, now: Callable[[], float]) -> Credentials:
    """How the user authenticates, besides a client certificate. A token file wins over a token, and both over an exec plugin."""
    user = chosen.user
    assert user is not None
    mine = user.value
    if mine.auth_provider is not None:
        name = mine.auth_provider.name or ""
        instead = _INSTEAD.get(name, "use an exec plugin")
        raise AccessError(
            f"{user}: saw the auth-provider {name!r}, which Kubernetes removed in 1.26, "
            f"expected a token, a certificate or an exec plugin; {instead}"
        )
    token_file = user.path(mine.token_file)
    if (mine.token or token_file) and (mine.username or mine.password):
        raise AccessError(f"{user}: saw a token and a username, expected one of the two; remove one")
    if token_file:
        return TokenFile(token_file, str(user))
    if mine.token:
        return Fixed(Presented({"authorization": bearer(mine.token, str(user))}))
    if mine.username or mine.password:
        return Fixed(Presented({"authorization": basic(mine.username or "", mine.password or "")}))
    if mine.exec is None:
        return Fixed()
    return ExecPlugin(_command(mine.exec, chosen, tls, attended=attended), environ, now)


def _command(said: WireExec, chosen: Chosen, tls: Tls, *, attended: bool) -> Command:
    user = chosen.user
    assert user is not None
    if said.api_version == f"{GROUP}/v1" and not said.interactive_mode:
        raise AccessError(f"{user}: exec: saw no interactiveMode, which {GROUP}/v1 needs, expected Never, IfAvailable or Always; add it")
    return Command(
        owner=str(user),
        api_version=said.api_version or "",
        command=said.command or "",
        folder=user.file.parent,
        args=tuple(said.args or ()),
        env={variable.name: variable.value for variable in said.env or ()},
        mode=said.interactive_mode or "IfAvailable",
        attended=attended,
        hint=said.install_hint or "",
        cluster=_told(chosen.cluster.value, tls) if said.provide_cluster_info else None,
    )


def _told(cluster: WireCluster, tls: Tls) -> dict[str, Any]:
    """The cluster information for a plugin: ``spec.cluster`` of ExecCredential."""
    configs = [extension.extension for extension in cluster.extensions or () if extension.name == f"{GROUP}/exec"]
    told = {
        "server": cluster.server,
        "tls-server-name": tls.server_name,
        "insecure-skip-tls-verify": tls.insecure,
        "certificate-authority-data": base64.b64encode(tls.authorities()).decode(),
        "proxy-url": cluster.proxy_url,
        "disable-compression": cluster.disable_compression,
        "config": configs[0] if configs else None,
    }
    return {key: value for key, value in told.items() if value}


def _impersonation(user: Entry[WireUser]) -> tuple[tuple[str, str], ...]:
    mine = user.value
    found = [("impersonate-user", mine.as_user), ("impersonate-uid", mine.as_uid)]
    found += [("impersonate-group", group) for group in mine.as_groups or ()]
    for key, values in (mine.as_user_extra or {}).items():
        found += [(f"impersonate-extra-{quote(key.lower(), safe='')}", value) for value in values]
    headers = tuple((name, value) for name, value in found if value)
    if headers and not mine.as_user:
        raise AccessError(f"{user}: saw as-uid, as-groups or as-user-extra without as, expected the user to act as; add it")
    if not all(value.isprintable() for _, value in headers):
        raise AccessError(f"{user}: saw line breaks in the impersonation settings, expected one line each; correct it")
    return headers
