"""PodTopologySpread with DoNotSchedule."""

from typing import Any

import pytest
from tests.planning.building import HOST, bare_node, pod, selector, spec
from tests.planning.feasibility.kit import rejection, room, rows

from gpuscaler.model.labels import LabelSet
from gpuscaler.model.pods import Pod, SpreadConstraint
from gpuscaler.model.selectors import LabelSelector, Requirement
from gpuscaler.model.taints import Taint, Toleration

WEB = selector(app="web")
ZONES = (bare_node("a1", {"zone": "a"}), bare_node("a2", {"zone": "a"}), bare_node("b1", {"zone": "b"}), bare_node("lost"))


def over(key: str, skew: int = 1, **fields: Any) -> SpreadConstraint:
    return SpreadConstraint(key, skew, **{"selector": WEB, **fields})


def web(*nodes: str, **fields: Any) -> list[Pod]:
    """Pods of the spread application, one on each of ``nodes``."""
    return [pod(f"web-{number}", on=name, labels={"app": "web"}, **fields) for number, name in enumerate(nodes)]


@pytest.mark.parametrize(
    ("there", "skew", "admitted"),
    [
        ((), 1, ["a1", "a2", "b1"]),
        (("a1",), 1, ["b1"]),
        (("a1",), 2, ["a1", "a2", "b1"]),
        (("a1", "b1"), 1, ["a1", "a2", "b1"]),
        (("a1", "a2", "b1"), 1, ["b1"]),
        (("lost", "lost"), 1, ["a1", "a2", "b1"]),
        (("gone", "gone"), 1, ["a1", "a2", "b1"]),
    ],
)
def test_a_domain_takes_a_pod_if_its_count_then_exceeds_the_minimum_by_at_most_max_skew(
    there: tuple[str, ...], skew: int, admitted: list[str]
) -> None:
    assert rows(room(*ZONES, *web(*there)), spec(spread=(over("zone", skew),)), app="web") == admitted


def test_a_pod_that_its_own_spread_selector_does_not_match_is_not_counted() -> None:
    here = room(*ZONES, *web("a1"))
    assert rows(here, spec(spread=(over("zone"),)), app="db") == ["a1", "a2", "b1"]


def test_spread_counts_ignore_terminating_pods_and_other_namespaces() -> None:
    here = room(*ZONES, *web("a1", deleted=1.0), pod("x", spec(namespace="other"), on="a1", labels={"app": "web"}))
    assert rows(here, spec(spread=(over("zone"),)), app="web") == ["a1", "a2", "b1"]


def test_missing_and_empty_spread_selectors_count_no_pods() -> None:
    here = room(*ZONES, *web("a1", "a2"))
    assert rows(here, spec(spread=(over("zone", selector=None),)), app="web") == ["a1", "a2", "b1"]
    assert rows(here, spec(spread=(over("zone", selector=LabelSelector()),)), app="web") == ["a1", "a2", "b1"]


def test_fewer_domains_than_min_domains_make_the_minimum_count_zero() -> None:
    here = room(*ZONES, *web("a1", "b1"))
    assert rows(here, spec(spread=(over("zone", min_domains=2),)), app="web") == ["a1", "a2", "b1"]
    assert rows(here, spec(spread=(over("zone", min_domains=3),)), app="web") == []


def test_only_nodes_with_the_labels_of_all_spread_constraints_are_counted_and_admitted() -> None:
    here = room(*ZONES, bare_node("c1", {"zone": "c", "rack": "r"}), bare_node("c2", {"zone": "c", "rack": "r"}), *web("a1", "c1"))
    assert rows(here, spec(spread=(over("zone"), over("rack", 5))), app="web") == ["c1", "c2"]


def test_soft_spread_constraints_admit_every_node() -> None:
    here = room(*ZONES, *web("a1"))
    assert rows(here, spec(spread=(over("zone", hard=False),)), app="web") == ["a1", "a2", "b1", "lost"]


@pytest.mark.parametrize(("honoured", "admitted"), [(True, ["a1"]), (False, [])])
def test_spread_ignores_nodes_excluded_by_node_affinity_if_the_policy_honours_it(*, honoured: bool, admitted: list[str]) -> None:
    here = room(bare_node("a1", {"zone": "a", "gpu": "t4"}), bare_node("b1", {"zone": "b"}), *web("a1"))
    wanted = spec(spread=(over("zone", honor_affinity=honoured),), node_selector=(("gpu", "t4"),))
    assert rows(here, wanted, app="web") == admitted


