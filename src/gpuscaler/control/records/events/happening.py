"""Events of the controller: small records from which log lines, Kubernetes Events, metrics and the history are made."""

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import Struct

from gpuscaler.control.records.words import format_names
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import NO_OWNER, Owner

#: Kinds of events, in the order of a machine's life.
PLANNED, UNPLACED = "planned", "unplaced"
ORDERED, ANSWERED, GRANTED, INSTEAD, REFUSED = "ordered", "answered", "granted", "granted-instead", "refused"
ANSWER_LOST, UNFILLED = "answer-lost", "unfilled"
REGISTERED, READY, OPENED, LOST, BROKEN = "registered", "ready", "opened", "lost", "promise-broken"
TURNED_AWAY = "turned-away"
DECIDED, MARKED, DRAINING, ENDING, KEPT, REMOVED = "removal-decided", "marked", "draining", "ending", "kept", "removed"
HELD, CHECKPOINT, EVICTED = "removal-held", "checkpoint-requested", "evicted"
UNFAMILIAR, STOPPED = "unfamiliar", "stopped"
ACTED, FAILED, NOTICED = "act-failed", "failed", "noticed"
FOUND = "found"


class EventTemplate(NamedTuple):
    """The Kubernetes Event of a kind: ``reason`` and ``action`` in CamelCase.

    It is written on the event's pods (``pod``), its node (``node``), or the pod of this process (``controller``), and also on its owner
    if it has one.
    """

    reason: str
    action: str
    on: str
    warning: bool = False


#: Kinds that get Kubernetes Events. The reasons ``TriggeredScaleUp`` and ``NotTriggerScaleUp`` are Cluster Autoscaler's.
EVENTS: Mapping[str, EventTemplate] = {
    ORDERED: EventTemplate("TriggeredScaleUp", "Order", "pod"),
    INSTEAD: EventTemplate("TriggeredScaleUp", "Order", "pod"),
    UNPLACED: EventTemplate("NotTriggerScaleUp", "Plan", "pod", warning=True),
    REFUSED: EventTemplate("OfferingRefused", "Order", "pod", warning=True),
    STOPPED: EventTemplate("ScaleUpStopped", "Plan", "pod", warning=True),
    UNFAMILIAR: EventTemplate("MachineNotUnderstood", "Order", "pod", warning=True),
    LOST: EventTemplate("MachineLost", "Order", "pod", warning=True),
    BROKEN: EventTemplate("PromiseBroken", "Steer", "pod", warning=True),
    TURNED_AWAY: EventTemplate("PodTurnedAway", "Bind", "pod", warning=True),
    OPENED: EventTemplate("NodeOpened", "Open", "node"),
    DECIDED: EventTemplate("ScaleDown", "Remove", "node"),
    MARKED: EventTemplate("ScaleDownMarked", "Remove", "node"),
    DRAINING: EventTemplate("ScaleDownDraining", "Remove", "node"),
    ENDING: EventTemplate("ScaleDownRemoving", "Remove", "node"),
    HELD: EventTemplate("ScaleDownHeld", "Remove", "node"),
    CHECKPOINT: EventTemplate("CheckpointRequested", "Remove", "pod"),
    EVICTED: EventTemplate("Evicted", "Remove", "pod"),
    KEPT: EventTemplate("ScaleDownGivenUp", "Remove", "node"),
    FAILED: EventTemplate("TurnFailed", "Plan", "controller", warning=True),
    NOTICED: EventTemplate("MachineNoticed", "Look", "node", warning=True),
}
#: Kinds that are logged as warnings.
TROUBLE = frozenset({UNPLACED, REFUSED, ANSWER_LOST, UNFILLED, UNFAMILIAR, STOPPED, LOST, BROKEN, TURNED_AWAY, ACTED, FAILED, FOUND})


class HistoryEvent(Struct, frozen=True, gc=False, omit_defaults=True):
    """One event at ``at`` (seconds since the epoch), of one of the kinds above, described by ``text``.

    ``pods`` are the affected ones, ``machine`` is the cloud's id, ``machines`` the number of ordered ones, ``order`` the token of an order,
    ``decision`` the id of the plan that led to it, ``cause`` why a cloud refused. ``late`` is how many seconds after its forecast a machine
    was ready, negative if it was early; ``seen`` says whether the forecast was based on observed machines. ``uid`` is that of the only pod
    if it may be gone by now, ``owner`` its topmost owner.
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

    @property
    def text_with_pods(self) -> str:
        """The text for a list of events about many objects. That about unplaced pods says "it": each of them gets it as an Event."""
        if self.kind != UNPLACED or not self.pods:
            return self.text
        return self.text.replace(" it", f" {format_names(self.pods, 1)}", 1)
