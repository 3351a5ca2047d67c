"""What is to be done to nodes, pods and machines, as data: deciding is pure, and whoever carries an act out tells what came of it."""

from msgspec import Struct


class Nominate(Struct, frozen=True, gc=False, tag=True):
    """Write ``status.nominatedNodeName`` of a pod; an empty ``node`` takes it back."""

    pod: str
    uid: str
    node: str


class Lift(Struct, frozen=True, gc=False, tag=True):
    """Take our arriving taint off a node: it opens."""

    node: str
    reason: str


class Close(Struct, frozen=True, gc=False, tag=True):
    """Put our arriving taint on a node that is kept for large pods."""

    node: str
    reason: str


class Mark(Struct, frozen=True, gc=False, tag=True):
    """Put our leaving taint on a node."""

    node: str
    reason: str


class Unmark(Struct, frozen=True, gc=False, tag=True):
    """Take our leaving taint off a node: it stays."""

    node: str
    reason: str


class Discourage(Struct, frozen=True, gc=False, tag=True):
    """Let a node bear these of our soft taints, by their keys, and none of the others."""

    node: str
    taints: tuple[str, ...]
    reason: str


class Evict(Struct, frozen=True, gc=False, tag=True):
    """Evict a pod from a node that leaves. ``node`` names the removal that it belongs to."""

    pod: str
    uid: str
    node: str
    grace: float | None = None


class End(Struct, frozen=True, gc=False, tag=True):
    """End a machine by its id; ``node`` names the removal that it belongs to."""

    instance: str
    node: str
    reason: str


Act = Nominate | Lift | Close | Mark | Unmark | Discourage | Evict | End
