"""Everything that a plan was made from, as bytes: planning again from them gives the same plan, on any machine.

Objects are written a few hundred at a time, so that another thread can do it while the event loop goes on, and what pods share
(specifications, labels, options, owners) is written once, as it is held once.
"""

import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from gpuscaler import __version__
from gpuscaler.control.records.records import Decision
from gpuscaler.model.aside import SetAside
from gpuscaler.model.cluster import HOMES, Cluster, Delta, Item
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Owner, Pod, PodOptions, PodSpec
from gpuscaler.model.pools import Policy
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.state import State

#: The form of the bytes; what was written in another is not read.
FORM = 1
#: Objects that are encoded at a time, and how hard it is tried to make them small: 3 takes a third of the time of 6 for a tenth more bytes.
AT_ONCE, LEVEL = 500, 3
#: The most bytes that are unpacked: a cluster of 300,000 pods has a tenth of it.
MOST = 2**31

_T = TypeVar("_T")


class InputsError(Exception):
    """Bytes that are not the inputs of a plan; the text says what was seen and what was expected."""


class Head(Struct, frozen=True):
    """What comes before the objects. ``version`` is that of the program that planned."""

    form: int
    version: str
    id: str
    at: float
    text: str
    policy: Policy
    state: State
    plan: Plan
    set_aside: tuple[SetAside, ...]


class Form(Struct, frozen=True):
    form: int = 0
    version: str = ""


class Chunk(Struct, frozen=True, array_like=True):
    """Objects of one kind, by the name of its type."""

    kind: str
    items: msgspec.Raw


class WirePod(Struct, frozen=True, array_like=True, gc=False):
    """A pod; what it shares with others is the place of that among the objects of its kind."""

    namespace: str
    name: str
    spec: int
    labels: int
    options: int
    owner: int
    uid: str
    node_name: str
    nominated_node: str
    phase: str
    created: float
    deleted: float
    started: float
    unschedulable: bool | None
    unschedulable_since: float
    warnings: tuple[str, ...]


class Shared:
    """Objects in the order in which they were first met, each once."""

    def __init__(self) -> None:
        self.known: dict[int, int] = {}
        self.items: list[Any] = []
        self.written = 0

    def fresh(self) -> list[Any]:
        """What was met since the last time."""
        found, self.written = self.items[self.written :], len(self.items)
        return found

    def place(self, item: object) -> int:
        found = self.known.get(id(item))
        if found is None:
            found = self.known[id(item)] = len(self.items)
            self.items.append(item)
        return found


def packed(decision: Decision) -> bytes:
    """The inputs of a decision, and its plan."""
    compressor = zlib.compressobj(LEVEL)
    pieces = []
    for frame in _frames(decision):
        pieces.append(compressor.compress(len(frame).to_bytes(4)))
        pieces.append(compressor.compress(frame))
    pieces.append(compressor.flush())
    return b"".join(pieces)


def _frames(decision: Decision) -> Iterator[bytes]:
    encode = msgspec.msgpack.Encoder().encode
    cluster = decision.cluster
    yield encode(
        Head(
            FORM,
            __version__,
            decision.id,
            decision.at,
            decision.text,
            decision.policy,
            decision.state,
            decision.plan,
            cluster.set_aside,
        )
    )
    for kind, (home, _) in HOMES.items():
        yield from _chunks(kind, getattr(cluster, home).values(), encode)
    yield from _chunks(Node, cluster.nodes.values(), encode)
    shared: dict[type, Shared] = {kind: Shared() for kind in (PodSpec, LabelSet, PodOptions, Owner)}
    pods = iter(cluster.pods.values())
    while some := [_wire(pod, shared) for pod in islice(pods, AT_ONCE)]:
        # What they share comes before them, as far as it was not needed before.
        for kind, found in shared.items():
            yield from _chunks(kind, found.fresh(), encode)
        yield from _chunks(Pod, some, encode)


def _chunks(kind: type, items: Iterable[Any], encode: Callable[[Any], bytes]) -> Iterator[bytes]:
    source = iter(items)
    while some := list(islice(source, AT_ONCE)):
        yield encode([kind.__name__, some])


