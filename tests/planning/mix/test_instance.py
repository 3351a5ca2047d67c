"""The reduction of a problem to arrays."""

from gpuscaler.planning.mix import Item, Limits, MixKind, Problem, SharedCap
from gpuscaler.planning.mix.instance import build

ROOM = {"cpu": 4000, "pods": 10}


def kinds_left(problem: Problem) -> set[str]:
    return {problem.kinds[k].key for k in build(problem).origin}


def items_left(problem: Problem) -> list[set[str]]:
    return [{problem.items[i].key for i in group} for group in build(problem).members]


PODS = (Item("a", 20, {"cpu": 1000, "pods": 1}),)


def test_a_machine_kind_that_is_no_larger_and_no_cheaper_than_another_is_dropped() -> None:
    kinds = (MixKind("good", ROOM, 1.0), MixKind("pricier", ROOM, 1.1), MixKind("smaller", {"cpu": 3000, "pods": 10}, 1.0))
    assert kinds_left(Problem(PODS, kinds)) == {"good"}


def test_one_of_several_equal_machine_kinds_stays() -> None:
    assert kinds_left(Problem(PODS, (MixKind("b", ROOM, 1.0), MixKind("a", ROOM, 1.0)))) == {"a"}


def test_a_more_expensive_machine_kind_stays_if_the_better_one_is_limited() -> None:
    kinds = (MixKind("spot", ROOM, 0.3, available=2), MixKind("on-demand", ROOM, 1.0))
    assert kinds_left(Problem(PODS, kinds)) == {"spot", "on-demand"}
    assert kinds_left(Problem(PODS, (kinds[0], MixKind("on-demand", ROOM, 1.0, pool="p")), limits=Limits(pools={"p": 3}))) == {
        "spot",
        "on-demand",
    }


def test_a_limit_that_cannot_be_reached_is_dropped() -> None:
    problem = Problem(PODS, (MixKind("k", ROOM, 1.0, available=50),), limits=Limits(machines=20, gpus=0))
    assert build(problem).limits == ()


def test_a_machine_kind_that_admits_other_items_is_kept() -> None:
    items = (*PODS, Item("b", 1, {"cpu": 1000, "pods": 1}, allowed=(1,)))
    assert kinds_left(Problem(items, (MixKind("x", ROOM, 1.0), MixKind("y", ROOM, 2.0)))) == {"x", "y"}


def test_resources_that_no_item_requests_are_ignored() -> None:
    kinds = (MixKind("gpu", {**ROOM, "nvidia.com/gpu": 8}, 9.0), MixKind("cpu", ROOM, 1.0))
    assert kinds_left(Problem(PODS, kinds)) == {"cpu"}


def test_identical_items_are_merged() -> None:
    items = (Item("a", 2, {"cpu": 1000, "pods": 1, "memory": 0}), Item("b", 3, {"pods": 1, "cpu": 1000}, allowed=(0,)), *PODS[1:])
    same = (items[0], Item("c", 3, {"pods": 1, "cpu": 1000}))
    assert items_left(Problem(same, (MixKind("k", ROOM, 1.0),))) == [{"a", "c"}]
    assert items_left(Problem(items, (MixKind("k", ROOM, 1.0),))) == [{"a"}, {"b"}]


def test_items_with_different_caps_priorities_or_exclusive_pairs_are_not_merged() -> None:
    request = {"cpu": 1000, "pods": 1}
    items = (
        Item("a", 2, request),
        Item("b", 2, request, per_machine=1),
        Item("c", 2, request, priority=3),
        Item("d", 2, request),
        Item("e", 2, request),
    )
    problem = Problem(items, (MixKind("k", ROOM, 1.0),), shared_caps=(SharedCap((3,), 1),), exclusive_pairs=((4, 0),))
    assert sorted(map(sorted, items_left(problem))) == [["a"], ["b"], ["c"], ["d"], ["e"]]


def test_items_are_merged_despite_a_cap_that_cannot_bind() -> None:
    request = {"cpu": 1000, "pods": 1}
    problem = Problem((Item("a", 2, request, per_machine=2), Item("b", 2, request)), (MixKind("k", ROOM, 1.0),))
    assert items_left(problem) == [{"a", "b"}]
