"""Actions on nodes, pods and machines, as plain data: this package decides on them, the caller carries them out and reports the results."""

from collections.abc import Mapping

from msgspec import Struct


class Nominate(Struct, frozen=True, gc=False, tag=True):
    """Write ``status.nominatedNodeName`` of a pod; an empty ``node`` clears it."""

    pod: str
    uid: str
    node: str


class Bind(Struct, frozen=True, gc=False, tag=True):
    """Bind a pod to a node, unless the node is being deleted or no longer has ``devices``, the number needed of each device resource."""

    pod: str
    uid: str
    node: str
    devices: Mapping[str, int] = {}


class Lift(Struct, frozen=True, gc=False, tag=True):
    """Remove our closing taints and our cordon from a node, which opens it."""

    node: str
    reason: str


class Close(Struct, frozen=True, gc=False, tag=True):
    """Put our arriving taint on a node, or if ``kept`` the taint that keeps it for large pods, and remove our cordon."""

    node: str
    reason: str
    kept: bool = False


class OpenWindow(Struct, frozen=True, gc=False, tag="Ajar"):
    """Let only DaemonSet pods onto a closed node for a short time: a cordon replaces our closing taint, which becomes PreferNoSchedule.

    :class:`Close` or :class:`Lift` ends this window. A node that a person has cordoned is not changed.
    """

    node: str
    reason: str
    kept: bool = False


class Mark(Struct, frozen=True, gc=False, tag=True):
    """Put our leaving taint on a node."""

    node: str
    reason: str


class Unmark(Struct, frozen=True, gc=False, tag=True):
    """Remove our leaving taint, and what was set together with it, from a node that is kept."""

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
    """Ask a pod to save its work within ``seconds``; ``at`` is the time of the request. ``node`` identifies the removal that needs this."""

    pod: str
    uid: str
    node: str
    at: float
    seconds: float


class Evict(Struct, frozen=True, gc=False, tag=True):
    """Evict a pod from ``node``, which is being removed.

    ``grace`` is a shorter grace period in seconds, set if the machine ends before the pod's own grace period would be over.
    """

    pod: str
    uid: str
    node: str
    grace: int | None = None


class Delete(Struct, frozen=True, gc=False, tag=True):
    """Delete a pod whose machine is about to end and whose eviction has been refused so far."""

    pod: str
    uid: str
    node: str
    grace: int


class End(Struct, frozen=True, gc=False, tag=True):
    """End a machine by its id; ``node`` identifies its removal.

    With ``look`` the API server is asked once more whether the node has pods that the watches have not shown.
    """

    instance: str
    node: str
    reason: str
    look: bool = False


class Extend(Struct, frozen=True, gc=False, tag=True):
    """Ask the cloud to end a machine later, because its node is still drained; its group is ending it. ``node`` identifies the removal."""

    instance: str
    node: str


class Protect(Struct, frozen=True, gc=False, tag=True):
    """Protect machines of a pool from scale-in by their group; with ``on=False`` remove this protection."""

    pool: str
    instances: tuple[str, ...]
    on: bool = True
    node: str = ""


class Clear(Struct, frozen=True, gc=False, tag=True):
    """Delete the Node of a machine that no longer exists if nothing else deletes it; ``uid`` protects a later Node of the same name."""

    node: str
    uid: str
    reason: str


OnPod = Nominate | Bind | Checkpoint | Evict | Delete
Act = OnPod | Lift | Close | OpenWindow | Mark | Unmark | Discourage | Label | Exclude | End | Extend | Protect | Clear
#: Actions that are calls to the cloud.
ON_MACHINES = (End, Extend, Protect)
