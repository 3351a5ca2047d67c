"""Axes, step lines and legends."""

import pytest

from gpuscaler.simulation.results.page.drawing import (
    LEFT,
    RIGHT,
    WIDTH,
    Frame,
    LegendKey,
    area,
    axis_end,
    band,
    hour_marks,
    legend,
    level_lines,
    step_line,
    wait_marks,
)

FRAME = Frame(top=10, height=100, x_end=8, y_end=10)
SPAN = WIDTH - LEFT - RIGHT


def test_consecutive_equal_values_are_drawn_as_one_step() -> None:
    assert step_line([5, 5, 10, 10], FRAME, 8) == f"M{LEFT} 60.0V60.0H{LEFT + SPAN / 2:.1f}V10.0H{WIDTH - RIGHT:.1f}"


def test_a_step_line_ends_at_the_end_of_its_run() -> None:
    assert area([5], FRAME, 4) == f"M{LEFT} 110.0V60.0H{LEFT + SPAN / 2:.1f}V110.0Z"


def test_a_band_is_drawn_along_its_top_and_back_along_its_bottom() -> None:
    middle, end = f"{LEFT + SPAN / 2:.1f}", f"{WIDTH - RIGHT:.1f}"
    assert band([0, 5], [10, 10], FRAME, 8) == f"M{LEFT} 110.0V10.0H{end}V60.0H{middle}V110.0H{LEFT:.1f}Z"


@pytest.mark.parametrize(("value", "end"), [(0, 2), (0.9, 1), (1, 1), (11, 12), (13, 16), (21, 24), (99, 100), (101, 120), (4.1, 5)])
def test_an_axis_ends_at_a_number_that_is_easily_halved(value: float, end: float) -> None:
    assert axis_end(value) == pytest.approx(end)


def words(parts: list[str]) -> list[str]:
    return [part.split(">")[1].split("<")[0] for part in parts if part.startswith("<text")]


@pytest.mark.parametrize(
    ("hours", "first", "last"),
    [(0.3, "0 min", "18 min"), (8, "0 h", "8 h"), (60, "0 h", "60 h"), (24 * 30, "0 d", "28 d"), (9e5, "0 d", "36,036 d")],
)
def test_a_time_axis_has_a_few_marks_at_round_times(hours: float, first: str, last: str) -> None:
    marks = words(hour_marks(Frame(0, 10, hours, 1)))
    assert len(marks) <= 11
    assert (marks[0], marks[-1]) == (first, last)


def test_an_axis_of_waits_is_logarithmic_and_ends_at_the_longest_wait() -> None:
    frame = Frame(0, 10, 3600, 1, logarithmic=True)
    assert words(wait_marks(frame)) == ["1 s", "10 s", "1 min", "10 min", "1 h"]
    assert [frame.x(seconds) for seconds in (0, 1, 60, 3600)] == pytest.approx([LEFT, LEFT, LEFT + SPAN / 2, WIDTH - RIGHT])


def test_axis_values_have_only_the_necessary_digits() -> None:
    assert words(level_lines(Frame(0, 10, 1, 100), after=" %")) == ["0 %", "50 %", "100 %"]
    assert words(level_lines(Frame(0, 10, 1, 5), before="$")) == ["$0", "$2.5", "$5"]


def test_a_legend_wraps_and_escapes_names() -> None:
    parts, end = legend([LegendKey("line0", f"policy <{number}>") for number in range(12)], 0)
    assert end > 20
    assert words(parts)[0] == "policy &lt;0&gt;"
    assert all(float(part.split('x="')[1].split('"')[0]) < WIDTH - RIGHT for part in parts if part.startswith("<text"))
