import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscaler.planning.scale_down.schedules import parse_schedule
from gpuscaler.settings.cron import cron_problem


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
def test_a_schedule_that_karpenter_takes_is_one(schedule: str) -> None:
    assert cron_problem(schedule) is None


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
        ("1, * * * *", "here: empty"),
        ("-1 * * * *", "minute"),
        ("mon * * * *", "minute"),
        ("٣ * * * *", "minute"),
        ("@fortnightly", "@hourly"),
        ("@every 1h", "@hourly"),
    ],
)
def test_what_is_no_schedule_says_what_is_expected(schedule: str, says: str) -> None:
    assert says in (cron_problem(schedule) or "")


PARTS = [
    "*",
    "?",
    "0",
    "5",
    "59",
    "60",
    "31",
    "12",
    "8",
    "7",
    "6",
    "mon",
    "JAN",
    "1-5",
    "5-1",
    "mon-fri",
    "*/5",
    "5/15",
    "1-10/3",
    "1,2",
    "*,3",
]
ODD = ["", "-", "1-", "*/", "*/0", "007", "1/2/3", "+1"]


@settings(deadline=None)
@given(st.lists(st.sampled_from(PARTS + ODD), min_size=4, max_size=6))
def test_what_the_file_accepts_is_what_the_planner_can_read(parts: list[str]) -> None:
    schedule = " ".join(parts)
    try:
        parse_schedule(schedule)
    except ValueError:
        readable = False
    else:
        readable = True

    assert (cron_problem(schedule) is None) == readable
