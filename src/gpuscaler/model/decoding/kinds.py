"""Which kinds are read, in which API groups, and by what."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec

from gpuscaler.model.cluster import Item
from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.decoding.nodes import WireNode, read_node
from gpuscaler.model.decoding.pods import WirePod, read_pod


class Reader(NamedTuple):
    """How one kind is read: its structure on the wire, and what is made of it."""

    kind: str
    groups: tuple[str, ...]
    decode: Callable[[Any], Any]
    read: Callable[[Any, Interner], Item | list[Item]]


def _reader(kind: str, wire: type, read: Callable[[Any, Interner], Item | list[Item]], *groups: str) -> Reader:
    return Reader(kind, groups, msgspec.json.Decoder(wire).decode, read)


_READERS = (
    _reader("Pod", WirePod, read_pod, ""),
    _reader("Node", WireNode, read_node, ""),
)
_BY_KIND: Mapping[tuple[str, str], Reader] = {(group, reader.kind): reader for reader in _READERS for group in reader.groups}
_DEFAULTS: Mapping[str, Reader] = {reader.kind: reader for reader in reversed(_READERS)}


def reader_of(api_version: str, kind: str) -> Reader | None:
    """The reader of ``kind`` in the group of ``api_version`` (any version), or None where it is not read."""
    if not api_version:
        return _DEFAULTS.get(kind)
    group, slash, _ = api_version.rpartition("/")
    return _BY_KIND.get((group if slash else "", kind))