@pytest.mark.parametrize(("honoured", "admitted"), [(True, ["a1"]), (False, [])])
def test_spread_ignores_nodes_with_untolerated_taints_if_the_policy_honours_taints(*, honoured: bool, admitted: list[str]) -> None:
    here = room(bare_node("a1", {"zone": "a"}), bare_node("b1", {"zone": "b"}, taints=(Taint("gpu"),)), *web("a1"))
    assert rows(here, spec(spread=(over("zone", honor_taints=honoured),)), app="web") == admitted
    tolerant = spec(spread=(over("zone", honor_taints=honoured),), tolerations=(Toleration("gpu", "Exists"),))
    assert rows(here, tolerant, app="web") == ["b1"]


def test_placed_pods_change_the_spread_counts() -> None:
    here = room(*ZONES)
    wanted = spec(spread=(over("zone"), over(HOST)))
    labels = LabelSet(app="web")
    assert rows(here, wanted, app="web") == ["a1", "a2", "b1"]
    here.place(wanted, labels, 0)
    assert rows(here, wanted, app="web") == ["b1"]
    here.place(wanted, labels, 2)
    assert rows(here, wanted, app="web") == ["a2"]
    here.remove(wanted, labels, 0)
    assert rows(here, wanted, app="web") == ["a1", "a2"]


def test_removing_a_terminating_pod_does_not_change_the_spread_counts() -> None:
    leaving = pod("p", on="a1", labels={"app": "web"}, deleted=1.0)
    here = room(*ZONES, leaving, *web("a2"))
    wanted = spec(spread=(over("zone"),))
    assert rows(here, wanted, app="web") == ["b1"]
    here.remove(leaving.spec, leaving.labels, 0, terminating=True)
    assert rows(here, wanted, app="web") == ["b1"]
    assert here.matching(("default",), None, WEB).tolist() == [0, 1, 0, 0]


def test_spread_counts_returns_counts_and_eligible_domains() -> None:
    here = room(*ZONES, bare_node("c1", {"zone": "c", "gpu": "t4"}), *web("a1", "a2", "b1", "lost"))
    wanted = spec(spread=(over("zone"),), node_selector=(("gpu", "t4"),))
    codes, counts, eligible = here.spread_counts(wanted, LabelSet(app="web"), wanted.spread[0])
    assert codes.tolist() == [0, 0, 1, 2, -1]
    assert counts.tolist() == [0, 0, 0, 0]
    assert eligible.tolist() == [False, False, True, False]
    plain = spec(spread=(over("zone"),))
    assert here.spread_counts(plain, LabelSet(app="web"), plain.spread[0]).counts.tolist() == [2, 1, 0, 0]


@pytest.mark.parametrize(
    ("there", "skew", "min_domains", "copies"),
    [
        ((), 1, 1, [1, 1, 1]),
        ((), 3, 1, [3, 3, 3]),
        (("a", "b"), 2, 1, [1, 1, 3]),
        (("a", "b"), 1, 1, [0, 0, 2]),
        (("a", "b", "c"), 1, 1, [1, 1, 1]),
        (("a", "b", "c"), 1, 4, [0, 0, 0]),
        (("a", "b", "c"), 3, 4, [2, 2, 2]),
        (("a", "a", "b", "b"), 2, 1, [0, 0, 4]),
    ],
)
def test_spread_over_hosts_bounds_the_number_of_copies_per_node(
    there: tuple[str, ...], skew: int, min_domains: int, copies: list[int]
) -> None:
    here = room(bare_node("a"), bare_node("b"), bare_node("c"), *web(*there))
    wanted = spec(spread=(over(HOST, skew, min_domains=min_domains),))
    assert here.capacity(wanted, LabelSet(app="web")).tolist() == copies


def test_spread_over_a_single_host_admits_as_many_copies_as_fit() -> None:
    here = room(bare_node("a", allocatable={"pods": 7}))
    assert here.capacity(spec(requests={}, spread=(over(HOST),)), LabelSet(app="web")).tolist() == [7]


def test_the_reason_for_a_violated_spread_gives_the_counts() -> None:
    here = room(*ZONES, *web("a1"))
    wanted = spec(spread=(over("zone"),))
    assert rejection(here, wanted, "a2", app="web") == (
        "PodTopologySpread",
        "zone=a has 1 matching pods, the minimum is 0, maxSkew is 1",
    )
    assert rejection(here, wanted, "lost", app="web") == ("PodTopologySpread", "topology spread needs the node label zone, node has none")


def test_a_hard_constraint_with_an_unreadable_selector_admits_no_node() -> None:
    odd = LabelSelector((Requirement("size", "Gt", ("1",)),))
    here = room(*ZONES)
    assert rows(here, spec(spread=(over("zone", selector=odd),))) == []
    assert rows(here, spec(spread=(over("zone", selector=odd, hard=False),))) == ["a1", "a2", "b1", "lost"]
    reason = rejection(here, spec(spread=(over("zone", selector=odd),)), "a1")
    assert reason == ("PodTopologySpread", "a label selector of the pod cannot be read")
