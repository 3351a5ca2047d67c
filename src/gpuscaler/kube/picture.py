"""An up-to-date picture of a whole cluster, maintained by one reflector per resource."""

import asyncio
from collections.abc import Callable, Mapping, Sequence, Set
from random import Random
from typing import Any, NamedTuple

from msgspec.structs import replace

from gpuscaler.kube.client import Client
from gpuscaler.kube.decode import ObjectDecoder
from gpuscaler.kube.reflector import Batch, Pace, Reflector
from gpuscaler.kube.resources import NODES, WATCHED, Resource
from gpuscaler.kube.turns import DecodeLock, yield_to_loop
from gpuscaler.model.aside import Skipped, object_name
from gpuscaler.model.cluster import HOMES, Cluster, Delta, Item
from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.instances import Inventory
from gpuscaler.model.nodes import Node
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import Pod

#: Changes by model type and key: the record, or None for a deleted object.
Changes = dict[type, dict[str, Item | None]]

#: The most changes that are applied on the event loop, and how many of them in one step: about 10 ms in a cluster of 150,000
#: pods.
INLINE_CHANGES, CHANGES_PER_STEP = 2_000, 250


class ClusterState(NamedTuple):
    """The picture at one moment; ``version`` is the same for the same picture, and grows with each change.

    ``kinds`` are the kinds that changed since the previous call. All changes of nodes up to resource version ``nodes_at`` are included;
    it is None if that is unknown, as before they are listed.
    """

    cluster: Cluster
    version: int
    kinds: frozenset[str] = frozenset()
    nodes_at: int | None = None


