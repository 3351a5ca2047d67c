"""Which pods may be moved to save money (I6): annotations of pods, owners and namespaces, and the number of ready replicas."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.building import JOB, node, offering, pool, spec
from tests.planning.scale_down.kit import blockers, detail, down, movable, removed
from tests.planning.test_properties import SEARCH

from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.pods import Owner, Pod
from gpuscaler.model.workloads import Namespace, Workload
from gpuscaler.planning.scale_down import ScaleDownResult
from gpuscaler.planning.scale_down.disruption import Disruption
from gpuscaler.planning.state import State

CARDS = offering("g.4", 4.0, gpus=4, cpu=32, memory=240, pods=50)
GPU = spec(gpus=1, cpu=1, memory=1)
NOTEBOOK = Owner("StatefulSet", "nb", "nb-uid")
OF_WEB = Owner("ReplicaSet", "chat-1", "rs-uid")
WEB = Owner("Deployment", "web", "web-uid")


def said(disruption: str = "", **more: Any) -> dict[str, Any]:
    """The options of a pod; without ``disruption`` it has no such annotation."""
    return {"options": {"disruption": disruption, **more}}


def holds(name: str, on: str, owner: Owner = NOTEBOOK, **more: Any) -> Pod:
    return movable(name, on, GPU, owner=owner, **{**said(), **more})


def room(*items: Item, names: Iterable[str] = ("a",)) -> ScaleDownResult:
    """The scale-down of the machines ``names``, beside one with enough free room for all their pods."""
    beside = [node("other", CARDS), movable("busy", "other", GPU, **said("never"))]
    return down([*beside, *(node(name, CARDS) for name in names), *items], pool(CARDS))


def test_a_notebook_is_not_moved_to_save_money_and_the_blocker_names_the_annotation() -> None:
    answer = room(holds("nb-0", "a"))

    assert removed(answer) == []
    assert blockers(answer)["a"] == "sole-replica"
    assert detail(answer, "a") == (
        "pod default/nb-0 holds a GPU and no other replica of StatefulSet default/nb would be ready; "
        "gpuscaler.io/disruption: allow on the pod, its owner or its Namespace lets it be moved"
    )


@pytest.mark.parametrize(
    ("fields", "may"),
    [
        (said("allow"), True),
        (said("never"), False),
        (said(safe_to_evict=True), True),
        (said(restart_cost=60.0), True),
        (said("never", safe_to_evict=True, restart_cost=60.0), False),
    ],
    ids=["allow", "never", "safe to evict", "restart cost", "never beside others"],
)
def test_annotations_of_a_pod_decide_whether_it_may_be_moved(fields: dict[str, Any], may: bool) -> None:
    assert removed(room(holds("nb-0", "a", **fields))) == (["a"] if may else [])


@pytest.mark.parametrize(
    ("word", "namespace", "may"),
    [("allow", "", True), ("allow", "never", True), ("never", "allow", False), ("", "allow", True), ("", "never", False), ("", "", False)],
)
def test_the_nearest_annotation_counts(word: str, namespace: str, may: bool) -> None:
    owner = Workload("StatefulSet", "default", "nb", "nb-uid", disruption=word)

    assert removed(room(holds("nb-0", "a"), owner, Namespace("default", disruption=namespace))) == (["a"] if may else [])


def test_the_annotation_of_a_deployment_applies_to_the_pods_of_its_replica_sets() -> None:
    items = (
        Workload("ReplicaSet", "default", "chat-1", "rs-uid", owner=WEB),
        Workload("Deployment", "default", "web", "web-uid", disruption="allow"),
    )

    assert removed(room(holds("web-1-x", "a", OF_WEB), *items)) == ["a"]


def test_the_annotation_of_a_recreated_owner_does_not_apply_to_pods_of_the_old_one() -> None:
    other = Workload("StatefulSet", "default", "nb", "another-uid", disruption="allow")

    assert removed(room(holds("nb-0", "a"), other)) == []


def test_never_also_keeps_pods_without_a_gpu_and_with_replicas() -> None:
    light = [movable(f"p-{name}", name, spec(), **said()) for name in ("a", "other")]

    answer = room(*light, Namespace("default", disruption="never"))

    assert removed(answer) == []
    assert blockers(answer)["a"] == "disruption"
    assert detail(answer, "a") == "pod default/p-a may not be moved to save money: Namespace default has gpuscaler.io/disruption: never"


def test_pods_without_a_gpu_move_freely() -> None:
    assert removed(room(movable("p", "a", spec(), **said()))) == ["a"]


def test_a_pod_with_a_gpu_moves_while_another_replica_is_ready_elsewhere() -> None:
    assert removed(room(holds("web-1-x", "a", OF_WEB), holds("web-1-y", "other", OF_WEB))) == ["a"]


def test_replicas_of_two_replica_sets_of_one_deployment_replace_each_other() -> None:
    """As in the middle of a rolling update."""
    newer = Owner("ReplicaSet", "web-2", "rs-2")
    sets = [Workload("ReplicaSet", "default", name, uid, owner=WEB) for name, uid in (("chat-1", "rs-uid"), ("web-2", "rs-2"))]

    assert removed(room(holds("web-1-x", "a", OF_WEB), holds("web-2-y", "other", newer), *sets)) == ["a"]


@pytest.mark.parametrize(
    "other",
    [{"ready": False}, {"deleted": 1.0}, {"phase": "Pending"}, {"ready": None, "phase": "Failed"}],
    ids=["not ready", "terminating", "starting", "failed"],
)
def test_a_replica_that_is_not_serving_does_not_count(other: dict[str, Any]) -> None:
    assert removed(room(holds("web-1-x", "a", OF_WEB), holds("web-1-y", "other", OF_WEB, **other))) == []


def test_of_two_replicas_on_two_machines_one_is_moved() -> None:
    answer = room(holds("web-1-x", "a", OF_WEB), holds("web-1-y", "b", OF_WEB), names=("a", "b"))

    assert len(removed(answer)) == 1
    (stays,) = {"a", "b"} - set(removed(answer))
    assert blockers(answer)[stays] == "sole-replica"


def test_two_replicas_on_one_machine_are_not_moved_together() -> None:
    answer = room(holds("web-1-x", "a", OF_WEB), holds("web-1-y", "a", OF_WEB))

    assert (removed(answer), blockers(answer)["a"]) == ([], "sole-replica")


def test_a_replica_on_a_leaving_machine_does_not_count() -> None:
    state = State(disrupting=frozenset(("b",)))
    items = [node(name, CARDS) for name in ("a", "b", "other", "empty")]
    items_of = [holds("web-1-x", "a", OF_WEB), holds("web-1-y", "b", OF_WEB), movable("busy", "other", GPU, **said("never"))]

    answer = down([*items, *items_of], pool(CARDS), state=state)

    assert (removed(answer), blockers(answer)["a"]) == ([], "sole-replica")


def test_a_replica_on_a_node_that_is_not_ready_does_not_count() -> None:
    lost = node("lost", CARDS, ready=False)

    assert removed(room(lost, holds("web-1-x", "a", OF_WEB), holds("web-1-y", "lost", OF_WEB))) == []


def test_a_job_needs_a_restart_cost_even_if_moving_is_allowed() -> None:
    assert blockers(room(holds("j", "a", JOB, **said("allow"))))["a"] == "job"


def test_a_bare_pod_is_kept_even_if_it_is_allowed_to_move() -> None:
    assert blockers(room(holds("b", "a", Owner(), **said("allow"))))["a"] == "bare-pod"


def test_a_cycle_of_owners_terminates() -> None:
    circle = [
        Workload("ReplicaSet", "default", "chat-1", owner=Owner("Deployment", "web")),
        Workload("Deployment", "default", "web", owner=Owner("ReplicaSet", "chat-1")),
    ]

    assert Disruption(Cluster.of(circle), frozenset()).stated(holds("p", "a", OF_WEB)) == ("", "")


@SEARCH
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.booleans()), max_size=14), st.integers(2, 6))
def test_every_owner_keeps_a_ready_replica(replicas: list[tuple[int, int, bool]], machines: int) -> None:
    items: list[Item] = [node(f"n{number}", CARDS) for number in range(machines)]
    pods = [
        holds(f"p-{number}", f"n{on % machines}", Owner("ReplicaSet", f"web-{of}", f"u{of}"), ready=ready)
        for number, (on, of, ready) in enumerate(replicas)
    ]

    gone = set(removed(down([*items, *pods], pool(CARDS))))

    for of in range(3):
        mine = [pod for pod in pods if pod.owner.uid == f"u{of}"]
        if any(pod.node_name in gone for pod in mine):
            assert [pod for pod in mine if pod.ready and pod.node_name not in gone]
