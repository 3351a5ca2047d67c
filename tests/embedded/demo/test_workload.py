"""The jobs that a demo submits."""

import pytest

from gpuscaler.embedded.demo.scenario import SPAN, scenario
from gpuscaler.embedded.demo.workload import BUSY, MOST, NAMESPACE, draw_trace, name_of, submissions
from gpuscaler.simulation.traces.jobs import Job, Trace, TraceError


def test_the_same_seed_draws_the_same_jobs_and_another_seed_others() -> None:
    assert draw_trace(3, SPAN) == draw_trace(3, SPAN)
    assert draw_trace(3, SPAN).jobs != draw_trace(4, SPAN).jobs


@pytest.mark.parametrize("seed", range(5))
def test_generated_jobs_are_sorted_and_start_early_enough_to_finish(seed: int) -> None:
    jobs = draw_trace(seed, SPAN).jobs

    assert [job.submit for job in jobs] == sorted(job.submit for job in jobs)
    assert max(job.submit + job.duration for job in jobs) < SPAN
    assert {job.gpus for job in jobs} >= {1, 2, 8}
    assert any(job.pods > 1 for job in jobs)


def test_a_trace_is_limited_to_jobs_submitted_in_time_and_begins_immediately() -> None:
    trace = Trace("t", (Job("a", 1000.0, 60), Job("b", 1500.0, 60), Job("c", 1000.0 + SPAN, 60)))

    made = scenario(0, trace)

    assert [(job.id, job.submit) for job in made.trace.jobs] == [("a", 0.0), ("b", 500.0)]
    assert made.since == 0.0


def test_the_first_busy_part_of_a_long_trace_is_used() -> None:
    calm = [Job(f"calm-{number}", number * SPAN, 60) for number in range(50)]
    busy = [Job(f"busy-{number}", 60 * SPAN + 10.0 * number, 60) for number in range(BUSY)]
    later = [Job(f"later-{number}", 90 * SPAN + number, 60) for number in range(2 * BUSY)]

    made = scenario(0, Trace("t", (*calm, *busy, *later)))

    assert [job.id for job in made.trace.jobs] == [job.id for job in busy]
    assert made.since == 60 * SPAN


def test_the_busiest_part_of_a_quiet_trace_is_used() -> None:
    jobs = (Job("a", 0.0, 60), Job("b", 5 * SPAN, 60), Job("c", 5 * SPAN + 1, 60), Job("d", 9 * SPAN, 60))

    assert [job.id for job in scenario(0, Trace("t", jobs)).trace.jobs] == ["b", "c"]


@pytest.mark.parametrize("pods", [1, 7])
def test_only_the_first_of_too_many_pods_are_used(pods: int) -> None:
    storm = tuple(Job(f"j-{number}", number / 10, 60, pods=pods) for number in range(10 * MOST))

    assert len(scenario(0, Trace("t", storm)).trace.jobs) == MOST // pods


def test_jobs_with_too_many_pods_are_left_out() -> None:
    huge = Job("huge", 0.0, 60, pods=MOST + 1)

    assert [job.id for job in scenario(0, Trace("t", (huge, Job("a", 5.0, 60)))).trace.jobs] == ["a"]
    with pytest.raises(TraceError, match="saw only jobs of at least 301 pods, expected some of at most 300"):
        scenario(0, Trace("t", (huge,)))


def test_a_job_of_several_pods_is_a_gang_with_the_run_time_of_the_trace() -> None:
    (submission,) = submissions(Trace("t", (Job("big", 7.0, 90.0, pods=2, gpus=8, cpu_milli=16000, memory=2**30),)))

    assert (submission.at, submission.pods) == (7.0, 2)
    assert submission.job["metadata"] == {"name": "big", "namespace": NAMESPACE}
    assert (submission.job["spec"]["parallelism"], submission.job["spec"]["completions"]) == (2, 2)
    template = submission.job["spec"]["template"]
    assert template["metadata"]["annotations"] == {
        "gpuscaler.io/run-for": "90.000s",
        "gpuscaler.io/gang": "big",
        "gpuscaler.io/gang-size": "2",
    }
    resources = template["spec"]["containers"][0]["resources"]
    assert resources == {"requests": {"cpu": "16000m", "memory": str(2**30)}, "limits": {"nvidia.com/gpu": "8"}}


def test_a_job_without_gpus_requests_none() -> None:
    (submission,) = submissions(Trace("t", (Job("cpu", 0.0, 90.0, cpu_milli=500),)))

    pod = submission.job["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == {"requests": {"cpu": "500m"}}
    assert pod["tolerations"] == []


@pytest.mark.parametrize(
    ("job", "name"),
    [("train-1", "train-1"), ("Application_99 X", "application-99-x-7"), ("", "job-7"), ("ä/ö", "job-7"), ("x" * 300, "x" * 40 + "-7")],
)
def test_any_job_id_becomes_a_valid_kubernetes_name(job: str, name: str) -> None:
    assert name_of(job, 7) == name


def test_similar_job_ids_get_different_names() -> None:
    jobs = (Job("A", 0.0, 60), Job("a", 0.0, 60), Job("a-0", 0.0, 60), Job("a", 0.0, 60))

    names = [submission.job["metadata"]["name"] for submission in submissions(Trace("t", jobs))]

    assert len(set(names)) == 4
