"""Detecting that a node does not take the pods that plans put there, and planning without it."""

from typing import Any

import pytest
from tests.planning.building import NOW, TYPE, affinity, bought, node, offering, planned, pod, pods, pool, spec

from gpuscaler.lifecycle.node_health.refusing_nodes import expected_bindings, find_refusals, hash_node, tried_in_vain
from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.nodes import Node
from gpuscaler.model.selectors import NodeSelector, NodeSelectorTerm
from gpuscaler.model.taints import Taint
from gpuscaler.planning.plans import Placement
from gpuscaler.planning.scale_up.markets import exclude_nodes
from gpuscaler.planning.state import State
from gpuscaler.planning.state.node_refusals import Cleared, NodeRefusal, NodeRefused, Refusals, Wait

ONE = spec(gpus=1)
GANG = {"gang": "g", "gang_size": 2}


def avoids(*names: str, of: Any = ONE) -> State:
    return State(refusing={of.digest: frozenset(names)})


# Planning


def test_a_machine_is_bought_for_a_pod_that_every_open_node_refuses() -> None:
    items: list[Item] = [node("a"), node("b"), pod("p")]

    assert bought(planned(items)) == {}
    assert bought(planned(items, state=avoids("a", "b"))) == {"g.1": 1}


def test_a_pod_that_one_node_refuses_is_placed_on_another() -> None:
    made = planned([node("a"), node("b"), pod("p")], state=avoids("a"))

    assert made.placements == (Placement("default/p", "b"),)


def test_a_refusing_node_still_takes_pods_of_other_classes() -> None:
    other = spec(gpus=1, cpu=2)
    made = planned([node("a"), pod("p"), pod("q", other)], state=avoids("a"))

    assert made.placements == (Placement("default/q", "a"),)
    assert [machine.pods for machine in made.machines] == [("default/p",)]


def test_avoiding_a_node_keeps_the_node_selector_of_the_pod() -> None:
    choosy = spec(gpus=1, node_affinity=affinity((TYPE, "In", "g.2")))
    pools = pool(offering("g.1", 1.0), offering("g.2", 3.0))
    made = planned([node("a", offering("g.2")), pod("p", choosy)], pools, state=avoids("a", of=choosy))

    assert bought(made) == {"g.2": 1}


def test_a_gang_avoids_nodes_that_refuse_its_members() -> None:
    items: list[Item] = [node("a"), node("b"), *pods("p", 2, options=GANG)]

    assert bought(planned(items)) == {}
    assert sum(bought(planned(items, state=avoids("a"))).values()) >= 1


def test_without_refusals_plans_are_unchanged() -> None:
    items: list[Item] = [node("a"), *pods("p", 3)]

    assert planned(items, state=State(refusing={})) == planned(items) == planned(items, state=avoids("a", of=spec(gpus=4)))


def test_a_term_without_requirements_still_matches_no_node() -> None:
    empty = spec(gpus=1, node_affinity=NodeSelector((NodeSelectorTerm(),)))
    pod_spec = exclude_nodes(empty, frozenset({"a"}))

    assert pod_spec.node_affinity is not None
    assert not pod_spec.node_affinity.matches({}, "b")


def test_pod_specs_that_avoid_different_nodes_are_different_specs() -> None:
    digests = {exclude_nodes(ONE, frozenset(names)).digest for names in ("a", "b", "ab")} | {ONE.digest}

    assert len(digests) == 4


# Detecting

WAITS = Refusals((Wait("default/p", "a", NOW - 60.0),))


def refusals_of(*items: Item, refusals: Refusals = WAITS, tried: float = NOW - 1.0) -> list[NodeRefused | Cleared]:
    return find_refusals(
        refusals, Cluster.of(items), attempts={"default/p": tried}, messages={"default/p": "0/1 nodes are available"}, now=NOW
    )


def test_a_node_counts_as_refusing_after_a_minute_and_a_newer_failed_scheduling_attempt() -> None:
    (refusal,) = refusals_of(node("a"), pod("p"))

    assert refusal == NodeRefused("default/p", ONE.digest, "a", hash_node(node("a")), NOW, "0/1 nodes are available")


@pytest.mark.parametrize(
    "items",
    [
        (node("a"),),
        (node("a"), pod("p", on="a")),
        (node("a"), pod("p", phase="Failed")),
        (node("a"), pod("p", deleted=NOW)),
        (pod("p"),),
        (node("a", ready=False), pod("p")),
    ],
    ids=["gone", "bound", "finished", "being deleted", "no such node", "node not ready"],
)
def test_a_pod_that_is_no_longer_pending_does_not_count_as_refused(items: tuple[Item, ...]) -> None:
    assert refusals_of(*items) == []


def test_a_suspected_refusal_does_not_count_before_a_plan_confirms_it() -> None:
    assert refusals_of(node("a"), pod("p"), refusals=Refusals((Wait("default/p", "a", NOW - 600.0, suspected=True),))) == []


@pytest.mark.parametrize(
    ("since", "tried", "in_vain"),
    [(59.0, 1.0, False), (60.0, 1.0, True), (300.0, 301.0, False), (330.0, 400.0, True), (330.0, None, True), (100.0, None, False)],
)
def test_a_scheduling_attempt_must_be_newer_than_the_wait_and_is_assumed_after_five_minutes(
    since: float, tried: float | None, in_vain: bool
) -> None:
    attempts = {} if tried is None else {"p": NOW - tried}

    assert tried_in_vain("p", NOW - since, attempts=attempts, now=NOW) is in_vain


@pytest.mark.parametrize(
    ("now", "cleared"),
    [
        (node("a"), False),
        (node("a", taints=(Taint("gpuscaler.io/idle", effect="PreferNoSchedule"), Taint("gpuscaler.io/leaving"))), False),
        (node("a", taints=(Taint("team", "ml"),)), True),
        (node("a", labels={"repaired": "yes"}), True),
        (node("a", allocatable={"cpu": 1}), True),
        (node("a", unschedulable=True), True),
        (None, True),
    ],
    ids=["same", "our own taints", "taint", "label", "allocatable", "cordon", "gone"],
)
def test_a_refusing_node_is_avoided_until_it_changes(now: Node | None, cleared: bool) -> None:
    refusals = Refusals(
        avoided=(NodeRefusal("x", "a", hash_node(node("a")), NOW + 60.0), NodeRefusal("y", "a", hash_node(node("a")), NOW + 60.0))
    )
    changes = refusals_of(*([now] if now is not None else []), refusals=refusals)

    assert changes == ([Cleared("a")] if cleared else [])


def test_only_existing_open_nodes_can_count_as_refusing() -> None:
    cluster = Cluster.of([node("a"), node("b")])
    placements = (Placement("p", "a"), Placement("q", "b"), Placement("r", "order-0"))

    assert expected_bindings(cluster, placements, {"b"}, NOW).placements == (("p", "a"),)
