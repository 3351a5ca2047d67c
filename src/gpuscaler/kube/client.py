"""Reads and writes objects. All requests pass through one method, so that limits, the fence and the dry run apply to all of them."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Final

import msgspec

from gpuscaler.kube.errors import ApiError, CredentialsError, Gone, ServerError, TooManyRequests, Unreachable, check_answer, error_of
from gpuscaler.kube.eviction import Evicted, Eviction, eviction_result
from gpuscaler.kube.lists import page_of
from gpuscaler.kube.rate import RateLimit
from gpuscaler.kube.requests import RequestKind, RequestMetrics, request_kind
from gpuscaler.kube.resources import PODS, Resource
from gpuscaler.kube.transport import Answer, Request, Transport, WholeBody
from gpuscaler.model.decoding.depth import without_depths

_JSON: Final = "application/json"
_MERGE: Final = "application/merge-patch+json"
_APPLY: Final = "application/apply-patch+yaml"
#: Total tries of a read, and the first pause between them, which doubles. A Retry-After above the longest pause is raised as an error.
_ATTEMPTS, _PAUSE, _LONGEST_PAUSE = 4, 0.25, 10.0
_MAX_ERROR_BYTES = 65_536


def no_fence(timeout: float) -> None:
    """Allow every write."""


@dataclass(frozen=True, slots=True)
class Client:
    """Objects of one API server, over any transport.

    Reads are repeated when the server is unreachable, overloaded or failing. Writes never are: it is unknown whether the first one took
    effect. Both raise :class:`ApiError` or :class:`Unreachable`.

    ``fence`` is called right before a write is sent, with the seconds that the write may take, and raises to stop it. ``dry_run``
    withholds every write and returns what would have been sent. ``write_timeout`` limits a whole write, including credentials and
    connection, so that it has ended before the time that the fence was asked for is over.
    """

    transport: Transport
    field_manager: str = "gpuscaler"
    limit: RateLimit = field(default_factory=RateLimit)
    metrics: RequestMetrics = field(default_factory=RequestMetrics)
    fence: Callable[[float], None] = no_fence
    dry_run: bool = False
    read_timeout: float = 30.0
    write_timeout: float = 5.0
    urgent: bool = False

    def urgently(self) -> "Client":
        """This client for urgent requests, which do not wait their turn; limit and metrics are shared."""
        return replace(self, urgent=True)

    def fenced(self, fence: Callable[[float], None]) -> "Client":
        """This client with ``fence`` to stop writes; limit and metrics are shared."""
        return replace(self, fence=fence)

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        """Wait for the rate limit, send the request, and yield the answer or raise its error. Nothing is repeated."""
        kind = request_kind(request)
        if request.method == "GET":
            self.metrics.limited_seconds += await self.limit.wait(urgent=self.urgent)
            async with self._send(request, kind) as answer:
                yield answer
        elif self.dry_run:
            self.metrics.withheld[kind] += 1
            yield Answer(200, {}, WholeBody(request.body))
        else:
            self.metrics.limited_seconds += await self.limit.wait(urgent=self.urgent)
            self.fence(self.write_timeout)
            try:
                async with asyncio.timeout(self.write_timeout), self._send(request, kind) as answer:
                    yield answer
            except TimeoutError as error:
                raise Unreachable(f"{request.method} {request.path}: no answer within {self.write_timeout:g} s") from error

    @asynccontextmanager
    async def _send(self, request: Request, request_type: RequestKind) -> AsyncIterator[Answer]:
        loop = asyncio.get_running_loop()
        start = loop.time()
        status = 0
        try:
            async with self.transport.exchange(request) as answer:
                status = answer.status
                self.metrics.count_answer(request_type, status, loop.time() - start)
                if not 200 <= status < 300:
                    body = await _read_body(answer, _MAX_ERROR_BYTES)
                    check_answer(request.method, request.path, status, answer.headers, body)
                    # A redirect is an error too: credentials go only to servers that the configuration names.
                    raise error_of(status, answer.headers, body)
                content_type = answer.headers.get("content-type", _JSON)
                if "json" not in content_type:
                    # A page has an end, which a stream of another type may lack.
                    body = await _read_body(answer, _MAX_ERROR_BYTES) if "html" in content_type else b""
                    check_answer(request.method, request.path, status, answer.headers, body)
                yield answer
        finally:
            if not status:
                self.metrics.count_answer(request_type, 0, loop.time() - start)

    async def get(self, resource: Resource, name: str, *, namespace: str = "", subresource: str = "") -> bytes:
        return await self._read(resource.path(namespace, name, subresource), {})

    async def get_once(self, path: str, query: Mapping[str, str] | None = None) -> bytes:
        """What is at ``path``, for example of another program's API, in one attempt."""
        async with self.exchange(Request("GET", path, query or {}, {"accept": _JSON}, timeout=self.read_timeout)) as answer:
            return await _read_body(answer)

    async def get_page(
        self,
        resource: Resource,
        *,
        namespace: str = "",
        limit: int = 500,
        continue_: str = "",
        query: Mapping[str, str] | None = None,
    ) -> bytes:
        """One page of a list, as the server sends it. ``query`` adds selectors or a resource version."""
        parameters = {"limit": str(limit), **({"continue": continue_} if continue_ else {}), **(query or {})}
        return await self._read(resource.path(namespace), parameters)

    async def list_all(self, resource: Resource, *, namespace: str = "", query: Mapping[str, str] | None = None) -> list[bytes]:
        """The objects of a list, read page by page, and restarted once if the list expires on the way.

        What is nested too deeply in them is left out: a field that one user has written must not keep others from reading the list.
        """
        for last in (False, True):
            try:
                return await self._pages(resource, namespace, query)
            except Gone:
                if last:
                    raise
        raise AssertionError("the second try returns or raises")

    async def create(self, resource: Resource, body: Any, *, namespace: str = "", name: str = "", subresource: str = "") -> bytes:
        """Create ``body`` (an object or its JSON); with ``name`` and ``subresource``, create a subresource of that object."""
        return await self._write("POST", resource.path(namespace, name, subresource), body)

    async def replace(self, resource: Resource, name: str, body: Any, *, namespace: str = "", subresource: str = "") -> bytes:
        """Replace an object; a resource version in ``body`` makes it a compare-and-swap."""
        return await self._write("PUT", resource.path(namespace, name, subresource), body)

    async def merge_patch(self, resource: Resource, name: str, patch: Any, *, namespace: str = "", subresource: str = "") -> bytes:
        """Apply a JSON merge patch (RFC 7386): null removes, a list replaces."""
        return await self._write("PATCH", resource.path(namespace, name, subresource), patch, content=_MERGE)

    async def apply(
        self, resource: Resource, name: str, body: Any, *, namespace: str = "", subresource: str = "", force: bool = True
    ) -> bytes:
        """Apply ``body`` on the server side; without ``force``, a field that another manager owns raises a Conflict that names it."""
        return await self._write("PATCH", resource.path(namespace, name, subresource), body, content=_APPLY, force=force)

    async def delete(
        self,
        resource: Resource,
        name: str,
        *,
        namespace: str = "",
        uid: str = "",
        resource_version: str = "",
        grace: int | None = None,
        propagation: str = "",
    ) -> bytes:
        """Delete an object, restricted to ``uid`` and ``resource_version`` if given (else Conflict). ``grace`` is in seconds."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", **_delete_options(uid, resource_version, grace)}
        if propagation:
            options["propagationPolicy"] = propagation
        return await self._write("DELETE", resource.path(namespace, name), options)

    async def evict(self, namespace: str, name: str, *, uid: str = "", grace: int | None = None, dry_run: bool = False) -> Eviction:
        """Request the eviction of a pod. With ``dry_run`` the server only checks whether it would be allowed, and changes nothing.

        An error that concerns more than the pod is raised: overload, permissions, a failure.
        """
        options = _delete_options(uid, "", grace)
        if dry_run:
            options["dryRun"] = ["All"]
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": namespace}, "deleteOptions": options}
        try:
            await self._write("POST", PODS.path(namespace, name, "eviction"), body)
        except ApiError as error:
            result = eviction_result(error, uid)
            if result is None:
                raise
            return result
        return Evicted()

    async def bind(self, namespace: str, name: str, node: str, *, uid: str = "") -> None:
        """Bind a pod to a node."""
        metadata = {"name": name, "namespace": namespace, **({"uid": uid} if uid else {})}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata, "target": target}
        await self._write("POST", PODS.path(namespace, name, "binding"), body)

    async def _pages(self, resource: Resource, namespace: str, query: Mapping[str, str] | None) -> list[bytes]:
        items: list[bytes] = []
        token = ""
        while True:
            page = page_of(await self.get_page(resource, namespace=namespace, continue_=token, query=query), resource)
            # bytes() copies: keeping a Raw would keep its whole page alive.
            items += [without_depths(item) if page.is_deep else bytes(item) for item in page.items or ()]
            token = page.metadata.next_page or ""
            if not token:
                return items

    async def _read(self, path: str, query: Mapping[str, str]) -> bytes:
        request = Request("GET", path, query, {"accept": _JSON}, timeout=self.read_timeout)
        for attempt in range(_ATTEMPTS):
            try:
                async with self.exchange(request) as answer:
                    return await _read_body(answer)
            except CredentialsError:
                raise  # They were just looked up; what is missing will still be missing a second later.
            except (Unreachable, TooManyRequests, ServerError) as error:
                pause = max(_PAUSE * 2**attempt, getattr(error, "retry_after", None) or 0.0)
                if attempt + 1 == _ATTEMPTS or pause > _LONGEST_PAUSE:
                    raise
            self.metrics.retries[request_kind(request)] += 1
            await asyncio.sleep(pause)
        raise AssertionError("the last attempt returns or raises")

    async def _write(self, method: str, path: str, body: Any, *, content: str = _JSON, force: bool = False) -> bytes:
        encoded = body if isinstance(body, bytes) else msgspec.json.encode(body)
        query = {} if method == "DELETE" else {"fieldManager": self.field_manager}
        if force:
            query["force"] = "true"
        request = Request(method, path, query, {"accept": _JSON, "content-type": content}, encoded, self.write_timeout)
        async with self.exchange(request) as answer:
            return await _read_body(answer)


def _delete_options(uid: str, resource_version: str, grace: int | None) -> dict[str, Any]:
    conditions = {key: value for key, value in (("uid", uid), ("resourceVersion", resource_version)) if value}
    options: dict[str, Any] = {"preconditions": conditions} if conditions else {}
    return options if grace is None else {**options, "gracePeriodSeconds": grace}


async def _read_body(answer: Answer, limit: int | None = None) -> bytes:
    """The body in one piece, or at most about its first ``limit`` bytes."""
    body = bytearray()
    async for piece in answer.pieces:
        body += piece
        if limit is not None and len(body) >= limit:
            break
    return bytes(body)
