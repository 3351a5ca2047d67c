"""The numbers that are written: never below what exists, never more machines than wanted."""

from hypothesis import given
from hypothesis import strategies as st

from gpuscaler.clouds.azure.buying.capacity import Count, lowered_capacity, raised_capacity

counts = st.builds(
    Count,
    capacity=st.integers(0, 60),
    etag=st.just("e"),
    listed=st.integers(0, 60),
    busy=st.booleans(),
    limit=st.integers(0, 60),
)


def test_a_raise_adds_to_what_others_raised() -> None:
    assert raised_capacity(Count(5, "e", listed=3, busy=True), 2) == 7


def test_what_a_failed_operation_left_over_is_used_before_more_is_asked() -> None:
    assert raised_capacity(Count(8, "e", listed=3), 2) == 8
    assert raised_capacity(Count(8, "e", listed=3), 6) == 9


def test_a_number_that_nothing_fills_is_lowered_to_what_is_listed_and_awaited() -> None:
    assert lowered_capacity(Count(8, "e", listed=3), 5) == 3
    assert lowered_capacity(Count(8, "e", listed=3), 5, others=2) == 5
    assert lowered_capacity(Count(8, "e", listed=8), 5) == 8


@given(counts, st.integers(0, 40))
def test_a_raise_never_lowers_and_never_passes_the_limit(count: Count, machines: int) -> None:
    target = raised_capacity(count, machines)

    assert target >= count.capacity
    assert target <= max(count.capacity, count.limit)
    assert target - count.capacity <= machines


@given(counts, st.integers(0, 40), st.integers(0, 40))
def test_lowering_ends_no_machine_and_takes_nothing_from_others(count: Count, ours: int, others: int) -> None:
    target = lowered_capacity(count, ours, others)

    assert count.capacity - ours <= target <= count.capacity
    assert target >= min(count.capacity, count.listed + others)
