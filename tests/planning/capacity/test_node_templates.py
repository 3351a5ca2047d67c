"""Templates of new machines: their room, labels and taints, the pods that may use them, and the choice by the cloud."""

from typing import Any

import pytest
from tests.planning.building import (
    ARCH,
    GI,
    TYPE,
    ZONE,
    affinity,
    bought,
    daemon,
    offering,
    planned,
    pod,
    pods,
    pool,
    reasons,
    spec,
    unplaced,
    zones,
)

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.selectors import NodeSelectorTerm, Requirement
from gpuscaler.model.taints import Taint, Toleration
from gpuscaler.planning.plans import Choice
from gpuscaler.planning.state import State


def test_capacity_for_daemonset_pods_is_not_available_to_other_pods() -> None:
    agent = daemon("agent", spec(cpu=1, memory=2))
    without = planned(pods("p", 2, spec(cpu=4)), pool(offering("c.8", gpus=0, cpu=8)))
    with_it = planned([agent, *pods("p", 2, spec(cpu=4))], pool(offering("c.8", gpus=0, cpu=8)))
    assert (bought(without), bought(with_it)) == ({"c.8": 1}, {"c.8": 2})


def test_a_daemonset_pod_counts_towards_the_pod_limit_of_a_node() -> None:
    full = offering("c.8", gpus=0, pods=2)
    made = planned([daemon("agent", spec()), *pods("p", 2, spec())], pool(full))
    assert bought(made) == {"c.8": 2}


@pytest.mark.parametrize(
    "elsewhere",
    [
        spec(cpu=8, node_selector=((TYPE, "other"),)),
        spec(cpu=8, node_affinity=affinity((ZONE, "In", "z9"))),
    ],
    ids=["selector", "affinity"],
)
def test_daemonsets_that_do_not_run_on_a_machine_take_no_capacity_there(elsewhere: PodSpec) -> None:
    made = planned([daemon("agent", elsewhere), *pods("p", 2, spec(cpu=4))], pool(offering("c.8", gpus=0, cpu=8)))
    assert bought(made) == {"c.8": 1}


def test_a_daemonset_counts_on_a_tainted_machine_only_if_it_tolerates_the_taint() -> None:
    tainted = pool(offering("g.1", cpu=8, taints=(Taint("gpu", "yes"),)))
    everything = (Toleration(operator="Exists"),)
    waiting = pod("p", spec(gpus=1, cpu=8, tolerations=everything))
    assert bought(planned([daemon("agent", spec(cpu=1)), waiting], tainted)) == {"g.1": 1}
    assert unplaced(planned([daemon("agent", spec(cpu=1, tolerations=everything)), waiting], tainted)) == ["p"]


def test_capacity_reserved_by_the_kubelet_is_not_available_to_pods() -> None:
    """The allocatable resources of an offering count, not the nominal size of the machine."""
    nearly = offering("c.8", gpus=0, cpu=7.91, memory=28.5)
    assert bought(planned(pods("p", 2, spec(cpu=4)), pool(nearly))) == {"c.8": 2}
    assert unplaced(planned([pod("p", spec(cpu=8))], pool(nearly))) == ["p"]


def test_the_reason_of_an_unplaced_pod_names_what_daemonsets_request() -> None:
    made = planned([daemon("agent", spec(cpu=1)), pod("p", spec(gpus=1, cpu=8))])
    (reason,) = reasons(made, "p")
    assert reason.excluded_by == "resource"
    assert reason.detail == "g.1 in z1: 8 cpu requested, an empty machine has 7 (1 go to DaemonSets)"


def test_a_machine_of_another_architecture_serves_only_pods_that_admit_it() -> None:
    menu = pool(offering("c.8", 1.0, gpus=0), offering("arm.8", 0.5, gpus=0, labels={ARCH: "arm64"}))
    either = spec(cpu=8, node_affinity=affinity((ARCH, "In", "arm64", "amd64")))
    assert bought(planned([pod("p", spec(cpu=8))], menu)) == {"c.8": 1}
    assert bought(planned([pod("p", spec(cpu=8, node_selector=((ARCH, "arm64"),)))], menu)) == {"arm.8": 1}
    assert bought(planned([pod("p", either)], menu)) == {"arm.8": 1}


def test_a_pool_with_a_configured_architecture_serves_every_pod() -> None:
    arm = pool(offering("arm.8", 0.5, gpus=0, labels={ARCH: "arm64"}), arch="arm64")
    assert bought(planned([pod("p", spec(cpu=8))], arm)) == {"arm.8": 1}


def test_a_pod_gets_only_machines_of_the_markets_that_it_names() -> None:
    menu = pool(offering("g.1", 0.3, market="spot"), offering("g.1", 1.0))
    safe = planned([pod("p", options={"market": ("on-demand", "reserved")})], menu)
    anything = planned([pod("p", options={"market": ("any",)})], menu)
    assert [machine.market for machine in safe.machines] == ["on-demand"]
    assert [machine.market for machine in anything.machines] == ["spot"]


def test_the_next_offering_is_bought_instead_of_a_blocked_one() -> None:
    menu = pool(*zones(names=("z1", "z2")))
    dry = State(blocked_offerings=frozenset({OfferingKey("main", "on-demand", "g.1", "z1")}))
    made = planned([pod("p")], menu, state=dry)
    assert [machine.zone for machine in made.machines] == ["z2"]


