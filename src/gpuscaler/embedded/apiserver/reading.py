"""Get, and lists in pages."""

import base64
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from gpuscaler.embedded.apiserver.kinds import NEW_EVENTS, Kind
from gpuscaler.embedded.apiserver.kubectl import tables
from gpuscaler.embedded.apiserver.kubectl.warnings import warning
from gpuscaler.embedded.apiserver.objects import events
from gpuscaler.embedded.apiserver.store import Object, Store, Stored, key_of
from gpuscaler.embedded.apiserver.wire.failures import EXPIRED_PAGE, Failure, bad_request, expired, invalid, not_found, too_new, too_old
from gpuscaler.embedded.apiserver.wire.replies import JSON, reply, streamed
from gpuscaler.embedded.apiserver.wire.selecting import Filter
from gpuscaler.kube.transport import Answer, Request

#: The maximum number of lists that are being read page by page at the same time; the oldest expires first.
OPEN_LISTS: Final = 64
#: The size in bytes of the pieces of a body.
PIECE: Final = 256 * 1024


class Page(NamedTuple):
    """A partly read list: its objects at ``revision``, and where its next page starts.

    All pages share one list: a copy of 150,000 references for each page costs more than the page.
    """

    revision: int
    objects: Sequence[Stored]
    start: int


class Reader:
    """Answers get and list from ``store``."""

    def __init__(self, store: Store, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._pages: OrderedDict[tuple[int, int], Page] = OrderedDict()
        self._lists = 0

    def expire_pages(self) -> None:
        """Forget all partly read lists: their next pages are answered with 410."""
        self._pages.clear()

    def get(self, kind: Kind, namespace: str, name: str, request: Request) -> Answer:
        stored = self._store.get(kind, key_of(namespace, name))
        if stored is None:
            raise not_found(kind, name)
        return self.one(kind, stored, request)

    def one(self, kind: Kind, stored: Stored, request: Request, *, status: int = 200) -> Answer:
        """``stored`` as the only object in the answer, or as a table if requested."""
        if tables.wants_table(request):
            body = msgspec.json.encode(tables.table_of(kind, [stored.read()], now=self._clock(), request=request))
        else:
            body = render(kind, stored)
        return reply(body, status=status, headers=JSON | warning(kind, stored) if status == 201 else None)

    def page(self, kind: Kind, namespace: str, request: Request) -> Answer:
        query = request.query
        chosen = Filter(kind, query.get("labelSelector", ""), query.get("fieldSelector", ""))
        limit = parse_revision(kind, query, "limit")
        if token := query.get("continue"):
            if query.get("resourceVersion"):
                raise bad_request("specifying resource version is not allowed when using continue")
            revision, objects, start = self._continue_page(kind, namespace, chosen, token)
        else:
            self._check_revision(kind, query)
            revision, objects, start = self._store.revision, chosen.among(self._store[kind].within(namespace)), 0
        metadata: Object = {"resourceVersion": str(revision)}
        end = len(objects)
        if limit and end - start > limit:
            end = start + limit
            metadata["continue"] = self._keep_page(Page(revision, objects, end))
            if chosen.everything:
                metadata["remainingItemCount"] = len(objects) - end
        objects = objects[start:end]
        if tables.wants_table(request):
            table = tables.table_of(kind, [stored.read() for stored in objects], now=self._clock(), request=request)
            table["metadata"] = metadata
            return reply(msgspec.json.encode(table))
        return streamed(list_body(kind, metadata, objects))

    def _check_revision(self, kind: Kind, query: Mapping[str, str]) -> None:
        revision, match = parse_revision(kind, query, "resourceVersion"), query.get("resourceVersionMatch", "")
        if match not in ("", "Exact", "NotOlderThan") or (match and "resourceVersion" not in query):
            message = f'Invalid value: "{match}": resourceVersionMatch is forbidden unless resourceVersion is provided'
            raise invalid(kind, "", (("FieldValueForbidden", "resourceVersionMatch", message),))
        if revision > self._store.revision:
            raise too_new(revision, self._store.revision)
        if match == "Exact" and 0 < revision < self._store.revision:
            raise too_old(revision, self._store.revision)

    def _keep_page(self, page: Page) -> str:
        self._lists += 1
        self._pages[page.revision, self._lists] = page
        while len(self._pages) > OPEN_LISTS:
            self._pages.popitem(last=False)
        return _token(page.revision, self._lists, page.objects[page.start - 1].key)

    def _continue_page(self, kind: Kind, namespace: str, chosen: Filter, token: str) -> Page:
        """The rest of a list at its revision; a token without a revision continues from the same key at the newest one."""
        try:
            fields = msgspec.json.decode(base64.urlsafe_b64decode(token + "=" * (-len(token) % 4)))
            revision, number_, last = int(fields["rv"]), int(fields["list"]), str(fields["start"])
        except (ValueError, KeyError, TypeError, msgspec.DecodeError) as error:
            raise bad_request("continue key is not valid: the token cannot be read") from error
        if revision < 0:
            remaining = [stored for stored in chosen.among(self._store[kind].within(namespace)) if stored.key > last]
            return Page(self._store.revision, remaining, 0)
        page = self._pages.get((revision, number_))
        if page is None:
            raise expired(EXPIRED_PAGE, _token(-1, 0, last))
        self._pages.move_to_end((revision, number_))
        return page


def _token(revision: int, number_: int, last: str) -> str:
    content = msgspec.json.encode({"v": "meta.k8s.io/v1", "rv": revision, "list": number_, "start": last})
    return base64.urlsafe_b64encode(content).decode().rstrip("=")


def parse_revision(kind: Kind, query: Mapping[str, str], name: str) -> int:
    """A count or revision in the query; 0 if it is missing. Raises a 400 or 422 Failure for anything else."""
    text = query.get(name) or "0"
    if not text.isascii() or not text.isdecimal():
        message = f'Invalid value: "{text}": strconv.ParseUint: parsing "{text}": invalid syntax'
        raise _unreadable(kind, name, message)
    return int(text)


def _unreadable(kind: Kind, name: str, message: str) -> Failure:
    return bad_request(message) if name == "resourceVersion" else invalid(kind, "", (("FieldValueInvalid", name, message),))


def render(kind: Kind, stored: Stored) -> bytes:
    """The object's JSON with the field names of ``kind``."""
    return msgspec.json.encode(events.to_new(stored.read())) if kind is NEW_EVENTS else stored.body


async def list_body(kind: Kind, metadata: Mapping[str, Any], objects: Sequence[Stored]) -> AsyncIterator[bytes]:
    """The list in pieces of about 256 kB, so that neither side holds a second copy of all of it."""
    head = f'{{"kind":"{kind.kind}List","apiVersion":"{kind.api_version}","metadata":'.encode()
    parts: list[bytes | memoryview] = [head, msgspec.json.encode(metadata), b',"items":[']
    size, separator = 0, b"{"
    start = len(kind.prefix)
    for stored in objects:
        # Items of a list have neither kind nor version; those are the same first bytes of every body.
        body = memoryview(render(kind, stored))[start:]
        parts += (separator, body)
        separator = b",{"
        size += len(body)
        if size >= PIECE:
            yield b"".join(parts)
            parts, size = [], 0
    parts.append(b"]}\n")
    yield b"".join(parts)
