"""Whom to believe: authorities of front proxies and of clients, by flags or by the cluster's own ConfigMap, watched.

Source: ConfigMap ``kube-system/extension-apiserver-authentication`` as kube-apiserver writes it
(``k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust``).
"""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

import msgspec
from cryptography import x509
from msgspec import Struct

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Unreachable
from gpuscaler.kube.resources import CONFIG_MAPS
from gpuscaler.kube.transport import Request
from gpuscaler.kube.watching import SilentError, event_of, watch_lines

NAMESPACE, NAME = "kube-system", "extension-apiserver-authentication"
#: Seconds: a watch is ended by the server after so long, and counted as dead after so much silence beyond it.
_WATCH, _SLACK = 300, 30.0
#: The authorities, and how often files of them are looked at, in seconds, where no watch ends meanwhile.
_AUTHORITIES, _LOOK = frozenset({"client-ca-file", "requestheader-client-ca-file"}), 60.0
#: Seconds between looks that fail: the first and the longest.
_PAUSE, _LONGEST_PAUSE = 1.0, 30.0


class TrustError(ValueError):
    """Settings that cannot be used; the text names the key, what was seen and what was expected."""


@dataclass(frozen=True, slots=True)
class Trust:
    """``proxies`` may speak for others, where their certificate's common name is one of ``proxy_names`` or there are none of these.

    ``said_in`` is how all headers begin in which a proxy says anything, in lower case. Two are the same only if they are one object: what
    follows from one is kept for as long as it is in use.
    """

    proxies: tuple[x509.Certificate, ...] = ()
    clients: tuple[x509.Certificate, ...] = ()
    proxy_names: frozenset[str] = frozenset()
    user_headers: tuple[str, ...] = ()
    uid_headers: tuple[str, ...] = ()
    group_headers: tuple[str, ...] = ()
    extra_prefixes: tuple[str, ...] = ()
    pem: bytes = b""
    said_in: tuple[bytes, ...] = ()

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class WireMetadata(Struct, rename="camel"):
    resource_version: str = ""


class WireConfigMap(Struct):
    metadata: WireMetadata = msgspec.field(default_factory=WireMetadata)
    data: dict[str, str] | None = None


_config_map = msgspec.json.Decoder(WireConfigMap).decode


def trust_in(data: Mapping[str, str]) -> Trust:
    """What the data of the ConfigMap says. Raises :class:`TrustError`."""
    proxies, clients = (_authorities(data, key) for key in ("requestheader-client-ca-file", "client-ca-file"))
    users, uids, groups, extras = (
        _names(data, f"requestheader-{what}") for what in ("username-headers", "uid-headers", "group-headers", "extra-headers-prefix")
    )
    return Trust(
        proxies=proxies,
        clients=clients,
        proxy_names=frozenset(_names(data, "requestheader-allowed-names")),
        user_headers=users,
        uid_headers=uids,
        group_headers=groups,
        extra_prefixes=extras,
        pem="\n".join(data.get(key, "") for key in ("requestheader-client-ca-file", "client-ca-file")).encode(),
        said_in=tuple(one.lower().encode() for one in (*users, *uids, *groups, *extras)),
    )


def _authorities(data: Mapping[str, str], key: str) -> tuple[x509.Certificate, ...]:
    text = data.get(key, "")
    try:
        return tuple(x509.load_pem_x509_certificates(text.encode())) if text.strip() else ()
    except ValueError as error:
        raise TrustError(f"{key}: saw {len(text)} bytes that are no certificates in PEM, expected authorities") from error


def _names(data: Mapping[str, str], key: str) -> tuple[str, ...]:
    text = data.get(key, "")
    try:
        return tuple(msgspec.json.decode(text, type=list[str])) if text.strip() else ()
    except msgspec.MsgspecError as error:
        raise TrustError(f"{key}: saw {text[:60]!r}, expected a list of strings as JSON") from error


@dataclass(slots=True)
class WatchedTrust:
    """The trust that the ConfigMap says, current while :meth:`run` runs. ``given`` reads what flags say in the place of some of its keys.

    Where they name all authorities the ConfigMap is not asked. ``given`` may raise :class:`TrustError`. ``changed`` is called with each new
    trust. ``trouble`` says what is wrong now; what was read before stays in use.
    """

    client: Client
    given: Callable[[], Mapping[str, str]]
    changed: Callable[[Trust], None]
    trouble: str = field(default="not read yet", init=False)
    known: bool = field(default=False, init=False)
    _seen: Mapping[str, str] | None = field(default=None, init=False)

    async def run(self) -> None:
        """Until cancelled."""
        pause = _PAUSE
        while True:
            try:
                given = self.given()
                if given.keys() >= _AUTHORITIES:
                    self._use(given)
                    pause = _PAUSE
                    await asyncio.sleep(_LOOK)
                    continue
                version = self._take(await self.client.get(CONFIG_MAPS, NAME, namespace=NAMESPACE))
                pause = _PAUSE
                await self._watch(version)
            except SilentError:
                continue
            except (ApiError, Unreachable, TrustError, msgspec.MsgspecError) as error:
                self.trouble = str(error) if isinstance(error, TrustError) else f"ConfigMap {NAMESPACE}/{NAME}: {error}"
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                # A server that ends watches at once is not asked in a tight loop.
                await asyncio.sleep(_PAUSE)

    async def _watch(self, version: str) -> None:
        query = {"watch": "true", "fieldSelector": f"metadata.name={NAME}", "resourceVersion": version, "timeoutSeconds": str(_WATCH)}
        request = Request("GET", CONFIG_MAPS.path(NAMESPACE), query, {"accept": "application/json"}, timeout=_WATCH + 2 * _SLACK)
        async with aclosing(watch_lines(self.client, request, silence=lambda: _WATCH + _SLACK)) as pieces:
            async for lines in pieces:
                for line in lines:
                    event = event_of(line)
                    if event.type not in ("ADDED", "MODIFIED"):
                        return
                    self._take(bytes(event.object))

    def _take(self, body: bytes) -> str:
        """Use what the ConfigMap says; returns its version. Raises :class:`TrustError`."""
        found = _config_map(body)
        self._use({**(found.data or {}), **self.given()})
        return found.metadata.resource_version

    def _use(self, data: Mapping[str, str]) -> None:
        if data != self._seen:
            trust = trust_in(data)
            self.changed(trust)
            self._seen = data
        self.known, self.trouble = True, ""
