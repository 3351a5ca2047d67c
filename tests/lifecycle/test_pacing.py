"""When plans are due, on a test clock."""

import pytest
from tests.planning.building import NOW, offering, pods

from gpuscaler.lifecycle.pacing import Consolidation, Pace, Timetable, next_change
from gpuscaler.model.cluster import Cluster
from gpuscaler.planning.state import breakers, offering_events

PACE = Pace(debounce=0.2, patience=0.6, resync=10.0, consolidate=60.0, unchanged=600.0)
KEY = offering().key


def planned(now: float = 100.0) -> Timetable:
    plans = Timetable(PACE)
    plans.planned(now)
    return plans


def test_a_plan_waits_until_no_new_pods_arrive_for_a_limited_time() -> None:
    plans = planned()
    for moment, due in ((101.0, 101.2), (101.1, 101.3), (101.4, 101.6), (101.55, 101.6)):
        plans.pods_came(moment)
        assert plans.due == pytest.approx(due)
    plans.planned(101.6)
    assert plans.due == pytest.approx(111.6)


def test_an_urgent_plan_waits_together_with_arriving_pods() -> None:
    plans = planned()
    plans.plan_now(103.0)
    assert plans.due == 103.0
    plans.planned(103.0)
    plans.pods_came(104.0)
    plans.plan_now(104.1)
    assert plans.due == pytest.approx(104.2)


@pytest.mark.parametrize(("moment", "due"), [(100.0, 100.0), (101.0, 110.0), (110.0, 110.0), (125.0, 130.0)])
def test_a_change_that_can_wait_is_planned_at_the_next_resync(moment: float, due: float) -> None:
    plans = planned()
    plans.planned(100.0, resync=False)
    assert plans.due == float("inf")
    plans.plan_at_resync(moment)
    assert plans.due == due


def test_consolidation_runs_regularly_and_less_often_without_changes() -> None:
    last = Consolidation(NOW, frozenset({KEY}))
    assert Consolidation().is_due(set(), NOW, PACE, changed=False)
    for seconds, changed, unsettled, due in (
        (59.0, True, {KEY}, False),
        (60.0, True, {KEY}, True),
        (599.0, False, {KEY}, False),
        (600.0, False, {KEY}, True),
        # The offerings that nothing was moved to then have settled.
        (60.0, False, set(), True),
    ):
        assert last.is_due(unsettled, NOW + seconds, PACE, changed=changed) is due


def test_the_next_change_of_offerings_is_the_end_of_a_spot_wait_or_a_retry_after_refusal() -> None:
    waiting = Cluster.of(pods("a", 1, options={"spot_wait": 300.0}))
    assert next_change(Cluster(), breakers.Breakers(), NOW) is None
    spot_is_over = next_change(waiting, breakers.Breakers(), NOW)
    assert spot_is_over is not None
    refused = breakers.step(breakers.Breakers(), offering_events.Refused(KEY, NOW))
    tried_again = next_change(Cluster(), refused, NOW)
    assert tried_again is not None
    assert next_change(waiting, refused, NOW) == min(spot_is_over, tried_again)
