"""The API server: one request in, one answer out, over any transport."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final

from gpuscaler.embedded.apiserver.aggregation.aggregator import Aggregator
from gpuscaler.embedded.apiserver.aggregation.front_proxy import FrontProxy
from gpuscaler.embedded.apiserver.disruptions import Disruptions
from gpuscaler.embedded.apiserver.faults import Fault, Faults
from gpuscaler.embedded.apiserver.kinds import BY_NAME, NAMESPACES, PRIORITY_CLASSES, Kind
from gpuscaler.embedded.apiserver.kubectl import discovery, openapi
from gpuscaler.embedded.apiserver.kubectl.reviews import Reviews
from gpuscaler.embedded.apiserver.objects.forwarding import Forwards
from gpuscaler.embedded.apiserver.objects.proxying import Proxies
from gpuscaler.embedded.apiserver.parts import Parts
from gpuscaler.embedded.apiserver.patch.patch import Patcher
from gpuscaler.embedded.apiserver.reading import Reader
from gpuscaler.embedded.apiserver.routing import Target, target
from gpuscaler.embedded.apiserver.store import Object, Store, key_of
from gpuscaler.embedded.apiserver.watching import Watches
from gpuscaler.embedded.apiserver.wire import bodies
from gpuscaler.embedded.apiserver.wire.failures import Failure, Severed, bad_request, method_not_allowed, no_such_path, unauthorized
from gpuscaler.embedded.apiserver.wire.replies import json_reply, reply, streamed
from gpuscaler.embedded.apiserver.wire.selecting import Filter
from gpuscaler.embedded.apiserver.writing import Deletion, Writer, deletion
from gpuscaler.kube.portforward import PodPort
from gpuscaler.kube.transport import Answer, Request

NAMES_AT_START: Final = ("default", "kube-system", "kube-public", "kube-node-lease")
PRIORITIES_AT_START: Final = (("system-cluster-critical", 2_000_000_000), ("system-node-critical", 2_000_001_000))


async def close(answer: Answer) -> None:
    """Does nothing: the client does not read further."""
    done = getattr(answer.pieces, "aclose", None)
    if done is not None:
        await done()


class ApiServer:
    """A Kubernetes API server in memory, without admission webhooks and without authorisation.

    ``clock`` returns POSIX seconds. ``tokens`` are the accepted bearer tokens, None accepts all requests. ``history`` is how many changes
    of a kind a watch can be resumed over. ``seed`` makes uids and generated names the same in every run. ``streaming_lists`` False
    refuses watches that begin with a list, as Kubernetes 1.33 does. Faults go through ``faults``, programs that simulate pods through
    ``proxies`` and ``forwards``. Disruption budgets have a status, which evictions need, only while ``disruptions.run()`` runs. With
    ``front_proxy``, requests for aggregated APIs are passed to their servers while ``aggregator.run()`` runs.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        *,
        tokens: Iterable[str] | None = None,
        history: int = 10_000,
        seed: int = 0,
        streaming_lists: bool = True,
        front_proxy: FrontProxy | None = None,
    ) -> None:
        self.store = Store(history)
        self.faults = Faults(Random(seed))
        self._tokens = None if tokens is None else frozenset(tokens)
        self._writer = Writer(self.store, clock=clock, random=Random(seed))
        self._reader = Reader(self.store, clock)
        self._watches = Watches(self.store, clock=clock, random=Random(seed), streaming_lists=streaming_lists)
        self._patcher = Patcher(self.store, self._writer)
        self._parts = Parts(self.store, self._writer, self._patcher)
        self.proxies = Proxies(self.store)
        self.forwards = Forwards(self.store)
        self._reviews = Reviews(self._tokens)
        self.aggregator = None if front_proxy is None else Aggregator(self.store, front_proxy, timestamp=self._writer.now)
        self.disruptions = Disruptions(self.store, clock=clock, timestamp=self._writer.now)
        for name in NAMES_AT_START:
            self._writer.create(NAMESPACES, "", {"metadata": {"name": name}})
        for name, value in PRIORITIES_AT_START:
            self._writer.create(
                PRIORITY_CLASSES, "", {"metadata": {"name": name}, "value": value, "preemptionPolicy": "PreemptLowerPriority"}
            )

    def load(self, objects: Iterable[Mapping[str, Any]]) -> int:
        """Add ``objects`` unchanged, with their statuses, and return their number: an existing cluster. It creates missing namespaces."""
        count = 0
        for given in objects:
            kind = BY_NAME.get((str(given.get("apiVersion")), str(given.get("kind"))))
            if kind is None:
                raise ValueError(f"{given.get('apiVersion')} {given.get('kind')}: unknown kind, expected one that this server stores")
            self._load(kind, {**given, "metadata": dict(given["metadata"])})
            count += 1
        return count

    def _load(self, kind: Kind, obj: Object) -> None:
        metadata = obj["metadata"]
        if kind.namespaced:
            namespace = metadata.setdefault("namespace", "default")
            if self.store.get(NAMESPACES, namespace) is None:
                self._writer.create(NAMESPACES, "", {"metadata": {"name": namespace}})
        metadata.setdefault("uid", self._writer.uid())
        metadata.setdefault("creationTimestamp", self._writer.now())
        self.store.put(kind, obj)

    def forget(self) -> None:
        """Drop the whole history of changes and all open pages: every resumed watch and every continued list is answered with 410."""
        for collection in self.store:
            collection.forget()
        self._reader.expire_pages()

    @property
    def watching(self) -> int:
        """The number of open watches."""
        return self._watches.open

    def drop_watches(self, *, sever: bool = True) -> None:
        """End all open watches, as a broken connection or (``sever`` False) in order."""
        self._watches.end_all(sever=sever)

    @asynccontextmanager
    async def handle(self, request: Request) -> AsyncIterator[Answer]:
        """The answer to ``request``. Raises :class:`Severed`, also while its pieces are read, if a fault breaks the connection."""
        answer = await self.answer(request)
        try:
            yield answer
        finally:
            await close(answer)

    @property
    def answers_at_once(self) -> bool:
        """Whether every request is answered at once: no fault delays an answer, and no other server is involved."""
        return not self.faults.in_force and not self.proxies.serving and self.aggregator is None

    async def answer(self, request: Request) -> Answer:
        """Like :meth:`handle`, for callers that :func:`close` the answer themselves."""
        try:
            fault = await self._admitted(request)
            answer = await self.proxies.answer(request) or await self._aggregated(request) or self._dispatch(request)
            if fault is not None and fault.sever == "after":
                raise Severed
            return self.faults.cut_body(answer, fault)
        except Failure as failure:
            return reply(failure.body(), status=failure.code, headers=failure.headers())

    async def _aggregated(self, request: Request) -> Answer | None:
        return None if self.aggregator is None else await self.aggregator.answer(request)

    async def forwarded(self, request: Request) -> PodPort | Answer | None:
        """The port of a pod that ``request`` wants forwarded, or a refusal; None for other requests."""
        if not self.forwards.concerns(request):
            return None
        try:
            await self._admitted(request)
            return self.forwards.find(request)
        except Failure as failure:
            return reply(failure.body(), status=failure.code, headers=failure.headers())

    async def _admitted(self, request: Request) -> Fault | None:
        """The fault that applies after the request was let in. Raises :class:`Failure` and :class:`Severed`."""
        self._authenticate(request)
        fault = self.faults.pick(request)
        if fault is not None and fault.delay:
            await asyncio.sleep(fault.delay)
        if fault is not None and fault.refusal is not None:
            raise fault.refusal
        if fault is not None and fault.sever == "before":
            raise Severed
        return fault

    def _authenticate(self, request: Request) -> None:
        if self._tokens is None:
            return
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() != "bearer" or token.strip() not in self._tokens:
            raise unauthorized()

    def _dispatch(self, request: Request) -> Answer:
        place = target(request.path)
        if place is None:
            others = self.aggregator.groups if self.aggregator is not None else dict
            answer = discovery.answer(request, others) or openapi.answer(request.path) or self._reviews.answer(request)
            if answer is None:
                raise no_such_path()
            return answer
        try:
            if place.part:
                return self._parts.answer(place, request)
            return self._on_object(place, request) if place.name else self._on_collection(place, request)
        except (TypeError, AttributeError, KeyError, ValueError, RecursionError) as error:
            # Objects are dicts here. Parts with other types than in Kubernetes, or nested too deeply, are noticed only where
            # they are used.
            if request.method in ("GET", "HEAD"):
                raise
            raise bad_request(f"the object provided cannot be decoded as {place.kind.kind}: {type(error).__name__}: {error}") from error

    def _on_object(self, place: Target, request: Request) -> Answer:
        kind, namespace, name = place.kind, place.namespace, place.name
        dry_run = request.query.get("dryRun") == "All"
        match request.method:
            case "GET" if place.watch or request.query.get("watch") in ("true", "1"):
                return self._watch(place, request)
            case "GET":
                return self._reader.get(kind, namespace, name, request)
            case "PUT":
                missing = self.store.get(kind, key_of(namespace, name)) is None
                stored = self._writer.update(kind, namespace, name, bodies.read_object(request), dry_run=dry_run)
                return self._reader.one(kind, stored, request, status=201 if missing else 200)
            case "PATCH":
                stored, created = self._patcher.patch(place, request)
                return self._reader.one(kind, stored, request, status=201 if created else 200)
            case "DELETE":
                options = deletion(request.query, bodies.read_options(request))
                return self._reader.one(kind, self._writer.delete(kind, namespace, name, options), request)
            case _:
                raise method_not_allowed()

    def _on_collection(self, place: Target, request: Request) -> Answer:
        match request.method:
            case "GET" if place.watch or request.query.get("watch") in ("true", "1"):
                return self._watch(place, request)
            case "GET":
                return self._reader.page(place.kind, place.namespace, request)
            case "POST" if place.namespace or not place.kind.namespaced:
                dry_run = request.query.get("dryRun") == "All"
                stored = self._writer.create(place.kind, place.namespace, bodies.read_object(request), dry_run=dry_run)
                return self._reader.one(place.kind, stored, request, status=201)
            case "DELETE" if place.namespace or not place.kind.namespaced:
                return json_reply(self._delete_all(place, request))
            case _:
                raise method_not_allowed()

    def _watch(self, place: Target, request: Request) -> Answer:
        return streamed(self._watches.stream(self._watches.plan(place.kind, place.namespace, place.name, request)))

    def _delete_all(self, place: Target, request: Request) -> Object:
        given = deletion(request.query, bodies.read_options(request))
        options = Deletion(grace=given.grace, propagation=given.propagation, dry_run=given.dry_run)
        chosen = Filter(place.kind, request.query.get("labelSelector", ""), request.query.get("fieldSelector", ""))
        deleted = [
            self._writer.delete(place.kind, place.namespace, stored.key.rpartition("/")[2], options)
            for stored in chosen.among(self.store[place.kind].within(place.namespace))
            if self.store.get(place.kind, stored.key)
        ]
        metadata = {"resourceVersion": str(self.store.revision)}
        items = [stored.read() for stored in deleted]
        return {"kind": f"{place.kind.kind}List", "apiVersion": place.kind.api_version, "metadata": metadata, "items": items}
