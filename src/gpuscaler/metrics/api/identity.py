"""Authenticates callers by a front proxy's headers, a client certificate or a token. Headers alone are never trusted.

Source: ``k8s.io/apiserver/pkg/authentication/request/{headerrequest,x509,union,anonymous}`` and its delegating authenticator.
"""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol
from urllib.parse import unquote

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.x509.oid import NameOID
from msgspec import Struct

from gpuscaler.kube.users import ANONYMOUS_USER, User, as_authenticated, bearer_token
from gpuscaler.metrics.api.trust import Trust


class UnauthorizedError(Exception):
    """The caller's credentials are invalid."""


class Headers(Protocol):
    """Headers of a request; their names are case-insensitive."""

    def get(self, name: str, /) -> str | None: ...
    def getall(self, name: str, default: list[str], /) -> list[str]: ...
    def keys(self) -> Iterable[str]: ...


#: Looks up a token: its user, or None if it is invalid.
Tokens = Callable[[str], Awaitable[User | None]]


class Peer(Struct, frozen=True):
    """What a TLS-verified certificate of a connection proves under one :class:`Trust`; times in Unix seconds.

    Until ``proxy_until`` the peer may speak for other users, and until ``user_until`` it is ``user`` itself: as long as the certificate and
    its authority are valid.
    """

    user: User | None = None
    begins: float = 0.0
    proxy_until: float = 0.0
    user_until: float = 0.0


def identify_peer(certificate: bytes, trust: Trust) -> Peer:
    """Identify a peer by its ``certificate`` (DER), whose key it proved to have. The authority that issued it directly decides.

    TLS only guarantees that some trusted authority issued it; which one makes the difference between a proxy for all users and a client.
    """
    leaf = x509.load_der_x509_certificate(certificate)
    name = _first(leaf.subject, NameOID.COMMON_NAME)
    named = not trust.proxy_names or name in trust.proxy_names
    groups = tuple(_text(name_attribute.value) for name_attribute in leaf.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME))
    return Peer(
        user=as_authenticated(User(name, groups)) if name else None,
        begins=leaf.not_valid_before_utc.timestamp(),
        proxy_until=_vouched_until(leaf, trust.proxies) if named else 0.0,
        user_until=_vouched_until(leaf, trust.clients) if name else 0.0,
    )


async def identify(peer: Peer | None, headers: Headers, *, trust: Trust, tokens: Tokens, now: float) -> User:
    """The user behind a request. ``peer`` is None if the client has no certificate.

    Raises :class:`UnauthorizedError` if there are credentials but none is valid; without credentials, it is the anonymous user.
    """
    if peer is not None and peer.begins <= now:
        vouched = proxied_user(headers, trust) if now <= peer.proxy_until else None
        if vouched is not None:
            return vouched
        if peer.user is not None and now <= peer.user_until:
            return peer.user
    token = bearer_token(headers.get("Authorization") or "")
    if token:
        user = await tokens(token)
        if user is None:
            raise UnauthorizedError
        return as_authenticated(user)
    if peer is not None:
        raise UnauthorizedError
    return ANONYMOUS_USER


def proxied_user(headers: Headers, trust: Trust) -> User | None:
    """The user that a proxy names in its headers, if any. Call it only if the peer is a proxy."""
    name = next((value for user_header in trust.user_headers if (value := headers.get(user_header))), "")
    if not name:
        return None
    groups = tuple(value for group_header in trust.group_headers for value in headers.getall(group_header, []))
    uid = next((value for uid_header in trust.uid_headers if (value := headers.get(uid_header))), "")
    extra: dict[str, tuple[str, ...]] = {}
    for header in dict.fromkeys(key.lower() for key in headers.keys()):  # noqa: SIM118 - it is no mapping to mypy
        prefix = next((extra_prefix for extra_prefix in trust.extra_prefixes if header.startswith(extra_prefix.lower())), None)
        if prefix is not None:
            extra[unquote(header[len(prefix) :])] = tuple(headers.getall(header, []))
    return as_authenticated(User(name, groups, uid, tuple(sorted(extra.items()))))


def _vouched_until(leaf: x509.Certificate, authorities: Sequence[x509.Certificate]) -> float:
    """The time until which one of ``authorities`` vouches for ``leaf``; 0 if none does."""
    ends = [0.0]
    for authority in authorities:
        try:
            leaf.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        ends.append(min(leaf.not_valid_after_utc, authority.not_valid_after_utc).timestamp())
    return max(ends)


def _first(name: x509.Name, oid: x509.ObjectIdentifier) -> str:
    return next((_text(name_attribute.value) for name_attribute in name.get_attributes_for_oid(oid)), "")


def _text(value: str | bytes) -> str:
    return value if isinstance(value, str) else value.decode(errors="replace")
