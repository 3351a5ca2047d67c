"""Numbers as quantities, as prometheus-adapter writes them, except where its output is wrong."""

import math

import pytest

from gpuscaler.metrics.sources.values import format_value
from gpuscaler.model.quantities import parse


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (-0.0, "0"),
        (10.0, "10"),
        (0.5, "500m"),
        (10.5, "10500m"),
        (20000.0, "20k"),
        (1e6, "1M"),
        (17179869184.0, "17179869184"),
        (0.0009, "0"),
        (-0.0009, "0"),
        (1.0009, "1"),
        (-2.5, "-2500m"),
        (9.2e15, "9200T"),
    ],
)
def test_a_number_becomes_the_same_quantity_as_in_prometheus_adapter(value: float, text: str) -> None:
    assert format_value(value) == text
    assert abs(parse(text) - value) <= 0.001


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 9.3e15, -9.3e15, 1e300, 1.7e308])
def test_numbers_that_the_autoscaler_would_misread_have_no_quantity(value: float) -> None:
    assert format_value(value) is None
