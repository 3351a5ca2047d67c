"""Watches: the existing objects if requested, then every change, with bookmarks in between."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass
from random import Random
from typing import Final

import msgspec

from gpuscaler.embedded.apiserver.kinds import Kind
from gpuscaler.embedded.apiserver.kubectl import tables
from gpuscaler.embedded.apiserver.reading import PIECE, parse_revision, render
from gpuscaler.embedded.apiserver.store import Change, Store, Stored, change_in
from gpuscaler.embedded.apiserver.wire.failures import Failure, Severed, invalid, too_new, too_old
from gpuscaler.embedded.apiserver.wire.selecting import Filter
from gpuscaler.kube.transport import Request

#: Seconds between two bookmarks.
BOOKMARK_PERIOD: Final = 60.0
#: The minimum duration in seconds of a watch without its own limit; the maximum is twice that, as in a real API server.
SHORTEST: Final = 1800.0
INITIAL_EVENTS_END: Final = "k8s.io/initial-events-end"


@dataclass(frozen=True, slots=True)
class WatchPlan:
    """One watch: its objects, start position and duration. ``revision`` is the store's at that position."""

    kind: Kind
    namespace: str
    chosen: Filter
    request: Request
    first: tuple[Stored, ...]
    position: int
    revision: int
    bookmarks: bool
    mark_first: bool
    seconds: float


class Watches:
    """Answers watches from ``store``; ``streaming_lists`` False refuses ``sendInitialEvents``, as Kubernetes 1.33 does by default."""

    def __init__(self, store: Store, *, clock: Callable[[], float], random: Random, streaming_lists: bool) -> None:
        self._clock = clock
        self._store, self._random, self._streaming_lists = store, random, streaming_lists
        self._generation, self._sever = 0, False
        self.open = 0

    def end_all(self, *, sever: bool) -> None:
        """End all open watches: in order, or as a broken connection."""
        self._generation, self._sever = self._generation + 1, sever
        for collection in self._store:
            collection.wake()

    def plan(self, kind: Kind, namespace: str, name: str, request: Request) -> WatchPlan | Failure:
        """The stream's settings, or the refusal that a client reads in the stream (410). Raises other refusals."""
        query, collection = request.query, self._store[kind]
        fields = ",".join(filter(None, (query.get("fieldSelector", ""), name and f"metadata.name={name}")))
        chosen = Filter(kind, query.get("labelSelector", ""), fields)
        revision, initial = parse_revision(kind, query, "resourceVersion"), self._initial(kind, request)
        if revision > self._store.revision:
            raise too_new(revision, self._store.revision)
        position = collection.position if initial or not revision else collection.since(revision)
        if position is None:
            return too_old(revision, collection.forgotten)
        everything = initial or (initial is None and not revision)
        seconds = float(parse_revision(kind, query, "timeoutSeconds")) or SHORTEST * (1 + self._random.random())
        return WatchPlan(
            kind,
            namespace,
            chosen,
            request,
            tuple(chosen.among(collection.within(namespace))) if everything else (),
            position,
            self._store.revision,
            query.get("allowWatchBookmarks") in ("true", "1"),
            bool(initial),
            seconds,
        )

    def _initial(self, kind: Kind, request: Request) -> bool | None:
        requested, match = request.query.get("sendInitialEvents"), request.query.get("resourceVersionMatch", "")
        if requested is None:
            return None
        if not self._streaming_lists:
            message = "Forbidden: sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled"
            raise invalid(kind, "", (("FieldValueForbidden", "sendInitialEvents", message),))
        if match != "NotOlderThan":
            message = "Forbidden: sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
            raise invalid(kind, "", (("FieldValueForbidden", "resourceVersionMatch", message),))
        return requested in ("true", "1")

    async def stream(self, plan: WatchPlan | Failure) -> AsyncIterator[bytes]:
        """The lines of one watch, many in a piece. Raises :class:`Severed` if a fault breaks it."""
        if isinstance(plan, Failure):
            yield msgspec.json.encode({"type": "ERROR", "object": plan.status()}) + b"\n"
            return
        self.open += 1
        try:
            async for piece in self._follow(plan, Lines(plan, self._clock)):
                yield piece
        finally:
            self.open -= 1

    async def _follow(self, plan: WatchPlan, line: "Lines") -> AsyncIterator[bytes]:
        generation = self._generation
        for piece in _pieces(line.of("ADDED", stored) for stored in plan.first):
            yield piece
        if plan.mark_first and plan.bookmarks:
            # Not the store's current revision: a client that resumes from here must see all later changes.
            yield line.bookmark(plan.revision, {INITIAL_EVENTS_END: "true"})
        loop, collection, position = asyncio.get_running_loop(), self._store[plan.kind], plan.position
        end, mark = loop.time() + plan.seconds, loop.time() + BOOKMARK_PERIOD
        while True:
            if self._generation != generation:
                if self._sever:
                    raise Severed
                return
            changes = collection.changes(position)
            if changes is None:
                yield msgspec.json.encode({"type": "ERROR", "object": too_old(0, collection.forgotten).status()}) + b"\n"
                return
            position += len(changes)
            if piece := b"".join(line.change(change) for change in changes):
                yield piece
            if collection.position > position:
                continue
            if loop.time() >= end:
                return
            if plan.bookmarks and loop.time() >= mark:
                mark = loop.time() + BOOKMARK_PERIOD
                yield line.bookmark(self._store.revision)
                continue
            await change_in((collection,), min(end, mark if plan.bookmarks else end) - loop.time())


