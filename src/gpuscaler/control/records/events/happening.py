"""Everything worth telling is a happening: one small record that logs, Events, metrics and the history are all made of."""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import NO_OWNER, Owner

#: Kinds of happenings, in the order in which a machine's life meets them.
PLANNED, UNPLACED = "planned", "unplaced"
ORDERED, ANSWERED, GRANTED, INSTEAD, REFUSED = "ordered", "answered", "granted", "granted-instead", "refused"
ANSWER_LOST, UNFILLED = "answer-lost", "unfilled"
REGISTERED, READY, OPENED, LOST, BROKEN = "registered", "ready", "opened", "lost", "promise-broken"
TURNED_AWAY = "turned-away"
DECIDED, MARKED, DRAINING, ENDING, KEPT, REMOVED = "removal-decided", "marked", "draining", "ending", "kept", "removed"
HELD, CHECKPOINT, EVICTED = "removal-held", "checkpoint-requested", "evicted"
UNFAMILIAR, STOPPED = "unfamiliar", "stopped"
ACTED, FAILED, NOTICED = "act-failed", "failed", "noticed"


class Told(NamedTuple):
    """How Events tell a kind: ``reason`` and ``action`` in CamelCase.

    They are on the happening's pods (``pod``), its node (``node``), or the pod of this process (``controller``); where it has an owner, on
    that, too.
    """

    reason: str
    action: str
    on: str
    warning: bool = False


#: Kinds that get Events. The reasons for pods that machines are bought for, or not, are Cluster Autoscaler's.
EVENTS: Mapping[str, Told] = {
    ORDERED: Told("TriggeredScaleUp", "Order", "pod"),
    INSTEAD: Told("TriggeredScaleUp", "Order", "pod"),
    UNPLACED: Told("NotTriggerScaleUp", "Plan", "pod", warning=True),
    REFUSED: Told("OfferingRefused", "Order", "pod", warning=True),
    STOPPED: Told("ScaleUpStopped", "Plan", "pod", warning=True),
    UNFAMILIAR: Told("MachineNotUnderstood", "Order", "pod", warning=True),
    LOST: Told("MachineLost", "Order", "pod", warning=True),
    BROKEN: Told("PromiseBroken", "Steer", "pod", warning=True),
    TURNED_AWAY: Told("PodTurnedAway", "Bind", "pod", warning=True),
    OPENED: Told("NodeOpened", "Open", "node"),
    DECIDED: Told("ScaleDown", "Remove", "node"),
    MARKED: Told("ScaleDownMarked", "Remove", "node"),
    DRAINING: Told("ScaleDownDraining", "Remove", "node"),
    ENDING: Told("ScaleDownRemoving", "Remove", "node"),
    HELD: Told("ScaleDownHeld", "Remove", "node"),
    CHECKPOINT: Told("CheckpointRequested", "Remove", "pod"),
    EVICTED: Told("Evicted", "Remove", "pod"),
    KEPT: Told("ScaleDownGivenUp", "Remove", "node"),
    FAILED: Told("TurnFailed", "Plan", "controller", warning=True),
    NOTICED: Told("MachineNoticed", "Look", "node", warning=True),
}
#: Kinds that are trouble, in logs.
TROUBLE = frozenset({UNPLACED, REFUSED, ANSWER_LOST, UNFILLED, UNFAMILIAR, STOPPED, LOST, BROKEN, TURNED_AWAY, ACTED, FAILED})


class Happening(Struct, frozen=True, gc=False, omit_defaults=True):
    """One thing that happened at ``at`` (seconds since the epoch), of one of the kinds above, told in ``text``.

    ``pods`` are those it matters to, ``machine`` is the cloud's id, ``machines`` how many were ordered, ``order`` the token of a purchase,
    ``decision`` the id of the plan that led to it, ``cause`` why a cloud refused. ``late`` is by how many seconds a machine was ready after
    its forecast, negative when it was early; ``seen`` says whether the forecast rested on machines that were seen. ``uid`` is that of the
    one pod where it may be gone by now, ``owner`` what it belongs to in the end.
    """

    at: float
    kind: str
    text: str
    pods: tuple[str, ...] = ()
    node: str = ""
    machine: str = ""
    machines: int = 0
    offering: OfferingKey | None = None
    order: str = ""
    decision: str = ""
    cause: str = ""
    late: float | None = None
    seen: bool = False
    uid: str = ""
    owner: Owner = NO_OWNER
