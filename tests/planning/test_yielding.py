"""Who has room on a node, and whose room would be taken by pods that come before them."""

from collections.abc import Mapping, Set

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.building import NOW, affinity, node, offering, pod, spec

from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.pods import Pod
from gpuscaler.model.taints import Taint
from gpuscaler.planning.yielding import burden, has_room, in_line, rivals, sharing

KIND = offering("g.4", gpus=4)
A = node("a", KIND, taints=(Taint("gpuscaler.io/arriving"),))
LOW, HIGH = pod("low", spec(gpus=3)), pod("high", spec(gpus=2, priority=10))


def rivals_on_a(*others: tuple[str, Pod], node_of_a: Item = A) -> Set[str]:
    cluster = Cluster.of([node_of_a])
    by_name = {name: [one] for name, one in others}
    return rivals([LOW], cluster.nodes["a"], by_name, cluster)


@pytest.mark.parametrize(("gpus", "room"), [(1, True), (2, False)])
def test_there_is_room_for_what_the_bound_pods_leave(gpus: int, room: bool) -> None:
    cluster = Cluster.of([A, pod("there", spec(gpus=3), on="a")])

    assert has_room([pod("p", spec(gpus=gpus))], A, cluster) is room


def test_a_pod_that_is_going_takes_no_room_and_several_share_it() -> None:
    cluster = Cluster.of([A, pod("goes", spec(gpus=3), on="a", deleted=NOW)])

    assert has_room([LOW], A, cluster)
    assert not has_room([LOW, HIGH], A, cluster)


def test_there_is_no_room_for_a_resource_that_a_node_does_not_show_and_for_more_pods_than_it_takes() -> None:
    cluster = Cluster.of([A])
    full = node("full", KIND, allocatable={**KIND.allocatable, "pods": 0})

    assert not has_room([pod("p", spec(requests={"example.com/fpga": 1}))], A, cluster)
    assert not has_room([pod("p", spec(gpus=1))], full, Cluster.of([full]))


def test_a_pod_of_higher_priority_that_waits_for_another_machine_would_take_the_room() -> None:
    assert rivals_on_a(("b", HIGH)) == {"b"}


@pytest.mark.parametrize(
    "other",
    [
        pod("same", spec(gpus=2)),
        pod("small", spec(gpus=1, priority=10)),
        pod("large", spec(gpus=5, priority=10)),
        pod("chooses", spec(gpus=2, priority=10, node_selector=(("disk", "fast"),))),
    ],
    ids=["of the same priority", "there is room beside", "too large", "selects other nodes"],
)
def test_no_other_pod_would(other: Pod) -> None:
    assert rivals_on_a(("b", other)) == frozenset()


def test_nor_one_that_a_foreign_taint_keeps_away() -> None:
    assert rivals_on_a(("b", HIGH), node_of_a=node("a", KIND, taints=(*A.taints, Taint("dedicated")))) == frozenset()


def test_a_pod_takes_no_room_that_is_promised_to_one_of_its_own_priority() -> None:
    cluster = Cluster.of([A])
    here = [pod("there", spec(gpus=3, priority=10)), pod("small", spec(cpu=1))]

    assert rivals(here, A, {"b": [HIGH]}, cluster) == frozenset()
    assert rivals(here, A, {"b": [pod("higher", spec(gpus=2, priority=11))]}, cluster) == {"b"}


def test_pools_between_which_no_pod_may_choose_are_apart() -> None:
    nodes = [(name, node(name, KIND, labels={"pool": name})) for name in ("a", "b", "c")]
    bound = {name: [pod(name, spec(node_selector=(("pool", name),)))] for name in ("a", "b")}

    assert sharing({**bound, "c": []}, nodes) == {"a": "a", "b": "b", "c": "c"}
    assert sharing({**bound, "c": [pod("any", spec(node_affinity=affinity("pool", "b", "c")))]}, nodes) == {"a": "a", "b": "b", "c": "b"}
    assert set(sharing({**bound, "c": [LOW]}, nodes).values()) == {"a"}


def alike(_name: str) -> tuple[int, ...]:
    return ()


def test_who_has_no_rivals_opens_first_and_who_waits_for_a_machine_that_is_not_there_does_not() -> None:
    assert in_line({"a": {"b"}, "b": frozenset(), "c": {"later"}}, "abc", alike) == [["b"]]
    assert in_line({"a": {"b"}, "b": {"later"}}, "ab", alike) == []


def test_those_that_wait_for_each_other_open_together() -> None:
    assert in_line({"a": {"b"}, "b": {"a"}, "c": {"later"}}, "cab", alike) == [["a", "b"]]
    assert in_line({"a": {"b"}, "b": {"c"}, "c": {"b"}}, "abc", alike) == [["b", "c"]]


def test_of_several_circles_the_one_opens_whose_small_pods_find_another_place_most_easily() -> None:
    pods = {"a": [HIGH, pod("large", spec(gpus=5))], "b": [HIGH, pod("small", spec(gpus=2))], "c": [HIGH], "d": [HIGH]}
    pairs = {"a": {"c"}, "c": {"a"}, "b": {"d"}, "d": {"b"}}

    assert in_line(pairs, "acbd", lambda name: burden(pods[name])) == [["b", "d"]]


@given(st.dictionaries(st.sampled_from("abcd"), st.frozensets(st.sampled_from("abcd"))), st.sets(st.sampled_from("abcd")))
def test_somebody_opens_unless_all_wait_for_machines_that_are_not_there(found: Mapping[str, frozenset[str]], called: set[str]) -> None:
    """Who is called already stands in line no more, and may still be waited for."""
    order = sorted(found.keys() - called)
    chosen = in_line(found, order, alike)

    assert {name for some in chosen for name in some} <= set(order)
    if order and not called and all(names <= found.keys() for names in found.values()):
        assert chosen
