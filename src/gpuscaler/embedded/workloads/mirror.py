"""A mirror of complete objects of several resources in an API server, indexed by their controllers."""

from collections.abc import Callable, Iterable, Mapping
from random import Random
from typing import Any, cast

import msgspec

from gpuscaler.embedded.workloads.steps import Object, controller_of, identity
from gpuscaler.kube.client import Client
from gpuscaler.kube.decode import Decoded, ObjectDecoder
from gpuscaler.kube.reflector import IN_PROCESS, Batch, Reflector
from gpuscaler.kube.resources import Resource
from gpuscaler.kube.turns import DecodeLock
from gpuscaler.model.cluster import Item
from gpuscaler.model.decoding.objects import Data

#: A workload, by kind and ``namespace/name``.
Key = tuple[str, str]


class WholeObjects(ObjectDecoder):
    """Decodes objects completely, where other readers make small records of them."""

    def __init__(self) -> None:
        self.model = dict

    def key(self, identity: str) -> str:
        return identity

    def read(self, data: Data) -> Decoded:
        obj = msgspec.json.decode(data)
        return Decoded(identity(obj), (cast(Item, obj),))


class Mirror:
    """Keeps the objects of ``resources``, by kind and identity, current through :attr:`reflectors`.

    ``touched`` is called for every object that was added, changed or deleted. Our own writes are added at once, with :meth:`put`, so that
    no decision misses them.
    """

    def __init__(
        self,
        client: Client,
        resources: Iterable[Resource],
        *,
        clock: Callable[[], float],
        random: Random,
        touched: Callable[[str, Object], None],
    ) -> None:
        self._touched = touched
        self._objects: dict[str, dict[str, Object]] = {resource.kind: {} for resource in resources}
        self._owned: dict[Key, dict[str, dict[str, None]]] = {}
        turn = DecodeLock()
        self.reflectors = tuple(
            Reflector(client, resource, WholeObjects(), self._receive, clock=clock, random=random, decode_lock=turn, pace=IN_PROCESS)
            for resource in resources
        )

    @property
    def synced(self) -> bool:
        return all(reflector.settled for reflector in self.reflectors)

    def keeps(self, kind: str) -> bool:
        """Whether objects of ``kind`` are kept here."""
        return kind in self._objects

    def get(self, kind: str, name: str) -> Object | None:
        """An object by its identity."""
        return self._objects[kind].get(name)

    def all(self, kind: str) -> Iterable[Object]:
        return self._objects[kind].values()

    def owned(self, owner: Key, kind: str) -> list[Object]:
        """The objects of ``kind`` that ``owner`` controls, whatever its uid."""
        return [self._objects[kind][name] for name in self._owned.get(owner, {}).get(kind, ())]

    def put(self, kind: str, obj: Object) -> None:
        """Add an object as the API server returned it, unless a newer version is known."""
        name = identity(obj)
        current = self._objects[kind].get(name)
        if current is None or _version(obj) > _version(current):
            self._drop(kind, name)
            self._objects[kind][name] = obj
            if (owner := owner_of(obj)) is not None:
                self._owned.setdefault(owner, {}).setdefault(kind, {})[name] = None
            self._touched(kind, obj)

    def _drop(self, kind: str, name: str) -> Object | None:
        removed = self._objects[kind].pop(name, None)
        owner = None if removed is None else owner_of(removed)
        if owner is not None:
            kinds = self._owned[owner]
            del kinds[kind][name]
            if not any(kinds.values()):
                del self._owned[owner]
        return removed

    def _receive(self, batch: Batch) -> None:
        kind = batch.resource.kind
        for name, item in batch.changes.items():
            if item is not None:
                self.put(kind, cast(Object, item))
            elif (removed := self._drop(kind, name)) is not None:
                self._touched(kind, removed)


def owner_of(obj: Mapping[str, Any]) -> Key | None:
    """The controller of ``obj``."""
    owner = controller_of(obj)
    if owner is None:
        return None
    namespace = obj["metadata"].get("namespace")
    return str(owner["kind"]), f"{namespace}/{owner['name']}" if namespace else str(owner["name"])


def _version(obj: Mapping[str, Any]) -> int:
    """The resource version as a number, by which versions can be compared (Kubernetes KEP-5504, true of every API server on etcd)."""
    text = obj["metadata"].get("resourceVersion", "")
    return int(text) if text.isdigit() else 0
