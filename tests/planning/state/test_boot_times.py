"""Boot times: what was seen of a kind of machine says what to expect of the next."""

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
    """What is known after machines that took so long to a Node, and as long again to their GPUs."""
    return reduce(step, (Arrived(KEY, one, one) for one in seconds), Boots())


def test_where_nothing_was_seen_the_usual_is_assumed_or_what_the_cloud_is_set_to() -> None:
    told = Forecast(25.0, 30.0, basis="simulated.boot")

    assert forecast(Boots(), OTHER) == Forecast(TYPICAL_SECONDS, LATE_SECONDS, 0)
    assert forecast(Boots(), OTHER, told) == told


@pytest.mark.parametrize(
    ("key", "basis"),
    [
        (OTHER, "from 2 machines of other types of its pool; none of its kind observed yet"),
        (offering("g.1", pool="elsewhere").key, "from 2 machines of its type in other pools; none of its kind observed yet"),
        (offering("g.2", pool="elsewhere").key, "from 2 machines of other types; none of its kind observed yet"),
    ],
)
def test_of_a_kind_that_nobody_has_seen_other_machines_speak(key: OfferingKey, basis: str) -> None:
    found = forecast(after(10.0, 20.0), key, Forecast(1.0, 1.0))

    assert (found.typical, found.seen, found.basis) == (30.0, 0, basis)


def test_what_few_machines_say_says_how_many_they_were() -> None:
    assert [forecast(after(*[10.0] * number), KEY).basis for number in (1, 4, 5)] == [
        "only 1 of its kind observed",
        "only 4 of its kind observed",
        "",
    ]


def test_one_machine_speaks_for_the_next_whatever_its_zone_and_market() -> None:
    assert forecast(after(100.0), ELSEWHERE) == Forecast(200.0, 200.0, 1, "only 1 of its kind observed")


def test_of_several_the_typical_is_in_the_middle_and_the_late_near_the_end() -> None:
    found = forecast(after(*range(1, 21)), KEY)

    assert found.typical == 21.0
    assert found.late == pytest.approx(38.1)
    assert found.seen == 20


def test_only_the_newest_machines_count() -> None:
    assert forecast(after(*[500.0] * 10, *[5.0] * REMEMBERED), KEY) == Forecast(10.0, 10.0, REMEMBERED, "")


def test_a_clock_that_runs_backwards_is_taken_for_no_time_at_all() -> None:
    assert forecast(after(-30.0), KEY) == Forecast(0.0, 0.0, 1, "only 1 of its kind observed")


def test_kinds_are_kept_apart() -> None:
    known = step(after(10.0), Arrived(OTHER, 1.0, 2.0))

    assert forecast(known, KEY).typical == 20.0
    assert forecast(known, OTHER).typical == 3.0


@given(st.lists(st.floats(0.0, 3600.0), min_size=1, max_size=60))
def test_what_is_expected_lies_among_what_was_seen(seconds: list[float]) -> None:
    found = forecast(after(*seconds), KEY)
    newest = [2 * one for one in seconds[-REMEMBERED:]]

    assert min(newest) - 0.2 <= found.typical <= found.late + 0.001
    assert found.late <= max(newest) + 0.2
