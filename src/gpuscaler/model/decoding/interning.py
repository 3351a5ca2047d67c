"""Equal things become one object: specifications, label sets, options, owners, and the few strings that every object repeats."""

from collections.abc import Callable, Hashable
from hashlib import blake2b
from typing import Any, Generic, TypeVar

import msgspec

from gpuscaler.model.labels import NO_LABELS, LabelSet
from gpuscaler.model.options import LABELS, MAX_GRACE, NO_ANNOTATIONS, PodAnnotations, pod_options
from gpuscaler.model.pods import NO_OPTIONS, NO_OWNER, Owner, PodOptions, PodSpec

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

#: Entries a generation of one kind may hold. Twice this many are remembered at most.
GENERATION = 1 << 16

#: The parts of a specification that are shared between specifications.
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


class Recent(Generic[K, T]):
    """A bounded memory in two generations: what has not been asked for during a whole generation is forgotten.

    Forgetting costs sharing, never correctness: equal objects compare equal whether or not they are one object. Without a bound, a
    controller that runs for months would keep every specification it ever saw.
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
    """The memory that decoding shares between objects. The caller owns it and keeps it as long as it decodes for one cluster."""

    def __init__(self, limit: int = GENERATION, *, max_grace: float = MAX_GRACE) -> None:
        #: The longest time that any pod is given to save its work, in seconds; pods that are read from then on are held to it.
        self.max_grace = max_grace
        self._texts: Recent[str, str] = Recent(limit)
        self._labels: Recent[tuple[tuple[str, str | None], ...], LabelSet] = Recent(limit)
        self._options: Recent[tuple[object, ...], tuple[PodOptions, tuple[str, ...]]] = Recent(limit)
        self._owners: Recent[tuple[str, str, str], Owner] = Recent(limit)
        self._specs: Recent[str, PodSpec] = Recent(limit)
        self._parts: Recent[Hashable, Hashable] = Recent(limit)
        self._by_wire: Recent[bytes, PodSpec] = Recent(limit)

    def text(self, text: str) -> str:
        """``text``, the same object each time."""
        known = self._texts.get(text)
        if known is None:
            self._texts.put(text, text)
            return text
        return known

    def labels(self, labels: dict[str, str | None] | None) -> LabelSet:
        """``labels`` as one shared set; a null value is the empty string, as Go reads it."""
        if not labels:
            return NO_LABELS
        # The order of labels is the API server's, and always the same; where it is not, sharing is lost and nothing else.
        key = tuple(labels.items())
        known = self._labels.get(key)
        if known is None:
            known = LabelSet((name, value or "") for name, value in labels.items())
            self._labels.put(key, known)
        return known

    def options(self, annotations: PodAnnotations | None, labels: LabelSet, workload: str) -> tuple[PodOptions, tuple[str, ...]]:
        """What :func:`~gpuscaler.model.options.pod_options` says, asked once for all pods that are alike to it."""
        if not workload and (annotations is None or annotations == NO_ANNOTATIONS) and LABELS.isdisjoint(labels):
            return NO_OPTIONS, ()
        key = (annotations, workload, self.max_grace, *(labels.get(label) for label in LABELS))
        known = self._options.get(key)
        if known is None:
            known = pod_options(annotations, labels, workload, max_grace=self.max_grace)
            self._options.put(key, known)
        return known

    def owner(self, kind: str, name: str, uid: str) -> Owner:
        key = (kind, name, uid)
        known = self._owners.get(key)
        if known is None:
            known = Owner(kind, name, uid) if any(key) else NO_OWNER
            self._owners.put(key, known)
        return known

    def spec(self, wire: Any, build: Callable[[], PodSpec]) -> PodSpec:
        """The specification that ``wire`` (everything ``build`` depends on) stands for; ``build`` runs only when it is new.

        What ``build`` returns has no digest yet. The digest is taken from the content, so that two spellings of one specification
        (limits for requests, merged selectors or not) are one object and one pod class.
        """
        key = blake2b(_encode(wire), digest_size=16).digest()
        known = self._by_wire.get(key)
        if known is None:
            known = self._by_content(build())
            self._by_wire.put(key, known)
        return known

    def _by_content(self, spec: PodSpec) -> PodSpec:
        digest = blake2b(_encode(spec), digest_size=16).hexdigest()
        known = self._specs.get(digest)
        if known is None:
            # Pods of a StatefulSet differ by their claims alone: the parts are shared where the whole cannot be.
            parts = {name: self._part(getattr(spec, name)) for name in _PARTS}
            known = msgspec.structs.replace(spec, digest=digest, **parts)
            self._specs.put(digest, known)
        return known

    def _part(self, part: Hashable) -> Hashable:
        known = self._parts.get(part)
        if known is None:
            self._parts.put(part, part)
            return part
        return known
