"""Jobs: pods run until enough of them have succeeded, or too many have failed.

Each pod has a finalizer, so that none ends uncounted: first it is recorded in the status, then released, then counted. Pods that are
evicted or lose their machine count as failed, unless ``podFailurePolicy`` says otherwise.
Source: ``k8s.io/kubernetes/pkg/controller/job`` (``job_controller.go``, ``indexed_job_utils.go``, ``backoff_utils.go``), Kubernetes 1.35.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from msgspec import Struct

from gpuscaler.embedded.nodes.scheduling import timestamp
from gpuscaler.embedded.workloads.indexes import indexes_of, text_of
from gpuscaler.embedded.workloads.steps import (
    Object,
    Steps,
    first_to_go,
    identity,
    is_active,
    is_condition_true,
    is_finished,
    is_leaving,
    is_ready,
    name_of,
    omit_zero,
    pod_of,
    seconds_of,
    with_conditions,
)
from gpuscaler.kube.resources import JOBS, PODS

FINALIZER: Final = "batch.kubernetes.io/job-tracking"
INDEX: Final = "batch.kubernetes.io/job-completion-index"
#: Seconds until a failed pod is replaced, doubled by each failure in a row.
FIRST_PAUSE, LONGEST_PAUSE = 10.0, 600.0


class _Failures(Struct, gc=False):
    """Failures since the last success, and when the last of them was seen."""

    many: int = 0
    at: float = 0.0


class Jobs:
    """Decides about Jobs, and remembers their back-off after failures."""

    def __init__(self) -> None:
        self._failures: dict[str, _Failures] = {}

    def decide(self, job: Mapping[str, Any], pods: Sequence[Object], now: float) -> Steps:
        """The steps for ``job``, which owns ``pods``, at ``now`` in seconds since the epoch."""
        if is_leaving(job) or is_over(job):
            self.forget(identity(job))
            return _after(job, pods, now)
        tally = _Tally(job, pods)
        failures = self._failures.setdefault(identity(job), _Failures())
        if tally.newly_succeeded:
            failures.many = 0
        elif tally.newly_failed:
            failures.many += 1
            failures.at = now
        steps = Steps(patches=[(PODS, pod, without_finalizer(pod)) for pod in pods if tally.written(pod) and has_finalizer(pod)])
        verdict = _verdict(job, tally, now)
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** min(failures.many - 1, 10)) if failures.many else 0.0
        active = [pod for pod in pods if is_active(pod)]
        if verdict or job["spec"].get("suspend"):
            _give_up(steps, active)
            active = []
        else:
            _adjust(steps, job, tally, active, wait_until=failures.at + pause, now=now)
        if limit := job["spec"].get("activeDeadlineSeconds"):
            end = (seconds_of((job.get("status") or {}).get("startTime")) or now) + limit
            steps.again = end if steps.again is None else min(end, steps.again)
        steps.status = _status(job, pods, tally, verdict, active=len(active) + len(steps.creates), now=now)
        return steps

    def forget(self, name: str) -> None:
        """Forget a Job, by its identity, that is gone or finished."""
        self._failures.pop(name, None)


def is_over(job: Mapping[str, Any]) -> bool:
    return is_condition_true(job, "Complete") or is_condition_true(job, "Failed")


def has_finalizer(pod: Mapping[str, Any]) -> bool:
    return FINALIZER in (pod["metadata"].get("finalizers") or ())


def without_finalizer(pod: Mapping[str, Any]) -> Object:
    """The patch that removes the finalizer from exactly this pod in this version."""
    kept = [name for name in pod["metadata"].get("finalizers") or () if name != FINALIZER]
    return {"metadata": {"uid": pod["metadata"]["uid"], "finalizers": kept or None}}


def orphaned(pods: Sequence[Object]) -> Steps:
    """Release pods whose Job is gone."""
    return Steps(patches=[(PODS, pod, without_finalizer(pod)) for pod in pods if has_finalizer(pod)])


class _Tally:
    """The ended pods of a Job: the counts in its status, and the next ones."""

    def __init__(self, job: Mapping[str, Any], pods: Sequence[Object]) -> None:
        status = job.get("status") or {}
        uncounted = status.get("uncountedTerminatedPods") or {}
        held = {pod["metadata"]["uid"] for pod in pods if has_finalizer(pod)}
        self.indexed = job["spec"].get("completionMode") == "Indexed"
        self.done: set[int] = indexes_of(status.get("completedIndexes") or "") if self.indexed else set()
        before = {word: set(uncounted.get(word) or ()) for word in ("succeeded", "failed")}
        # Pods that were released are counted now.
        self.succeeded = (status.get("succeeded") or 0) + len(before["succeeded"] - held)
        self.failed = (status.get("failed") or 0) + len(before["failed"] - held)
        self.uncounted = {word: uids & held for word, uids in before.items()}
        self.ignored: set[str] = set()
        self.fatal = ""
        self.newly_succeeded = self.newly_failed = 0
        for pod in pods:
            if has_finalizer(pod) and not self.written(pod):
                self._write(job, pod)
        if self.indexed:
            self.done.discard(-1)
            self.succeeded = len(self.done)

    def written(self, pod: Mapping[str, Any]) -> bool:
        """Whether an ended pod is recorded in the status and can be released."""
        uid = pod["metadata"]["uid"]
        return uid in self.ignored or any(uid in uids for uids in self.uncounted.values())

    def _write(self, job: Mapping[str, Any], pod: Mapping[str, Any]) -> None:
        uid, phase = pod["metadata"]["uid"], (pod.get("status") or {}).get("phase")
        if phase == "Succeeded" and self.indexed:
            self.newly_succeeded += 1
            self.ignored.add(uid)
            self.done.add(index_of(pod))
        elif phase == "Succeeded":
            self.newly_succeeded += 1
            self.uncounted["succeeded"].add(uid)
        elif phase == "Failed" or is_leaving(pod):
            action = _policy(job, pod)
            if action == "Ignore":
                self.ignored.add(uid)
                return
            if action == "FailJob":
                self.fatal = f"Pod {pod['metadata'].get('namespace')}/{name_of(pod)} failed the Job by its podFailurePolicy"
            self.newly_failed += 1
            self.uncounted["failed"].add(uid)

    @property
    def successes(self) -> int:
        return self.succeeded + len(self.uncounted["succeeded"])

    @property
    def failures(self) -> int:
        return self.failed + len(self.uncounted["failed"])


def index_of(pod: Mapping[str, Any]) -> int:
    """The completion index of a pod of an Indexed Job; -1 if it has none."""
    text = (pod["metadata"].get("annotations") or {}).get(INDEX, "")
    return int(text) if text.isdigit() else -1


def _policy(job: Mapping[str, Any], pod: Mapping[str, Any]) -> str:
    """The action of the first rule that matches a condition of a failed pod."""
    for rule in (job["spec"].get("podFailurePolicy") or {}).get("rules") or ():
        for pattern in rule.get("onPodConditions") or ():
            matching = [item for item in (pod.get("status") or {}).get("conditions") or () if item.get("type") == pattern.get("type")]
            if matching and matching[0].get("status") == (pattern.get("status") or "True"):
                return str(rule.get("action"))
    return "Count"


def _verdict(job: Mapping[str, Any], tally: _Tally, now: float) -> list[dict[str, str]]:
    """The conditions that end a Job; empty while it continues."""
    spec = job["spec"]
    completions = spec.get("completions")
    began = seconds_of((job.get("status") or {}).get("startTime"))
    if tally.fatal:
        return _failed("PodFailurePolicy", tally.fatal)
    if tally.failures > (6 if spec.get("backoffLimit") is None else spec["backoffLimit"]):
        return _failed("BackoffLimitExceeded", "Job has reached the specified backoff limit")
    limit = spec.get("activeDeadlineSeconds")
    if limit and began and now - began >= limit and not spec.get("suspend"):
        return _failed("DeadlineExceeded", "Job was active longer than specified deadline")
    if tally.successes >= (1 if completions is None else completions):
        reached = {"status": "True", "reason": "CompletionsReached", "message": "Reached expected number of succeeded pods"}
        return [{"type": "SuccessCriteriaMet", **reached}, {"type": "Complete", **reached}]
    return []


def _failed(reason: str, message: str) -> list[dict[str, str]]:
    return [{"type": kind, "status": "True", "reason": reason, "message": message} for kind in ("FailureTarget", "Failed")]


def _adjust(steps: Steps, job: Mapping[str, Any], tally: _Tally, active: Sequence[Object], *, wait_until: float, now: float) -> None:
    """Create or delete pods."""
    spec = job["spec"]
    completions, parallel = spec.get("completions"), spec.get("parallelism", 1)
    wanted = min(parallel, completions - tally.successes) if completions is not None else parallel
    if len(active) > wanted:
        _give_up(steps, first_to_go(active)[: len(active) - wanted])
    elif len(active) < wanted:
        if now < wait_until:
            steps.again = wait_until
            return
        taken = tally.done | {index_of(pod) for pod in active}
        free = (number for number in range(completions or 0) if number not in taken)
        for _ in range(wanted - len(active)):
            steps.creates.append((PODS, _pod(job, next(free, None) if tally.indexed else None)))


def _give_up(steps: Steps, pods: Sequence[Object]) -> None:
    """Delete pods that are no longer needed; that does not count as their failure."""
    steps.patches += [(PODS, pod, without_finalizer(pod)) for pod in pods if has_finalizer(pod)]
    steps.deletes += [(PODS, pod) for pod in pods]


def _pod(job: Mapping[str, Any], index: int | None) -> Object:
    pod = pod_of(job["spec"]["template"], job, JOBS)
    metadata = pod["metadata"]
    metadata["finalizers"].append(FINALIZER)
    if index is None:
        metadata["generateName"] = f"{name_of(job)}-"
    else:
        metadata["generateName"] = f"{name_of(job)}-{index}-"
        metadata["annotations"][INDEX] = metadata["labels"][INDEX] = str(index)
        pod["spec"]["hostname"] = f"{name_of(job)}-{index}"
    return pod


def _status(
    job: Mapping[str, Any], pods: Sequence[Object], tally: _Tally, verdict: Sequence[Mapping[str, str]], *, active: int, now: float
) -> Object:
    before, suspended = job.get("status") or {}, bool(job["spec"].get("suspend"))
    conditions = list(verdict)
    if suspended or is_condition_true(job, "Suspended"):
        words = ("JobSuspended", "Job suspended") if suspended else ("JobResumed", "Job resumed")
        conditions.append({"type": "Suspended", "status": str(suspended), "reason": words[0], "message": words[1]})
    began = None if suspended else before.get("startTime") or timestamp(now)
    complete = any(item["type"] == "Complete" for item in verdict)
    uncounted = {word: sorted(uids) for word, uids in tally.uncounted.items() if uids and not verdict}
    return {
        "active": omit_zero(active),
        "ready": sum(1 for pod in pods if is_active(pod) and is_ready(pod)) if active else 0,
        "terminating": sum(1 for pod in pods if is_leaving(pod) and not is_finished(pod)),
        # A finished Job has counted everything.
        "succeeded": omit_zero(tally.successes if verdict else tally.succeeded),
        "failed": omit_zero(tally.failures if verdict else tally.failed),
        "completedIndexes": text_of(tally.done) or None if tally.indexed else None,
        "uncountedTerminatedPods": uncounted,
        "startTime": began,
        "completionTime": timestamp(now) if complete else before.get("completionTime"),
        "conditions": with_conditions(job, conditions, now) or None,
    }


def _after(job: Mapping[str, Any], pods: Sequence[Object], now: float) -> Steps:
    """Release the pods of a finished Job, and delete the Job when its TTL is over."""
    steps = orphaned(pods)
    steps.deletes = [(PODS, pod) for pod in pods if is_active(pod)]
    steps.status = {"active": None, "ready": 0, "terminating": sum(map(is_leaving, pods))} if not is_leaving(job) else {}
    keep = job["spec"].get("ttlSecondsAfterFinished")
    if keep is not None and not is_leaving(job):
        ended = max((seconds_of(item.get("lastTransitionTime")) for item in (job.get("status") or {}).get("conditions") or ()), default=now)
        if now >= ended + keep:
            steps.deletes.append((JOBS, dict(job)))
        else:
            steps.again = ended + keep
    return steps
