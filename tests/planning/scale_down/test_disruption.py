"""Which pods may be moved to save money (I6): annotations of pods, owners and namespaces, and the number of ready replicas."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.building import JOB, node, offering, pool, spec
from tests.planning.scale_down.kit import blockers, detail, movable, removed, scale_down_of
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


def disruption_options(disruption: str = "", **more: Any) -> dict[str, Any]:
    """The options of a pod; without ``disruption`` it has no such annotation."""
    return {"options": {"disruption": disruption, **more}}


def gpu_pod(name: str, on: str, owner: Owner = NOTEBOOK, **more: Any) -> Pod:
    return movable(name, on, GPU, owner=owner, **{**disruption_options(), **more})


def room(*items: Item, names: Iterable[str] = ("a",)) -> ScaleDownResult:
    """The scale-down of the machines ``names``, beside one with enough free room for all their pods."""
    beside = [node("other", CARDS), movable("busy", "other", GPU, **disruption_options("never"))]
    return scale_down_of([*beside, *(node(name, CARDS) for name in names), *items], pool(CARDS))


def test_a_notebook_is_not_moved_to_save_money_and_the_blocker_names_the_annotation() -> None:
    result = room(gpu_pod("nb-0", "a"))

    assert removed(result) == []
    assert blockers(result)["a"] == "sole-replica"
    assert detail(result, "a") == (
        "pod default/nb-0 holds a GPU and no other replica of StatefulSet default/nb would be ready; "
        "gpuscaler.io/disruption: allow on the pod, its owner or its Namespace lets it be moved"
    )


@pytest.mark.parametrize(
    ("fields", "may"),
    [
        (disruption_options("allow"), True),
        (disruption_options("never"), False),
        (disruption_options(safe_to_evict=True), True),
        (disruption_options(restart_cost=60.0), True),
        (disruption_options("never", safe_to_evict=True, restart_cost=60.0), False),
    ],
    ids=["allow", "never", "safe to evict", "restart cost", "never beside others"],
)
def test_the_disruption_annotation_of_a_pod_decides_whether_it_may_be_moved(fields: dict[str, Any], may: bool) -> None:
    assert removed(room(gpu_pod("nb-0", "a", **fields))) == (["a"] if may else [])


@pytest.mark.parametrize(
    ("word", "namespace", "may"),
    [("allow", "", True), ("allow", "never", True), ("never", "allow", False), ("", "allow", True), ("", "never", False), ("", "", False)],
)
def test_the_disruption_annotation_of_an_owner_overrides_that_of_the_namespace(word: str, namespace: str, may: bool) -> None:
    owner = Workload("StatefulSet", "default", "nb", "nb-uid", disruption=word)

    assert removed(room(gpu_pod("nb-0", "a"), owner, Namespace("default", disruption=namespace))) == (["a"] if may else [])


def test_the_annotation_of_a_deployment_applies_to_the_pods_of_its_replica_sets() -> None:
    items = (
        Workload("ReplicaSet", "default", "chat-1", "rs-uid", owner=WEB),
        Workload("Deployment", "default", "web", "web-uid", disruption="allow"),
    )

    assert removed(room(gpu_pod("web-1-x", "a", OF_WEB), *items)) == ["a"]


def test_the_annotation_of_a_recreated_owner_does_not_apply_to_pods_of_the_old_one() -> None:
    other = Workload("StatefulSet", "default", "nb", "another-uid", disruption="allow")

    assert removed(room(gpu_pod("nb-0", "a"), other)) == []


def test_disruption_never_also_keeps_pods_without_a_gpu_and_with_replicas() -> None:
    light = [movable(f"p-{name}", name, spec(), **disruption_options()) for name in ("a", "other")]

    result = room(*light, Namespace("default", disruption="never"))

    assert removed(result) == []
    assert blockers(result)["a"] == "disruption"
    assert detail(result, "a") == "pod default/p-a may not be moved to save money: Namespace default has gpuscaler.io/disruption: never"


def test_pods_without_a_gpu_move_without_an_annotation() -> None:
    assert removed(room(movable("p", "a", spec(), **disruption_options()))) == ["a"]


def test_a_pod_with_a_gpu_moves_while_another_replica_is_ready_elsewhere() -> None:
    assert removed(room(gpu_pod("web-1-x", "a", OF_WEB), gpu_pod("web-1-y", "other", OF_WEB))) == ["a"]


def test_pods_of_two_replica_sets_of_one_deployment_count_as_replicas_of_each_other() -> None:
    """This is the case during a rolling update."""
    newer = Owner("ReplicaSet", "web-2", "rs-2")
    sets = [Workload("ReplicaSet", "default", name, uid, owner=WEB) for name, uid in (("chat-1", "rs-uid"), ("web-2", "rs-2"))]

    assert removed(room(gpu_pod("web-1-x", "a", OF_WEB), gpu_pod("web-2-y", "other", newer), *sets)) == ["a"]


@pytest.mark.parametrize(
    "other",
    [{"ready": False}, {"deleted": 1.0}, {"phase": "Pending"}, {"ready": None, "phase": "Failed"}],
    ids=["not ready", "terminating", "starting", "failed"],
)
def test_a_replica_that_is_not_ready_does_not_allow_another_to_move(other: dict[str, Any]) -> None:
    assert removed(room(gpu_pod("web-1-x", "a", OF_WEB), gpu_pod("web-1-y", "other", OF_WEB, **other))) == []


def test_of_two_replicas_on_two_machines_one_is_moved() -> None:
    result = room(gpu_pod("web-1-x", "a", OF_WEB), gpu_pod("web-1-y", "b", OF_WEB), names=("a", "b"))

    assert len(removed(result)) == 1
    (stays,) = {"a", "b"} - set(removed(result))
    assert blockers(result)[stays] == "sole-replica"


def test_two_replicas_on_one_machine_are_not_moved_together() -> None:
    result = room(gpu_pod("web-1-x", "a", OF_WEB), gpu_pod("web-1-y", "a", OF_WEB))

    assert (removed(result), blockers(result)["a"]) == ([], "sole-replica")


def test_a_replica_on_a_leaving_machine_does_not_allow_another_to_move() -> None:
    state = State(disrupting=frozenset(("b",)))
    items = [node(name, CARDS) for name in ("a", "b", "other", "empty")]
    items_of = [
        gpu_pod("web-1-x", "a", OF_WEB),
        gpu_pod("web-1-y", "b", OF_WEB),
        movable("busy", "other", GPU, **disruption_options("never")),
    ]

    result = scale_down_of([*items, *items_of], pool(CARDS), state=state)

    assert (removed(result), blockers(result)["a"]) == ([], "sole-replica")


def test_a_replica_on_a_node_that_is_not_ready_does_not_allow_another_to_move() -> None:
    lost = node("lost", CARDS, ready=False)

    assert removed(room(lost, gpu_pod("web-1-x", "a", OF_WEB), gpu_pod("web-1-y", "lost", OF_WEB))) == []


def test_a_job_needs_a_restart_cost_even_if_moving_is_allowed() -> None:
    assert blockers(room(gpu_pod("j", "a", JOB, **disruption_options("allow"))))["a"] == "job"


def test_a_bare_pod_is_kept_even_if_it_is_allowed_to_move() -> None:
    assert blockers(room(gpu_pod("b", "a", Owner(), **disruption_options("allow"))))["a"] == "bare-pod"


def test_the_search_for_an_owner_ends_on_a_cycle() -> None:
    circle = [
        Workload("ReplicaSet", "default", "chat-1", owner=Owner("Deployment", "web")),
        Workload("Deployment", "default", "web", owner=Owner("ReplicaSet", "chat-1")),
    ]

    assert Disruption(Cluster.of(circle), frozenset()).stated(gpu_pod("p", "a", OF_WEB)) == ("", "")


@SEARCH
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2), st.booleans()), max_size=14), st.integers(2, 6))
def test_every_owner_keeps_a_ready_replica_during_consolidation(replicas: list[tuple[int, int, bool]], machines: int) -> None:
    items: list[Item] = [node(f"n{number}", CARDS) for number in range(machines)]
    pods = [
        gpu_pod(f"p-{number}", f"n{on % machines}", Owner("ReplicaSet", f"web-{of}", f"u{of}"), ready=ready)
        for number, (on, of, ready) in enumerate(replicas)
    ]

    removed_nodes = set(removed(scale_down_of([*items, *pods], pool(CARDS))))

    for of in range(3):
        mine = [pod for pod in pods if pod.owner.uid == f"u{of}"]
        if any(pod.node_name in removed_nodes for pod in mine):
            assert [pod for pod in mine if pod.ready and pod.node_name not in removed_nodes]
