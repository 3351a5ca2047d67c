"""Reads decisions from the bytes of :mod:`~gpuscaler.control.records.history.packing`."""

import zlib
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any, TypeVar

import msgspec

from gpuscaler import __version__
from gpuscaler.control.records.events.records import Decision
from gpuscaler.control.records.history.wire import (
    FORMAT_VERSION,
    REMOVED_PREFIX,
    SHARED,
    DecisionRecord,
    FormatHeader,
    ObjectFrame,
    WirePod,
)
from gpuscaler.model.cluster import HOMES, Cluster, Delta, Item
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Owner, Pod, PodOptions, PodSpec

#: The maximum number of bytes that are unpacked: a cluster of 300,000 pods needs a tenth of it.
MOST = 2**31

_T = TypeVar("_T")


class InputsError(Exception):
    """The bytes are not the inputs of a plan; the text says what was seen and what was expected."""


def unpack_decision(data: bytes) -> tuple[Decision, str]:
    """The decision in ``data``, and the version that wrote it. Raises :class:`InputsError`."""
    try:
        frames, rest = _split(data, len(data))
        header = msgspec.msgpack.decode(next(frames, b""), type=FormatHeader)
        if header.format_version != FORMAT_VERSION:
            raise InputsError(
                f"saw inputs in format version {header.format_version}, written by gpuscaler {header.program_version}, "
                f"expected format version {FORMAT_VERSION}"
            )
        decoded_frames = _DecodedFrames()
        while True:
            frames, rest = _split(rest, len(data))
            if not rest:
                break
            decoded_frames.decode(frames)
        record = msgspec.msgpack.decode(next(frames, b""), type=DecisionRecord)
    except (zlib.error, msgspec.MsgspecError, LookupError) as error:
        raise InputsError(f"saw {len(data)} bytes that cannot be read ({error}), expected the inputs of a decision") from error
    cluster = Cluster().apply(Delta(upserts=tuple(decoded_frames.items())), set_aside=record.skipped)
    return Decision(record.id, record.at, record.text, cluster, record.state, record.policy, record.plan), header.program_version


def _split(data: bytes, size: int) -> tuple[Iterator[bytes], bytes]:
    """The frames of the stream at the beginning of ``data``, and the rest of the data; ``size`` is the total size for error messages."""
    decompressor = zlib.decompressobj()
    whole = decompressor.decompress(data, MOST)
    if not decompressor.eof:
        raise InputsError(f"saw {size} bytes that end early, or are more than {MOST} unpacked; expected the inputs of a decision")
    return _frames(memoryview(whole)), decompressor.unused_data


def _frames(whole: memoryview) -> Iterator[bytes]:
    while whole:
        size = int.from_bytes(whole[:4])
        yield bytes(whole[4 : 4 + size])
        whole = whole[4 + size :]


class _DecodedFrames:
    """The objects of the frames read so far."""

    def __init__(self) -> None:
        self._objects: dict[str, dict[str, Item]] = {kind.__name__: {} for kind in (*HOMES, Node, Pod)}
        self._kinds: dict[str, tuple[type, str]] = {kind.__name__: (kind, key) for kind, (_, key) in HOMES.items()} | {
            "Node": (Node, "name")
        }
        self._shared: dict[str, tuple[type, list[Any]]] = {kind.__name__: (kind, []) for kind in SHARED}

    def items(self) -> Iterator[Item]:
        return chain.from_iterable(objects.values() for objects in self._objects.values())

    def decode(self, frames: Iterable[bytes]) -> None:
        for encoded in frames:
            frame = msgspec.msgpack.decode(encoded, type=ObjectFrame)
            if frame.kind in self._kinds:
                kind, key = self._kinds[frame.kind]
                objects: list[Any] = _decode_items(frame, kind)
                self._objects[frame.kind].update((getattr(item, key), item) for item in objects)
            elif frame.kind in self._shared:
                kind, items = self._shared[frame.kind]
                items += _decode_items(frame, kind)
            elif frame.kind == Pod.__name__:
                self._objects[frame.kind].update((pod.key, pod) for pod in self._join_pods(_decode_items(frame, WirePod)))
            elif (remaining := self._objects.get(frame.kind.removeprefix(REMOVED_PREFIX))) is not None:
                for key in _decode_items(frame, str):
                    del remaining[key]
            else:
                raise InputsError(f"saw objects of kind {frame.kind!r}, expected those that gpuscaler {__version__} knows")

    def _join_pods(self, wires: list[WirePod]) -> Iterator[Pod]:
        specs, labels, options, owners = (items for _, items in self._shared.values())
        for pod in wires:
            yield _from_wire(pod, specs[pod.spec], labels[pod.labels], options=options[pod.options], owner=owners[pod.owner])


def _decode_items(frame: ObjectFrame, kind: type[_T]) -> list[_T]:
    return msgspec.msgpack.decode(frame.items, type=list[kind], dec_hook=_hook)  # type: ignore[valid-type]  # a type made at run time


def _hook(kind: type, value: Any) -> Any:
    if kind is LabelSet:
        return LabelSet(value)
    raise NotImplementedError(kind)


def _from_wire(pod: WirePod, spec: PodSpec, labels: LabelSet, *, options: PodOptions, owner: Owner) -> Pod:
    return Pod(
        namespace=pod.namespace,
        name=pod.name,
        spec=spec,
        labels=labels,
        uid=pod.uid,
        node_name=pod.node_name,
        nominated_node=pod.nominated_node,
        phase=pod.phase,
        created=pod.created,
        deleted=pod.deleted,
        started=pod.started,
        unschedulable=pod.unschedulable,
        unschedulable_since=pod.unschedulable_since,
        owner=owner,
        options=options,
        warnings=pod.warnings,
        checkpoint_requested=pod.checkpoint_requested,
        checkpointed=pod.checkpointed,
        ready=pod.ready,
        reason=pod.reason,
        unready_since=pod.unready_since,
        ignored_findings=pod.ignored_findings,
    )
