"""The format of a plan's inputs as bytes: consecutive compressed streams of frames, each frame preceded by its length.

The first stream holds a :class:`Form`, the last a :class:`Head`. The streams between hold the objects, and then their changes: keys of
removed objects, then new or changed objects. A frame holds a few hundred objects, so that a thread can write them while the event loop
runs. Parts that pods share (specifications, labels, options, owners) are written once.
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
FORM = 3
#: The parts that pods share, in the order in which they are written.
SHARED: tuple[type, ...] = (PodSpec, LabelSet, PodOptions, Owner)
#: The prefix of the kind in frames with keys of removed objects.
GONE = "Gone "


def removed_kind(kind: type) -> str:
    return f"{GONE}{kind.__name__}"


class Form(Struct, frozen=True):
    """The format of the bytes; ``version`` is that of the program that planned."""

    form: int = 0
    version: str = ""


class Head(Struct, frozen=True):
    """A decision without its objects."""

    id: str
    at: float
    text: str
    policy: Policy
    state: State
    plan: Plan
    set_aside: tuple[Skipped, ...]


class Chunk(Struct, frozen=True, array_like=True):
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


class SharedObjects:
    """Distinct objects, in the order in which they were first added."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._indexes: dict[int, int] = {}
        self._written = 0

    def take_new(self) -> list[Any]:
        """The objects added since the last call."""
        new_items, self._written = self.items[self._written :], len(self.items)
        return new_items

    def index_of(self, item: object) -> int:
        index = self._indexes.get(id(item))
        if index is None:
            index = self._indexes[id(item)] = len(self.items)
            self.items.append(item)
        return index
