"""Maximum and mean over trailing windows."""

import math

from hypothesis import given
from hypothesis import strategies as st

from gpuscaler.exporter.windows import Figures, SampleWindow


def test_a_window_contains_only_samples_within_its_length() -> None:
    trail = SampleWindow(60)
    for at, value in ((0, 100), (10, 50), (20, 10), (24, 30)):
        trail.add(at, value)

    assert trail.over(15, now=25) == Figures(30, 20)
    assert trail.over(60, now=25) == Figures(100, 47.5)


def test_a_window_without_samples_has_no_values() -> None:
    trail = SampleWindow(60)
    assert trail.over(15, now=0) is None
    trail.add(0, 100)

    assert trail.over(15, now=15) is None


def test_samples_older_than_the_longest_window_are_dropped() -> None:
    trail = SampleWindow(60)
    trail.add(0, 100)
    trail.add(60, 1)

    assert trail.over(1000, now=60) == Figures(1, 1)


def test_a_peak_between_two_samples_changes_the_maximum_and_not_the_mean() -> None:
    trail = SampleWindow(60)
    trail.add(1, 0, 95)
    trail.add(2, 10)

    assert trail.over(15, now=2) == Figures(95, 5)


def test_two_scrapers_get_the_same_maximum_after_a_burst() -> None:
    trail = SampleWindow(60)
    for at in range(30):
        trail.add(at, 100 if at == 20 else 0)

    first, second = trail.over(15, now=29.3), trail.over(15, now=29.3)

    assert first == second
    assert first is not None
    assert first.maximum == 100


@given(
    st.lists(st.tuples(st.floats(0.01, 20), st.integers(0, 100)), min_size=1, max_size=60),
    st.sampled_from([15.0, 60.0]),
    st.floats(0, 100),
)
def test_maximum_and_mean_are_computed_from_the_samples_in_the_window(steps: list[tuple[float, int]], seconds: float, later: float) -> None:
    trail, at, samples = SampleWindow(60), 0.0, []
    for step, value in steps:
        at += step
        trail.add(at, value)
        samples.append((at, value))
    now = at + later
    inside = [value for moment, value in samples if moment > now - seconds and moment > at - 60]

    figures = trail.over(seconds, now=now)

    if not inside:
        assert figures is None
    else:
        assert figures is not None
        assert figures.maximum == max(inside)
        assert math.isclose(figures.mean, sum(inside) / len(inside))
