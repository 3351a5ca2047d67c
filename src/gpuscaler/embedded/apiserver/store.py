"""Objects by kind and key, one counter of revisions, and a bounded history of changes per kind.

Objects are kept as JSON: a list or watch then costs a copy of bytes, and 150,000 pods of 6 kB take 1 GB instead of the 5 GB of their
dicts. A change of an object decodes it, which takes about 30 µs.

Everything here is synchronous: between the check of a precondition and the write nothing else runs, so no locks are needed.
"""

import asyncio
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from gpuscaler.embedded.apiserver.kinds import EVENTS, KINDS, NEW_EVENTS, Kind

Object = dict[str, Any]
#: ``events.k8s.io`` shows the Events of the core group under other names.
STORED_AS: Final[Mapping[Kind, Kind]] = {NEW_EVENTS: EVENTS}
_FEW: Final = 100


class Stored(msgspec.Struct, frozen=True, eq=False):
    """One state of an object. ``key`` is ``namespace/name``, or the name alone where the kind has no namespaces."""

    key: str
    revision: int
    body: bytes
    labels: Mapping[str, str]
    fields: tuple[str, ...]
    owners: tuple[str, ...]
    uid: str

    def read(self) -> Object:
        """The object, decoded again at each call, so that the caller may change it."""
        decoded: Object = msgspec.json.decode(self.body)
        return decoded


class Change(NamedTuple):
    """The change of one revision. ``stored`` is the current object, or its last state with the revision of its removal."""

    type: str
    stored: Stored
    previous: Stored | None


def key_of(namespace: str, name: str) -> str:
    return f"{namespace}/{name}" if namespace else name


def dotted(obj: Mapping[str, Any], path: str) -> str:
    """The value at ``path`` as a field selector compares it: as text; a missing value is empty, and a bool is spelt as in Go."""
    value: Any = obj
    for step in path.split("."):
        value = value.get(step) if isinstance(value, Mapping) else None
    match value:
        case None | Mapping():
            return ""
        case bool():
            return "true" if value else "false"
        case _:
            return str(value)


class Collection:
    """All objects of one kind, sorted by key, and the recent changes."""

    def __init__(self, kind: Kind, history: int) -> None:
        self.kind = kind
        self.objects: dict[str, Stored] = {}
        self._keys: list[str] = []
        self._unsorted: list[str] = []
        self.forgotten = 0
        self._changes: list[Change] = []
        self._base = 0
        self._history = history
        self.waiting: set[asyncio.Future[bool]] = set()

    @property
    def keys(self) -> list[str]:
        """All keys, sorted."""
        # A single new key costs a move of all keys behind it; for many new ones, sorting once is cheaper.
        if len(self._unsorted) < _FEW:
            for key in self._unsorted:
                insort(self._keys, key)
        else:
            self._keys += self._unsorted
            self._keys.sort()
        self._unsorted.clear()
        return self._keys

    def within(self, namespace: str) -> list[Stored]:
        """A snapshot, in the order of keys, of one namespace or of all (an empty name)."""
        keys = self.keys
        if namespace:
            keys = keys[bisect_left(keys, f"{namespace}/") : bisect_left(keys, f"{namespace}0")]
        return [self.objects[key] for key in keys]

    def record(self, change: Change) -> None:
        key = change.stored.key
        if change.type == "DELETED":
            del self.objects[key]
            keys = self.keys
            del keys[bisect_left(keys, key)]
        else:
            if key not in self.objects:
                self._unsorted.append(key)
            self.objects[key] = change.stored
        self._changes.append(change)
        if len(self._changes) > 2 * self._history:
            self.forget(len(self._changes) - self._history)
        self.wake()
        self.waiting.clear()

    def forget(self, count: int | None = None) -> None:
        """Drop the oldest ``count`` changes (None: all): watchers that have not seen them must list again."""
        count = len(self._changes) if count is None else count
        if count:
            self.forgotten = self._changes[count - 1].stored.revision
            del self._changes[:count]
            self._base += count

    @property
    def position(self) -> int:
        """The position of the next change."""
        return self._base + len(self._changes)

    def since(self, revision: int) -> int | None:
        """The position of the first change after ``revision``, or None if that may be dropped."""
        if revision < self.forgotten:
            return None
        return self._base + bisect_left(self._changes, revision + 1, key=lambda change: change.stored.revision)

    def changes(self, position: int, most: int = 500) -> Sequence[Change] | None:
        """Up to ``most`` changes from ``position`` on, or None if they are dropped."""
        if position < self._base:
            return None
        return self._changes[position - self._base : position - self._base + most]

    def wake(self) -> None:
        """Wake all waiters."""
        for future in self.waiting:
            _settle(future, True)


