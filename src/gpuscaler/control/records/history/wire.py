"""The form of a plan's inputs as bytes: compressed streams, one behind the other, each of frames with the length of each before it.

The first holds a :class:`Form`, the last a :class:`Head`. Those between hold the objects, and then how they changed: keys of those that are
gone, then those that are new or changed. Objects come a few hundred to a frame, so that another thread can write them while the event loop
goes on; what pods share (specifications, labels, options, owners) is written once, as it is held once.
"""

from typing import Any

import msgspec
from msgspec import Struct

from gpuscaler.model.aside import SetAside
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.pods import Owner, PodOptions, PodSpec
from gpuscaler.model.pools import Policy
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.state import State

#: The form of the bytes; what was written in another is not read.
FORM = 3
#: What pods share, in the order in which it is written.
SHARED: tuple[type, ...] = (PodSpec, LabelSet, PodOptions, Owner)
#: Frames of keys of objects that are gone have this before the kind.
GONE = "Gone "


def gone_of(kind: type) -> str:
    return f"{GONE}{kind.__name__}"


class Form(Struct, frozen=True):
    """``version`` is that of the program that planned."""

    form: int = 0
    version: str = ""


class Head(Struct, frozen=True):
    """A decision, but for its objects."""

    id: str
    at: float
    text: str
    policy: Policy
    state: State
    plan: Plan
    set_aside: tuple[SetAside, ...]


class Chunk(Struct, frozen=True, array_like=True):
    """Objects of one kind, by the name of its type."""

    kind: str
    items: msgspec.Raw


class WirePod(Struct, frozen=True, array_like=True, gc=False):
    """A pod, with all its fields; what it shares with others is the place of that among the objects of its kind."""

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


class Shared:
    """Objects in the order in which they were first met, each once."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._known: dict[int, int] = {}
        self._written = 0

    def fresh(self) -> list[Any]:
        """What was met since the last time."""
        found, self._written = self.items[self._written :], len(self.items)
        return found

    def place(self, item: object) -> int:
        found = self._known.get(id(item))
        if found is None:
            found = self._known[id(item)] = len(self.items)
            self.items.append(item)
        return found
