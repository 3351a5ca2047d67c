"""Every node that stays has a blocker: reasons from the node and from its pods."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.planning.building import DAEMON, JOB, NOW, bare_node, pool, selector, spec
from tests.planning.scale_down.kit import BIG, big, blockers, detail, movable, removed, scale_down_of

from gpuscaler.model.cluster import Item
from gpuscaler.model.pods import NO_OWNER
from gpuscaler.model.taints import Taint
from gpuscaler.model.workloads import PodDisruptionBudget
from gpuscaler.planning.state import State, Upcoming

#: Room for the pods of the node under test, so that only the blocker can keep it.
ELSEWHERE = (big("other", do_not_disrupt=True), movable("there", "other"))


def of_pod(**fields: Any) -> tuple[str, str]:
    """The blocker of a node that runs one pod with these fields, and its detail."""
    extra = fields.pop("also", ())
    result = scale_down_of([big("n"), movable("p", "n", **fields), *ELSEWHERE, *extra])
    return blockers(result).get("n", ""), detail(result, "n") if "n" in blockers(result) else ""


@pytest.mark.parametrize(
    ("fields", "blocker"),
    [
        ({"deleted": NOW}, "deleting"),
        ({"ready": False}, "not-ready"),
        ({"scale_down_disabled": True}, "scale-down-disabled"),
        ({"do_not_disrupt": True}, "do-not-disrupt"),
        ({"taints": (Taint("gpuscaler.io/arriving"),)}, "arriving"),
        ({"taints": (Taint("gpuscaler.io/leaving"),)}, "disrupting"),
        ({"labels": {"node.kubernetes.io/instance-type": "unheard.of"}}, "not-in-a-pool"),
    ],
)
def test_the_state_of_a_node_can_be_a_blocker(fields: dict[str, Any], blocker: str) -> None:
    result = scale_down_of([replace(big("n"), **fields)])
    assert blockers(result) == {"n": blocker}


def test_a_node_that_the_plan_uses_for_pending_pods_is_not_removed() -> None:
    assert blockers(scale_down_of([big("n")], taken=["n"])) == {"n": "needed"}


def test_a_node_with_a_removal_in_progress_is_not_selected_again() -> None:
    assert blockers(scale_down_of([big("n")], state=State(idle_seconds={"n": 9e9}, disrupting=frozenset(["n"])))) == {"n": "disrupting"}


def test_an_ordered_machine_is_not_removed_before_it_is_open() -> None:
    upcoming = Upcoming("u-1", "main", "m.big", "on-demand", "z1", node="n")
    assert blockers(scale_down_of([big("n")], state=State(idle_seconds={"n": 9e9}, upcoming=(upcoming,)))) == {"n": "arriving"}


def test_a_pod_without_a_controller_keeps_its_node() -> None:
    assert of_pod(owner=NO_OWNER) == ("bare-pod", "pod default/p has no controller that would recreate it")


def test_a_bare_pod_that_is_safe_to_evict_does_not_keep_its_node() -> None:
    assert of_pod(owner=NO_OWNER, options={"safe_to_evict": True})[0] == ""


def test_a_pod_with_local_storage_keeps_its_node_and_the_blocker_names_the_volume() -> None:
    assert of_pod(of=spec(local_storage=("scratch", "cache"))) == (
        "local-storage",
        "pod default/p keeps data on the node in scratch, cache",
    )


@pytest.mark.parametrize("options", [{"safe_to_evict": True}, {"safe_to_evict_local_volumes": ("scratch", "cache")}])
def test_local_storage_that_is_listed_as_safe_to_evict_does_not_keep_the_node(options: dict[str, Any]) -> None:
    assert of_pod(of=spec(local_storage=("scratch", "cache")), options=options)[0] == ""


def test_one_local_volume_that_is_not_listed_as_safe_still_keeps_the_node() -> None:
    kept = of_pod(of=spec(local_storage=("scratch", "cache")), options={"safe_to_evict_local_volumes": ("scratch",)})
    assert kept == ("local-storage", "pod default/p keeps data on the node in cache")


def test_the_annotation_safe_to_evict_false_keeps_the_node() -> None:
    assert of_pod(options={"safe_to_evict": False})[0] == "safe-to-evict"


def test_the_annotation_do_not_drain_keeps_the_node() -> None:
    assert of_pod(options={"do_not_drain": True})[0] == "do-not-drain"


def test_the_annotation_do_not_disrupt_keeps_the_node() -> None:
    assert of_pod(options={"do_not_disrupt": True})[0] == "do-not-disrupt"


def test_a_duration_in_do_not_disrupt_counts_from_the_start_of_the_pod() -> None:
    young, old = {"started": NOW - 500}, {"started": NOW - 700}
    assert of_pod(options={"do_not_disrupt": 600.0}, **young) == (
        "do-not-disrupt",
        "pod default/p is protected by karpenter.sh/do-not-disrupt for 100 s more",
    )
    assert of_pod(options={"do_not_disrupt": 600.0}, **old)[0] == ""


def test_a_duration_in_do_not_disrupt_protects_while_the_start_of_the_pod_is_unknown() -> None:
    assert of_pod(options={"do_not_disrupt": 600.0}, started=0.0, created=0.0)[0] == "do-not-disrupt"


def test_do_not_disrupt_on_a_daemonset_pod_also_keeps_the_node() -> None:
    assert of_pod(owner=DAEMON, options={"do_not_disrupt": True})[0] == "do-not-disrupt"


def test_a_running_job_without_a_restart_cost_is_never_disrupted() -> None:
    assert of_pod(owner=JOB) == ("job", "pod default/p belongs to a running Job and has no gpuscaler.io/restart-cost")
    assert of_pod(owner=JOB, options={"safe_to_evict": True})[0] == "job"


def test_a_gang_without_a_restart_cost_is_never_disrupted() -> None:
    assert of_pod(options={"gang": "g"})[0] == "job"


def test_a_system_pod_without_a_budget_keeps_its_node() -> None:
    assert of_pod(of=spec(namespace="kube-system"))[0] == "kube-system"


def test_a_system_pod_with_a_budget_does_not_keep_its_node() -> None:
    budget = PodDisruptionBudget("kube-system", "dns", selector(app="web"), disruptions_allowed=1)
    assert of_pod(of=spec(namespace="kube-system"), also=(budget,))[0] == ""


def test_a_pod_disruption_budget_that_allows_no_disruption_keeps_the_node() -> None:
    budget = PodDisruptionBudget("default", "web", selector(app="web"), disruptions_allowed=0)
    word, sentence = of_pod(also=(budget,))
    assert word == "pdb"
    assert "PodDisruptionBudget web allows 0 disruptions" in sentence


@pytest.mark.parametrize(
    ("unhealthy", "ready", "phase", "blocker"),
    [
        (True, False, "Running", ""),
        (True, None, "Running", ""),
        (True, True, "Running", "pdb"),
        (True, False, "Unknown", "pdb"),
        (False, False, "Running", "pdb"),
    ],
)
def test_a_budget_with_always_allow_does_not_keep_nodes_of_unhealthy_pods(
    unhealthy: bool, ready: bool | None, phase: str, blocker: str
) -> None:
    budget = PodDisruptionBudget("default", "web", selector(app="web"), disruptions_allowed=0, always_evict_unhealthy=unhealthy)
    assert of_pod(also=(budget,), ready=ready, phase=phase)[0] == blocker


def test_a_healthy_pod_beside_an_unhealthy_one_is_protected_by_their_budget() -> None:
    budget = PodDisruptionBudget("default", "web", selector(app="web"), disruptions_allowed=0, always_evict_unhealthy=True)
    word, sentence = of_pod(also=(budget, movable("q", "n", ready=True, phase="Running")), ready=False, phase="Running")
    assert (word, "PodDisruptionBudget web allows 0 disruptions" in sentence) == ("pdb", True)


def test_evictions_of_unhealthy_pods_do_not_use_up_a_budget_with_always_allow() -> None:
    """One disruption is allowed and used for the healthy pod; the two pods that are not Ready need none."""
    budget = PodDisruptionBudget("default", "web", selector(app="web"), disruptions_allowed=1, always_evict_unhealthy=True)
    more = (movable("q", "n", ready=False, phase="Running"), movable("r", "n", ready=True, phase="Running"))
    assert of_pod(also=(budget, *more), ready=False, phase="Running")[0] == ""


def test_several_pod_disruption_budgets_over_one_pod_keep_the_node() -> None:
    two = tuple(PodDisruptionBudget("default", name, selector(app="web"), disruptions_allowed=5) for name in ("b", "a"))
    word, sentence = of_pod(also=two)
    assert word == "pdb"
    assert "(a, b)" in sentence


def test_a_budget_of_another_namespace_or_without_a_selector_is_ignored() -> None:
    others = (PodDisruptionBudget("elsewhere", "x", selector(app="web")), PodDisruptionBudget("default", "y", None))
    assert of_pod(also=others)[0] == ""


def test_a_pod_of_another_scheduler_keeps_its_node() -> None:
    word, sentence = of_pod(of=spec(scheduler_name="volcano"))
    assert word == "in-use"
    assert "'volcano'" in sentence


def test_a_pod_with_resource_claims_keeps_its_node() -> None:
    assert "dynamic resource allocation" in of_pod(of=spec(resource_claims=("gpu",)))[1]


def test_a_pod_that_is_terminating_keeps_its_node_until_it_is_long_overdue() -> None:
    assert of_pod(deleted=NOW - 10) == ("in-use", "pod default/p is still terminating")
    result = scale_down_of([big("n"), movable("p", "n", deleted=NOW - 31)])
    assert removed(result) == ["n"]


def test_no_node_is_removed_while_most_nodes_are_not_ready() -> None:
    sick = [big(f"s{n}", ready=False) for n in range(4)]
    assert blockers(scale_down_of([*sick, *(big(f"h{n}") for n in range(4))])) == dict.fromkeys(
        [f"s{n}" for n in range(4)] + [f"h{n}" for n in range(4)], "unhealthy"
    )
    assert removed(scale_down_of([*sick, *(big(f"h{n}") for n in range(5))])) == [f"h{n}" for n in range(5)]
    assert removed(scale_down_of([*sick[:3], big("h")])) == ["h"]


def test_every_node_is_either_removed_or_blocked() -> None:
    items: list[Item] = [big("a"), big("b", ready=False), bare_node("c"), big("d"), movable("p", "d", owner=JOB)]
    result = scale_down_of(items, pool(BIG))
    assert sorted([*removed(result), *blockers(result)]) == ["a", "b", "c", "d"]
