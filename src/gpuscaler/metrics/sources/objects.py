"""The objects that metrics describe, by their labels, kept current by watches, so that requests cause no lists."""

import asyncio
import sys
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, TypeAlias, cast

import msgspec

from gpuscaler.kube.client import Client
from gpuscaler.kube.decode import Decoded, header_of, identity_of
from gpuscaler.kube.reflector import Batch, Pace, Reflector
from gpuscaler.kube.resources import PODS, Resource
from gpuscaler.kube.turns import DecodeLock
from gpuscaler.metrics.sources.values import Unavailable
from gpuscaler.model.aside import Skipped
from gpuscaler.model.decoding.objects import Data
from gpuscaler.model.labels import NO_LABELS, LabelSet
from gpuscaler.model.selectors import LabelSelector

#: Namespace (empty for objects without one) and name.
Key: TypeAlias = tuple[str, str]
#: Limits of cached selections of one resource (a thousand autoscalers need a thousand), and of names in all of them.
_MOST_SELECTIONS, _MOST_NAMES = 20_000, 1_000_000


class ObjectDescription(msgspec.Struct, frozen=True, gc=False):
    """The stored part of an object. For a pod, ``address`` is its IP while it runs, and ``daemon`` is whether a DaemonSet made it."""

    labels: LabelSet = NO_LABELS
    address: str = ""
    node: str = ""
    daemon: bool = False


class _Owner(msgspec.Struct, gc=False):
    kind: Any = None
    controller: Any = None


class _Metadata(msgspec.Struct, gc=False):
    name: str | None = None
    namespace: str | None = None
    labels: dict[str, str] | None = None
    deleted: str | None = msgspec.field(default=None, name="deletionTimestamp")
    owners: list[_Owner] | None = msgspec.field(default=None, name="ownerReferences")


class _Status(msgspec.Struct, gc=False):
    phase: Any = None
    address: Any = msgspec.field(default=None, name="podIP")


class _Spec(msgspec.Struct, gc=False):
    node: Any = msgspec.field(default=None, name="nodeName")


class _Object(msgspec.Struct, gc=False):
    metadata: _Metadata | None = None


class _Pod(msgspec.Struct, gc=False):
    metadata: _Metadata | None = None
    spec: _Spec | None = None
    status: _Status | None = None


class LabelDecoder:
    """Decodes namespace, name and labels of objects of any resource, and address and node of pods; nothing else is stored."""

    model = ObjectDescription

    def __init__(self, resource: Resource) -> None:
        self._kind = resource.kind
        self._decode: Callable[[Data], Any] = msgspec.json.Decoder(_Pod if resource == PODS else _Object).decode

    def key(self, identity: str) -> str:
        return identity

    def read(self, data: Data) -> Decoded:
        """Decode an object. Never raises: an object that cannot be parsed is returned as ignored (``aside``)."""
        try:
            decoded: _Object | _Pod = self._decode(data)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            identity = identity_of(header_of(data))
            return Decoded(identity, aside=Skipped(f"{self._kind} {identity}", f"saw {error}, expected an object with labels"))
        metadata = decoded.metadata or _Metadata()
        name = metadata.name or ""
        identity = f"{metadata.namespace}/{name}" if metadata.namespace and name else name
        if not identity:
            return Decoded("", aside=Skipped(self._kind, "saw an object without a name"))
        described = ObjectDescription(LabelSet(metadata.labels or {}))
        if isinstance(decoded, _Pod):
            described = _describe_pod(described.labels, metadata, decoded)
        # The reflector passes on the objects of its decoder unchanged.
        return Decoded(identity, cast("Any", (described,)))


def _describe_pod(labels: LabelSet, metadata: _Metadata, pod: _Pod) -> ObjectDescription:
    address = ""
    if pod.status is not None and pod.status.phase == "Running" and not metadata.deleted:
        address = pod.status.address if isinstance(pod.status.address, str) else ""
    # All pods of a node share its name.
    node = sys.intern(pod.spec.node) if pod.spec is not None and isinstance(pod.spec.node, str) else ""
    daemon = any(owner.kind == "DaemonSet" and owner.controller is True for owner in metadata.owners or ())
    return ObjectDescription(labels, address, node, daemon)


