"""When the smoke test reached which stage, from what each observation of the cluster shows.

Times are seconds since the epoch by the cluster's clock: those in objects, and for what no object has a time of, the time of the
observation that showed it first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from gpuscaler.doctor.documents import Document
from gpuscaler.model.well_known import ARRIVING_TAINT
from gpuscaler.model.wire import UnreadableError, parse_timestamp

CREATED, WAITING, ORDERED = "Job created", "no node has room", "machine ordered"
REGISTERED, READY, GPU_SEEN, OPENED = "node registered", "node ready", "GPU seen", "node opened to all pods"
BOUND, STARTED, FINISHED, GONE, REMOVED = "pod on its node", "container started", "container finished", "pod removed", "node removed"
#: The order of stages with the same time.
STAGES = (CREATED, WAITING, ORDERED, REGISTERED, READY, GPU_SEEN, BOUND, OPENED, STARTED, FINISHED, GONE, REMOVED)
#: Reasons of the controller's Events on pods: what was ordered for it, and that nothing can be.
ORDER_EVENT, UNPLACED_EVENT = "TriggeredScaleUp", "NotTriggerScaleUp"


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one observation of the cluster showed at the time ``at``.

    ``nodes`` are those that may be new for the test, None if they were not read this time. ``unplaced`` is why the controller's status says
    that nothing can be bought for the pod, ``held`` that buying is on hold, ``stopped`` that no controller runs; all empty if not.
    """

    at: float
    job: Document | None = None
    pod: Document | None = None
    events: tuple[Document, ...] = ()
    nodes: Mapping[str, Document] | None = None
    unplaced: str = ""
    held: str = ""
    stopped: str = ""


class Mark(NamedTuple):
    """When a stage was reached, and what the cluster said about it."""

    at: float
    detail: str = ""


class Row(NamedTuple):
    """A stage, the seconds since the Job's creation, and those since the stage before."""

    stage: str
    at: float
    took: float
    detail: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """The stages so far of a test of ``resource``. ``node`` is the pod's node once it has one, ``pool`` that node's pool."""

    resource: str
    marks: Mapping[str, Mark] = field(default_factory=dict)
    node: str = ""
    pool: str = ""
    #: Stages of nodes that registered after the Job was created: any of them may become the pod's.
    candidates: Mapping[str, Mapping[str, Mark]] = field(default_factory=dict)

    @property
    def began(self) -> float | None:
        """When the Job was created; None if it was not seen yet."""
        return self.marks[CREATED].at if CREATED in self.marks else None

    @property
    def on_new_node(self) -> bool:
        """Whether the pod's node registered after the Job was created."""
        return bool(self.node) and self.node in self.candidates

    def seen(self, observed: Observation) -> "Timeline":
        """The timeline with what ``observed`` shows; a stage keeps the time at which it was first reached."""
        marks = {**_of_job(observed), **_of_pod(observed), **self.marks}
        node = (observed.pod.text("spec", "nodeName") if observed.pod is not None else "") or self.node
        began = marks[CREATED].at if CREATED in marks else None
        candidates, pool = dict(self.candidates), self.pool
        for name, document in (observed.nodes or {}).items():
            created = _time(document.text("metadata", "creationTimestamp"))
            if began is not None and created >= began:
                candidates[name] = {**_of_node(document, self.resource, observed.at), **candidates.get(name, {})}
            if name == node:
                pool = document.labels.get("gpuscaler.io/pool", pool)
        return replace(self, marks=marks, node=node, candidates=candidates, pool=pool)

    def reached(self, stage: str, at: float, detail: str = "") -> "Timeline":
        """The timeline with a stage that its caller saw at ``at``."""
        return replace(self, marks={stage: Mark(at, detail), **self.marks})

    def rows(self) -> tuple[Row, ...]:
        """The stages in the order of their times."""
        marks = {**self.marks, **self._of_its_node()}
        began = self.began
        if began is None:
            return ()
        ordered = sorted(marks.items(), key=lambda item: (max(began, item[1].at), STAGES.index(item[0])))
        rows: list[Row] = []
        for stage, mark in ordered:
            at = max(0.0, mark.at - began)
            rows.append(Row(stage, at, at - (rows[-1].at if rows else 0.0), mark.detail))
        return tuple(rows)

    def _of_its_node(self) -> dict[str, Mark]:
        marks = dict(self.candidates.get(self.node, {}))
        bound = self.marks.get(BOUND)
        if bound is not None:
            # The pod was bound because the GPU was there, though the observation that showed it came later.
            for stage in (REGISTERED, READY, GPU_SEEN):
                if stage in marks and marks[stage].at > bound.at:
                    marks[stage] = Mark(bound.at, marks[stage].detail)
        return marks


