"""Callers of a server that delegates to the API server, and their requests: the vocabulary of authentication and authorisation.

Source: ``k8s.io/apiserver/pkg/authentication/{user,request/bearertoken}`` and ``k8s.io/apiserver/pkg/authorization/authorizer``.
"""

from msgspec import Struct

ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED = "system:anonymous", "system:authenticated", "system:unauthenticated"


class User(Struct, frozen=True):
    """A user; ``extra`` has lower-case keys."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


ANONYMOUS_USER = User(ANONYMOUS, (UNAUTHENTICATED,))


class Attributes(Struct, frozen=True, gc=False):
    """The subject of an authorisation check; without a resource, it is about a path."""

    verb: str
    path: str
    group: str = ""
    version: str = ""
    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


def as_authenticated(user: User) -> User:
    """``user`` as a member of the group of all authenticated users."""
    if user.name == ANONYMOUS or AUTHENTICATED in user.groups or UNAUTHENTICATED in user.groups:
        return user
    return User(user.name, (*user.groups, AUTHENTICATED), user.uid, user.extra)


def bearer_token(header: str) -> str:
    """The token of an Authorization header; empty if it has none."""
    scheme, _, token = header.strip().partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""
