"""Which live nodes teach about the next machines of their kind, and when."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.planning.building import GI, NOW, PRODUCT, node, offering, pool

from gpuscaler.lifecycle.observed.live_nodes import LiveNodes
from gpuscaler.lifecycle.observed.machine_index import MachineIndex
from gpuscaler.lifecycle.registration.learning import ASKED, LABELS_SECONDS, SETTLED_SECONDS, learn_from_nodes
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import Instance, Inventory
from gpuscaler.model.nodes import Node
from gpuscaler.model.pools import Offering, Policy
from gpuscaler.model.taints import Taint
from gpuscaler.planning.state.learned_templates import Learned, corrected_policy
from gpuscaler.planning.state.ledger.ledger import Ledger, OrderedMachine

KIND = offering("g.1", gpus=1, memory=32)
POLICY = Policy((pool(KIND),))


def live(name: str = "a", *, memory: int = 40, **more: Any) -> Node:
    amounts = {**KIND.allocatable, "memory": memory * GI}
    return node(name, KIND, **{"allocatable": amounts, "provider_id": f"i-{name}", **more})


def learned_offering(
    *nodes: Node, ledger: Ledger | None = None, listed: bool = True, policy: Policy = POLICY, previous: Learned | None = None
) -> Offering:
    """Return the offering as learned from the nodes."""
    machines = tuple(Instance(node.provider_id, *KIND.key) for node in nodes if node.provider_id != "i-foreign")
    index = MachineIndex.of(Cluster.of(nodes), Inventory(NOW, machines) if listed else None)
    learned = learn_from_nodes(previous or Learned(), ledger or Ledger(), policy, NOW, index=index, live_nodes=LiveNodes())
    return corrected_policy(policy, learned).pools[0].offerings[0]


def memory(*nodes: Node, **more: Any) -> float:
    return learned_offering(*nodes, **more).allocatable["memory"] / GI


def test_the_template_is_learned_from_an_open_listed_node() -> None:
    assert memory(live()) == 40


def test_without_a_cloud_list_a_node_is_matched_to_its_offering_by_labels() -> None:
    assert memory(live(provider_id=""), listed=False) == 40


@pytest.mark.parametrize(
    "odd",
    [
        {"ready": False},
        {"deleted": NOW},
        {"created": NOW - SETTLED_SECONDS + 1.0},
        {"provider_id": "i-foreign"},
        {"taints": (Taint("gpuscaler.io/leaving"),)},
        {"allocatable": {**KIND.allocatable, "memory": 40 * GI, "nvidia.com/gpu": 0}},
    ],
    ids=["not ready", "deleted", "new", "not ours", "leaving", "without its GPU"],
)
def test_nothing_is_learned_from_an_unfinished_or_foreign_node(odd: dict[str, Any]) -> None:
    assert memory(live(**odd)) == 32


@pytest.mark.parametrize(("since", "teaches"), [(LABELS_SECONDS - 1.0, False), (LABELS_SECONDS, True)])
def test_the_template_is_learned_from_a_closed_machine_after_the_time_for_its_labels(since: float, teaches: bool) -> None:
    coming = OrderedMachine("m", "o", (KIND.key,), 1.0, NOW - 300.0, node="a", ready=NOW - since)

    assert (memory(live(created=NOW - 30.0), ledger=Ledger(coming=(coming,))) == 40) is teaches


def test_templates_are_learned_only_from_the_newest_of_many_nodes() -> None:
    old = live("old", memory=33, created=NOW - 90_000.0)
    young = [live(f"n{number}", created=NOW - 7000.0 + number) for number in range(ASKED)]

    assert memory(old, *young) == 40
    assert memory(old, *young[1:]) == 33


def test_after_a_new_revision_templates_are_learned_only_from_newer_machines() -> None:
    first, second = (Policy((replace(POLICY.pools[0], revision=name),)) for name in "12")
    index = MachineIndex.of(Cluster.of([live()]), Inventory(NOW, (Instance("i-a", *KIND.key),)))
    learned = learn_from_nodes(Learned(), Ledger(), first, NOW - 3600.0, index=index, live_nodes=LiveNodes())
    changed = learn_from_nodes(learned, Ledger(), second, NOW - 1800.0, index=index, live_nodes=LiveNodes())

    assert memory(live(), policy=first, previous=learned) == 40
    assert memory(live(), policy=second, previous=changed) == 32
    assert memory(live(), live("b", memory=36, created=NOW - 900.0), policy=second, previous=changed) == 36


def test_a_taint_of_a_single_node_is_not_learned() -> None:
    taint = Taint("maintenance")

    assert learned_offering(live(taints=(taint,))).taints == ()
    assert learned_offering(live("a", taints=(taint,)), live("b", taints=(taint,))).taints == (taint,)


def test_templates_of_unchanged_kinds_are_not_learned_again() -> None:
    live_nodes, nodes = LiveNodes(), (live(),)
    first = live_nodes.shown(("main", "g.1"), KIND, nodes)

    assert live_nodes.shown(("main", "g.1"), KIND, nodes) is first
    assert live_nodes.shown(("main", "g.1"), KIND, (live(labels={PRODUCT: "other"}),)) is not first


def after(*changes: dict[str, Any], first: dict[str, Any]) -> Offering:
    """Return the offering as learned from its only node, an hour old, which was seen as ``first`` and has changed since."""
    live_nodes, learned = LiveNodes(), Learned()
    for moment, change in enumerate([first, *(first | change for change in changes)]):
        node = live(uid="u", created=NOW - 3600.0, **change)
        index = MachineIndex.of(Cluster.of([node]), Inventory(NOW, (Instance(node.provider_id, *KIND.key),)))
        learned = learn_from_nodes(learned, Ledger(), POLICY, NOW + moment, index=index, live_nodes=live_nodes)
    return corrected_policy(POLICY, learned).pools[0].offerings[0]


@pytest.mark.parametrize(
    "labels", [{"team": "blue"}, {}, {"team": "red", "put-there": "by hand"}], ids=["written over", "taken off", "put on"]
)
def test_a_label_that_a_person_changes_on_a_finished_node_is_not_learned(labels: dict[str, str]) -> None:
    made = {**KIND.labels, "team": "red"}
    learned = after({"labels": {**KIND.labels, **labels}}, first={"labels": made})

    assert learned.labels.get("team") == "red"
    assert "put-there" not in learned.labels


def test_a_taint_added_to_all_finished_nodes_is_not_learned() -> None:
    live_nodes, learned, taint = LiveNodes(), Learned(), Taint("example.com/repair", effect="NoSchedule")
    for moment, taints in enumerate([(), (taint,)]):
        nodes = [live(name, uid=name, created=NOW - 3600.0, taints=taints) for name in "ab"]
        machines = tuple(Instance(node.provider_id, *KIND.key) for node in nodes)
        index = MachineIndex.of(Cluster.of(nodes), Inventory(NOW, machines))
        learned = learn_from_nodes(learned, Ledger(), POLICY, NOW + moment, index=index, live_nodes=live_nodes)

    assert corrected_policy(POLICY, learned).pools[0].offerings[0].taints == KIND.taints


def test_a_label_that_feature_discovery_writes_minutes_later_is_learned() -> None:
    live_nodes, learned = LiveNodes(), Learned()
    for moment, labels in enumerate([{}, {"nvidia.com/mig.capable": "true"}]):
        node = live(uid="u", created=NOW - 100.0, labels={**KIND.labels, **labels})
        index = MachineIndex.of(Cluster.of([node]), Inventory(NOW, (Instance(node.provider_id, *KIND.key),)))
        learned = learn_from_nodes(learned, Ledger(), POLICY, NOW + 60.0 * moment, index=index, live_nodes=live_nodes)

    assert corrected_policy(POLICY, learned).pools[0].offerings[0].labels["nvidia.com/mig.capable"] == "true"


def test_the_instance_type_label_is_never_learned() -> None:
    wrong = live(labels={**KIND.labels, "node.kubernetes.io/instance-type": "m5.large"})

    assert learned_offering(wrong).labels.get("node.kubernetes.io/instance-type") == KIND.labels.get("node.kubernetes.io/instance-type")


def test_nothing_is_learned_from_a_node_that_has_lost_a_gpu() -> None:
    kind = offering("g.8", gpus=8, memory=32)
    whole = node("a", kind, provider_id="i-a", labels={**kind.labels, "nvidia.com/gpu.count": "8"})
    broken = replace(whole, allocatable={**kind.allocatable, "nvidia.com/gpu": 7}, labels={**kind.labels, "nvidia.com/gpu.count": "7"})
    policy, live_nodes, learned = Policy((pool(kind),)), LiveNodes(), Learned()
    for candidate in (whole, broken):
        index = MachineIndex.of(Cluster.of([candidate]), Inventory(NOW, (Instance(candidate.provider_id, *kind.key),)))
        learned = learn_from_nodes(learned, Ledger(), policy, NOW, index=index, live_nodes=live_nodes)
        live_nodes = LiveNodes()

    assert corrected_policy(policy, learned).pools[0].offerings[0].labels["nvidia.com/gpu.count"] == "8"
