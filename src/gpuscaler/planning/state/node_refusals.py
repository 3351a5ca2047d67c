"""Refusals: nodes that do not take pods which seem to fit there.

The scheduler may know more than the planner: a filter of its own, or room that is reserved invisibly. As long as plans count on such a
node for such pods, nothing is bought for them. So if plans keep placing a pod on an open node, and the scheduler tried it again and left
it unbound, the node is avoided for all pods with the same specification until the node changes or an hour has passed.
"""

from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

#: The time that a pod may stay unbound on an open node that it was planned onto, and the time that the node is avoided then, in seconds.
PATIENCE_SECONDS, AVOIDED_SECONDS = 60.0, 3600.0
#: The number of newest waits and of newest refusals that are remembered.
MOST = 500


class Wait(Struct, frozen=True, gc=False):
    """Plans have placed ``pod`` on the open node ``node`` since ``since``.

    A ``suspected`` wait counts only if the next plan places the pod there, too.
    """

    pod: str
    node: str
    since: float
    suspected: bool = False


class NodeRefusal(Struct, frozen=True, gc=False):
    """``node`` did not take a pod of the specification ``pods`` (its digest), while the node had the digest ``face``.

    ``detail`` is the scheduler's message, empty if unknown.
    """

    pods: str
    node: str
    face: str
    until: float
    detail: str = ""


class Refusals(Struct, frozen=True, gc=False):
    """Pods that are expected on open nodes, and nodes that are avoided."""

    waits: tuple[Wait, ...] = ()
    avoided: tuple[NodeRefusal, ...] = ()


class Planned(Struct, frozen=True, gc=False, tag=True):
    """The newest plan places these pods on these open nodes; earlier expectations end."""

    placements: tuple[tuple[str, str], ...]
    at: float


class Suspected(Struct, frozen=True, gc=False, tag=True):
    """A node was opened for a pod at ``since`` and has not taken it: a refusal, if the next plan still sees room for it there."""

    pod: str
    node: str
    since: float


class NodeRefused(Struct, frozen=True, gc=False, tag=True):
    """A node with the digest ``face`` did not take ``pod``, of the specification ``pods``."""

    pod: str
    pods: str
    node: str
    face: str
    at: float
    detail: str = ""


class Cleared(Struct, frozen=True, gc=False, tag=True):
    """A node is no longer avoided: it is gone or has changed."""

    node: str


Event = Planned | Suspected | NodeRefused | Cleared


def step(refusals: Refusals, event: Event) -> Refusals:
    """The refusals after ``event``."""
    waits, avoided = refusals.waits, refusals.avoided
    match event:
        case Planned(placements=placements, at=at):
            since_of = {(wait.pod, wait.node): wait.since for wait in waits}
            waits_now = tuple(Wait(pod, node, since_of.get((pod, node), at)) for pod, node in placements[:MOST])
            return refusals if waits_now == waits else replace(refusals, waits=waits_now)
        case Suspected(pod=pod, node=node, since=since):
            others = tuple(wait for wait in waits if wait.pod != pod)
            return replace(refusals, waits=(*others, Wait(pod, node, since, suspected=True))[-MOST:])
        case NodeRefused():
            new = NodeRefusal(event.pods, event.node, event.face, event.at + AVOIDED_SECONDS, event.detail)
            kept = (refusal for refusal in avoided if refusal.until > event.at and (refusal.pods, refusal.node) != (new.pods, new.node))
            return Refusals(tuple(wait for wait in waits if wait.pod != event.pod), (*kept, new)[-MOST:])
        case Cleared(node=node):
            return replace(refusals, avoided=tuple(refusal for refusal in avoided if refusal.node != node))


def avoided_nodes(refusals: Refusals, now: float) -> Mapping[str, frozenset[str]]:
    """The names of nodes that are avoided now, by the digest of the specification of the pods that avoid them."""
    names: dict[str, set[str]] = {}
    for refusal in refusals.avoided:
        if now < refusal.until:
            names.setdefault(refusal.pods, set()).add(refusal.node)
    return {pods: frozenset(nodes) for pods, nodes in sorted(names.items())}
