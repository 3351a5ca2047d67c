"""The format of a plan's inputs as bytes: consecutive compressed streams of frames. The length of a frame precedes it.

The first stream holds a :class:`FormatHeader`, the last a :class:`DecisionRecord`. The streams between hold the objects, and then their
changes: keys of removed objects, then new or changed objects. Each of their frames is an :class:`ObjectFrame` with a few hundred objects,
so that a thread can write them while the event loop runs. Parts that pods share (specifications, labels, options, owners) are written once.
"""

from typing import Any

import msgspec
from msgspec import Struct

from gpuscaler.model.aside import Skipped
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.pods import Owner, PodOptions, PodSpec
from gpuscaler.model.pools import Policy
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.state import State

#: The version of the format; bytes of another version are not read.
FORMAT_VERSION = 3
#: The parts that pods share, in the order in which they are written.
SHARED: tuple[type, ...] = (PodSpec, LabelSet, PodOptions, Owner)
#: The prefix of the kind in frames with keys of removed objects.
REMOVED_PREFIX = "Gone "


def removed_kind(kind: type) -> str:
    return f"{REMOVED_PREFIX}{kind.__name__}"


class FormatHeader(Struct, frozen=True, rename={"format_version": "form", "program_version": "version"}):
    """The version of the format, and the version of the program that planned."""

    format_version: int = 0
    program_version: str = ""


class DecisionRecord(Struct, frozen=True, rename={"skipped": "set_aside"}):
    """A decision without its objects."""

    id: str
    at: float
    text: str
    policy: Policy
    state: State
    plan: Plan
    skipped: tuple[Skipped, ...]


class ObjectFrame(Struct, frozen=True, array_like=True):
    """Objects of one kind, with the name of their type."""

    kind: str
    items: msgspec.Raw


class WirePod(Struct, frozen=True, array_like=True, gc=False):
    """A pod with all its fields; shared parts are indexes into the objects of their kind."""

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
    checkpoint_requested: float
    checkpointed: float
    ready: bool | None = None
    reason: str = ""
    unready_since: float = 0.0
    ignored_findings: frozenset[str] = frozenset()


class SharedObjects:
    """Objects, distinct by identity, in the order in which they were first added."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._indexes: dict[int, int] = {}
        self._written_count = 0

    def take_new(self) -> list[Any]:
        """The objects added since the last call."""
        new_items, self._written_count = self.items[self._written_count :], len(self.items)
        return new_items

    def intern(self, item: object) -> int:
        """The index of ``item``, which is added if it is new."""
        index = self._indexes.get(id(item))
        if index is None:
            index = self._indexes[id(item)] = len(self.items)
            self.items.append(item)
        return index
