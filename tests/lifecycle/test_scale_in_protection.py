"""Pods that are never evicted and machines that are never ended, however far a removal has come."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.planning.building import NOW, node, offering, pod, pool

from gpuscaler.lifecycle import termination
from gpuscaler.lifecycle.actions import Act, Evict, Unmark
from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.pools import Policy
from gpuscaler.model.taints import Taint
from gpuscaler.model.well_known import LEAVING_TAINT
from gpuscaler.planning.plans import PlannedRemoval
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.ledger import DRAINING, Ledger, Removal

POLICY = Policy((pool(offering()),))
MARKED = (Taint(LEAVING_TAINT, "", "NoSchedule"),)


EXCLUDED = {"node.kubernetes.io/exclude-from-external-load-balancers": "gpuscaler-leaving"}


def draining(*items: Item, forced: bool = False, **of_node: Any) -> tuple[list[Act], tuple[tuple[str, str], ...]]:
    """Return the actions on the node ``a``, which is being drained of the pod ``runs``, and the nodes that are kept."""
    cluster = Cluster.of([node("a", provider_id="i-1", taints=MARKED, labels=EXCLUDED, **of_node), *items])
    removal = Removal("a", "i-1", offering().key, "idle", NOW - 20, NOW - 20, step=DRAINING, pods=("default/runs",), forced=forced)
    departure = termination.continue_removals(Ledger(leaving=(removal,)), cluster, None, POLICY, now=NOW)
    return list(departure.acts), departure.kept


def test_pods_of_a_node_being_removed_are_evicted() -> None:
    acts, kept = draining(pod("runs", on="a", uid="u", options={"disruption": "allow"}))
    assert acts == [Evict("default/runs", "u", "a")]
    assert not kept


@pytest.mark.parametrize(
    "options", [{"do_not_disrupt": True}, {"do_not_disrupt": 61.0}, {"safe_to_evict": False}, {"do_not_drain": True}], ids=str
)
def test_a_pod_protected_during_the_drain_is_not_evicted_and_its_node_is_opened(options: Mapping[str, Any]) -> None:
    acts, kept = draining(pod("runs", on="a", options=options))
    assert [type(act) for act in acts] == [Unmark]
    assert kept == (("a", "pod default/runs is protected by an annotation"),)


def test_a_pod_protected_for_a_limited_time_is_evicted_afterwards() -> None:
    acts, kept = draining(pod("runs", on="a", options={"do_not_disrupt": 60.0, "disruption": "allow"}))
    assert [type(act) for act in acts] == [Evict]
    assert not kept


def test_a_node_protected_during_its_drain_is_opened() -> None:
    acts, kept = draining(pod("runs", on="a"), do_not_disrupt=True)
    assert [type(act) for act in acts] == [Unmark]
    assert kept == (("a", "the node has a do-not-disrupt or scale-down-disabled annotation"),)


def test_pods_of_a_machine_that_the_cloud_takes_away_are_evicted_despite_protection() -> None:
    acts, _ = draining(pod("runs", on="a", options={"do_not_disrupt": True}), forced=True)
    assert [type(act) for act in acts] == [Evict]


def test_while_most_nodes_are_not_ready_only_interrupted_machines_are_drained() -> None:
    sick = [node(f"sick-{number}", ready=False) for number in range(5)]
    assert draining(pod("runs", on="a"), *sick) == ([], ())
    acts, _ = draining(pod("runs", on="a"), *sick, forced=True)
    assert [type(act) for act in acts] == [Evict]


def begun(*items: Item) -> list[str]:
    """Return the nodes whose removal begins when a plan removes ``a``."""
    steps = termination.begin_removals(
        Ledger(), Cluster.of(items), POLICY, (PlannedRemoval("a", "idle"),), names={}, unlisted=frozenset(), now=NOW
    )
    return [step.removal.node for step in steps if isinstance(step, ledger.RemovalUpdated)]


def test_a_node_is_removed_only_if_no_other_node_names_its_machine() -> None:
    assert begun(node("a", provider_id="i-1"), node("b", provider_id="i-2")) == ["a"]
    assert begun(node("a"), node("b", provider_id="i-2")) == []
    assert begun(node("a", provider_id="i-1"), node("b", provider_id="i-1")) == []


def test_a_node_outside_all_pools_is_not_removed() -> None:
    assert begun(node("a", provider_id="i-1", labels={"gpuscaler.io/pool": "another"})) == []