def _wire(pod: Pod, shared: Mapping[type, Shared]) -> WirePod:
    return WirePod(
        pod.namespace,
        pod.name,
        shared[PodSpec].place(pod.spec),
        shared[LabelSet].place(pod.labels),
        shared[PodOptions].place(pod.options),
        shared[Owner].place(pod.owner),
        pod.uid,
        pod.node_name,
        pod.nominated_node,
        pod.phase,
        pod.created,
        pod.deleted,
        pod.started,
        pod.unschedulable,
        pod.unschedulable_since,
        pod.warnings,
    )


def unpacked(data: bytes) -> tuple[Decision, str]:
    """The decision behind ``data``, and the version that made it. Raises :class:`InputsError`."""
    try:
        frames = _split(data)
        first = next(frames, b"")
        form = msgspec.msgpack.decode(first, type=Form)
        if form.form != FORM:
            raise InputsError(f"saw inputs of form {form.form} written by gpuscaler {form.version}, expected form {FORM}")
        head = msgspec.msgpack.decode(first, type=Head)
        items = list(_items(frames))
    except (zlib.error, msgspec.MsgspecError, IndexError) as error:
        raise InputsError(f"saw {len(data)} bytes that cannot be read ({error}), expected the inputs of a decision") from error
    cluster = Cluster().apply(Delta(upserts=tuple(items)), set_aside=head.set_aside)
    return Decision(head.id, head.at, head.text, cluster, head.state, head.policy, head.plan), head.version


def _split(data: bytes) -> Iterator[bytes]:
    decompressor = zlib.decompressobj()
    whole = memoryview(decompressor.decompress(data, MOST))
    if not decompressor.eof:
        raise InputsError(f"saw {len(data)} bytes that end early, or are more than {MOST} unpacked; expected the inputs of a decision")
    while whole:
        size = int.from_bytes(whole[:4])
        yield bytes(whole[4 : 4 + size])
        whole = whole[4 + size :]


def _items(frames: Iterator[bytes]) -> Iterator[Item]:
    kinds: dict[str, type] = {kind.__name__: kind for kind in (*HOMES, Node)}
    shared: dict[str, list[Any]] = {kind.__name__: [] for kind in (PodSpec, LabelSet, PodOptions, Owner)}
    for frame in frames:
        chunk = msgspec.msgpack.decode(frame, type=Chunk)
        if chunk.kind in kinds:
            yield from _decoded(chunk, kinds[chunk.kind])
        elif chunk.kind == Pod.__name__:
            specs, labels, options, owners = shared.values()
            for one in _decoded(chunk, WirePod):
                yield _pod(one, specs[one.spec], labels[one.labels], options=options[one.options], owner=owners[one.owner])
        else:
            kind = next((kind for kind in (PodSpec, LabelSet, PodOptions, Owner) if kind.__name__ == chunk.kind), None)
            if kind is None:
                raise InputsError(f"saw objects of kind {chunk.kind!r}, expected those that gpuscaler {__version__} knows")
            shared[chunk.kind] += _decoded(chunk, kind)


def _decoded(chunk: Chunk, kind: type[_T]) -> list[_T]:
    return msgspec.msgpack.decode(chunk.items, type=list[kind], dec_hook=_hook)  # type: ignore[valid-type]  # a type made at run time


def _hook(kind: type, value: Any) -> Any:
    if kind is LabelSet:
        return LabelSet(value)
    raise NotImplementedError(kind)


def _pod(one: WirePod, spec: PodSpec, labels: LabelSet, *, options: PodOptions, owner: Owner) -> Pod:
    return Pod(
        namespace=one.namespace,
        name=one.name,
        spec=spec,
        labels=labels,
        uid=one.uid,
        node_name=one.node_name,
        nominated_node=one.nominated_node,
        phase=one.phase,
        created=one.created,
        deleted=one.deleted,
        started=one.started,
        unschedulable=one.unschedulable,
        unschedulable_since=one.unschedulable_since,
        owner=owner,
        options=options,
        warnings=one.warnings,
    )
