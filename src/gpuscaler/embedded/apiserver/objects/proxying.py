"""The proxy subresource of pods: ``…/pods/[https:]NAME:PORT/proxy/PATH`` is answered by the handler registered for that pod's port.

Pods here are records without processes, so a program that simulates one registers a handler for it.
"""

import re
from collections.abc import Awaitable, Callable
from dataclasses import replace

from gpuscaler.embedded.apiserver.kinds import PODS
from gpuscaler.embedded.apiserver.store import Store, key_of
from gpuscaler.embedded.apiserver.wire.failures import Failure, not_found
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
        """Whether a handler is registered for a pod."""
        return bool(self._handlers)

    def register(self, namespace: str, pod: str, port: int, handler: Handler) -> None:
        """Let ``handler`` answer for that port of that pod from now on."""
        self._handlers[namespace, pod, str(port)] = handler

    async def answer(self, request: Request) -> Answer | None:
        """The answer to a request through the proxy; None for any other request."""
        match = _PATH.fullmatch(request.path)
        if match is None:
            return None
        namespace, name, port = match["namespace"], match["name"], match["port"] or "80"
        if self._store.get(PODS, key_of(namespace, name)) is None:
            raise not_found(PODS, name)
        handler = self._handlers.get((namespace, name, port))
        if handler is None:
            raise _refused(name, port)
        return await handler(replace(request, path=match["rest"] or "/"))


def _refused(name: str, why: str) -> Failure:
    return Failure(503, "ServiceUnavailable", f'error trying to reach service: dial tcp "{name}": connection refused ({why})')
