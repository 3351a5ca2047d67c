"""What the last observation of the cluster says about the end of the smoke test, and what it waits for."""

from typing import NamedTuple

from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.smoke.timeline import (
    BOUND,
    FINISHED,
    ORDER_EVENT,
    ORDERED,
    STARTED,
    UNPLACED_EVENT,
    WAITING,
    Observation,
    Timeline,
    condition,
    container_state,
    newest_event,
)
from gpuscaler.planning.plans import NEVER, NOT_NOW

#: States of a container that no patience ends.
_HOPELESS = frozenset(
    {"ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError", "CreateContainerError", "RunContainerError"}
)
#: Events on a Job whose pod cannot be created.
_NOT_CREATED = ("FailedCreate",)


class Verdict(NamedTuple):
    """Whether the Job ran, and the reason if it did not."""

    ran: bool
    text: str


def verdict_of(timeline: Timeline, observed: Observation) -> Verdict | None:
    """The end of the test; None while it goes on."""
    if observed.job is None:
        return Verdict(False, "the Job was deleted by something else") if timeline.began is not None else None
    if (observed.pod is not None and observed.pod.text("status", "phase") == "Succeeded") or condition(observed.job, "Complete").text(
        "status"
    ) == "True":
        return Verdict(True, "the Job ran")
    if observed.pod is not None and observed.pod.text("status", "phase") == "Failed":
        return Verdict(False, _failure(observed.pod))
    failed = condition(observed.job, "Failed")
    if failed.text("status") == "True":
        return Verdict(False, f"the Job failed: {failed.text('reason')}: {failed.text('message')}")
    if observed.pod is None:
        refusal = newest_event(observed, *_NOT_CREATED)
        return None if refusal is None else Verdict(False, f"its pod cannot be created: {refusal.text('message')}")
    if not observed.pod.text("spec", "nodeName"):
        text = _unserved(timeline, observed)
        return Verdict(False, text) if text else None
    waiting = container_state(observed.pod).part("waiting")
    if waiting.text("reason") in _HOPELESS:
        return Verdict(False, f"its container cannot start: {waiting.text('reason')}: {waiting.text('message')}")
    return None


def _failure(pod: Document) -> str:
    """Why a pod failed: its container's exit, or why the kubelet or the cluster ended it."""
    ended = container_state(pod).part("terminated")
    if ended.has("exitCode"):
        reason, message = ended.text("reason"), " ".join(ended.text("message").split())
        text = f"its container failed with exit code {ended.value('exitCode')}{f' ({reason})' if reason else ''}"
        return f"{text}: {message}" if message else text
    reason = ": ".join(filter(None, (pod.text("status", "reason"), pod.text("status", "message"))))
    return f"its pod failed{f': {reason}' if reason else ''}"


def _unserved(timeline: Timeline, observed: Observation) -> str:
    """Why nothing will be bought for a pending pod; empty if something may be."""
    if WAITING not in timeline.marks:
        # The scheduler has not tried yet.
        return observed.stopped
    newest = newest_event(observed, ORDER_EVENT, UNPLACED_EVENT)
    if newest is not None and newest.text("reason") == UNPLACED_EVENT:
        return newest.text("message")
    if ORDERED not in timeline.marks:
        if observed.unplaced:
            # The status says so only of pods that no machine can ever hold.
            return observed.unplaced if observed.unplaced.startswith(NEVER) else f"{NOT_NOW}: {observed.unplaced}"
        if observed.held:
            return observed.held
    return observed.stopped


def waits_for(timeline: Timeline) -> str:
    """What the test waits for after the stages of ``timeline``."""
    reached = {row.stage for row in timeline.rows()}
    for stage, text in (
        (FINISHED, "the removal of the pod"),
        (STARTED, "the end of its container"),
        (BOUND, "the start of its container on node {node}"),
        (ORDERED, "the ordered machine"),
        (WAITING, "an order of the controller"),
    ):
        if stage in reached:
            return text.format(node=timeline.node)
    return "the scheduler"
