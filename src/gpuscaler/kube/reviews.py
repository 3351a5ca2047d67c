"""Token and permission checks by the API server: TokenReview and SubjectAccessReview, cached for a while.

Source: ``k8s.io/apiserver/plugin/pkg/{authenticator/token,authorizer}/webhook`` and the defaults of delegating API servers.
"""

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from gpuscaler.kube.client import Client
from gpuscaler.kube.rate import RateLimit
from gpuscaler.kube.resources import Resource
from gpuscaler.kube.users import UNAUTHENTICATED, Attributes, User

MASTERS = "system:masters"
#: Paths of probes, which need no permissions.
ALWAYS_ALLOWED = frozenset({"/healthz", "/readyz", "/livez"})
_TOKENS = Resource("authentication.k8s.io", "v1", "tokenreviews", "TokenReview", namespaced=False)
_ACCESS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)
#: The most answers that are cached.
_MOST = 8192

Key = TypeVar("Key", bound=Hashable)
Found = TypeVar("Found")


#: Reviews per second, and at once, for callers without credentials, and for tokens and their users: anyone who reaches the port can make up
#: as many of both as there is time for. Callers with a verified certificate never wait behind them.
_UNKNOWN, _UNKNOWN_AT_ONCE = 10.0, 20
_BY_TOKEN, _BY_TOKEN_AT_ONCE = 50.0, 100
#: The longest wait for one of these, in seconds.
_LONGEST_QUEUE = 1.0


class BusyError(Exception):
    """Too many callers without a verified certificate are waiting; the API server was not asked."""


class Verdict(NamedTuple):
    allowed: bool
    reason: str = ""


class Ttl(NamedTuple):
    """How long an answer is valid, in seconds."""

    token: float = 10.0
    allowed: float = 10.0
    denied: float = 10.0


#: The defaults of delegating API servers.
USUAL = Ttl()


class WireUser(Struct):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class WireStatus(Struct):
    """The status of either review, limited to the fields in use."""

    authenticated: bool = False
    user: WireUser | None = None
    allowed: bool = False
    denied: bool = False
    reason: str = ""


class WireReview(Struct):
    status: WireStatus | None = None


_review = msgspec.json.Decoder(WireReview).decode


@dataclass(slots=True)
class Remembered(Generic[Key, Found]):
    """Answers by question until they expire. Concurrent callers with the same question wait for one answer; errors are not cached."""

    clock: Callable[[], float]
    ttl: Callable[[Found], float]
    _known: dict[Key, tuple[float, Found]] = field(default_factory=dict, init=False)
    _asking: dict[Key, "asyncio.Task[Found]"] = field(default_factory=dict, init=False)

    def known(self, key: Key) -> Found | None:
        held = self._known.get(key)
        return held[1] if held is not None and self.clock() < held[0] else None

    async def get(self, key: Key, ask: Callable[[], Awaitable[Found]]) -> Found:
        found = self.known(key)
        if found is not None:
            return found
        task = self._asking.get(key)
        if task is None:
            task = self._asking[key] = asyncio.ensure_future(self._ask(key, ask))
            # If all callers gave up before it failed, nothing else retrieves the exception.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        # A caller that gives up must not cancel the answer for the others.
        return await asyncio.shield(task)

    async def _ask(self, key: Key, ask: Callable[[], Awaitable[Found]]) -> Found:
        try:
            found = await ask()
        finally:
            self._asking.pop(key, None)
        if len(self._known) >= _MOST:
            now = self.clock()
            self._known = {one: held for one, held in self._known.items() if now < held[0]}
            while len(self._known) >= _MOST:
                del self._known[next(iter(self._known))]
        self._known[key] = self.clock() + self.ttl(found), found
        return found


class Reviews:
    """Asks ``tokens`` about tokens and ``access`` about permissions. ``always`` are paths that everyone may read.

    ``clock`` is monotonic, in seconds. Every method raises ApiError or Unreachable if there is no answer, and :class:`BusyError`.
    """

    def __init__(
        self,
        tokens: Client,
        access: Client,
        *,
        clock: Callable[[], float],
        ttl: Ttl = USUAL,
        always: frozenset[str] = ALWAYS_ALLOWED,
    ) -> None:
        self._tokens, self._access, self._always = tokens, access, always
        self._unknown, self._by_token = RateLimit(_UNKNOWN, _UNKNOWN_AT_ONCE), RateLimit(_BY_TOKEN, _BY_TOKEN_AT_ONCE)
        self._users: Remembered[bytes, tuple[User | None]] = Remembered(clock, lambda _: ttl.token)
        self._verdicts: Remembered[tuple[User, Attributes], Verdict] = Remembered(
            clock, lambda verdict: ttl.allowed if verdict.allowed else ttl.denied
        )

    async def user_of(self, token: str) -> User | None:
        """The user of ``token``, or None if the token is not valid."""

        async def ask() -> tuple[User | None]:
            await _turn(self._by_token)
            body = {"apiVersion": _TOKENS.api_version, "kind": _TOKENS.kind, "spec": {"token": token}}
            return (_user(await _asked(self._tokens, _TOKENS, body)),)

        # A hash instead of the token, so that no token stays in memory for longer than its request.
        return (await self._users.get(hashlib.sha256(token.encode()).digest(), ask))[0]

    def settled(self, user: User, asked: Attributes) -> Verdict | None:
        """Whether ``user`` may do it, if that is known without asking."""
        if MASTERS in user.groups or (not asked.resource and asked.path in self._always):
            return Verdict(allowed=True)
        return self._verdicts.known((user, asked))

    async def verdict(self, user: User, asked: Attributes, *, vouched: bool = False) -> Verdict:
        """Whether ``user`` may do it; ``vouched`` means that a certificate proved the caller's identity."""
        verdict = self.settled(user, asked)
        if verdict is not None:
            return verdict
        limit = self._unknown if UNAUTHENTICATED in user.groups else None if vouched else self._by_token
        return await self._verdicts.get((user, asked), lambda: self._ask(user, asked, limit))

    async def _ask(self, user: User, asked: Attributes, limit: RateLimit | None) -> Verdict:
        if limit is not None:
            await _turn(limit)
        spec: dict[str, Any] = {"user": user.name, "groups": user.groups}
        if user.uid:
            spec["uid"] = user.uid
        if user.extra:
            spec["extra"] = dict(user.extra)
        if asked.resource:
            about = {name: getattr(asked, name) for name in ("verb", "group", "version", "resource", "subresource", "namespace", "name")}
            spec["resourceAttributes"] = {name: value for name, value in about.items() if value}
        else:
            spec["nonResourceAttributes"] = {"verb": asked.verb, "path": asked.path}
        status = await _asked(self._access, _ACCESS, {"apiVersion": _ACCESS.api_version, "kind": _ACCESS.kind, "spec": spec})
        return Verdict(status.allowed and not status.denied, status.reason)


async def _turn(limit: RateLimit) -> None:
    """Wait for a token of ``limit``, unless too many are waiting already."""
    delay = limit.reserve(asyncio.get_running_loop().time())
    if delay > _LONGEST_QUEUE:
        limit.give_back()
        raise BusyError
    await asyncio.sleep(delay)


async def _asked(client: Client, resource: Resource, body: dict[str, Any]) -> WireStatus:
    return _review(await client.create(resource, body)).status or WireStatus()


def _user(status: WireStatus) -> User | None:
    if not status.authenticated or status.user is None or not status.user.username:
        return None
    extra = tuple(sorted((key, tuple(values)) for key, values in (status.user.extra or {}).items()))
    return User(status.user.username, tuple(status.user.groups or ()), status.user.uid, extra)
