"""Requests with sums beyond the range of numbers: such pods are skipped and named, and the others are planned."""

import pytest
from tests.hostile.workloads import HUGE, NOW, Object, cluster_of, containers, node, ordinary, pod, policy

from gpuscaler.model.requests import LARGEST
from gpuscaler.planning.planner import plan
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.state import State

BOUND = {"nodeName": "n1"}
GANG, SIZE = {"gpuscaler.io/gang": "g"}, "gpuscaler.io/gang-size"


def planned(*objects: Object) -> Plan:
    return plan(cluster_of([node("n1"), node("n2"), *ordinary(1), *objects]), State(), policy(), NOW)


@pytest.mark.parametrize("count", [2, 1023, 1024, 2000])
@pytest.mark.parametrize("resource", ["memory", "nvidia.com/gpu", "ephemeral-storage", "x.io/thing"])
def test_a_pending_pod_whose_requests_sum_beyond_the_bound_is_skipped_and_reported(count: int, resource: str) -> None:
    made = planned(pod(1, containers(count, **{resource: HUGE})))

    (aside,) = made.set_aside
    assert aside.object == "Pod tenant/p1"
    assert f"the sum of {resource} over all containers" in aside.reason
    assert str(LARGEST) in aside.reason
    assert [placement.pod for placement in made.placements] == ["others/o0"]


def test_a_bound_pod_whose_requests_sum_beyond_the_bound_is_skipped_and_reported_with_its_node() -> None:
    made = planned(pod(1, {**BOUND, **containers(1100, memory=HUGE)}))

    assert [aside.node for aside in made.set_aside] == ["n1"]


@pytest.mark.parametrize("count", [2, 511, 512, 1100])
@pytest.mark.parametrize("name", ["n1", "ghost"])
def test_many_bound_pods_with_the_largest_request_fill_no_other_node(count: int, name: str) -> None:
    made = planned(*(pod(n, {"nodeName": name, **containers(1, memory=HUGE)}) for n in range(count)))

    assert not made.set_aside
    assert {placement.node for placement in made.placements} == {"n2" if name == "n1" else "n1"}


@pytest.mark.parametrize("gang", [{}, {**GANG, SIZE: "1100"}, {**GANG, SIZE: "9" * 400}])
def test_many_pending_pods_with_the_largest_request_are_reported_and_others_are_placed(gang: dict[str, str]) -> None:
    made = planned(*(pod(n, containers(1, memory=HUGE), annotations=gang) for n in range(1100)))

    assert [placement.pod for placement in made.placements] == ["others/o0"]
    assert len(made.unplaced) == 1100


def test_many_nominated_pods_with_the_largest_request_fill_their_node() -> None:
    crowd = [pod(n, containers(1, memory=HUGE)) for n in range(1100)]
    for each in crowd:
        each["status"]["nominatedNodeName"] = "n1"

    assert [(placement.pod, placement.node) for placement in planned(*crowd).placements] == [("others/o0", "n2")]


def test_allocatable_resources_beyond_the_bound_are_reduced_to_the_bound() -> None:
    boast = dict.fromkeys(("cpu", "memory", "pods", "nvidia.com/gpu"), "9223372036854775807")
    boasting = [node(f"b{number}", allocatable=boast) for number in range(1100)]
    made = planned(*boasting, *(pod(n, containers(1, memory=HUGE)) for n in range(3)))

    assert not made.unplaced
