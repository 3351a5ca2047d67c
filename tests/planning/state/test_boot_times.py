"""Boot times: forecasts for the next machine from observed machines of its kind."""

from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.building import offering

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.state.boot_times import LATE_SECONDS, REMEMBERED, TYPICAL_SECONDS, Arrived, Boots, Forecast, forecast, step

KEY = offering("g.1", zone="z1").key
ELSEWHERE = offering("g.1", zone="z2", market="spot").key
OTHER = offering("g.2").key


def after(*seconds: float) -> Boots:
    """The boot times after machines that took the given time to become a Node, and the same time again until their GPUs showed."""
    return reduce(step, (Arrived(KEY, second, second) for second in seconds), Boots())


def test_without_observations_the_boot_time_is_the_default_or_the_setting_of_the_cloud() -> None:
    default = Forecast(25.0, 30.0, basis="simulated.boot")

    assert forecast(Boots(), OTHER) == Forecast(TYPICAL_SECONDS, LATE_SECONDS, 0)
    assert forecast(Boots(), OTHER, default) == default


@pytest.mark.parametrize(
    ("key", "basis"),
    [
        (OTHER, "from 2 machines of other types of its pool; none of its kind observed yet"),
        (offering("g.1", pool="elsewhere").key, "from 2 machines of its type in other pools; none of its kind observed yet"),
        (offering("g.2", pool="elsewhere").key, "from 2 machines of other types; none of its kind observed yet"),
    ],
)
def test_the_boot_time_forecast_for_an_unknown_kind_comes_from_other_machines(key: OfferingKey, basis: str) -> None:
    forecasted = forecast(after(10.0, 20.0), key, Forecast(1.0, 1.0))

    assert (forecasted.typical, forecasted.seen, forecasted.basis) == (30.0, 0, basis)


def test_a_forecast_from_few_machines_names_their_number() -> None:
    assert [forecast(after(*[10.0] * number), KEY).basis for number in (1, 4, 5)] == [
        "only 1 of its kind observed",
        "only 4 of its kind observed",
        "",
    ]


def test_a_forecast_covers_all_zones_and_markets_of_a_type() -> None:
    assert forecast(after(100.0), ELSEWHERE) == Forecast(200.0, 200.0, 1, "only 1 of its kind observed")


def test_the_typical_boot_time_is_the_median_and_the_late_one_is_p95() -> None:
    forecasted = forecast(after(*range(1, 21)), KEY)

    assert forecasted.typical == 21.0
    assert forecasted.late == pytest.approx(38.1)
    assert forecasted.seen == 20


def test_a_boot_time_forecast_uses_only_the_newest_machines() -> None:
    assert forecast(after(*[500.0] * 10, *[5.0] * REMEMBERED), KEY) == Forecast(10.0, 10.0, REMEMBERED, "")


def test_a_negative_boot_time_counts_as_zero() -> None:
    assert forecast(after(-30.0), KEY) == Forecast(0.0, 0.0, 1, "only 1 of its kind observed")


def test_boot_times_are_recorded_separately_for_each_kind() -> None:
    boots = step(after(10.0), Arrived(OTHER, 1.0, 2.0))

    assert forecast(boots, KEY).typical == 20.0
    assert forecast(boots, OTHER).typical == 3.0


@given(st.lists(st.floats(0.0, 3600.0), min_size=1, max_size=60))
def test_a_boot_time_forecast_lies_within_the_observed_times(seconds: list[float]) -> None:
    forecasted = forecast(after(*seconds), KEY)
    newest = [2 * second for second in seconds[-REMEMBERED:]]

    assert min(newest) - 0.2 <= forecasted.typical <= forecasted.late + 0.001
    assert forecasted.late <= max(newest) + 0.2
