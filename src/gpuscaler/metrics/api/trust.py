"""Trusted authorities of front proxies and of clients, from flags or from the cluster's own ConfigMap, which is watched.

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
#: Seconds after which the server ends a watch, and additional seconds of silence after which it counts as dead.
_WATCH, _SLACK = 300, 30.0
#: The keys of authorities, and the seconds between reads of their files if no watch is needed.
_AUTHORITIES, _FILES_SECONDS = frozenset({"client-ca-file", "requestheader-client-ca-file"}), 60.0
#: Seconds between failed attempts: the first and the longest pause.
_PAUSE, _LONGEST_PAUSE = 1.0, 30.0


class TrustError(ValueError):
    """Invalid settings; the text names the key, what was seen and what was expected."""


@dataclass(frozen=True, slots=True)
class Trust:
    """Trusted authorities. A peer with a certificate from ``proxies`` may speak for others if ``proxy_names`` has its name or is empty.

    ``header_prefixes`` has the lower-case prefixes of all headers that a proxy may set. Two instances are equal only if they are the same
    object: results derived from one are cached as long as it is in use.
    """

    proxies: tuple[x509.Certificate, ...] = ()
    clients: tuple[x509.Certificate, ...] = ()
    proxy_names: frozenset[str] = frozenset()
    user_headers: tuple[str, ...] = ()
    uid_headers: tuple[str, ...] = ()
    group_headers: tuple[str, ...] = ()
    extra_prefixes: tuple[str, ...] = ()
    pem: bytes = b""
    header_prefixes: tuple[bytes, ...] = ()

    __eq__ = object.__eq__
    __hash__ = object.__hash__


class WireMetadata(Struct, rename="camel"):
    resource_version: str = ""


class WireConfigMap(Struct):
    metadata: WireMetadata = msgspec.field(default_factory=WireMetadata)
    data: dict[str, str] | None = None


_config_map = msgspec.json.Decoder(WireConfigMap).decode


def parse_trust(data: Mapping[str, str]) -> Trust:
    """Parse the data of the ConfigMap. Raises :class:`TrustError`."""
    proxies, clients = (_authorities(data, key) for key in ("requestheader-client-ca-file", "client-ca-file"))
    users, uids, groups, extras = (
        _names(data, f"requestheader-{suffix}") for suffix in ("username-headers", "uid-headers", "group-headers", "extra-headers-prefix")
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
        header_prefixes=tuple(prefix.lower().encode() for prefix in (*users, *uids, *groups, *extras)),
    )


def _authorities(data: Mapping[str, str], key: str) -> tuple[x509.Certificate, ...]:
    text = data.get(key, "")
    try:
        return tuple(x509.load_pem_x509_certificates(text.encode())) if text.strip() else ()
    except ValueError as error:
        raise TrustError(f"{key}: saw {len(text)} bytes that are not PEM certificates, expected certificates of authorities") from error


def _names(data: Mapping[str, str], key: str) -> tuple[str, ...]:
    text = data.get(key, "")
    try:
        return tuple(msgspec.json.decode(text, type=list[str])) if text.strip() else ()
    except msgspec.MsgspecError as error:
        raise TrustError(f"{key}: saw {text[:60]!r}, expected a JSON list of strings") from error


@dataclass(slots=True)
class WatchedTrust:
    """The trust from the ConfigMap, kept current while :meth:`run` runs. ``flags`` reads flags that override some of its keys.

    If they name all authorities, the ConfigMap is not read. ``flags`` may raise :class:`TrustError`. ``changed`` is called with each new
    trust. ``trouble`` is the current problem; the last trust stays in use.
    """

    client: Client
    flags: Callable[[], Mapping[str, str]]
    changed: Callable[[Trust], None]
    trouble: str = field(default="not read yet", init=False)
    is_loaded: bool = field(default=False, init=False)
    _applied: Mapping[str, str] | None = field(default=None, init=False)

    async def run(self) -> None:
        """Run until cancelled."""
        pause = _PAUSE
        while True:
            try:
                given = self.flags()
                if given.keys() >= _AUTHORITIES:
                    self._apply(given)
                    pause = _PAUSE
                    await asyncio.sleep(_FILES_SECONDS)
                    continue
                version = self._apply_config_map(await self.client.get(CONFIG_MAPS, NAME, namespace=NAMESPACE))
                pause = _PAUSE
                await self._watch(version)
            except SilentError:
                continue
            except (ApiError, Unreachable, TrustError, msgspec.MsgspecError) as error:
                self.trouble = str(error) if isinstance(error, TrustError) else f"ConfigMap {NAMESPACE}/{NAME}: {error}"
                await asyncio.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            else:
                # Avoid a tight loop if the server ends watches immediately.
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
                    self._apply_config_map(bytes(event.object))

    def _apply_config_map(self, body: bytes) -> str:
        """Use the content of the ConfigMap; return its version. Raises :class:`TrustError`."""
        config_map = _config_map(body)
        self._apply({**(config_map.data or {}), **self.flags()})
        return config_map.metadata.resource_version

    def _apply(self, data: Mapping[str, str]) -> None:
        if data != self._applied:
            trust = parse_trust(data)
            self.changed(trust)
            self._applied = data
        self.is_loaded, self.trouble = True, ""
