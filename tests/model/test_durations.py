"""Go durations."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscaler.model.durations import DurationError, parse_duration, parse_positive_duration


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("-0", 0.0),
        ("90s", 90.0),
        ("10m", 600.0),
        ("1h30m", 5400.0),
        ("1.5h", 5400.0),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("250ms", 0.25),
        ("3us", 3e-6),
        ("3µs", 3e-6),
        ("3μs", 3e-6),
        ("7ns", 7e-9),
        ("+1m", 60.0),
        ("-1m30s", -90.0),
        ("1s1h", 3601.0),
    ],
)
def test_every_unit_of_a_duration_is_converted_to_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "+", "-", "5", "1d", "1h 30m", "s", ".s", "1hh", "one hour", "1e3s", "٣s", "1m-1s", "3000000h"])
def test_durations_that_go_rejects_are_rejected(text: str) -> None:
    with pytest.raises(DurationError, match="expected a duration") as caught:
        parse_duration(text)
    assert caught.value.seen == text


def test_a_negative_duration_is_rejected_if_it_must_be_positive() -> None:
    assert parse_positive_duration("0s") == 0.0
    with pytest.raises(DurationError, match="zero or more"):
        parse_positive_duration("-1s")


@given(st.integers(0, 200_000), st.integers(0, 59), st.integers(0, 59))
def test_a_duration_is_the_sum_of_its_hours_minutes_and_seconds(hours: int, minutes: int, seconds: int) -> None:
    assert parse_duration(f"{hours}h{minutes}m{seconds}s") == hours * 3600 + minutes * 60 + seconds
