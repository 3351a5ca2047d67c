"""Interning: equal specifications, label sets, options, owners and frequent strings become one object."""

from collections.abc import Callable, Hashable
from hashlib import blake2b
from typing import Any, Generic, TypeVar

import msgspec

from gpuscaler.model.labels import NO_LABELS, LabelSet
from gpuscaler.model.options import LABELS, MAX_GRACE, NO_ANNOTATIONS, PodAnnotations, pod_options
from gpuscaler.model.pods import NO_OPTIONS, NO_OWNER, Owner, PodOptions, PodSpec

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

#: Maximum number of entries of a generation, per kind. At most twice as many are cached.
GENERATION = 1 << 16

#: The parts that specifications share.
_PARTS = (
    "node_selector",
    "node_affinity",
    "tolerations",
    "affinity",
    "anti_affinity",
    "preferred_affinity",
    "preferred_anti_affinity",
    "spread",
)

_encode = msgspec.json.Encoder(order="deterministic").encode


class RecentCache(Generic[K, T]):
    """A bounded cache in two generations: entries that were not used during a whole generation are dropped.

    Dropping entries costs sharing, never correctness: equal objects compare equal whether or not they are the same object. Without a
    bound, a controller that runs for months would keep every specification it ever saw.
    """

    __slots__ = ("_limit", "_old", "_young")

    def __init__(self, limit: int = GENERATION) -> None:
        self._limit = limit
        self._young: dict[K, T] = {}
        self._old: dict[K, T] = {}

    def get(self, key: K) -> T | None:
        value = self._young.get(key)
        if value is None and (value := self._old.get(key)) is not None:
            self.put(key, value)
        return value

    def put(self, key: K, value: T) -> None:
        if len(self._young) >= self._limit:
            self._old, self._young = self._young, {}
        self._young[key] = value


class Interner:
    """The cache that decoding shares between objects. The caller owns it and keeps it as long as it decodes for a cluster."""

    def __init__(self, limit: int = GENERATION, *, max_grace: float = MAX_GRACE) -> None:
        #: The longest time that any pod gets to save its work, in seconds; applies to pods that are decoded after it is set.
        self.max_grace = max_grace
        self._texts: RecentCache[str, str] = RecentCache(limit)
        self._labels: RecentCache[tuple[tuple[str, str | None], ...], LabelSet] = RecentCache(limit)
        self._options: RecentCache[tuple[object, ...], tuple[PodOptions, tuple[str, ...]]] = RecentCache(limit)
        self._owners: RecentCache[tuple[str, str, str], Owner] = RecentCache(limit)
        self._specs: RecentCache[str, PodSpec] = RecentCache(limit)
        self._parts: RecentCache[Hashable, Hashable] = RecentCache(limit)
        self._by_wire: RecentCache[bytes, PodSpec] = RecentCache(limit)

    def text(self, text: str) -> str:
        """Return ``text``, the same object each time."""
        shared = self._texts.get(text)
        if shared is None:
            self._texts.put(text, text)
            return text
        return shared

    def labels(self, labels: dict[str, str | None] | None) -> LabelSet:
        """Return ``labels`` as a shared set; a null value is the empty string, as in Go."""
        if not labels:
            return NO_LABELS
        # The API server always sends labels in the same order. If the order differs, only sharing is lost.
        key = tuple(labels.items())
        label_set = self._labels.get(key)
        if label_set is None:
            label_set = LabelSet((name, value or "") for name, value in labels.items())
            self._labels.put(key, label_set)
        return label_set

    def options(self, annotations: PodAnnotations | None, labels: LabelSet, workload: str) -> tuple[PodOptions, tuple[str, ...]]:
        """Return the result of :func:`~gpuscaler.model.options.pod_options`, computed once for all pods with the same input."""
        if not workload and (annotations is None or annotations == NO_ANNOTATIONS) and LABELS.isdisjoint(labels):
            return NO_OPTIONS, ()
        key = (annotations, workload, self.max_grace, *(labels.get(label) for label in LABELS))
        shared = self._options.get(key)
        if shared is None:
            shared = pod_options(annotations, labels, workload, max_grace=self.max_grace)
            self._options.put(key, shared)
        return shared

    def owner(self, kind: str, name: str, uid: str) -> Owner:
        key = (kind, name, uid)
        owner = self._owners.get(key)
        if owner is None:
            owner = Owner(kind, name, uid) if any(key) else NO_OWNER
            self._owners.put(key, owner)
        return owner

    def spec(self, wire: Any, build: Callable[[], PodSpec]) -> PodSpec:
        """Return the specification of ``wire`` (all input of ``build``); ``build`` runs only if it is new.

        The result of ``build`` has no digest yet. The digest is computed from the content, so that different spellings of a specification
        (limits instead of requests, merged selectors or not) are one object and one pod class.
        """
        key = blake2b(_encode(wire), digest_size=16).digest()
        pod_spec = self._by_wire.get(key)
        if pod_spec is None:
            pod_spec = self._by_content(build())
            self._by_wire.put(key, pod_spec)
        return pod_spec

    def _by_content(self, spec: PodSpec) -> PodSpec:
        digest = blake2b(_encode(spec), digest_size=16).hexdigest()
        pod_spec = self._specs.get(digest)
        if pod_spec is None:
            # Pods of a StatefulSet differ only in their claims: the parts are shared if the whole cannot be.
            parts = {name: self._part(getattr(spec, name)) for name in _PARTS}
            pod_spec = msgspec.structs.replace(spec, digest=digest, **parts)
            self._specs.put(digest, pod_spec)
        return pod_spec

    def _part(self, part: Hashable) -> Hashable:
        shared = self._parts.get(part)
        if shared is None:
            self._parts.put(part, part)
            return part
        return shared
