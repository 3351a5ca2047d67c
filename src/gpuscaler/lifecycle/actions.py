"""Actions on nodes, pods and machines, as plain data. Deciding is pure; the caller carries an action out and reports its result."""

from collections.abc import Mapping

from msgspec import Struct


class Nominate(Struct, frozen=True, gc=False, tag=True):
    """Write ``status.nominatedNodeName`` of a pod; an empty ``node`` clears it."""

    pod: str
    uid: str
    node: str


class Bind(Struct, frozen=True, gc=False, tag=True):
    """Bind a pod to a node, if the node still offers these ``devices``, by resource, and is not being deleted."""

    pod: str
    uid: str
    node: str
    devices: Mapping[str, int] = {}


class Lift(Struct, frozen=True, gc=False, tag=True):
    """Remove our closing taints and our cordon from a node, which opens it."""

    node: str
    reason: str


class Close(Struct, frozen=True, gc=False, tag=True):
    """Put our arriving taint on a node, or the taint of nodes that are ``kept`` for large pods, and remove our cordon."""

    node: str
    reason: str
    kept: bool = False


class Ajar(Struct, frozen=True, gc=False, tag=True):
    """Let only DaemonSet pods onto a node: it is cordoned, and our taint is removed for that time.

    :class:`Close` or :class:`Lift` undoes it. A node that a person has cordoned stays as it is.
    """

    node: str
    reason: str
    kept: bool = False


class Mark(Struct, frozen=True, gc=False, tag=True):
    """Put our leaving taint on a node."""

    node: str
    reason: str


class Unmark(Struct, frozen=True, gc=False, tag=True):
    """Remove our leaving taint, and the marks that go with it, from a node that stays."""

    node: str
    reason: str


class Discourage(Struct, frozen=True, gc=False, tag=True):
    """Put the soft taints with these keys on a node, and remove our other soft taints."""

    node: str
    taints: tuple[str, ...]
    reason: str


class Label(Struct, frozen=True, gc=False, tag=True):
    """Set the label ``gpuscaler.io/pool`` of a node to this value."""

    node: str
    pool: str
    reason: str


class Exclude(Struct, frozen=True, gc=False, tag=True):
    """Make load balancers stop sending traffic to a node with our leaving taint."""

    node: str
    reason: str


class Checkpoint(Struct, frozen=True, gc=False, tag=True):
    """Ask a pod to save its work within ``seconds``; ``at`` is the moment of the request. ``node`` names the removal it belongs to."""

    pod: str
    uid: str
    node: str
    at: float
    seconds: float


class Evict(Struct, frozen=True, gc=False, tag=True):
    """Evict a pod from a node that is being removed. ``node`` names the removal it belongs to.

    ``grace`` is a grace period in seconds, set where the machine ends before the pod's own grace period is over.
    """

    pod: str
    uid: str
    node: str
    grace: int | None = None


class Delete(Struct, frozen=True, gc=False, tag=True):
    """Delete a pod whose machine is about to vanish and whose eviction has been refused until now."""

    pod: str
    uid: str
    node: str
    grace: int


class End(Struct, frozen=True, gc=False, tag=True):
    """End a machine by its id; ``node`` names the removal it belongs to.

    With ``look`` the API server is asked one last time whether the node has pods that no watch has shown.
    """

    instance: str
    node: str
    reason: str
    look: bool = False


class Extend(Struct, frozen=True, gc=False, tag=True):
    """Ask the cloud to delay the end of a machine that its group ends while it is still drained; ``node`` names the removal."""

    instance: str
    node: str


class Protect(Struct, frozen=True, gc=False, tag=True):
    """Protect machines of a pool from scale-in by their group, or remove that protection where ``on`` is False."""

    pool: str
    instances: tuple[str, ...]
    on: bool = True
    node: str = ""


class Clear(Struct, frozen=True, gc=False, tag=True):
    """Delete the Node of a machine that is gone, where nothing else does; ``uid`` protects a later Node of the same name."""

    node: str
    uid: str
    reason: str


OnPod = Nominate | Bind | Checkpoint | Evict | Delete
Act = OnPod | Lift | Close | Ajar | Mark | Unmark | Discourage | Label | Exclude | End | Extend | Protect | Clear
#: Actions that are calls to the cloud.
ON_MACHINES = (End, Extend, Protect)
