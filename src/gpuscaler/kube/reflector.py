"""Keeps our state of one resource in step with an API server: list, watch, resume, and list again."""

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from random import Random

import msgspec

from gpuscaler.kube.client import Client
from gpuscaler.kube.decode import Decoded, Decoder, header_of, identity_of
from gpuscaler.kube.errors import ApiError, Forbidden, Gone, NotFound, ServerError, TooManyRequests, Unauthorized, Unreachable
from gpuscaler.kube.errors import error_of_status as error_event
from gpuscaler.kube.paging import PAGE, pages
from gpuscaler.kube.resources import Resource
from gpuscaler.kube.turns import DecodeLock
from gpuscaler.kube.watching import SilentError, WatchEvent, checked_event, event_of, watch_lines, watch_request
from gpuscaler.model.aside import Skipped
from gpuscaler.model.cluster import Item


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The waits of a reflector, in seconds.

    Pauses after failures are client-go's: from ``first_pause``, doubled each time up to ``longest_pause``, plus up to the same amount at
    random. A forbidden resource is asked for ever more rarely, down to once per ``forbidden``. API servers send a bookmark every minute,
    and half a minute is a generous wait for the head of a list, hence ``silence`` and ``initial_silence``. ``absent`` is the interval for
    checking on a resource that the server does not have. Without ``bookmarks`` lists are read in pages, and a watch is silent while
    nothing changes; it must end before ``silence``.
    """

    first_pause: float = 0.8
    longest_pause: float = 30.0
    forbidden: float = 60.0
    absent: float = 600.0
    silence: float = 90.0
    initial_silence: float = 30.0
    shortest_watch: int = 300
    longest_watch: int = 600
    bookmarks: bool = True


#: For connections that cannot die, since the server is in the same process: they need no bookmarks to show that they are alive.
IN_PROCESS = Pace(shortest_watch=3600, longest_watch=7200, silence=7300.0, bookmarks=False)


@dataclass(frozen=True, slots=True)
class Batch:
    """Changes of one resource: by key of the model's ``model``, the record or None for a deleted object; and what was set aside.

    Of several changes of an object in one batch, only the last is kept. ``listed`` marks the batch that completes a list; it may be empty.
    """

    resource: Resource
    model: type
    changes: Mapping[str, Item | None]
    set_aside: tuple[Skipped, ...] = ()
    listed: bool = False


@dataclass(slots=True)
class _Draft:
    """A batch under construction; unreadable objects are keyed by identity."""

    changes: dict[str, Item | None] = field(default_factory=dict)
    aside: dict[str, Skipped] = field(default_factory=dict)


class Reflector:
    """Passes all changes of the objects of ``resource`` to ``handler``, in batches, as long as :meth:`run` runs.

    ``clock`` is monotonic, in seconds. ``synced``: one whole list was passed on (or the server does not have the resource, which then is
    ``absent``). ``fresh_at``: when the server last confirmed that there is nothing newer than what was passed on. ``trouble``: the current
    problem for users, else empty. ``lists`` counts the lists that were started.
    """

    def __init__(
        self,
        client: Client,
        resource: Resource,
        decoder: Decoder,
        handler: Callable[[Batch], None],
        *,
        clock: Callable[[], float],
        random: Random,
        decode_lock: DecodeLock,
        pace: Pace = Pace(),
    ) -> None:
        self.resource = resource
        self.synced = False
        self.absent = False
        self.fresh_at: float | None = None
        self.trouble = ""
        self.lists = 0
        self.failures = 0
        self._client, self._decoder, self._handler = client, decoder, handler
        self._clock, self._random, self._decode_lock, self._pace = clock, random, decode_lock, pace
        self._served = resource
        self._streams, self._failed_streams = pace.bookmarks, 0
        self._page = PAGE
        self._version: str | None = None
        #: All objects by ``namespace/name``, with their keys if those are not the plain one, to find what is missing from a new list.
        self._known: dict[str, tuple[str, ...] | None] = {}
        #: Objects seen so far in the list that is being read; None while none is being read.
        self._seen: set[str] | None = None
        self._unreadable_at: tuple[str | None] | None = None

    @property
    def version(self) -> int | None:
        """The resource version up to which all changes were passed on; None while that is unknown, or no number."""
        return int(self._version) if self._version is not None and self._version.isdecimal() else None

    @property
    def settled(self) -> bool:
        """Whether planning need not wait for this resource: it is listed, or it is optional and unavailable now."""
        return self.synced or (self.resource.optional and self.failures > 0)

    async def run(self) -> None:
        """Reflect until cancelled. Errors from outside are never raised."""
        while True:
            began, listed = self._clock(), self.lists
            try:
                await self._list_and_watch()
            except SilentError:
                pause = 0.0
            except (ApiError, Unreachable) as error:
                pause = self._pause_after(error)
            else:
                # A server that ends watches as soon as they begin must not be asked in a tight loop.
                ended_early = self.lists == listed and self._clock() - began < self._pace.first_pause
                pause = self._next_pause() if ended_early else 0.0
            await asyncio.sleep(pause)

    async def _list_and_watch(self) -> None:
        """One watch, preceded by a list if necessary."""
        if self._version is None:
            self.lists += 1
            self._seen = set()
            if self._streams:
                await self._stream()
                return
            await self._list()
        await self._watch()

    async def _list(self) -> None:
        version = ""
        async with aclosing(pages(self._client, self._served, limit=self._page)) as page_iterator:
            async for page in page_iterator:
                await self._decode_lock.run(self._take_items, page.items or [])
                version = page.metadata.resource_version or ""
        if not version:
            raise Unreachable(f"list of {self.resource.label}: saw no metadata.resourceVersion, expected one to watch from")
        self._finish_list(version)

    async def _stream(self) -> None:
        """A watch that begins with the list, for servers that support it; others get pages from now on."""
        try:
            await self._watch()
        except ApiError as error:
            if self._version is not None or error.status not in (400, 422):
                raise
            self._streams = False
        except SilentError as error:
            if self._version is None:
                raise self._list_missing(str(error)) from error
            raise
        else:
            if self._version is None:
                raise self._list_missing(f"watch of {self.resource.label}: it ended before the bookmark that ends the list")

    def _list_missing(self, message: str) -> Unreachable:
        # Old servers ignore unknown parameters, and proxies may swallow bookmarks: twice is no accident.
        self._failed_streams += 1
        self._streams = self._failed_streams < 2
        return Unreachable(message)

    async def _watch(self) -> None:
        seconds = self._random.randint(self._pace.shortest_watch, self._pace.longest_watch)
        request = watch_request(
            self._served, version=self._version, seconds=seconds, silence=self._pace.silence, bookmarks=self._pace.bookmarks
        )
        async with aclosing(watch_lines(self._client, request, silence=self._longest_silence)) as pieces:
            async for lines in pieces:
                await self._decode_lock.run(self._take_lines, lines)
                self._confirm()

    def _longest_silence(self) -> float:
        return self._pace.initial_silence if self._version is None else self._pace.silence

    def _confirm(self) -> None:
        if self._version is not None:
            self.fresh_at, self.trouble = self._clock(), ""

    def _take_items(self, items: list[msgspec.Raw]) -> None:
        draft = _Draft()
        for item in items:
            self._add(self._decoder.read(item), draft)
        self._emit(draft)

    def _take_lines(self, lines: list[bytes]) -> None:
        draft = _Draft()
        last: WatchEvent | None = None
        try:
            for line in lines:
                event = self._take_line(line, draft)
                last = None if event is None or event.type == "BOOKMARK" else event
        finally:
            # Events before a failure are still valid, and the watch continues after them.
            if last is not None and self._version is not None:
                self._version = header_of(last.object).resource_version or self._version
                self.failures = 0
            self._emit(draft)

    def _take_line(self, line: bytes, draft: _Draft) -> WatchEvent | None:
        try:
            event = event_of(line)
            decoded = self._decoder.read(event.object) if event.type in ("ADDED", "MODIFIED") else None
            if decoded is not None and not decoded.identity:
                # Either the object has no name, or the part that was cut out by position is not an object.
                event = checked_event(line)
                decoded = self._decoder.read(event.object)
        except (msgspec.MsgspecError, RecursionError) as error:
            self._unreadable(line, draft, error)
            return None
        if decoded is not None:
            self._add(decoded, draft)
        elif event.type == "DELETED":
            identity = identity_of(header_of(event.object))
            self._forget(identity, draft)
            if self._seen is not None:
                self._seen.discard(identity)
        elif event.type == "BOOKMARK":
            self._bookmark(event, draft)
        elif event.type == "ERROR":
            raise error_event(bytes(event.object))
        return event

    def _unreadable(self, line: bytes, draft: _Draft, error: Exception) -> None:
        # It is unknown which object changed. The watch restarts where it was, and the line is skipped only if it comes again.
        if self._unreadable_at != (self._version,):
            self._unreadable_at = (self._version,)
            raise Unreachable(f"watch of {self.resource.label}: saw a line that is not an event ({error})") from error
        draft.aside[""] = Skipped(self.resource.kind, f"saw a watch event of {len(line)} bytes that is not JSON, expected an object")

    def _add(self, decoded: Decoded, draft: _Draft) -> None:
        identity = decoded.identity
        if self._seen is not None and identity:
            self._seen.add(identity)
        if decoded.aside is not None:
            # An earlier record stays: an object that cannot be read is not necessarily gone.
            draft.aside[identity] = decoded.aside
            if identity:
                self._known.setdefault(identity, None)
            return
        if draft.aside:
            draft.aside.pop(identity, None)
        if decoded.keys is None and self._known.get(identity) is None:
            # The usual case: one record, under its plain key, as before.
            self._known[identity] = None
            draft.changes[self._decoder.key(identity)] = decoded.items[0]
            return
        self._forget(identity, draft)
        self._known[identity] = decoded.keys
        draft.changes.update(zip((self._decoder.key(identity),) if decoded.keys is None else decoded.keys, decoded.items, strict=True))

    def _forget(self, identity: str, draft: _Draft) -> None:
        draft.aside.pop(identity, None)
        # The plain key is included even if no record has it: deleting an object also clears its set-aside entry.
        draft.changes |= dict.fromkeys((self._decoder.key(identity), *(self._known.pop(identity, None) or ())))

    def _bookmark(self, event: WatchEvent, draft: _Draft) -> None:
        header = header_of(event.object)
        version = header.resource_version
        if self._version is None:
            if version and header.annotations is not None and header.annotations.initial_events_end == "true":
                self._emit(draft)
                draft.changes, draft.aside = {}, {}
                self._finish_list(version)
            return
        if version and version.isdigit() and self._version.isdigit() and int(version) < int(self._version):
            # Versions only grow. A server that went back was restored from a backup, and its later events are not those we saw.
            raise Gone(410, f"bookmark at version {version} after version {self._version}: the server's data went back in time")
        self._version = version or self._version
        self.failures = 0

    def _finish_list(self, version: str) -> None:
        """Finish a list: objects that it did not contain are gone."""
        listed_identities, self._seen = self._seen or set(), None
        deletions = _Draft()
        if len(listed_identities) < len(self._known):
            for identity in self._known.keys() - listed_identities:
                self._forget(identity, deletions)
        self._version, self._page, self._failed_streams = version, PAGE, 0
        self.synced, self.absent = True, False
        self._confirm()
        self._emit(deletions, listed=True)

    def _emit(self, draft: _Draft, *, listed: bool = False) -> None:
        if draft.changes or draft.aside or listed:
            self._handler(Batch(self.resource, self._decoder.model, draft.changes, tuple(draft.aside.values()), listed))

    def _pause_after(self, error: ApiError | Unreachable) -> float:
        """Record ``error``, decide what to keep, and return the wait until the next request."""
        self.trouble = f"{self.resource.label}: {error}"
        pause = self._next_pause()
        if isinstance(error, Unreachable):
            return pause
        if isinstance(error, NotFound):
            return self._not_served(pause)
        if isinstance(error, Forbidden):
            self.trouble = (
                f"{self.resource.label}: saw {error}, expected to be allowed to list and watch them; "
                f"grant both verbs to the account that this program runs as"
            )
            # An API server that has just started briefly refuses what it will allow: only what stays forbidden is asked rarely.
            return self._jittered(min(self._pace.first_pause * 2 ** min(self.failures - 1, 16), self._pace.forbidden))
        if isinstance(error, Gone):
            if self._seen is not None:
                # The list itself expired: the next one uses fewer, larger pages, and gets further in the same time.
                self._page = min(2 * self._page, 16 * PAGE)
            self._version = None
        elif not isinstance(error, TooManyRequests | ServerError | Unauthorized):
            # The server does not accept our request, such as a version from another server: start over.
            self._version = None
        return max(pause, error.retry_after or 0.0)

    def _not_served(self, pause: float) -> float:
        """Handle a missing version of the resource: try an older one; after the last, an optional resource is absent."""
        versions = (self.resource.version, *self.resource.older)
        position = versions.index(self._served.version) + 1
        self._version = None
        self._served = self.resource.at(versions[position % len(versions)])
        if position < len(versions):
            return 0.0
        if not self.resource.optional:
            return pause
        deletions = _Draft()
        for identity in list(self._known):
            self._forget(identity, deletions)
        self._emit(deletions)
        self.synced, self.absent, self.trouble = True, True, ""
        return self._jittered(self._pace.absent)

    def _next_pause(self) -> float:
        # The exponent is bounded: a server may be unreachable for weeks.
        pause = min(self._pace.longest_pause, self._pace.first_pause * 2 ** min(self.failures, 16))
        self.failures += 1
        return self._jittered(pause)

    def _jittered(self, pause: float) -> float:
        return pause * (1 + self._random.random())
