"""The timeline and the verdicts of smoke tests, from objects as an API server shows them."""

from datetime import UTC, datetime
from typing import Any

import pytest

from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.smoke import timeline as stages
from gpuscaler.doctor.smoke.job import LABEL, SmokeTest, job_of, tolerations_of
from gpuscaler.doctor.smoke.timeline import Observation, Timeline
from gpuscaler.doctor.smoke.verdicts import Verdict, verdict_of, waits_for
from gpuscaler.model.taints import Taint, Toleration

GPU = "nvidia.com/gpu"
BEGAN = 1_800_000_000.0


def moment(at: float) -> str:
    """``at`` seconds after the creation of the Job, as the API writes it."""
    return f"{datetime.fromtimestamp(BEGAN + at, UTC):%Y-%m-%dT%H:%M:%SZ}"


def job(*conditions: dict[str, str]) -> Document:
    return Document(
        {
            "kind": "Job",
            "metadata": {"name": "smoke", "namespace": "default", "creationTimestamp": moment(0)},
            "status": {"conditions": list(conditions)},
        }
    )


def pod(node: str = "", state: dict[str, Any] | None = None, *, phase: str = "Pending", at: float = 1, **status: Any) -> Document:
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": moment(at)}
    if not node:
        scheduled |= {"status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    statuses = [{"name": "smoke-test", "state": state}] if state else []
    return Document(
        {
            "kind": "Pod",
            "metadata": {"name": "smoke-x", "namespace": "default", "labels": {LABEL: "smoke"}},
            "spec": {"nodeName": node} if node else {},
            "status": {"phase": phase, "conditions": [scheduled], "containerStatuses": statuses, **status},
        }
    )


def node(created: float, *, ready: float | None = None, gpus: Any = None, taint: str = "gpuscaler.io/arriving") -> Document:
    conditions = [] if ready is None else [{"type": "Ready", "status": "True", "lastTransitionTime": moment(ready)}]
    return Document(
        {
            "metadata": {"name": "n", "creationTimestamp": moment(created), "labels": {"gpuscaler.io/pool": "gpu"}},
            "spec": {"taints": [{"key": taint, "effect": "NoSchedule"}] if taint else []},
            "status": {"conditions": conditions, "allocatable": {} if gpus is None else {GPU: gpus}},
        }
    )


def event(reason: str, message: str, at: float) -> Document:
    return Document({"reason": reason, "message": message, "eventTime": moment(at)})


def look(at: float, **fields: Any) -> Observation:
    return Observation(at=BEGAN + at, **{"job": job(), **fields})


def timeline(*looks: Observation) -> Timeline:
    seen = Timeline(GPU)
    for one in looks:
        seen = seen.seen(one)
    return seen


def times(seen: Timeline) -> dict[str, float]:
    return {row.stage: row.at for row in seen.rows()}


ORDER = event("TriggeredScaleUp", "g5.xlarge ordered", 4)
RUNNING = {"running": {"startedAt": moment(90)}}
DONE = {"terminated": {"exitCode": 0, "startedAt": moment(90), "finishedAt": moment(95)}}


def test_the_minutes_of_a_machine_that_is_bought() -> None:
    seen = timeline(
        look(0.5),
        look(2, pod=pod()),
        look(6, pod=pod(), events=(ORDER,)),
        look(50, pod=pod(), nodes={"n": node(45)}),
        look(60, pod=pod(), nodes={"n": node(45, ready=58)}),
        look(70, pod=pod(), nodes={"n": node(45, ready=58, gpus="1")}),
        look(73, pod=pod("n", at=72), nodes={"n": node(45, ready=58, gpus="1")}),
        look(80, pod=pod("n", at=72), nodes={"n": node(45, ready=58, gpus="1", taint="")}),
        look(92, pod=pod("n", RUNNING, at=72)),
        look(96, pod=pod("n", DONE, at=72, phase="Succeeded")),
    )
    seen = seen.reached(stages.GONE, BEGAN + 97).reached(stages.REMOVED, BEGAN + 700)

    assert list(times(seen).items()) == [
        (stages.CREATED, 0.0),
        (stages.WAITING, 1.0),
        (stages.ORDERED, 4.0),
        (stages.REGISTERED, 45.0),
        (stages.READY, 58.0),
        (stages.GPU_SEEN, 70.0),
        (stages.BOUND, 72.0),
        (stages.OPENED, 80.0),
        (stages.STARTED, 90.0),
        (stages.FINISHED, 95.0),
        (stages.GONE, 97.0),
        (stages.REMOVED, 700.0),
    ]
    assert [row.took for row in seen.rows()][:5] == [0.0, 1.0, 3.0, 41.0, 13.0]
    assert (seen.node, seen.pool, seen.on_new_node) == ("n", "gpu", True)
    details = {row.stage: row.detail for row in seen.rows()}
    assert details[stages.WAITING] == "0/3 nodes are available"
    assert details[stages.GPU_SEEN] == "1 nvidia.com/gpu"


def test_the_gpu_was_there_before_the_pod_was_bound_even_if_seen_later() -> None:
    seen = timeline(look(1, pod=pod()), look(75, pod=pod("n", at=72), nodes={"n": node(45, ready=58, gpus="1")}))

    assert times(seen)[stages.GPU_SEEN] == 72.0


def test_other_new_nodes_are_not_those_of_the_pod() -> None:
    seen = timeline(
        look(1, pod=pod()),
        look(50, pod=pod(), nodes={"other": node(30, ready=40, gpus="1"), "n": node(45)}),
        look(75, pod=pod("n", at=72), nodes={"n": node(45, ready=58, gpus="1")}),
    )

    assert times(seen)[stages.REGISTERED] == 45.0


def test_a_node_that_was_there_before_has_no_stages() -> None:
    seen = timeline(look(1, pod=pod("n", at=1), nodes={"n": node(-3600, ready=-3500, gpus="8", taint="")}))

    assert list(times(seen)) == [stages.CREATED, stages.BOUND]
    assert not seen.on_new_node
    assert seen.pool == "gpu"


def test_a_stage_keeps_the_time_at_which_it_was_first_reached() -> None:
    seen = timeline(look(50, pod=pod(), nodes={"n": node(45, ready=48)}), look(75, pod=pod("n", at=72), nodes={"n": node(45, ready=74)}))

    assert times(seen)[stages.READY] == 48.0


def test_a_resource_of_amount_zero_is_not_seen() -> None:
    for nothing in (None, "0", 0):
        seen = timeline(look(50, pod=pod()), look(51, pod=pod("n", at=51), nodes={"n": node(45, ready=48, gpus=nothing)}))
        assert stages.GPU_SEEN not in times(seen)


def test_nothing_is_known_before_the_job_is_seen() -> None:
    assert timeline(look(1, job=None)).rows() == ()


@pytest.mark.parametrize("odd", [None, 7, "x", [], {"lastTransitionTime": 3}, [{"type": 5}], [None]])
def test_odd_values_break_nothing(odd: Any) -> None:
    documents = [
        Document({"metadata": odd, "spec": odd, "status": odd}),
        Document({"status": {"conditions": odd, "containerStatuses": odd}}),
    ]
    for document in documents:
        one = Observation(at=BEGAN, job=document, pod=document, events=(document,), nodes={"n": document})
        seen = timeline(one)
        verdict_of(seen, one)
        assert seen.rows()[0].stage == stages.CREATED


@pytest.mark.parametrize(
    ("one", "verdict"),
    [
        (look(9, pod=pod("n", DONE, phase="Succeeded")), Verdict(True, "the Job ran")),
        (look(9, job=job({"type": "Complete", "status": "True"})), Verdict(True, "the Job ran")),
        (
            look(9, pod=pod("n", {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}, phase="Failed")),
            Verdict(False, "its container failed with exit code 137 (OOMKilled)"),
        ),
        (
            look(9, pod=pod("n", phase="Failed", reason="UnexpectedAdmissionError", message="no GPU")),
            Verdict(False, "its pod failed: UnexpectedAdmissionError: no GPU"),
        ),
        (
            look(9, job=job({"type": "Failed", "status": "True", "reason": "DeadlineExceeded", "message": "too long"})),
            Verdict(False, "the Job failed: DeadlineExceeded: too long"),
        ),
        (
            look(9, events=(event("FailedCreate", "exceeded quota: gpus", 1),)),
            Verdict(False, "its pod cannot be created: exceeded quota: gpus"),
        ),
        (
            look(9, pod=pod("n", {"waiting": {"reason": "InvalidImageName", "message": "no such name"}})),
            Verdict(False, "its container cannot start: InvalidImageName: no such name"),
        ),
        (look(9, pod=pod("n", {"waiting": {"reason": "ContainerCreating"}})), None),
        (look(9, pod=pod("n", {"waiting": {"reason": "ErrImagePull"}})), None),
        (look(9, pod=pod()), None),
        (look(9, pod=pod(), unplaced="pool gpu: no"), Verdict(False, "no machine can be bought for it now: pool gpu: no")),
        (
            look(9, pod=pod(), unplaced="no machine of any pool fits it: pool gpu: no"),
            Verdict(False, "no machine of any pool fits it: pool gpu: no"),
        ),
        (look(9, pod=pod(), held="buying is on hold"), Verdict(False, "buying is on hold")),
        (look(9, pod=pod(), stopped="no controller runs"), Verdict(False, "no controller runs")),
        (look(9, pod=pod(), events=(ORDER,), unplaced="of an older plan", held="on hold"), None),
        (look(9, pod=pod(), events=(ORDER, event("NotTriggerScaleUp", "nothing left", 8))), Verdict(False, "nothing left")),
        (look(9, pod=pod(), events=(event("NotTriggerScaleUp", "nothing yet", 3), ORDER)), None),
    ],
)
def test_the_verdict(one: Observation, verdict: Verdict | None) -> None:
    assert verdict_of(timeline(one), one) == verdict


def test_a_job_that_is_gone_was_deleted_by_something_else() -> None:
    gone = look(9, job=None)

    assert verdict_of(timeline(look(1), gone), gone) == Verdict(False, "the Job was deleted by something else")
    assert verdict_of(timeline(gone), gone) is None


def test_what_the_test_waits_for() -> None:
    bound = look(73, pod=pod("n", at=72))

    assert waits_for(timeline(look(1))) == "the scheduler"
    assert waits_for(timeline(look(1, pod=pod()))) == "an order of the controller"
    assert waits_for(timeline(look(6, pod=pod(), events=(ORDER,)))) == "the ordered machine"
    assert waits_for(timeline(bound)) == "the start of its container on node n"
    assert waits_for(timeline(bound, look(92, pod=pod("n", RUNNING)))) == "the end of its container"


def test_settings_of_the_test_are_those_of_its_job() -> None:
    test = SmokeTest(
        name="smoke",
        namespace="ml",
        image="i",
        command=("c", "d"),
        resource="amd.com/gpu",
        tolerations=tolerations_of([Taint("a", "b", "NoExecute"), Taint("a", "b", "NoExecute")]),
        node_selector={"k": "v"},
        avoided=("one",),
        deadline=90.5,
    )
    job = job_of(test)
    spec = job["spec"]["template"]["spec"]
    (container,) = spec["containers"]

    assert (job["metadata"]["namespace"], container["image"], container["command"]) == ("ml", "i", ["c", "d"])
    assert container["resources"]["limits"] == {"amd.com/gpu": "1"}
    assert spec["tolerations"] == [{"key": "a", "operator": "Equal", "value": "b", "effect": "NoExecute"}]
    assert spec["nodeSelector"] == {"k": "v"}
    assert "'values': ['one']" in str(spec["affinity"])
    assert job["spec"]["activeDeadlineSeconds"] == 91


def test_the_default_command_fits_the_device() -> None:
    def command(test: SmokeTest) -> list[str]:
        found: list[str] = job_of(test)["spec"]["template"]["spec"]["containers"][0]["command"]
        return found

    assert command(SmokeTest(name="a")) == ["nvidia-smi", "-L"]
    assert command(SmokeTest(name="a", resource="amd.com/gpu")) == ["sleep", "1"]
    assert Toleration(GPU, "Exists") in SmokeTest(name="a").tolerations