class Picture:
    """The state of the cluster behind ``client``, current as long as :meth:`run` runs.

    ``clock`` is monotonic, in seconds. ``changed`` is set when there are changes to take or a list was completed. Changes are applied to
    the cluster when it is taken, once per object; more than ``inline`` of them are applied in a thread.
    """

    def __init__(
        self,
        client: Client,
        *,
        clock: Callable[[], float],
        random: Random,
        resources: Sequence[Resource] = WATCHED,
        interner: Interner | None = None,
        pace: Pace | None = None,
        inline: int = INLINE_CHANGES,
    ) -> None:
        self.changed = asyncio.Event()
        decode_lock = DecodeLock()
        self.interner = shared = interner or Interner()
        self.reflectors = tuple(
            Reflector(
                client,
                resource,
                ObjectDecoder(resource, shared),
                self.receive,
                clock=clock,
                random=random,
                decode_lock=decode_lock,
                pace=pace or Pace(),
            )
            for resource in resources
        )
        self._inline = inline
        self._cluster, self._version = Cluster(), 0
        self._pending: Changes = {}
        self._applying: Changes = {}
        self._applying_aside: frozenset[str] = frozenset()
        self._aside: dict[str, Skipped] = {}
        self._kinds: frozenset[str] = frozenset()
        self._taking = asyncio.Lock()
        self._listeners: list[Callable[[Batch], None]] = []
        self._inventory: Inventory | None = None
        self._ordered: Mapping[str, OfferingKey] = {}
        self._bought: dict[str, OfferingKey] = {}

    async def run(self) -> None:
        """Reflect every resource until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            for reflector in self.reflectors:
                tasks.create_task(reflector.run(), name=f"reflect {reflector.resource.label}")

    @property
    def synced(self) -> bool:
        """Whether every resource has been listed, except for unavailable optional ones."""
        return all(reflector.settled for reflector in self.reflectors)

    def stale_for(self, now: float) -> float:
        """How many seconds before ``now`` the most outdated resource was last confirmed as current; infinite before it is listed.

        A healthy watch is confirmed by a bookmark about once a minute. Resources that the server does not have, and optional ones that
        were never available, do not count.
        """
        ages = [0.0]
        for reflector in self.reflectors:
            if reflector.absent or (not reflector.synced and reflector.resource.optional):
                continue
            ages.append(float("inf") if reflector.fresh_at is None else now - reflector.fresh_at)
        return max(ages)

    @property
    def troubles(self) -> tuple[str, ...]:
        """Current problems, one sentence per affected resource."""
        return tuple(reflector.trouble for reflector in self.reflectors if reflector.trouble)

    def listen(self, listener: Callable[[Batch], None]) -> Callable[[], None]:
        """Call ``listener`` with every batch as it arrives, before it is applied to the cluster; a batch may contain unchanged objects.

        Returns a function that removes the listener.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def receive(self, batch: Batch) -> None:
        """Take a batch from a reflector."""
        changes, set_aside = self._select_new(batch)
        if changes or set_aside:
            self._aside.update((skipped.object, skipped) for skipped in set_aside)
            self._pending.setdefault(batch.model, {}).update(changes)
            self._kinds |= {batch.resource.kind}
        if changes or set_aside or batch.listed:
            self.changed.set()
        for listener in tuple(self._listeners):
            listener(batch)

    def set_offerings(self, inventory: Inventory | None, ordered: Mapping[str, OfferingKey] | None = None) -> None:
        """Set the offering of each node's machine from the cloud's latest list; for machines no longer on it, from the last list with them.

        ``inventory`` is None before the first list. ``ordered`` are granted machines by id, which may only appear in the next list.
        """
        ordered = ordered or {}
        if inventory is self._inventory and ordered == self._ordered:
            return
        self._inventory, self._ordered = inventory, ordered
        keys = {**ordered, **{instance.id: instance.key for instance in (inventory.instances if inventory is not None else ())}}
        changed = {name: key for name, key in keys.items() if self._bought.get(name) != key}
        if not changed:
            return
        nodes_by_name = {**self._cluster.nodes, **self._applying.get(Node, {}), **self._pending.get(Node, {})}
        nodes = [node for node in nodes_by_name.values() if isinstance(node, Node)]
        provider_ids = {node.provider_id for node in nodes}
        self._bought = {name: key for name, key in self._bought.items() if name in provider_ids} | keys
        if updated := {node.name: self._with_offering(node) for node in nodes if node.provider_id in changed}:
            self._pending.setdefault(Node, {}).update(updated)
            self._kinds |= {"Node"}
            self.changed.set()

    def _with_offering(self, node: Node) -> Node:
        bought = self._bought.get(node.provider_id)
        return node if bought == node.bought else replace(node, bought=bought)

    async def take(self) -> ClusterState:
        """The cluster as known now, and the kinds that changed since the last call."""
        async with self._taking:
            kinds, self._kinds = self._kinds, frozenset()
            self.changed.clear()
            changes, self._pending = self._pending, {}
            set_aside, self._aside = self._aside, {}
            nodes_at = next((reflector.version for reflector in self.reflectors if reflector.resource is NODES), None)
            if changes or set_aside:
                self._applying, self._applying_aside = changes, frozenset(set_aside)
                try:
                    self._cluster = await self._apply(changes, tuple(set_aside.values()))
                    self._version += 1
                except BaseException:
                    # Cancelled while a thread was working: all changes are still pending.
                    self._restore_pending(changes, set_aside, kinds)
                    raise
                finally:
                    self._applying, self._applying_aside = {}, frozenset()
            return ClusterState(self._cluster, self._version, kinds, nodes_at)

    async def _apply(self, changes: Changes, set_aside: tuple[Skipped, ...]) -> Cluster:
        if sum(map(len, changes.values())) > self._inline:
            # A copy: if this is cancelled, what is put back may change while the thread still works.
            copied = {kind: by_key.copy() for kind, by_key in changes.items()}
            return await asyncio.to_thread(lambda: self._cluster.apply(_delta(_flatten(copied)), set_aside=set_aside))
        cluster, flat = self._cluster, _flatten(changes)
        while len(flat) > CHANGES_PER_STEP:
            cluster = cluster.apply(_delta(flat[:CHANGES_PER_STEP]))
            del flat[:CHANGES_PER_STEP]
            await yield_to_loop()
        # Unreadable objects come last: an earlier change of the same object would clear them.
        return cluster.apply(_delta(flat), set_aside=set_aside)

    def _restore_pending(self, changes: Changes, set_aside: dict[str, Skipped], kinds: frozenset[str]) -> None:
        for kind, later in self._pending.items():
            changes.setdefault(kind, {}).update(later)
        self._pending, self._aside = changes, set_aside | self._aside
        self._kinds |= kinds
        self.changed.set()

    def _select_new(self, batch: Batch) -> tuple[dict[str, Item | None], list[Skipped]]:
        """The part of ``batch`` that is new: most updates change nothing that planning reads."""
        model = batch.model
        pending, folding = self._pending.get(model, {}), self._applying.get(model, {})
        stored: dict[str, Any] = getattr(self._cluster, "nodes" if model is Node else "pods" if model is Pod else HOMES[model][0])
        aside_names = {skipped.object for skipped in self._cluster.set_aside} | self._applying_aside
        any_skipped = bool(aside_names or self._aside)
        changed: dict[str, Item | None] = {}
        for key, item in batch.changes.items():
            if self._bought and isinstance(item, Node):
                item = self._with_offering(item)
            previous = pending[key] if key in pending else folding[key] if key in folding else stored.get(key)
            if previous == item and not (any_skipped and self._was_aside(object_name(model, key), aside_names)):
                continue
            changed[key] = item
        if any_skipped:
            for key in changed:
                self._aside.pop(object_name(model, key), None)
        known_aside = set(self._cluster.set_aside) if batch.set_aside else set()
        return changed, [skipped for skipped in batch.set_aside if skipped not in known_aside]

    def _was_aside(self, name: str, aside_names: Set[str]) -> bool:
        return name in aside_names or name in self._aside


def _flatten(changes: Changes) -> list[tuple[type, str, Item | None]]:
    return [(kind, key, item) for kind, by_key in changes.items() for key, item in by_key.items()]


def _delta(changes: list[tuple[type, str, Item | None]]) -> Delta:
    upserts = tuple(item for _, _, item in changes if item is not None)
    return Delta(upserts, tuple((kind, key) for kind, key, item in changes if item is None))
