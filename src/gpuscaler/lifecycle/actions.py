"""What is to be done to nodes, pods and machines, as data: deciding is pure, and whoever carries an act out tells what came of it."""

from collections.abc import Mapping

from msgspec import Struct


class Nominate(Struct, frozen=True, gc=False, tag=True):
    """Write ``status.nominatedNodeName`` of a pod; an empty ``node`` takes it back."""

    pod: str
    uid: str
    node: str


class Bind(Struct, frozen=True, gc=False, tag=True):
    """Bind a pod to a node, if that still offers these ``devices``, by resource, and is not being deleted."""

    pod: str
    uid: str
    node: str
    devices: Mapping[str, int] = {}


class Lift(Struct, frozen=True, gc=False, tag=True):
    """Take our closing taints off a node, and our cordon: it opens."""

    node: str
    reason: str


class Close(Struct, frozen=True, gc=False, tag=True):
    """Put our arriving taint on a node, or that of nodes which are ``kept`` for large pods in its place, and take our cordon off."""

    node: str
    reason: str
    kept: bool = False


class Ajar(Struct, frozen=True, gc=False, tag=True):
    """Let only pods of DaemonSets come to a node: it is cordoned, and our taint keeps nobody away meanwhile.

    What undoes it is :class:`Close` or :class:`Lift`. A node that a person has cordoned is left as it is.
    """

    node: str
    reason: str
    kept: bool = False


class Mark(Struct, frozen=True, gc=False, tag=True):
    """Put our leaving taint on a node."""

    node: str
    reason: str


class Unmark(Struct, frozen=True, gc=False, tag=True):
    """Take our leaving taint, and what goes with it, off a node: it stays."""

    node: str
    reason: str


class Discourage(Struct, frozen=True, gc=False, tag=True):
    """Let a node bear these of our soft taints, by their keys, and none of the others."""

    node: str
    taints: tuple[str, ...]
    reason: str


class Label(Struct, frozen=True, gc=False, tag=True):
    """Let a node bear the label ``gpuscaler.io/pool`` with this value."""

    node: str
    pool: str
    reason: str


class Exclude(Struct, frozen=True, gc=False, tag=True):
    """Ask load balancers to send nothing to a node with our leaving taint any more."""

    node: str
    reason: str


class Checkpoint(Struct, frozen=True, gc=False, tag=True):
    """Ask a pod to save its work within ``seconds``; ``at`` is the moment of the request. ``node`` names the removal that it belongs to."""

    pod: str
    uid: str
    node: str
    at: float
    seconds: float


class Evict(Struct, frozen=True, gc=False, tag=True):
    """Evict a pod from a node that leaves. ``node`` names the removal that it belongs to.

    ``grace`` are seconds that are less than the pod's own, where its machine goes before those are over.
    """

    pod: str
    uid: str
    node: str
    grace: int | None = None


class Delete(Struct, frozen=True, gc=False, tag=True):
    """Delete a pod whose machine is about to vanish, and whose eviction is refused to the last."""

    pod: str
    uid: str
    node: str
    grace: int


class End(Struct, frozen=True, gc=False, tag=True):
    """End a machine by its id; ``node`` names the removal that it belongs to.

    ``look`` asks for a last look, at the API server itself, whether pods are on the node that nobody knows of.
    """

    instance: str
    node: str
    reason: str
    look: bool = False


class Extend(Struct, frozen=True, gc=False, tag=True):
    """Ask the cloud to hold a machine that its group ends for longer, since it is still being emptied; ``node`` names the removal."""

    instance: str
    node: str


class Protect(Struct, frozen=True, gc=False, tag=True):
    """Protect machines of a pool from being ended by their group, or take that off again where ``on`` is False."""

    pool: str
    instances: tuple[str, ...]
    on: bool = True
    node: str = ""


class Clear(Struct, frozen=True, gc=False, tag=True):
    """Delete the Node of a machine that is gone, where nobody else does; ``uid`` makes it that Node and no other of its name."""

    node: str
    uid: str
    reason: str


OnPod = Nominate | Bind | Checkpoint | Evict | Delete
Act = OnPod | Lift | Close | Ajar | Mark | Unmark | Discourage | Label | Exclude | End | Extend | Protect | Clear
#: Acts that are asked of the cloud.
ON_MACHINES = (End, Extend, Protect)
