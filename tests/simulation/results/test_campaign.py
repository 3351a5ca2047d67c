"""Several policies and seeds on one trace, a fleet that never changes, and the bound."""

import multiprocessing
import os
import signal
import threading
from contextlib import suppress

import pytest
from msgspec.structs import replace
from tests.simulation.pools import C8, G1, G4, POLICY, trace

from gpuscaler.model.pools import Limits, Policy, Pool
from gpuscaler.simulation.cloud.delays import NO_FAULTS
from gpuscaler.simulation.cloud.markets import Markets
from gpuscaler.simulation.policies.static import at_peak, fleet_for, optimal_hindsight
from gpuscaler.simulation.replay import run
from gpuscaler.simulation.results.campaign import Setting, run_all, run_each, run_one
from gpuscaler.simulation.traces.spot import MarketSeries, SpotFile
from gpuscaler.simulation.traces.traces import Job
from gpuscaler.simulation.traces.workload import Shaping, members
from gpuscaler.simulation.world.meter import Result

JOBS = trace(*(Job(f"j{number}", 200.0 * number, 600.0, gpus=1 + number % 2) for number in range(12)))
SETTING = Setting(trace=JOBS, policy=POLICY)


@pytest.fixture
def parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every pod worth a process."""
    monkeypatch.setattr("gpuscaler.simulation.results.campaign.PODS_OF_A_START", 1)


@pytest.mark.usefixtures("parallel")
def test_parallel_runs_give_the_same_results_as_sequential_runs() -> None:
    names, seeds = ("gpuscaler", "static"), (3, 4)
    together = run_all(SETTING, names, seeds, workers=2)
    assert [(result.policy, result.seed) for result in together] == [(name, seed) for name in names for seed in seeds]
    assert together == run_all(SETTING, names, seeds, workers=1)


def interrupt(_: Result) -> Result:
    """Act like a terminal on Ctrl-C, which signals the program and its processes; this one would continue for a minute."""
    os.kill(os.getpid(), signal.SIGINT)
    os.kill(os.getppid(), signal.SIGINT)
    threading.Event().wait(60)
    raise AssertionError("this process was not ended")


@pytest.mark.parametrize(("count", "processes"), [(199, [1, 1]), (200, [2])])
def test_processes_are_started_only_if_the_runs_take_longer_than_starting_them(
    monkeypatch: pytest.MonkeyPatch, count: int, processes: list[int]
) -> None:
    """``processes`` are the numbers of worker processes, or of the runs in this process if no workers are started."""
    counted: list[int] = []

    class Pool:
        def __init__(self, workers: int, **_: object) -> None:
            counted.append(workers)
            raise InterruptedError

    monkeypatch.setattr("gpuscaler.simulation.results.campaign.ProcessPoolExecutor", Pool)
    monkeypatch.setattr("gpuscaler.simulation.results.campaign.run_one", lambda *_: counted.append(1))
    setting = replace(SETTING, trace=trace(*(Job(f"j{number}", 0.0, 600.0) for number in range(count))))
    with suppress(InterruptedError):
        run_each([(setting, "gpuscaler", 0), (setting, "static", 0)], workers=8, reduce=lambda result: result)
    assert counted == processes


@pytest.mark.usefixtures("parallel")
def test_ctrl_c_ends_the_processes_of_a_comparison_silently(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(KeyboardInterrupt):
        run_each([(SETTING, "gpuscaler", seed) for seed in (0, 1)], workers=2, reduce=interrupt)
    assert multiprocessing.active_children() == []
    assert capfd.readouterr().err == ""


def test_all_policies_with_one_seed_get_the_same_markets() -> None:
    spot = replace(G1, market="spot", price=0.9)
    series = MarketSeries("s", "other", "z9", ((0.0, float("inf")), (900.0, 0.0)), 2000.0)
    setting = Setting(trace=JOBS, policy=Policy((Pool("gpu", (spot, G1, G4)),)), spot=(SpotFile("s.csv", (series,)),))
    assert run_one(setting, "gpuscaler", 1) == run_one(setting, "gpuscaler", 1)
    assert run_one(setting, "gpuscaler", 1).decisions != run_one(setting, "gpuscaler", 2).decisions


def test_a_static_fleet_exists_from_the_first_job_to_the_last_and_no_pod_waits() -> None:
    jobs = trace(*(Job(f"j{number}", 200.0 * number, 550.0, gpus=1) for number in range(12)))
    result = run_one(replace(SETTING, trace=jobs), "static", 0)
    assert (result.served, result.unserved, result.plans) == (12, 0, 0)
    assert result.wait.p95 is not None
    assert result.wait.p95 < 100
    machines = sum(row.machines for row in result.machine_hours)
    assert sum(row.hours for row in result.machine_hours) == pytest.approx(machines * (result.ended - result.began) / 3600)


def test_the_peak_of_a_trace_is_the_time_of_its_highest_gpu_demand() -> None:
    jobs = trace(
        Job("a", 0, 100, gpus=4), Job("b", 50, 100, gpus=1), Job("c", 120, 10, gpus=3), Job("d", 125, 50, gpus=2), Job("e", 126, 5)
    )
    assert [pod.name for pod in at_peak(members(jobs, Shaping()))] == ["b", "c", "d", "e"]


def test_pods_that_fit_no_machine_sized_for_the_peak_get_additional_machines() -> None:
    jobs = trace(
        *(Job(f"j{number}", 0, 100, gpus=1) for number in range(4)), Job("big", 500, 10, cpu_milli=7000), Job("huge", 0, 9, gpus=64)
    )
    assert fleet_for(POLICY, members(jobs, Shaping())) == {G4.key: 1}
    tight = trace(*(Job(f"j{number}", 0, 100, gpus=1) for number in range(4)), Job("big", 500, 10, cpu_milli=7000, memory=2**33))
    small = replace(G1, allocatable={**G1.allocatable, "cpu": 4000})
    alone = Policy((Pool("gpu", (small,)), Pool("cpu", (C8,))))
    assert fleet_for(alone, members(tight, Shaping())) == {small.key: 4, C8.key: 1}


@pytest.mark.parametrize("policy", [POLICY, replace(POLICY, pools=(POLICY.pools[0], replace(POLICY.pools[1], min=1)))])
def test_a_job_of_no_duration_has_its_machine_in_a_static_fleet(policy: Policy) -> None:
    jobs = members(trace(Job("a", 0, 0, gpus=1), Job("b", 0, 0, gpus=1), Job("c", 5, 0, gpus=1)), Shaping())
    assert [pod.name for pod in at_peak(jobs)] == ["a", "b"]
    assert fleet_for(policy, jobs)[G1.key] == 2


def test_a_static_fleet_respects_limits_and_buys_minimum_sizes_once() -> None:
    least = replace(POLICY.pools[1], min=1)
    jobs = members(trace(Job("a", 0, 9, gpus=1), Job("b", 100, 9, cpu_milli=7900)), Shaping())
    none = replace(POLICY, pools=(POLICY.pools[0], least), limits=Limits(gpus=0))
    assert fleet_for(none, jobs) == {C8.key: 1}
    small = replace(POLICY.pools[0], offerings=(replace(G1, allocatable={**G1.allocatable, "cpu": 4000}),))
    assert fleet_for(replace(POLICY, pools=(small, least)), jobs) == {G1.key: 1, C8.key: 1}


def test_a_static_fleet_replaces_lost_machines() -> None:
    result = run(JOBS, POLICY, name="static", faults=replace(NO_FAULTS, gpu_hours_between_failures=0.5))
    assert result.failed > 0
    assert (result.served, result.unserved) == (12, 0)


def test_the_lower_bound_in_hindsight_is_below_the_cost_of_every_policy_and_has_no_waits() -> None:
    bound, gpuscaler, static = run_all(SETTING, ("optimal-hindsight", "gpuscaler", "static"), (0,), workers=1)
    assert bound.cost == bound.lower_bound == pytest.approx(gpuscaler.lower_bound, rel=1e-6)
    assert 0 < bound.cost < min(gpuscaler.cost, static.cost)
    assert (bound.served, bound.wait.p50, bound.machine_hours) == (12, None, ())


def test_the_lower_bound_in_hindsight_excludes_pods_that_no_offering_fits() -> None:
    jobs = trace(Job("a", 0, 3600, gpus=1), Job("huge", 0, 3600, gpus=64))
    result = optimal_hindsight(members(jobs, Shaping()), POLICY, Markets(), seed=0, began=0)
    assert (result.served, result.unserved, result.gpu_hours_used) == (1, 1, 1)
    assert result.cost == pytest.approx(3.0, rel=1e-6)
