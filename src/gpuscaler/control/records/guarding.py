"""Access to the pages: at a loopback address for everyone who reaches it, elsewhere for users whom the API server authorizes."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

import structlog
from aiohttp import web
from yarl import URL

from gpuscaler.kube.errors import ApiError, Unreachable
from gpuscaler.kube.reviews import BusyError, Reviews
from gpuscaler.kube.users import Attributes, as_authenticated, bearer_token
from gpuscaler.settings.run_settings import is_loopback

_LOG = structlog.get_logger(__name__)
#: Raises an HTTP error for a request that is not allowed.
Guard: TypeAlias = Callable[[web.Request], Awaitable[None]]
Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


def with_guard(routes: Iterable[web.RouteDef], guard: Guard) -> list[web.RouteDef]:
    """``routes`` with a call of ``guard`` before each handler."""
    return [web.route(route.method, route.path, _guard_handler(guard, route.handler)) for route in routes]


def _guard_handler(guard: Guard, handler: Handler) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        await guard(request)
        return await handler(request)

    return handle


async def require_loopback(request: web.Request) -> None:
    """Refuse requests that name another host: a browser on this machine sends them for a web site with a loopback address."""
    if not is_addressed_by_loopback(request):
        raise web.HTTPForbidden(text="expected a request to a loopback address: the pages are for this machine, or for a forwarded port\n")


def is_addressed_by_loopback(request: web.Request) -> bool:
    """Whether a request names this machine by a loopback address, and no other web site as its origin."""
    origin = request.headers.get("Origin", "")
    return _is_loopback_url(f"http://{request.host}") and (not origin or _is_loopback_url(origin))


def _is_loopback_url(url: str) -> bool:
    try:
        return is_loopback(URL(url).host or "")
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class TokenGuard:
    """Admits users with a token of the cluster who may ``get`` the path; the API server checks both."""

    reviews: Reviews

    async def __call__(self, request: web.Request) -> None:
        token = bearer_token(request.headers.get("Authorization", ""))
        try:
            # Requests without a token cause no calls to the API server.
            user = await self.reviews.user_of(token) if token else None
            if user is None:
                raise web.HTTPUnauthorized(text="expected a bearer token of this cluster\n", headers={"WWW-Authenticate": "Bearer"})
            verdict = await self.reviews.verdict(as_authenticated(user), Attributes("get", request.path))
        except BusyError:
            raise web.HTTPTooManyRequests(text="too many tokens to check; try again later\n", headers={"Retry-After": "1"}) from None
        except (ApiError, Unreachable) as error:
            _LOG.warning("the access to a page could not be checked", problem=str(error))
            raise web.HTTPServiceUnavailable(text="the API server could not check the token; the log says why\n") from error
        if not verdict.allowed:
            why = f": {verdict.reason}" if verdict.reason else ""
            raise web.HTTPForbidden(
                text=f"user {user.name!r} may not get {request.path}{why}; expected the right to get it as a non-resource URL\n"
            )