class Index:
    """The objects of one resource. A selection is the same tuple as long as no object in its namespace changes."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[str, ObjectDescription]] = {}
        self._selections: dict[tuple[str, LabelSelector], tuple[Key, ...]] = {}
        self._by_namespace: dict[str, set[LabelSelector]] = {}
        #: Number of names in all cached selections.
        self.selected = 0

    def __len__(self) -> int:
        return sum(map(len, self._objects.values()))

    def apply(self, changes: Mapping[str, ObjectDescription | None]) -> None:
        """Apply changes, by ``namespace/name`` or the name alone."""
        for identity, described in changes.items():
            namespace, _, name = identity.rpartition("/")
            objects = self._objects.get(namespace, {})
            if objects.get(name) == described:
                continue
            if described is None:
                del objects[name]
                if not objects:
                    del self._objects[namespace]
            else:
                self._objects.setdefault(namespace, {})[name] = described
            self._forget(namespace)

    def described(self, key: Key) -> ObjectDescription | None:
        return self._objects.get(key[0], {}).get(key[1])

    def select(self, namespace: str, selector: LabelSelector) -> tuple[Key, ...]:
        """The objects in ``namespace`` (empty: in all) that ``selector`` matches, by namespace and name."""
        selection = self._selections.get((namespace, selector))
        if selection is None:
            if len(self._selections) >= _MOST_SELECTIONS or self.selected >= _MOST_NAMES:
                self._selections.clear()
                self._by_namespace.clear()
                self.selected = 0
            namespaces = {namespace: self._objects.get(namespace, {})} if namespace else self._objects
            selection = tuple(
                sorted(
                    (object_namespace, name)
                    for object_namespace, objects in namespaces.items()
                    for name, described in objects.items()
                    if selector.matches(described.labels)
                )
            )
            self._selections[namespace, selector] = selection
            self.selected += len(selection)
            self._by_namespace.setdefault(namespace, set()).add(selector)
        return selection

    def _forget(self, namespace: str) -> None:
        for space in {namespace, ""}:
            for selector in self._by_namespace.pop(space, ()):
                self.selected -= len(self._selections.pop((space, selector), ()))


class Objects:
    """An :class:`Index` for each requested resource, kept current while :meth:`run` runs; pods are watched from the start.

    ``clock`` is monotonic, in seconds; ``patience`` is how many seconds a request waits for the first list of a resource.
    """

    def __init__(
        self, client: Client, *, clock: Callable[[], float], random: Random, patience: float = 5.0, pace: Pace | None = None
    ) -> None:
        self._client, self._clock, self._random = client, clock, random
        self._patience, self._pace = patience, pace or Pace()
        self._turn = DecodeLock()
        self._watched: dict[Resource, tuple[Index, Reflector, asyncio.Event]] = {}
        self._new: asyncio.Queue[Resource] = asyncio.Queue()
        self.pods = self._watch(PODS)

    async def run(self) -> None:
        """Watch, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                resource = await self._new.get()
                tasks.create_task(self._watched[resource][1].run(), name=f"reflect {resource.label}")

    @property
    def synced(self) -> bool:
        """Whether all pods are known."""
        return self._watched[PODS][1].synced

    @property
    def lists(self) -> int:
        """Number of lists that were started, of all resources."""
        return sum(reflector.lists for _, reflector, _ in self._watched.values())

    @property
    def troubles(self) -> tuple[str, ...]:
        return tuple(reflector.trouble for _, reflector, _ in self._watched.values() if reflector.trouble)

    async def index(self, resource: Resource) -> Index:
        """The objects of ``resource``. Raises :class:`Unavailable` if they cannot be listed in time."""
        if resource not in self._watched:
            self._watch(resource)
        index, reflector, listed = self._watched[resource]
        if not reflector.synced:
            try:
                async with asyncio.timeout(self._patience):
                    await listed.wait()
            except TimeoutError:
                why = reflector.trouble or f"they were not listed within {self._patience:g} s"
                raise Unavailable(f"unable to list matching resources: {resource.label}: {why}") from None
        return index

    def _watch(self, resource: Resource) -> Index:
        index, listed = Index(), asyncio.Event()

        def receive(batch: Batch) -> None:
            index.apply(cast("Mapping[str, ObjectDescription | None]", batch.changes))
            if batch.listed:
                listed.set()

        reflector = Reflector(
            self._client,
            resource,
            LabelDecoder(resource),
            receive,
            clock=self._clock,
            random=self._random,
            decode_lock=self._turn,
            pace=self._pace,
        )
        self._watched[resource] = index, reflector, listed
        self._new.put_nowait(resource)
        return index
