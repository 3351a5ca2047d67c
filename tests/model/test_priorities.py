"""Priorities in the format of Cluster Autoscaler's priority expander."""

import pytest

from gpuscaler.model.pools import Policy, Pool
from gpuscaler.model.priorities.priorities import Priorities, apply_priorities, parse_priorities
from gpuscaler.model.reading.errors import SettingsError

#: Example in the form of the expander's readme.
TEXT = """
10:
  - .*on-demand.*
50:
  - .*spot.*
  - ^gpu-a$
-3: [last]
"""


def pools(*names: str, priority: int = 7) -> Policy:
    return Policy(tuple(Pool(name, (), priority=priority) for name in names))


def given(policy: Policy) -> dict[str, int]:
    return {pool.name: pool.priority for pool in policy.pools}


def test_the_priority_of_a_pool_is_the_highest_number_with_a_matching_pattern() -> None:
    policy, odd = apply_priorities(pools("my-spot-1", "gpu-a", "on-demand", "at-last"), parse_priorities(TEXT, "it"))

    assert given(policy) == {"my-spot-1": 50, "gpu-a": 50, "on-demand": 10, "at-last": -3}
    assert odd == ""


def test_a_pool_that_matches_no_priority_pattern_comes_after_all_that_match() -> None:
    policy, _ = apply_priorities(pools("my-spot-1", "other", "gpu-ab", "on-demand"), parse_priorities(TEXT, "it"))

    assert given(policy) == {"my-spot-1": 50, "on-demand": 10, "other": 9, "gpu-ab": 9}


def test_pools_keep_their_own_priorities_with_a_warning_if_no_pattern_matches() -> None:
    policy, odd = apply_priorities(pools("a", "b"), parse_priorities(TEXT, "it"))

    assert given(policy) == {"a": 7, "b": 7}
    assert odd == "saw no pattern that matches a pool (a, b), expected one; the priorities in the file apply"
    assert apply_priorities(Policy(()), parse_priorities(TEXT, "it")) == (Policy(()), "")


def test_a_priority_number_without_patterns_matches_no_pool() -> None:
    assert parse_priorities("5: []", "it") == Priorities(((5, ()),))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it: is empty, expected a mapping from priorities to lists of patterns"),
        ("- .*", "it:1: saw a list, expected a mapping"),
        ("high: [.*]", "it:1: high: saw the priority 'high', expected a whole number; the highest is used first"),
        ("1.5: [.*]", "it:1: saw the key 1.5, expected a whole number"),
        ("99999999999: [.*]", "expected a whole number"),
        ("10: .*", "it:1: 10: saw"),
        ("10: [7]", "expected a regular expression for names of pools"),
        ("10: ['*spot']", 'it:1: 10[0]: saw "*spot", expected a regular expression (nothing to repeat at position 0)'),
        (f"10: [{'x' * 501}]", "expected a regular expression of at most 500 letters"),
        ("10: [a]\n10: [b]", "it:2: "),
        ("10: [a", "not YAML"),
        ("---\n1: [a]\n---\n2: [b]", "saw a second document"),
    ],
)
def test_unparsable_priorities_are_reported_with_place_and_expectation(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse_priorities(text, "it")
    assert message in str(caught.value)