def _of_job(observed: Observation) -> dict[str, Mark]:
    if observed.job is None:
        return {}
    return {CREATED: Mark(_time(observed.job.text("metadata", "creationTimestamp")) or observed.at, observed.job.key)}


def _of_pod(observed: Observation) -> dict[str, Mark]:
    pod = observed.pod
    if pod is None:
        return {}
    marks: dict[str, Mark] = {}
    scheduled = condition(pod, "PodScheduled")
    if scheduled.text("reason") == "Unschedulable":
        marks[WAITING] = Mark(_time(scheduled.text("lastTransitionTime")) or observed.at, scheduled.text("message"))
    if (order := newest_event(observed, ORDER_EVENT)) is not None:
        marks[ORDERED] = Mark(event_time(order) or observed.at, order.text("message"))
    if node := pod.text("spec", "nodeName"):
        at = _time(scheduled.text("lastTransitionTime")) if scheduled.text("status") == "True" else 0.0
        marks[BOUND] = Mark(at or observed.at, node)
    state = container_state(pod)
    for name, stage, time in (
        ("running", STARTED, "startedAt"),
        ("terminated", STARTED, "startedAt"),
        ("terminated", FINISHED, "finishedAt"),
    ):
        if state.has(name) and stage not in marks:
            marks[stage] = Mark(_time(state.text(name, time)) or observed.at)
    return marks


def _of_node(node: Document, resource: str, at: float) -> dict[str, Mark]:
    marks = {REGISTERED: Mark(_time(node.text("metadata", "creationTimestamp")) or at, node.name)}
    ready = condition(node, "Ready")
    if ready.text("status") == "True":
        marks[READY] = Mark(_time(ready.text("lastTransitionTime")) or at)
    if has_device(node, resource):
        marks[GPU_SEEN] = Mark(at, f"{node.value('status', 'allocatable', resource)} {resource}")
        if READY in marks and not any(taint.text("key") == ARRIVING_TAINT for taint in node.parts("spec", "taints")):
            marks[OPENED] = Mark(at)
    return marks


def has_device(node: Document, resource: str) -> bool:
    """Whether pods may use at least one ``resource`` of the node."""
    return str(node.value("status", "allocatable", resource) or "0") != "0"


def condition(document: Document, kind: str) -> Document:
    """The condition of this type; an empty document if there is none."""
    return next((entry for entry in document.parts("status", "conditions") if entry.text("type") == kind), Document({}))


def container_state(pod: Document) -> Document:
    """The state of the pod's container; an empty document if it has none yet."""
    statuses = pod.parts("status", "containerStatuses")
    return statuses[0].part("state") if statuses else Document({})


def newest_event(observed: Observation, *reasons: str) -> Document | None:
    """The newest Event with one of ``reasons``."""
    return max((event for event in observed.events if event.text("reason") in reasons), key=event_time, default=None)


def event_time(event: Document) -> float:
    """When an Event last happened, in seconds since the epoch; 0 if it does not say."""
    times = (("series", "lastObservedTime"), ("lastTimestamp",), ("eventTime",), ("metadata", "creationTimestamp"))
    return next((at for path in times if (at := _time(event.text(*path)))), 0.0)


def _time(text: str) -> float:
    try:
        return parse_timestamp(text, "")
    except UnreadableError:
        return 0.0
