"""The proxy subresource of pods: ``…/pods/[https:]NAME:PORT/proxy/PATH`` is answered by whoever is registered as that pod's port.

Pods here are records without processes, so a program that plays one says where it is: usually at a port of this machine.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace

import aiohttp
from aiohttp.client_exceptions import ClientError

from gpuscaler.embedded.apiserver.kinds import PODS
from gpuscaler.embedded.apiserver.store import Store, key_of
from gpuscaler.embedded.apiserver.wire.failures import Failure, not_found
from gpuscaler.embedded.apiserver.wire.replies import reply
from gpuscaler.kube.transport import Answer, Request

#: Answers a request whose path is the one behind ``/proxy``.
Handler = Callable[[Request], Awaitable[Answer]]
_PATH = re.compile(r"/api/v1/namespaces/(?P<namespace>[^/]+)/pods/(?:https?:)?(?P<name>[^/:]+)(?::(?P<port>[^/:]*))?/proxy(?P<rest>/.*)?")


class Proxies:
    """Handlers by namespace, pod and port."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._handlers: dict[tuple[str, str, str], Handler] = {}

    @property
    def serving(self) -> bool:
        """Whether somebody answers for a pod."""
        return bool(self._handlers)

    def register(self, namespace: str, pod: str, port: int, handler: Handler) -> None:
        """From now on ``handler`` answers for that port of that pod."""
        self._handlers[namespace, pod, str(port)] = handler

    async def answer(self, request: Request) -> Answer | None:
        """The answer to a request through the proxy; None for any other request."""
        found = _PATH.fullmatch(request.path)
        if found is None:
            return None
        namespace, name, port = found["namespace"], found["name"], found["port"] or "80"
        if self._store.get(PODS, key_of(namespace, name)) is None:
            raise not_found(PODS, name)
        handler = self._handlers.get((namespace, name, port))
        if handler is None:
            raise _refused(name, port)
        return await handler(replace(request, path=found["rest"] or "/"))


def to_local(url: str) -> Handler:
    """A handler that asks the server at ``url``; credentials for the API server are not passed on."""

    async def handle(request: Request) -> Answer:
        headers = {name: value for name, value in request.headers.items() if name in ("accept", "content-type")}
        try:
            async with (
                aiohttp.ClientSession() as session,
                session.request(request.method, url + request.path, params=dict(request.query), headers=headers, data=request.body) as got,
            ):
                kind = {"content-type": got.headers.get("content-type", "application/octet-stream")}
                return reply(await got.read(), status=got.status, headers=kind)
        except ClientError as error:
            raise _refused(url, str(error)) from error

    return handle


def _refused(name: str, why: str) -> Failure:
    return Failure(503, "ServiceUnavailable", f'error trying to reach service: dial tcp "{name}": connection refused ({why})')
