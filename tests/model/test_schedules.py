"""Cron windows of disruption budgets."""

import re
from datetime import UTC, datetime

import pytest

from gpuscaler.model.schedules import parse_schedule

HOUR = 3600.0


def at(text: str) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("line", "duration", "moment", "is_open"),
    [
        ("0 9 * * mon-fri", 8 * HOUR, "2026-11-20T09:00", True),
        ("0 9 * * mon-fri", 8 * HOUR, "2026-11-20T08:59:59", False),
        ("0 9 * * mon-fri", 8 * HOUR, "2026-11-20T16:59:59", True),
        ("0 9 * * mon-fri", 8 * HOUR, "2026-11-20T17:00", False),
        ("0 9 * * mon-fri", 8 * HOUR, "2026-11-21T12:00", False),
        ("0 22 * * *", 8 * HOUR, "2026-11-21T05:59", True),
        ("@daily", HOUR, "2026-11-21T00:30", True),
        ("@daily", HOUR, "2026-11-21T01:30", False),
        ("@hourly", 600, "2026-11-21T13:09", True),
        ("@weekly", HOUR, "2026-11-22T00:10", True),
        ("*/20 * * * *", 300, "2026-11-21T13:42", True),
        ("*/20 * * * *", 300, "2026-11-21T13:38", False),
        ("5/20 * * * *", 60, "2026-11-21T13:25:30", True),
        ("0 0 1,15 * *", HOUR, "2026-11-15T00:10", True),
        ("0 0 * dec *", HOUR, "2026-11-15T00:10", False),
        ("0 0 * * 7", HOUR, "2026-11-22T00:10", True),
        ("0 0 1 jan ?", 366 * 24 * HOUR, "2026-11-21T00:00", True),
    ],
)
def test_a_schedule_is_active_from_each_start_until_its_duration_has_passed(line: str, duration: float, moment: str, is_open: bool) -> None:
    assert parse_schedule(line).open_at(at(moment), duration) is is_open


@pytest.mark.parametrize(("moment", "is_open"), [("2026-11-13T00:10", True), ("2026-11-16T00:10", True), ("2026-11-17T00:10", False)])
def test_a_schedule_matches_if_the_day_of_month_or_the_weekday_matches(moment: str, is_open: bool) -> None:
    assert parse_schedule("0 0 13 * mon").open_at(at(moment), HOUR) is is_open


def test_a_schedule_on_a_day_that_does_not_exist_is_never_active() -> None:
    assert not parse_schedule("0 0 30 feb *").open_at(at("2026-11-21T00:00"), 100 * 366 * 24 * HOUR)


def test_a_schedule_on_a_leap_day_is_active_years_later() -> None:
    assert parse_schedule("0 0 29 2 *").open_at(at("2027-06-01T00:00"), 4 * 366 * 24 * HOUR)


@pytest.mark.parametrize(
    "schedule",
    [
        "* * * * *",
        "0 9 * * mon-fri",
        "*/10 0-6/2 1,15 JAN,jul Sun",
        "59 23 31 12 6",
        "0 0 ? * ?",
        "5/15 * * * *",
        "  0   0 1 1 0 ",
        "@daily",
        "@midnight",
        "@Annually",
        "0 0 * * 7",
    ],
)
def test_a_schedule_that_karpenter_accepts_is_valid(schedule: str) -> None:
    assert parse_schedule(schedule).hours


@pytest.mark.parametrize(
    ("schedule", "says"),
    [
        ("", "not 0"),
        ("* * * *", "not 4"),
        ("0 * * * * *", "not 6"),
        ("60 * * * *", "minute of 0-59"),
        ("* 24 * * *", "hour of 0-23"),
        ("* * 0 * *", "day of month of 1-31"),
        ("* * * 13 *", "month of 1-12 or jan-dec"),
        ("* * * * 8", "day of week of 0-7 or sun-sat"),
        ("* * * * fri-mon", "day of week"),
        ("30-10 * * * *", "minute"),
        ("1-2-3 * * * *", "minute"),
        ("*/0 * * * *", "minute"),
        ("*/ * * * *", "minute"),
        ("1, * * * *", "not ''"),
        ("-1 * * * *", "minute"),
        ("mon * * * *", "minute"),
        ("٣ * * * *", "minute"),
        ("@fortnightly", "@hourly"),
        ("@every 1h", "@hourly"),
    ],
)
def test_the_error_for_an_invalid_schedule_says_what_was_expected(schedule: str, says: str) -> None:
    with pytest.raises(ValueError, match=re.escape(says)):
        parse_schedule(schedule)