async def change_in(collections: Sequence[Collection], limit: float) -> bool:
    """Wait for the next change in one of ``collections``, at most ``limit`` seconds, and return whether there was one.

    No change is missed between the call and the wait: nothing else runs in between. The shortest wait is a millisecond: a clock may not
    resolve less, and a caller that waits for its end would never see it pass.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[bool] = loop.create_future()
    for collection in collections:
        collection.waiting.add(future)
    over = loop.call_later(max(limit, 0.001), _settle, future, False)
    try:
        return await future
    finally:
        over.cancel()
        for collection in collections:
            collection.waiting.discard(future)


def _settle(future: asyncio.Future[bool], changed: bool) -> None:  # a callback
    if not future.done():
        future.set_result(changed)


class Store:
    """All collections under one counter of revisions, as etcd has."""

    def __init__(self, history: int) -> None:
        self.revision = 1
        self._collections = {kind: Collection(kind, history) for kind in KINDS if kind not in STORED_AS}
        self._dependents: dict[str, set[tuple[Kind, str]]] = {}
        self._uids: set[str] = set()

    def __getitem__(self, kind: Kind) -> Collection:
        return self._collections[STORED_AS.get(kind, kind)]

    def __iter__(self) -> Iterator[Collection]:
        return iter(self._collections.values())

    def get(self, kind: Kind, key: str) -> Stored | None:
        return self[kind].objects.get(key)

    def put(self, kind: Kind, obj: Object) -> Stored:
        """Store ``obj`` at a new revision; its metadata has its name."""
        collection = self[kind]
        stored = self.stamp(kind, obj)
        self.revision = stored.revision
        previous = collection.objects.get(stored.key)
        self._own(collection.kind, previous, stored)
        collection.record(Change("MODIFIED" if previous else "ADDED", stored, previous))
        return stored

    def remove(self, kind: Kind, obj: Object) -> Stored:
        """Remove the object, whose last state was ``obj``."""
        collection = self[kind]
        stored = self.stamp(kind, obj)
        self.revision = stored.revision
        previous = collection.objects[stored.key]
        self._own(collection.kind, previous, None)
        collection.record(Change("DELETED", stored, previous))
        return stored

    def stamp(self, kind: Kind, obj: Object, *, revision: int | None = None) -> Stored:
        """``obj`` as it would be stored at ``revision`` (None: the next), which is written into it."""
        kind = STORED_AS.get(kind, kind)
        metadata = obj["metadata"]
        revision = self.revision + 1 if revision is None else revision
        metadata["resourceVersion"] = str(revision)
        rest = {name: value for name, value in obj.items() if name not in ("kind", "apiVersion")}
        return Stored(
            key_of(metadata.get("namespace", ""), metadata["name"]),
            revision,
            kind.prefix + msgspec.json.encode(rest)[1:],
            metadata.get("labels") or {},
            tuple(dotted(obj, path) for path in kind.fields),
            tuple(owner.get("uid", "") for owner in metadata.get("ownerReferences") or ()),
            metadata.get("uid", ""),
        )

    def dependents(self, uid: str) -> list[tuple[Kind, str]]:
        """All objects that name the object ``uid`` as an owner, in an order that is the same in every run."""
        return sorted(self._dependents.get(uid, ()), key=lambda dependent: (dependent[0].qualified, dependent[1]))

    def exists(self, uid: str) -> bool:
        """Whether an object of any kind has that uid."""
        return uid in self._uids

    def _own(self, kind: Kind, before: Stored | None, after: Stored | None) -> None:
        if before:
            self._uids.discard(before.uid)
        if after:
            self._uids.add(after.uid)
        for uid in before.owners if before else ():
            self._dependents[uid].discard((kind, before.key if before else ""))
            if not self._dependents[uid]:
                del self._dependents[uid]
        for uid in after.owners if after else ():
            self._dependents.setdefault(uid, set()).add((kind, after.key if after else ""))
