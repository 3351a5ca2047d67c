"""Step functions of time, and markets made of them."""

import pytest
from tests.planning.building import offering

from gpuscaler.simulation.cloud.markets import Markets, Steps

SPOT = offering("g5.xlarge", 1.2, pool="gpu", market="spot")


def test_a_step_function_keeps_its_value_until_the_next_step() -> None:
    steps = Steps([0, 10, 30], [1, 0, 2])
    assert [steps.at(when) for when in (0, 9.9, 10, 29, 30, 1e9)] == [1, 1, 0, 0, 2, 2]
    assert [steps.next_change(when) for when in (0, 10, 29, 30)] == [10, 30, 30, None]


def test_a_series_repeats_after_its_period_and_may_begin_inside_it() -> None:
    steps = Steps([0, 10], [1, 0], period=20, shift=5)
    assert [steps.at(when) for when in (0, 5, 14, 15, 25)] == [1, 0, 0, 1, 0]
    assert [steps.next_change(when) for when in (0, 5, 15, 40.5)] == [5, 15, 25, 45]


def test_steps_with_equal_values_are_not_reported_as_changes() -> None:
    assert Steps([0, 5, 10], [3, 3, 3]).next_change(0) is None


def test_the_integral_of_a_series_covers_whole_and_partial_periods() -> None:
    steps = Steps([0, 10], [3, 1], period=20)
    assert steps.integral(0, 20) == pytest.approx(40)
    assert steps.integral(5, 12) == pytest.approx(5 * 3 + 2)
    assert steps.integral(15, 65) == pytest.approx(5 + 40 + 40 + 15)


@pytest.mark.parametrize(("times", "period"), [([1, 2], 0), ([0, 5, 5], 0), ([0, 5, 3], 0), ([], 0), ([0, 5], 5)])
def test_invalid_steps_are_rejected(times: list[float], period: float) -> None:
    with pytest.raises(ValueError, match="must be"):
        Steps(times, range(len(times)), period=period)


def test_an_offering_without_a_series_always_has_capacity_at_its_price() -> None:
    markets = Markets()
    assert (markets.capacity(SPOT.key, 5), markets.next_change(SPOT.key, 5)) == (float("inf"), None)
    assert markets.price(SPOT, 5) == 1.2
    assert markets.cost(SPOT, 0, 7200) == pytest.approx(2.4)
    assert markets.cheapest(SPOT) is SPOT


def test_series_begin_at_the_start_of_the_run() -> None:
    markets = Markets({SPOT.key: Steps([0, 60], [0, 5])}, {SPOT.key: Steps([0, 60], [2, 1])}, began=1000)
    assert (markets.capacity(SPOT.key, 1030), markets.capacity(SPOT.key, 1060), markets.next_change(SPOT.key, 1000)) == (0, 5, 1060)
    assert (markets.price(SPOT, 1059), markets.cheapest(SPOT).price) == (2, 1)
    assert markets.cost(SPOT, 1000, 1120) == pytest.approx(3 / 60)


def test_the_next_change_is_later_than_the_current_one_despite_rounding() -> None:
    began = 1_704_067_200.0
    markets = Markets({SPOT.key: Steps([0, 900.1], [1, 0], period=2000.3, shift=1234.567)}, began=began)
    now, gaps = began, []
    for _ in range(2000):
        change = markets.next_change(SPOT.key, now)
        assert change is not None
        assert change > now
        gaps.append(change - now)
        now = change
    assert min(gaps) > 700


@pytest.mark.parametrize("began", [0.0, 1.8e9 + 0.1, 1_794_000_000.123456])
def test_the_new_value_applies_at_the_time_of_its_change_despite_rounding(began: float) -> None:
    markets = Markets({SPOT.key: Steps([0, 0.28 * 7200, 3600.7], [float("inf"), 0, 5])}, began=began)
    dry = markets.next_change(SPOT.key, began)
    assert dry is not None
    assert markets.capacity(SPOT.key, dry) == 0
    back = markets.next_change(SPOT.key, dry)
    assert back is not None
    assert markets.capacity(SPOT.key, back) == 5
