"""How long pods waited, censored waits included."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscaler.simulation.measures.waits import CLASSES, POINTS, PodWait, Wait, by_class, class_of, curve_of, wait_of


def ran(*seconds: float) -> list[PodWait]:
    return [PodWait(f"p{number}", CLASSES[2], wait, ran=True) for number, wait in enumerate(seconds)]


def never_ran(*seconds: float) -> list[PodWait]:
    return [PodWait(f"n{number}", CLASSES[2], wait, ran=False) for number, wait in enumerate(seconds)]


def test_waits_are_exact_if_all_pods_ran() -> None:
    wait = wait_of(ran(*range(1, 101)))
    assert (wait.p50, wait.p95, wait.p99, wait.at_least) == (50, 95, 99, ())
    assert wait.mean == pytest.approx(50.5)


def test_a_run_without_pods_has_no_waits() -> None:
    assert wait_of([]) == Wait()
    assert curve_of([]).seconds == ()


def test_a_pod_that_never_ran_raises_percentiles_and_turns_the_highest_into_lower_bounds() -> None:
    wait = wait_of([*ran(10, 20), *never_ran(1000)])
    assert (wait.p50, wait.p95, wait.p99) == (20, 1000, 1000)
    assert wait.mean == pytest.approx((10 + 20 + 1000) / 3)
    assert wait.at_least == ("mean", "p95", "p99")


def test_a_cancelled_pod_counts_as_waiting_until_its_cancellation() -> None:
    # The textbook's calculation: after 10 s 2/3 wait; one is cancelled at 15 s; the only one left runs after 30 s.
    wait = wait_of([*ran(10, 30), *never_ran(15)])
    assert (wait.p50, wait.p99, wait.at_least) == (30, 30, ())
    assert wait.mean == pytest.approx(10 + 20 * 2 / 3)


def test_a_pod_cancelled_at_the_moment_another_runs_was_still_waiting_then() -> None:
    assert wait_of([*ran(10), *never_ran(10)]).p50 == 10


def test_every_percentile_is_a_lower_bound_if_no_pod_ran() -> None:
    assert wait_of(never_ran(5, 9)) == Wait(9, 9, 9, 9, ("mean", "p50", "p95", "p99"))


def test_pods_are_grouped_into_kinds_by_gpus_and_gangs() -> None:
    sizes = (0, 0.25, 1, 2, 3, 4, 7, 8, 16)
    assert [class_of(size, "") for size in sizes] == [CLASSES[number] for number in (0, 1, 2, 3, 3, 4, 4, 5, 5)]
    assert class_of(8, "g") == class_of(0, "g") == CLASSES[6]


def test_waits_are_listed_for_each_kind_of_pod_in_a_fixed_order() -> None:
    waits = [PodWait("a", CLASSES[6], 7, ran=True), PodWait("b", CLASSES[0], 3, ran=True), PodWait("c", CLASSES[0], 9, ran=False)]
    first, second = by_class(waits)
    assert (first.pod_class, first.pods, first.served, first.wait.p50) == (CLASSES[0], 2, 1, 3)
    assert (second.pod_class, second.pods, second.served, second.wait.p99) == (CLASSES[6], 1, 1, 7)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.booleans()), min_size=1, max_size=400))
def test_the_curve_of_waits_rises_and_ends_at_the_longest_wait_of_a_pod_that_ran(drawn: list[tuple[float, bool]]) -> None:
    waits = [PodWait(str(number), CLASSES[2], seconds, has_run) for number, (seconds, has_run) in enumerate(drawn)]
    curve = curve_of(waits)
    assert len(curve.seconds) == len(curve.shares) <= POINTS
    assert list(curve.seconds) == sorted(set(curve.seconds))
    assert list(curve.shares) == sorted(curve.shares)
    if any(pod_wait.ran for pod_wait in waits):
        assert curve.seconds[-1] == max(pod_wait.seconds for pod_wait in waits if pod_wait.ran)
    if all(pod_wait.ran for pod_wait in waits):
        assert curve.shares[-1] == pytest.approx(1)


@given(st.lists(st.tuples(st.floats(0, 1e6), st.booleans()), min_size=1, max_size=100), st.floats(0, 1e6))
def test_a_longer_wait_of_a_pod_that_never_runs_does_not_lower_any_percentile(drawn: list[tuple[float, bool]], more: float) -> None:
    waits = [PodWait(str(number), CLASSES[2], seconds, has_run) for number, (seconds, has_run) in enumerate(drawn)]
    before, after = wait_of([*waits, *never_ran(0.0)]), wait_of([*waits, *never_ran(more)])
    for name in ("mean", "p50", "p95", "p99"):
        assert getattr(after, name) >= getattr(before, name) * (1 - 1e-9)