def _pieces(lines: Iterable[bytes]) -> Iterable[bytes]:
    parts: list[bytes] = []
    size = 0
    for line in lines:
        parts.append(line)
        size += len(line)
        if size >= PIECE:
            yield b"".join(parts)
            parts, size = [], 0
    if parts:
        yield b"".join(parts)


class Lines:
    """Writes the lines of one watch: objects as they are, or each as a table with one row."""

    def __init__(self, plan: WatchPlan, clock: Callable[[], float]) -> None:
        self._plan, self._clock = plan, clock
        self._prefix = f"{plan.namespace}/" if plan.namespace else ""
        self._render: Callable[[Stored], bytes] = (
            self._table if tables.wants_table(plan.request) else lambda stored: render(plan.kind, stored)
        )

    def _table(self, stored: Stored) -> bytes:
        return msgspec.json.encode(tables.table_of(self._plan.kind, [stored.read()], now=self._clock(), request=self._plan.request))

    def of(self, type_: str, stored: Stored) -> bytes:
        return b'{"type":"%b","object":%b}\n' % (type_.encode(), self._render(stored))

    def change(self, change: Change) -> bytes:
        """The line for ``change``, or nothing if the watch does not cover that object.

        For this watch, an object that no longer matches the selectors is deleted, and one that begins to match is added.
        """
        if not change.stored.key.startswith(self._prefix):
            return b""
        chosen = self._plan.chosen
        before = change.previous is not None and chosen(change.previous)
        after = change.type != "DELETED" and chosen(change.stored)
        if after:
            return self.of("MODIFIED" if before else "ADDED", change.stored)
        return self.of("DELETED", change.stored) if before else b""

    def bookmark(self, revision: int, annotations: dict[str, str] | None = None) -> bytes:
        kind = self._plan.kind
        metadata = {"resourceVersion": str(revision), "creationTimestamp": None}
        obj = {
            "kind": kind.kind,
            "apiVersion": kind.api_version,
            "metadata": metadata | ({"annotations": annotations} if annotations else {}),
        }
        if tables.wants_table(self._plan.request):
            obj = {"kind": "Table", "apiVersion": "meta.k8s.io/v1", "metadata": metadata, "columnDefinitions": [], "rows": []}
        return msgspec.json.encode({"type": "BOOKMARK", "object": obj}) + b"\n"
