"""The last quarter of a trace by itself."""

import pytest
from msgspec.structs import replace
from tests.simulation.pools import FIXED, G1, POLICY, trace

from gpuscaler.model.pools import Policy, Pool
from gpuscaler.simulation.cloud.delays import NO_FAULTS
from gpuscaler.simulation.replay import run
from gpuscaler.simulation.results.figures import FIGURES, spread
from gpuscaler.simulation.results.report import policy_document
from gpuscaler.simulation.traces.traces import Job
from gpuscaler.simulation.world.meter import Result

LATE = {figure.key: figure for figure in FIGURES if figure.key.startswith("last_quarter")}


def replayed(*jobs: Job, policy: Policy = POLICY) -> Result:
    return run(trace(*jobs), policy, delays=FIXED, faults=NO_FAULTS)


def test_the_last_quarter_has_the_waits_of_its_jobs_and_the_cost_of_all_machines_during_it() -> None:
    result = replayed(Job("a", 0, 3000, gpus=1), Job("b", 2999, 600, gpus=1), Job("c", 4000, 600, gpus=1))
    part = result.last_quarter
    assert part is not None
    assert (part.after, part.pods, part.served) == (3000, 1, 1)
    assert part.wait.p50 == next(pod_wait.seconds for pod_wait in result.waits if pod_wait.pod == "trace/c")
    spent = sum(
        sample.dollars_per_hour / 3600 * max(0.0, min(until, result.began + 4000) - max(sample.at, result.began + 3000))
        for sample, until in zip(result.timeline, [*(sample.at for sample in result.timeline[1:]), result.ended], strict=True)
    )
    assert 0 < part.cost < result.cost
    assert part.cost == pytest.approx(spent, rel=1e-6)


def test_pods_that_never_ran_make_the_wait_of_the_last_quarter_a_lower_bound() -> None:
    result = replayed(Job("a", 0, 600, gpus=1), Job("b", 1000, 600, gpus=1), Job("huge", 1000, 600, gpus=64))
    assert result.last_quarter is not None
    assert (result.last_quarter.pods, result.last_quarter.served) == (2, 1)
    figure = spread(LATE["last_quarter_wait_p95"], [result])
    assert figure is not None
    assert figure.at_least
    assert policy_document(result)["last_quarter"]["at_least"] == ("mean", "p95", "p99")


def test_a_trace_without_duration_has_no_last_quarter() -> None:
    result = replayed(Job("a", 5, 600, gpus=1), policy=replace(POLICY, pools=(Pool("gpu", (G1,)),)))
    assert result.last_quarter is None
    assert policy_document(result)["last_quarter"] is None
    assert [spread(figure, [result]) for figure in LATE.values()] == [None, None]
