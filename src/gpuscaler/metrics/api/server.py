"""The HTTP server: authenticates and authorizes requests, and answers them. It never sends redirects."""

import asyncio
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import structlog
from aiohttp import web
from aiohttp.web_request import BaseRequest

from gpuscaler.kube.errors import ApiError, Unreachable
from gpuscaler.kube.reviews import BusyError, Verdict
from gpuscaler.kube.users import UNAUTHENTICATED, Attributes, User
from gpuscaler.metrics.api.answering import Reply, Responder
from gpuscaler.metrics.api.documents.statuses import Failure, forbidden, internal, too_many, unauthorized
from gpuscaler.metrics.api.identity import Peer, UnauthorizedError, identify, identify_peer, proxied_user
from gpuscaler.metrics.api.paths import ParsedRequest, parse_request
from gpuscaler.metrics.api.trust import Trust
from gpuscaler.serving.connections import Bounds
from gpuscaler.serving.server import BOUNDS, Server, serve_runner

_LOG = structlog.get_logger(__name__)
#: Seconds that requests have to finish when the server stops.
SHUTDOWN = 5.0
#: Longest line in the head of a request, in bytes: the first contains selectors, another the token.
_LONGEST = 65_536
#: Most lines in the head of a request: a user may be in hundreds of groups, with one header each.
_MOST_HEADERS = 4096
#: Number of parsed requests that are cached, and the longest path for that: clients repeat the same requests.
_MOST, _SHORT = 4096, 2048
_JSON: Mapping[str, str] = {"Content-Type": "application/json", "Cache-Control": "no-cache, private"}

Key = TypeVar("Key")
CachedValue = TypeVar("CachedValue")


class Rights(Protocol):
    """The user of a token, and the rights of a user; see :class:`gpuscaler.kube.reviews.Reviews`."""

    async def user_of(self, token: str) -> User | None: ...
    def cached_verdict(self, user: User, attributes: Attributes) -> Verdict | None: ...
    async def verdict(self, user: User, attributes: Attributes, *, vouched: bool = False) -> Verdict: ...


@dataclass(slots=True)
class Api:
    """Handles requests. ``trust`` may be replaced at any time. ``wall`` is Unix time; ``count`` gets group, code and seconds."""

    responder: Responder
    rights: Rights
    wall: Callable[[], float]
    count: Callable[[str, int, float], None]
    trust: Trust = field(default_factory=Trust)
    _parsed: dict[tuple[str, str], ParsedRequest] = field(default_factory=dict, init=False)
    _peers: dict[bytes, tuple[Trust, Peer]] = field(default_factory=dict, init=False)
    _users: dict[tuple[Trust, tuple[tuple[bytes, bytes], ...]], User] = field(default_factory=dict, init=False)

    async def handle(self, request: BaseRequest) -> web.Response:
        """Answer one request."""
        loop = asyncio.get_running_loop()
        begin = loop.time()
        parsed = self._parse(request)
        try:
            user = await self._user(request)
            await self._authorise(user, parsed, vouched=self._peer(request) is not None)
            reply = await self.responder.answer(parsed, request.headers, authenticated=UNAUTHENTICATED not in user.groups)
        except Failure as failure:
            reply = Reply(failure.body(), failure.code)
        except Exception as error:  # noqa: BLE001  # after any failure the client gets an answer as from Kubernetes
            _LOG.error("a request failed", path=parsed.attributes.path, error=f"{type(error).__name__}: {error}", exc_info=error)
            reply = Reply(internal("the request failed; the log says why").body(), 500)
        self.count(parsed.metric.group if parsed.metric else "", reply.status, loop.time() - begin)
        return web.Response(body=reply.body, status=reply.status, headers={**_JSON, **reply.headers})

    def _parse(self, request: BaseRequest) -> ParsedRequest:
        key = request.method, request.raw_path
        parsed = self._parsed.get(key)
        if parsed is None:
            parsed = parse_request(*key)
            if len(request.raw_path) <= _SHORT:
                _remember(self._parsed, key, parsed)
        return parsed

    async def _user(self, request: BaseRequest) -> User:
        peer, now = self._peer(request), self.wall()
        if peer is not None and peer.begins <= now <= peer.proxy_until:
            user = self._proxied_user(request)
            if user is not None:
                return user
        try:
            return await identify(peer, request.headers, trust=self.trust, tokens=self.rights.user_of, now=now)
        except UnauthorizedError:
            raise unauthorized() from None
        except BusyError:
            raise too_many() from None
        except (ApiError, Unreachable) as error:
            _LOG.warning("token could not be checked", error=str(error))
            raise unauthorized() from error

    def _proxied_user(self, request: BaseRequest) -> User | None:
        """The user that a front proxy speaks for. Cached, since its headers name few users and a lookup is faster than parsing."""
        trust = self.trust
        user_headers = tuple([pair for pair in request.raw_headers if pair[0].lower().startswith(trust.header_prefixes)])
        user = self._users.get((trust, user_headers))
        if user is None:
            user = proxied_user(request.headers, trust)
            if user is not None:
                _remember(self._users, (trust, user_headers), user)
        return user

    def _peer(self, request: BaseRequest) -> Peer | None:
        ssl_object = request.transport.get_extra_info("ssl_object") if request.transport is not None else None
        certificate = ssl_object.getpeercert(binary_form=True) if isinstance(ssl_object, ssl.SSLObject) else None
        if not certificate:
            return None
        trust, peer = self._peers.get(certificate, (None, None))
        if peer is None or trust is not self.trust:
            peer = identify_peer(certificate, self.trust)
            _remember(self._peers, certificate, (self.trust, peer))
        return peer

    async def _authorise(self, user: User, parsed: ParsedRequest, *, vouched: bool) -> None:
        verdict = self.rights.cached_verdict(user, parsed.attributes)
        if verdict is None:
            try:
                verdict = await self.rights.verdict(user, parsed.attributes, vouched=vouched)
            except BusyError:
                raise too_many() from None
            except (ApiError, Unreachable) as error:
                _LOG.warning("rights could not be checked", error=str(error))
                raise Failure(500, "InternalError", f'Internal Server Error: "{parsed.attributes.path}": {error}') from error
        if not verdict.allowed:
            raise forbidden(user.name, parsed.attributes, verdict.reason)


def _remember(cache: dict[Key, CachedValue], key: Key, value: CachedValue) -> None:
    if len(cache) >= _MOST:
        cache.clear()
    cache[key] = value


async def listen(api: Api, *, host: str, port: int, tls: ssl.SSLContext | None, bounds: Bounds = BOUNDS) -> Server:
    """Serve ``api`` at ``host``; ``0.0.0.0`` is all addresses, IPv4 and IPv6, as in Go. ``port`` 0 takes a free port.

    Raises OSError if the address cannot be bound.
    """
    # Without aiohttp's routes, which decode %2A, send redirects, and cost more than everything else here.
    runner = web.ServerRunner(web.Server(api.handle), shutdown_timeout=SHUTDOWN)
    sizes = {"max_line_size": _LONGEST, "max_field_size": _LONGEST, "max_headers": _MOST_HEADERS}
    return await serve_runner(runner, host=host, port=port, tls=tls, bounds=bounds, **sizes)
