from typing import Any

from tests.conformance.shrinking import shrink


def test_shrinking_leaves_only_the_necessary_parts() -> None:
    value = {"a": [1, 2, {"b": "x", "c": "y"}], "d": {"e": 1}}
    assert shrink(value, lambda part: "x" in str(part)) == {"a": [{"b": "x"}]}


def test_parts_that_depend_on_removed_parts_are_removed_too() -> None:
    def holds(part: dict[str, Any]) -> bool:
        return "core" in part and ("prop" in part or "weight" not in part)

    assert shrink({"core": 1, "prop": 1, "weight": 1}, holds) == {"core": 1}


def test_kept_keys_stay_with_their_parent() -> None:
    value = {"items": [{"name": "one", "size": 1}, {"name": "two", "size": 2}]}
    assert shrink(value, lambda part: len(part.get("items", ())) == 1 or "2" in str(part), frozenset(("name",))) == {
        "items": [{"name": "one"}]
    }


def test_a_value_that_does_not_hold_is_returned_unchanged() -> None:
    value = {"a": [1]}
    assert shrink(value, lambda _: False) == {"a": [1]}
    shrink(value, lambda _: True)
    assert value == {"a": [1]}
