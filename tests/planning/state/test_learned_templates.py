"""Learned templates: the actual resources of machines."""

from collections.abc import Mapping
from functools import reduce
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from tests.planning.building import GI, NOW, PRODUCT, ZONE, node, offering, pod, pool, room, spec

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.live_templates import template_differences
from gpuscaler.model.nodes import Node
from gpuscaler.model.pools import Offering, Policy
from gpuscaler.model.taints import Taint
from gpuscaler.planning.planner import plan
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.state import State
from gpuscaler.planning.state.learned_templates import FORGET_SECONDS, Learned, NodeObservation, ReadyNode, corrected_policy, step

SMALL, BIG = offering("small", 1.0, memory=32), offering("big", 3.0, memory=128)
POLICY = Policy((pool(SMALL, BIG),))


def ready_node(at: float = 0.0, *, memory: float = 30) -> ReadyNode:
    return ReadyNode(SMALL.key, at, room(gpus=1, memory=memory))


def after(*events: ReadyNode) -> Learned:
    return reduce(step, events, Learned())


def memory(learned: Learned) -> float:
    return corrected_policy(POLICY, learned).pools[0].offerings[0].allocatable["memory"] / GI


def made(learned: Learned) -> Plan:
    cluster = Cluster.of([pod("p", spec(gpus=1, memory=31))])
    return plan(cluster, State(), corrected_policy(POLICY, learned), NOW)


def test_a_node_with_less_than_promised_lowers_only_the_template_of_its_kind() -> None:
    small, big = corrected_policy(POLICY, after(ready_node())).pools[0].offerings

    assert small.allocatable["memory"] == 30 * GI
    assert big is BIG


def test_a_machine_type_that_turned_out_too_small_is_not_bought_again() -> None:
    assert [machine.instance_type for machine in made(Learned()).machines] == ["small"]
    assert [machine.instance_type for machine in made(after(ready_node())).machines] == ["big"]


def test_a_node_with_more_than_promised_does_not_raise_its_template() -> None:
    assert memory(after(ready_node(memory=64))) == 32


def test_a_resource_that_a_node_does_not_show_yet_stays_in_its_template() -> None:
    event = ReadyNode(SMALL.key, 0.0, {name: amount for name, amount in room(memory=30).items() if name != "nvidia.com/gpu"})

    assert corrected_policy(POLICY, after(event)).pools[0].offerings[0].allocatable["nvidia.com/gpu"] == 1


def test_the_newest_node_corrects_the_template_of_the_next() -> None:
    assert memory(after(ready_node(0.0, memory=20), ready_node(10.0, memory=31))) == 31
    assert memory(after(ready_node(10.0, memory=31), ready_node(0.0, memory=20))) == 31


def test_a_corrected_template_applies_to_every_zone_and_market_of_the_kind() -> None:
    other = offering("small", 0.4, market="spot", zone="z9", memory=32)
    (_, corrected_other) = corrected_policy(Policy((pool(SMALL, other),)), after(ready_node())).pools[0].offerings

    assert corrected_other.allocatable["memory"] == 30 * GI


def observation(*nodes: Node, at: float = NOW, revision: str = "", of: Offering = SMALL) -> NodeObservation:
    """An observation of live nodes of the small kind."""
    return NodeObservation(of.pool, of.instance_type, at, revision, template_differences(of, nodes) if nodes else None)


def like(of: Offering = SMALL, *, labels: Mapping[str, str | None] | None = None, **amounts: int) -> Node:
    changed = {**of.labels, **(labels or {})}
    kept = {key: value for key, value in changed.items() if value is not None}
    return replace(node("n", of), labels=kept, allocatable={**of.allocatable, **amounts})


def kind(learned: Learned, policy: Policy = POLICY) -> Offering:
    return corrected_policy(policy, learned).pools[0].offerings[0]


def test_templates_are_raised_to_the_lowest_amount_of_live_nodes() -> None:
    learned = step(Learned(), observation(like(memory=40 * GI, pods=250), like(memory=36 * GI, pods=110)))

    assert (kind(learned).allocatable["memory"], kind(learned).allocatable["pods"]) == (36 * GI, 110)


def test_resources_that_all_live_nodes_have_are_added_to_the_template() -> None:
    more: dict[str, Any] = {"hugepages-2Mi": 5 * GI, "vpc.amazonaws.com/efa": 4}
    learned = step(Learned(), observation(like(**more), like(**{**more, "hugepages-1Gi": GI})))

    allocatable = kind(learned).allocatable
    assert {name: allocatable.get(name) for name in (*more, "hugepages-1Gi")} == {
        "hugepages-2Mi": 5 * GI,
        "vpc.amazonaws.com/efa": 4,
        "hugepages-1Gi": None,
    }


GPU, MIG, CORES = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "aws.amazon.com/neuroncore"
WHOLE: dict[str, Any] = {GPU: 8}
SLICED: dict[str, Any] = {GPU: 0, MIG: 56}
SHARED: dict[str, Any] = {GPU: 32}
BROKEN: dict[str, Any] = {GPU: 7}


