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
_MAX_CACHED = 8192

Key = TypeVar("Key", bound=Hashable)
Result = TypeVar("Result")


#: Reviews per second, and at once, for callers without credentials, and for tokens and their users: anyone who reaches the port can make up
#: as many of both as there is time for. Callers with a verified certificate never wait behind them.
_ANONYMOUS_QPS, _ANONYMOUS_BURST = 10.0, 20
_TOKEN_QPS, _TOKEN_BURST = 50.0, 100
#: The longest wait for one of these, in seconds.
_MAX_DELAY = 1.0


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
DEFAULT_TTL = Ttl()


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
class AnswerCache(Generic[Key, Result]):
    """Answers by question until they expire. Concurrent callers with the same question wait for one answer; errors are not cached."""

    clock: Callable[[], float]
    ttl: Callable[[Result], float]
    _entries: dict[Key, tuple[float, Result]] = field(default_factory=dict, init=False)
    _pending: dict[Key, "asyncio.Task[Result]"] = field(default_factory=dict, init=False)

    def cached(self, key: Key) -> Result | None:
        entry = self._entries.get(key)
        return entry[1] if entry is not None and self.clock() < entry[0] else None

    async def get(self, key: Key, ask: Callable[[], Awaitable[Result]]) -> Result:
        cached = self.cached(key)
        if cached is not None:
            return cached
        task = self._pending.get(key)
        if task is None:
            task = self._pending[key] = asyncio.ensure_future(self._ask(key, ask))
            # If all callers gave up before it failed, nothing else retrieves the exception.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        # A caller that gives up must not cancel the answer for the others.
        return await asyncio.shield(task)

    async def _ask(self, key: Key, ask: Callable[[], Awaitable[Result]]) -> Result:
        try:
            answer = await ask()
        finally:
            self._pending.pop(key, None)
        if len(self._entries) >= _MAX_CACHED:
            now = self.clock()
            self._entries = {cached_key: entry for cached_key, entry in self._entries.items() if now < entry[0]}
            while len(self._entries) >= _MAX_CACHED:
                del self._entries[next(iter(self._entries))]
        self._entries[key] = self.clock() + self.ttl(answer), answer
        return answer


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
        ttl: Ttl = DEFAULT_TTL,
        always: frozenset[str] = ALWAYS_ALLOWED,
    ) -> None:
        self._tokens, self._access, self._always = tokens, access, always
        self._unknown, self._by_token = RateLimit(_ANONYMOUS_QPS, _ANONYMOUS_BURST), RateLimit(_TOKEN_QPS, _TOKEN_BURST)
        self._users: AnswerCache[bytes, tuple[User | None]] = AnswerCache(clock, lambda _: ttl.token)
        self._verdicts: AnswerCache[tuple[User, Attributes], Verdict] = AnswerCache(
            clock, lambda verdict: ttl.allowed if verdict.allowed else ttl.denied
        )

    async def user_of(self, token: str) -> User | None:
        """The user of ``token``, or None if the token is not valid."""

        async def ask() -> tuple[User | None]:
            await _wait_for_limit(self._by_token)
            body = {"apiVersion": _TOKENS.api_version, "kind": _TOKENS.kind, "spec": {"token": token}}
            return (_user(await _post_review(self._tokens, _TOKENS, body)),)

        # A hash instead of the token, so that no token stays in memory for longer than its request.
        return (await self._users.get(hashlib.sha256(token.encode()).digest(), ask))[0]

    def cached_verdict(self, user: User, attributes: Attributes) -> Verdict | None:
        """Whether ``user`` may do it, if that is known without asking."""
        if MASTERS in user.groups or (not attributes.resource and attributes.path in self._always):
            return Verdict(allowed=True)
        return self._verdicts.cached((user, attributes))

    async def verdict(self, user: User, attributes: Attributes, *, vouched: bool = False) -> Verdict:
        """Whether ``user`` may do it; ``vouched`` means that a certificate proved the caller's identity."""
        verdict = self.cached_verdict(user, attributes)
        if verdict is not None:
            return verdict
        limit = self._unknown if UNAUTHENTICATED in user.groups else None if vouched else self._by_token
        return await self._verdicts.get((user, attributes), lambda: self._ask(user, attributes, limit))

    async def _ask(self, user: User, attributes: Attributes, limit: RateLimit | None) -> Verdict:
        if limit is not None:
            await _wait_for_limit(limit)
        spec: dict[str, Any] = {"user": user.name, "groups": user.groups}
        if user.uid:
            spec["uid"] = user.uid
        if user.extra:
            spec["extra"] = dict(user.extra)
        if attributes.resource:
            resource_attributes = {
                name: getattr(attributes, name) for name in ("verb", "group", "version", "resource", "subresource", "namespace", "name")
            }
            spec["resourceAttributes"] = {name: value for name, value in resource_attributes.items() if value}
        else:
            spec["nonResourceAttributes"] = {"verb": attributes.verb, "path": attributes.path}
        status = await _post_review(self._access, _ACCESS, {"apiVersion": _ACCESS.api_version, "kind": _ACCESS.kind, "spec": spec})
        return Verdict(status.allowed and not status.denied, status.reason)


async def _wait_for_limit(limit: RateLimit) -> None:
    """Wait for a token of ``limit``, unless too many are waiting already."""
    delay = limit.reserve(asyncio.get_running_loop().time())
    if delay > _MAX_DELAY:
        limit.give_back()
        raise BusyError
    await asyncio.sleep(delay)


async def _post_review(client: Client, resource: Resource, body: dict[str, Any]) -> WireStatus:
    return _review(await client.create(resource, body)).status or WireStatus()


def _user(status: WireStatus) -> User | None:
    if not status.authenticated or status.user is None or not status.user.username:
        return None
    extra = tuple(sorted((key, tuple(values)) for key, values in (status.user.extra or {}).items()))
    return User(status.user.username, tuple(status.user.groups or ()), status.user.uid, extra)
