"""Selectors and labels are found by their most selective label, regardless of order."""

from itertools import product

import pytest
from tests.hostile.workloads import HOST, NOW, POOLS, ZONE, cluster_of, ordinary, pod, policy

from gpuscaler.model.selector_index import LabelIndex, SelectorIndex
from gpuscaler.model.selectors import LabelSelector, Requirement
from gpuscaler.planning.planner import plan
from gpuscaler.planning.state import State

REQUIREMENTS = (
    Requirement("a", "In", ("1",)),
    Requirement("a", "In", ("1", "2", "1")),
    Requirement("b", "In", ("1",)),
    Requirement("b", "NotIn", ("2",)),
    Requirement("c", "Exists"),
)
SELECTORS = (LabelSelector(), *(LabelSelector(pair) for pair in product(REQUIREMENTS, repeat=2)))
LABELS: tuple[dict[str, str], ...] = ({}, {"a": "1"}, {"a": "2", "b": "1"}, {"a": "1", "b": "2", "c": "x"}, {"c": "1"})


def test_the_index_finds_every_matching_selector_once_and_in_order() -> None:
    index = SelectorIndex([None, *SELECTORS])
    for labels in LABELS:
        numbers = index.candidates(labels)
        assert {number for number, selector in enumerate(SELECTORS, 1) if selector.matches(labels)} <= set(numbers)
        assert numbers == sorted(set(numbers))
        assert index.candidates(labels, since=5) == [number for number in numbers if number >= 5]


def test_additions_to_a_copy_do_not_change_the_original_index() -> None:
    first = SelectorIndex(SELECTORS[:1])
    second = first.copy()
    second.add(SELECTORS[0])
    first.add(SELECTORS[0])
    third = second.copy()
    third.add(SELECTORS[0])

    assert [index.candidates({}) for index in (first, second, third)] == [[0, 1], [0, 1], [0, 1, 2]]


@pytest.mark.parametrize("selector", SELECTORS)
def test_the_index_finds_all_matching_pods_in_the_namespace_of_a_selector(selector: LabelSelector) -> None:
    objects = [(space, labels) for space in ("x", "y") for labels in LABELS]
    numbers = set(LabelIndex(objects).candidates("y", selector))

    assert {number for number, (space, labels) in enumerate(objects) if space == "y" and selector.matches(labels)} <= numbers
    assert all(objects[number][0] == "y" for number in numbers)
    assert list(LabelIndex(objects).candidates("z", selector)) == []


def test_a_lookup_uses_the_rarest_label_of_a_selector() -> None:
    selectors = [LabelSelector((Requirement("app", "In", ("x",)), Requirement("job", "In", (str(number),)))) for number in range(1000)]
    labels = [{"app": "x", "job": str(number)} for number in range(1000)]

    of_selectors = SelectorIndex(selectors)
    assert sum(len(of_selectors.candidates(label)) for label in labels) < 3000
    index = LabelIndex(("", label) for label in labels)
    assert sum(len(list(index.candidates("", selector))) for selector in selectors) == 1000


def test_rules_of_pods_that_select_themselves_by_fifty_labels_are_counted() -> None:
    keys = [f"h{number}" for number in range(50)]
    rules = [
        {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": {}, "matchLabelKeys": keys}
        for key in (HOST, ZONE)
    ]
    crowd = [pod(number, {"topologySpreadConstraints": rules}, labels=dict.fromkeys(keys, str(number))) for number in range(1200)]
    planned = plan(cluster_of([*crowd, *ordinary(20)]), State(), policy(POOLS), NOW)

    assert sum(key.startswith("others/") for machine in planned.machines for key in machine.pods) == 20
    assert any(reason.excluded_by == "budget" for entry in planned.unplaced for reason in entry.reasons)
