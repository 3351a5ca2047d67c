"""Pods that are demand, and pods that are ignored with a reason."""

import pytest
from tests.planning.building import DAEMON, NOW, bought, ignored, planned, pod, pods, spec

from gpuscaler.model.pods import Pod


@pytest.mark.parametrize(
    ("left_alone", "why"),
    [
        (pod("p", spec(gates=("wait.example.com",))), "has scheduling gates: wait.example.com"),
        (pod("p", spec(scheduler_name="volcano")), "uses scheduler 'volcano'; only pods of default-scheduler are planned for"),
        (pod("p", spec(resource_claims=("gpu",))), "uses dynamic resource allocation (resource claims), which is not supported yet"),
        (pod("p", spec(priority=-11)), "has priority -11, below the cut-off -10: nothing is bought for expendable pods"),
        (pod("p", deleted=NOW), "is being deleted"),
        (
            pod("p", owner=DAEMON),
            "is a DaemonSet pod: it runs on existing machines and is no reason to buy one",
        ),
        (pod("p", phase="Failed"), "finished"),
        (pod("p", phase="Succeeded", on="gone"), "finished"),
        (pod("p", options={"scale_up_delay": 90.0}), "waits for its pod-scale-up-delay of 90 s"),
    ],
    ids=["gated", "foreign scheduler", "DRA", "expendable", "terminating", "daemon", "failed", "succeeded", "delayed"],
)
def test_a_pod_that_is_not_planned_for_is_ignored_with_the_reason(left_alone: Pod, why: str) -> None:
    made = planned([left_alone, *pods("q", 2)])
    assert ignored(made) == {"p": why}
    assert bought(made) == {"g.1": 2}
    assert made.unplaced == ()


def test_pods_of_all_listed_schedulers_are_planned_for() -> None:
    made = planned([pod("p", spec(gpus=1, scheduler_name="second"))], schedulers=("default-scheduler", "second"))
    assert (ignored(made), bought(made)) == ({}, {"g.1": 1})


def test_priority_cutoff_decides_which_pods_are_expendable() -> None:
    at_cut_off, below = pod("p", spec(gpus=1, priority=5)), pod("q", spec(gpus=1, priority=4))
    made = planned([at_cut_off, below], priority_cutoff=5)
    assert list(ignored(made)) == ["q"]
    assert bought(made) == {"g.1": 1}


def test_a_machine_is_bought_for_a_pod_once_its_scale_up_delay_has_passed() -> None:
    made = planned([pod("p", options={"scale_up_delay": 60.0}, created=NOW - 60)])
    assert (ignored(made), bought(made)) == ({}, {"g.1": 1})


def test_a_gated_pod_with_a_nomination_reserves_no_capacity() -> None:
    made = planned([pod("p", spec(gates=("wait",)), nominated_node="a")])
    assert ignored(made) == {"p": "has scheduling gates: wait"}


def test_labels_that_no_selector_uses_do_not_split_a_pod_class() -> None:
    """A StatefulSet labels every pod with its own name; sixty classes of one pod each would pack worse and take longer."""
    made = planned([pod(f"p-{n}", spec(gpus=1), labels={"statefulset.kubernetes.io/pod-name": f"p-{n}"}) for n in range(60)])
    assert bought(made) == {"g.1": 60}
    assert made.gap == 0.0
