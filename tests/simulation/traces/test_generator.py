"""Generated workloads."""

import io
import math
import statistics
from collections import Counter
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuscaler.cli import main
from gpuscaler.cli.generate import PROFILES as OFFERED
from gpuscaler.simulation.traces.formats.tidy import write_trace
from gpuscaler.simulation.traces.generator import DAY, duration, generate
from gpuscaler.simulation.traces.marginals import OPENB, PHILLY, PROFILES, Profile
from gpuscaler.simulation.traces.traces import read_trace

EVERY = pytest.mark.parametrize("profile", PROFILES.values(), ids=PROFILES)


@EVERY
def test_the_same_seed_gives_the_same_jobs_and_another_seed_others(profile: Profile) -> None:
    assert generate(seed=3, jobs=50, profile=profile) == generate(seed=3, jobs=50, profile=profile)
    assert generate(seed=3, jobs=50, profile=profile).jobs != generate(seed=4, jobs=50, profile=profile).jobs


@EVERY
def test_generated_jobs_are_sorted_within_the_days_and_have_at_most_the_longest_duration(profile: Profile) -> None:
    trace = generate(seed=1, jobs=2000, profile=profile, days=10)
    submits = [job.submit for job in trace.jobs]
    assert submits == sorted(submits)
    assert 0 <= submits[0] < DAY
    assert 9 * DAY <= submits[-1] < 10 * DAY
    assert max(job.duration for job in trace.jobs) <= max(duration[-1][1] for duration in profile.durations)
    assert generate(seed=1, jobs=200, profile=profile).jobs[-1].submit < DAY


def test_generated_jobs_have_the_gpu_counts_of_the_source_trace() -> None:
    trace = generate(seed=1, jobs=20_000)
    counts = Counter(job.gpus if job.gpu_milli == 1000 else "part" for job in trace.jobs)
    # 931 of the table's 6,037 requests have no GPU, 2,143 a part of one.
    assert counts[0] / 20_000 == pytest.approx(931 / 6037, abs=0.01)
    assert counts["part"] / 20_000 == pytest.approx(2143 / 6037, abs=0.012)
    assert set(counts) == {0, "part", 1, 2, 4, 8}


def test_large_jobs_of_the_philly_profile_are_gangs_and_run_longer() -> None:
    trace = generate(seed=1, jobs=40_000, profile=PHILLY, days=47)
    sizes = Counter((job.pods, job.gpus) for job in trace.jobs)
    assert sizes[1, 1] / 40_000 == pytest.approx(39278 / 41125, abs=0.01)
    assert set(sizes) == {(1, 1), (1, 2), (1, 4), (1, 8), (2, 8), (4, 8)}
    assert statistics.median(job.duration for job in trace.jobs if job.gpus == 1) == pytest.approx(1796, rel=0.1)
    assert statistics.median(job.duration for job in trace.jobs if (job.pods, job.gpus) == (1, 8)) == pytest.approx(100375, rel=0.4)
    assert {job.cpu_milli for job in trace.jobs} == {None}


def test_generated_jobs_are_distributed_over_hours_days_and_namespaces_as_in_the_source_trace() -> None:
    jobs = generate(seed=2, jobs=50_000, profile=PHILLY, days=14).jobs
    hours = Counter(int(job.submit % DAY // 3600) for job in jobs)
    assert hours[20] / 50_000 == pytest.approx(3392 / sum(PHILLY.hours), rel=0.1)
    days = Counter(int(job.submit // DAY % 7) for job in jobs)
    assert days[2] / days[5] == pytest.approx(8343 / 3491, rel=0.1)
    teams = Counter(job.namespace for job in jobs)
    assert teams["philly-01"] / 50_000 == pytest.approx(25921 / 41125, rel=0.03)
    assert {job.namespace for job in generate(seed=2, jobs=50).jobs} == {""}


@EVERY
def test_generated_durations_have_the_published_quantiles(profile: Profile) -> None:
    for quantiles in profile.durations:
        assert [duration(quantile, quantiles) for quantile, _ in quantiles] == pytest.approx([seconds for _, seconds in quantiles])


def test_between_quantiles_a_duration_is_interpolated_on_a_logarithmic_scale() -> None:
    assert duration(0.375, OPENB.durations[0]) == pytest.approx(math.sqrt(145.0 * 485.0))


@EVERY
def test_the_marginals_of_every_profile_are_complete(profile: Profile) -> None:
    assert (len(profile.hours), len(profile.weekdays)) == (24, 7)
    assert {request.runs for request in profile.requests} == set(range(len(profile.durations)))
    for quantiles in profile.durations:
        assert list(quantiles) == sorted(quantiles)
        assert (quantiles[0][0], quantiles[-1][0]) == (0.0, 1.0)


@EVERY
def test_a_generated_trace_is_read_back_unchanged(profile: Profile, tmp_path: Path) -> None:
    trace = generate(seed=5, jobs=300, profile=profile)
    path = tmp_path / "trace.csv"
    with path.open("w", newline="") as file:
        write_trace(trace, file)
    assert read_trace(path).jobs == trace.jobs


def test_optional_fields_of_trace_jobs_are_written(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "job_id,submit_s,duration_s,n_pods,gpus_per_pod,gpu_milli,cpu_milli,mem_mib,gpu_model,priority,user,namespace\n"
        "a,0,1,2,1,500,,,T4|A10,7,me,team\n"
    )
    text = io.StringIO()
    write_trace(read_trace(path), text)
    assert text.getvalue().splitlines()[1] == "a,0.0,1.0,2,1,500,,,A10|T4,7,me,team,"


def test_the_command_writes_a_trace_and_names_its_origin(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["generate", "trace", "--profile", "philly", "--jobs", "20", "--days", "3", "--seed", "9"])
    assert done.exit_code == 0
    assert "Microsoft's Philly trace of 2017" in done.stderr
    path = tmp_path / "trace.csv"
    path.write_text(done.stdout)
    assert read_trace(path).jobs == generate(seed=9, jobs=20, profile=PHILLY, days=3).jobs
    assert read_trace(path).notes == (("generated like philly, seed 9", 20),)


def test_the_command_offers_every_profile() -> None:
    assert set(OFFERED) == set(PROFILES)