@pytest.mark.parametrize(
    ("nodes", "promised"),
    [
        ([SLICED], {MIG: 56}),
        ([{GPU: 4, MIG: 28}], {GPU: 4, MIG: 28}),
        ([SHARED, SHARED], {GPU: 32}),
        ([SLICED, WHOLE], WHOLE),
        ([BROKEN, SLICED], {MIG: 56}),
        ([BROKEN, {GPU: 0}], WHOLE),
    ],
    ids=["all divided", "some divided", "shared", "half of the nodes divided", "one broken", "all broken"],
)
def test_the_partitioning_or_sharing_of_gpus_is_learned_if_live_nodes_agree(nodes: list[dict[str, Any]], promised: dict[str, int]) -> None:
    eight = offering("small", 1.0, gpus=8)
    learned = step(Learned(), observation(*(like(eight, **amounts) for amounts in nodes), of=eight))

    allocatable = kind(learned, Policy((pool(eight),)))
    assert {name: amount for name, amount in allocatable.allocatable.items() if amount and name in (GPU, MIG)} == promised


def test_the_number_of_neuron_cores_is_learned_from_live_nodes() -> None:
    """EC2 reports eight cores for a Trainium2 device; the device plugin shows four logical cores of two each."""
    trainium = replace(SMALL, allocatable={**room(memory=32), "aws.amazon.com/neuron": 16, CORES: 128})
    half: dict[str, Any] = {CORES: 64}
    learned = step(Learned(), observation(like(trainium, **half), of=trainium))

    assert kind(learned, Policy((pool(trainium),))).allocatable[CORES] == 64


def test_the_learned_partitioning_of_gpus_expires_after_a_day_without_confirmation() -> None:
    eight = offering("small", 1.0, gpus=8)
    learned = step(Learned(), observation(like(eight, **SLICED), of=eight))
    late = step(learned, observation(at=NOW + FORGET_SECONDS + 1.0, of=eight))

    assert kind(late, Policy((pool(eight),))).allocatable[GPU] == 8


def test_the_number_of_gpus_is_not_learned_from_live_nodes() -> None:
    none: dict[str, Any] = {"nvidia.com/gpu": 0}

    assert kind(step(Learned(), observation(like(**none)))).allocatable["nvidia.com/gpu"] == 1


def test_the_newest_machine_can_only_lower_the_amounts_learned_from_live_nodes() -> None:
    learned = step(Learned(), observation(like(memory=40 * GI)))

    assert kind(step(learned, ready_node(NOW + 1.0, memory=64))).allocatable["memory"] == 40 * GI
    assert kind(step(learned, ready_node(NOW + 1.0, memory=30))).allocatable["memory"] == 30 * GI


def test_labels_and_taints_are_learned_except_for_place_and_market() -> None:
    taint = Taint("dedicated", "ml")
    nodes = (replace(like(labels={"team": "ml", ZONE: "z9", "karpenter.sh/capacity-type": "spot", PRODUCT: None}), taints=(taint,)),) * 2

    offering = kind(step(Learned(), observation(*nodes)))

    assert (offering.labels["team"], PRODUCT in offering.labels, offering.taints) == ("ml", False, (taint,))
    assert (offering.labels[ZONE], offering.labels["karpenter.sh/capacity-type"]) == (SMALL.labels[ZONE], "on-demand")


def test_corrections_of_a_template_are_dropped_with_a_new_revision() -> None:
    learned = step(Learned(), observation(like(memory=40 * GI, labels={PRODUCT: None}), revision="1"))
    newer = step(learned, observation(at=NOW + 60.0, revision="2"))

    assert kind(learned).allocatable["memory"] == 40 * GI
    assert kind(newer) == SMALL
    (lesson,) = newer.lessons
    assert (lesson.revision, lesson.revised) == ("2", NOW + 60.0)


def test_learned_labels_expire_after_a_day_without_confirmation_but_amounts_stay() -> None:
    learned = step(Learned(), observation(like(memory=40 * GI, labels={PRODUCT: None})))

    early, late = (step(learned, observation(at=NOW + after)) for after in (FORGET_SECONDS - 1.0, FORGET_SECONDS + 1.0))

    assert early == learned
    assert (PRODUCT in kind(late).labels, kind(late).allocatable["memory"]) == (True, 40 * GI)


def test_learned_templates_stay_the_same_if_nodes_show_the_same_again() -> None:
    learned = step(Learned(), observation(like(memory=40 * GI)))

    assert step(learned, observation(like(memory=40 * GI), at=NOW + 60.0)) is learned
    assert step(learned, observation(like(memory=40 * GI), at=NOW + 7200.0)) is not learned


def test_the_message_about_a_corrected_template_names_both_amounts() -> None:
    (lesson,) = step(Learned(), observation(like(memory=40 * GI))).lessons

    assert lesson.shown.words == ("small: a node of this pool offers 40Gi of memory, the template 32Gi; the nodes take precedence",)


def test_a_policy_is_returned_unchanged_if_no_template_is_corrected() -> None:
    assert corrected_policy(POLICY, Learned()) is POLICY
    assert corrected_policy(POLICY, after(ready_node(memory=32))) is POLICY


def test_learned_templates_survive_a_restart() -> None:
    learned = step(after(ready_node()), observation(like(memory=40 * GI, labels={PRODUCT: None}), revision="7"))

    assert msgspec.json.decode(msgspec.json.encode(learned), type=Learned) == learned
