"""Durations, money and lists in words."""

import pytest

from gpuscaler.control.records.words import format_dollars, format_duration, format_forecast_and_price, format_names, format_offering
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.state.boot_times import Forecast


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0s"),
        (0.4, "0s"),
        (45, "45s"),
        (59.7, "1m"),
        (220, "3m40s"),
        (360, "6m"),
        (3599.9, "1h"),
        (3900, "1h05m"),
        (86_399.9, "1d"),
        (183_600, "2d3h"),
    ],
)
def test_a_long_duration_is_rounded_to_larger_units(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


def test_a_formatted_forecast_has_typical_time_p95_and_price() -> None:
    assert format_forecast_and_price(Forecast(220.0, 360.0, 5, ""), "$1.01/h") == "ready in about 3m40s, p95 6m, $1.01/h"
    assert (
        format_forecast_and_price(Forecast(30.0, 30.0, 1, "only 1 of its kind observed"), "$1.01/h")
        == "ready in about 30s (only 1 of its kind observed), $1.01/h"
    )
    assert (
        format_forecast_and_price(Forecast(), "$0.0123/h")
        == "ready in about 4m, p95 5m (assumed; none of its kind observed yet), $0.0123/h"
    )


def test_a_formatted_offering_has_its_known_parts() -> None:
    assert format_offering(OfferingKey("gpu", "spot", "g5.xlarge", "us-east-1a")) == "g5.xlarge spot in us-east-1a"
    assert format_offering(OfferingKey("gpu", "spot", "g5.xlarge", "")) == "g5.xlarge spot"
    assert format_offering(OfferingKey("gpu", "", "", "")) == "a machine of pool gpu"


def test_a_long_list_of_names_shows_the_first_ones_and_counts_the_rest() -> None:
    assert format_names(("a", "b", "c")) == "a, b, c"
    assert format_names(("a", "b", "c", "d", "e")) == "a, b, c and 2 more"


def test_amounts_of_money_have_cents_and_small_amounts_have_more_digits() -> None:
    assert (format_dollars(0.0), format_dollars(12.5), format_dollars(0.0042)) == ("$0.00", "$12.50", "$0.0042")
