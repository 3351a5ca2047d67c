"""Charts of a run, as text."""

import pytest
from tests.simulation.first_fit import first_fit
from tests.simulation.pools import FIXED, POLICY, trace

from gpuscaler.simulation.cloud.delays import NO_FAULTS
from gpuscaler.simulation.measures.fleet import STRETCHES
from gpuscaler.simulation.policies.ours import Gpuscaler
from gpuscaler.simulation.replay import run
from gpuscaler.simulation.results.chart import Bin, text_chart, thinned, timeline_bins
from gpuscaler.simulation.traces.traces import Job
from gpuscaler.simulation.world.meter import Result, TimelineSample


def result() -> Result:
    return run(
        trace(Job("a", 0, 3000, gpus=1), Job("b", 900, 3000, gpus=3)),
        POLICY,
        autoscaler=Gpuscaler(POLICY, decide=first_fit(POLICY)),
        delays=FIXED,
        faults=NO_FAULTS,
    )


def test_each_interval_of_a_chart_has_the_average_of_its_samples() -> None:
    timeline = (TimelineSample(0, 4, 0, 8, 3600), TimelineSample(15, 4, 4, 8, 3600), TimelineSample(30, 0, 0, 0, 0))
    first, second = timeline_bins(timeline, began=0, ended=40, count=2)
    assert (first.wanted, first.used, first.paid, first.spent) == (4, 1, 8, 20)
    assert (second.wanted, second.used, second.paid, second.spent) == (2, 2, 4, 30)


def test_spending_in_a_chart_ends_at_the_cost_of_the_run() -> None:
    run_result = result()
    assert timeline_bins(run_result.timeline, began=run_result.began, ended=run_result.ended, count=7)[-1].spent == pytest.approx(
        run_result.cost
    )


def test_a_run_of_no_duration_has_no_intervals() -> None:
    assert timeline_bins((TimelineSample(5, 1, 1, 1, 1),), began=5, ended=5, count=10) == ()
    assert timeline_bins((), began=0, ended=5, count=10) == ()


def test_a_thinned_result_gives_the_same_chart_with_fewer_samples() -> None:
    jobs = trace(*(Job(f"j{number}", 300.0 * number, 1000, gpus=1 + number % 3) for number in range(150)))
    whole = run(jobs, POLICY, autoscaler=Gpuscaler(POLICY, decide=first_fit(POLICY)), delays=FIXED, faults=NO_FAULTS)
    thin = thinned(whole)
    assert len(thin.timeline) == STRETCHES < len(whole.timeline)
    assert (thin.decisions, thin.waits, thin.wait_by_class) == ((), (), whole.wait_by_class)
    for count in (1, 12, STRETCHES):
        before, after = (timeline_bins(result.timeline, began=result.began, ended=result.ended, count=count) for result in (whole, thin))
        for interval, other in zip(before, after, strict=True):
            assert (interval.wanted, interval.used, interval.paid, interval.spent) == pytest.approx(
                (other.wanted, other.used, other.paid, other.spent), abs=1e-6
            )


def test_a_short_timeline_is_not_thinned() -> None:
    run_result = result()
    assert thinned(run_result).timeline == run_result.timeline


def test_the_text_chart_distinguishes_used_paid_and_wanted() -> None:
    data = (Bin(4, 4, 4, 0), Bin(2, 2, 4, 0), Bin(4, 0, 0, 0), Bin(0, 0, 0, 0))
    lines = text_chart(data, height=4, hours=4)
    assert [line[3:] for line in lines[:4]] == ["█░· ", "█░· ", "██· ", "██· "]
    assert lines[0].startswith("4 ┤")
    assert lines[-2] == "0 ┼────"


def test_a_partly_filled_row_of_a_chart_is_drawn_in_eighths() -> None:
    assert text_chart((Bin(1.5, 1.5, 2, 0),), height=2, hours=1)[0][3:] == "▄"


def test_a_chart_of_a_run_without_gpus_says_so() -> None:
    assert text_chart((Bin(0, 0, 0, 0),), height=4, hours=1) == ["no pod requested a GPU"]