def test_the_reason_of_an_unplaced_pod_says_that_no_offering_of_the_pool_can_be_bought() -> None:
    dry = State(blocked_offerings=frozenset({OfferingKey("main", "on-demand", "g.1", "z1")}))
    made = planned([pod("p")], state=dry)
    assert [(r.excluded_by, r.detail) for r in reasons(made, "p")] == [("market", "no offering of this pool can be bought now")]


def test_pools_of_higher_priority_are_used_first_regardless_of_price() -> None:
    preferred = pool(offering("h.1", 3.0, pool="committed"), priority=10, max=2)
    made = planned(pods("p", 3), preferred, pool(offering("g.1", 1.0)))
    assert bought(made) == {"h.1": 2, "g.1": 1}


def test_within_one_pool_priority_the_price_decides() -> None:
    made = planned(pods("p", 3), pool(offering("h.1", 3.0, pool="dear"), priority=5), pool(offering("g.1", 1.0), priority=5))
    assert bought(made) == {"g.1": 3}


def test_a_purchase_of_an_offering_set_names_all_members_at_the_highest_price() -> None:
    made = planned([pod("p")], pool(offering("g.1", 1.0), offering("h.1", 1.5, zone="z2"), chooser="cloud"))
    (machine,) = made.machines
    assert machine.choices == (Choice("g.1", "on-demand", "z1", 1.0), Choice("h.1", "on-demand", "z2", 1.5))
    assert machine.price_per_hour == 1.5


def test_a_purchase_of_a_single_offering_lists_no_choices() -> None:
    (machine,) = planned([pod("p")], pool(*zones())).machines
    assert machine.choices == ()


def test_a_pod_must_fit_every_member_of_an_offering_set() -> None:
    set_of_two = pool(offering("g.1", 1.0), offering("g.2", 1.5, gpus=2), chooser="cloud")
    pinned = spec(gpus=1, node_selector=((TYPE, "g.2"),))
    made = planned([*pods("p", 2), pod("two", spec(gpus=2)), pod("pinned", pinned)], set_of_two)
    assert len(made.machines) == 2
    assert unplaced(made) == ["pinned", "two"]


TWO_TYPES = [*zones("g.1", 1.0, names=("z1", "z2")), *zones("g.2", 1.5, gpus=2, names=("z1", "z2"))]


@pytest.mark.parametrize("zone", ["z1", "z2"])
def test_a_pod_of_one_zone_gets_a_machine_there_if_purchases_name_the_zone(zone: str) -> None:
    made = planned([pod("p", spec(gpus=1, node_selector=((ZONE, zone),)))], pool(*TWO_TYPES, chooser="cloud", names_zone=True))
    (machine,) = made.machines
    assert machine.zone == zone
    assert {(choice.instance_type, choice.zone) for choice in machine.choices} == {("g.1", zone), ("g.2", zone)}


def test_the_reason_of_a_pod_that_needs_a_zone_advises_one_group_per_zone() -> None:
    made = planned([pod("p", spec(gpus=1, node_selector=((ZONE, "z2"),)))], pool(*TWO_TYPES, chooser="cloud"))
    (reason,) = reasons(made, "p")
    assert (
        "the cloud chooses among z1, z2 for each machine of this pool, and the pod fits only in z2: make one pool per zone" in reason.detail
    )


def test_a_pod_must_fit_every_member_of_the_offering_set_of_its_zone() -> None:
    made = planned([pod("two", spec(gpus=2))], pool(*TWO_TYPES, chooser="cloud", names_zone=True))
    assert unplaced(made) == ["two"]
    (reason,) = reasons(made, "two")
    assert "make one pool per zone" not in reason.detail


def test_pods_that_prefer_a_zone_get_the_offering_set_of_that_zone() -> None:
    liking = (10, NodeSelectorTerm((Requirement(ZONE, "In", ("z2",)),)))
    made = planned([pod("p", spec(gpus=1, preferred_nodes=(liking,)))], pool(*TWO_TYPES, chooser="cloud", names_zone=True))
    assert [machine.zone for machine in made.machines] == ["z2"]


def test_an_offering_set_is_bought_as_long_as_one_member_is_not_blocked() -> None:
    mixed = pool(*zones(names=("z1", "z2")), chooser="cloud")
    dry = frozenset({OfferingKey("main", "on-demand", "g.1", "z1")})
    both = dry | {OfferingKey("main", "on-demand", "g.1", "z2")}
    assert len(planned([pod("p")], mixed, state=State(blocked_offerings=dry)).machines) == 1
    assert unplaced(planned([pod("p")], mixed, state=State(blocked_offerings=both))) == ["p"]


def test_pods_that_do_not_tolerate_the_taints_of_a_pool_get_none_of_its_machines() -> None:
    tainted = pool(offering("g.1", taints=(Taint(key="gpu", value="yes"),)))
    welcome = spec(gpus=1, tolerations=(Toleration("gpu", "Equal", "yes"),))
    made = planned([pod("p"), pod("q", welcome)], tainted)
    assert unplaced(made) == ["p"]
    assert [machine.pods for machine in made.machines] == [("default/q",)]


def test_hugepages_and_ephemeral_storage_are_planned_like_other_resources() -> None:
    pages: dict[str, Any] = {"hugepages-2Mi": 2 * GI, "ephemeral-storage": 100 * GI}
    menu = pool(offering("c.1", 0.5, gpus=0), offering("c.2", 1.0, gpus=0, **pages))
    made = planned(
        [pod("p", spec(requests={"cpu": 100, "hugepages-2Mi": GI})), pod("q", spec(requests={"ephemeral-storage": 60 * GI}))], menu
    )
    assert bought(made) == {"c.2": 1}
