"""Spread, affinity, anti-affinity and host ports over existing, ordered and bought machines."""

from typing import Any

import pytest
from tests.planning.building import (
    HOST,
    ZONE,
    affinity,
    bought,
    near,
    node,
    offering,
    placed,
    planned,
    pod,
    pods,
    pool,
    reasons,
    shares,
    spec,
    spread,
    unplaced,
    zones,
    zones_of,
)
from tests.planning.replaying import Case, assert_comes_true

from gpuscaler.model.cluster import Item
from gpuscaler.model.pods import HostPort, PodAffinityTerm, VolumeUse
from gpuscaler.model.pools import Policy
from gpuscaler.model.selectors import LabelSelector, Requirement
from gpuscaler.model.storage import PersistentVolume, PersistentVolumeClaim
from gpuscaler.model.workloads import Namespace
from gpuscaler.planning.state import State, Upcoming

RACK = "example.com/rack"
WEB = {"app": "web"}
EIGHT = pool(*zones("g.8", 8.0, gpus=8))


def test_pods_that_spread_over_zones_get_machines_in_every_zone() -> None:
    made = planned(pods("p", 7, spec(gpus=1, spread=(spread(ZONE, app="web"),)), labels=WEB), EIGHT)
    assert sorted(zones_of(made).values()) == [2, 2, 3]
    assert bought(made) == {"g.8": 3}


def test_spread_constraints_count_running_pods() -> None:
    nodes = [node(f"in-{of.zone}", of) for of in zones("g.8", gpus=8)]
    runs = [*pods("old", 2, on="in-z1", labels=WEB), pod("lone", on="in-z2", labels=WEB)]
    made = planned([*nodes, *runs, *pods("p", 3, spec(gpus=1, spread=(spread(ZONE, app="web"),)), labels=WEB)], EIGHT)
    assert sorted(placed(made).values()) == ["in-z2", "in-z3", "in-z3"]


@pytest.mark.parametrize("key", [HOST, ZONE])
def test_no_machine_is_bought_if_pods_can_spread_over_existing_machines(key: str) -> None:
    nodes = [node(f"in-{of.zone}", of) for of in zones("g.2", gpus=2)]
    runs = [pod(f"old-{of.name}", spec(gpus=1), on=of.name, labels=WEB) for of in nodes]
    made = planned([*nodes, *runs, pod("p", spec(gpus=1, spread=(spread(key, app="web"),)), labels=WEB)], pool(*zones()))
    assert list(placed(made)) == ["p"]
    assert made.machines == ()


@pytest.mark.parametrize("key", [HOST, ZONE])
def test_spreading_pods_that_do_not_fit_on_existing_machines_also_get_new_ones(key: str) -> None:
    there: list[Item] = [node("a", zones("g.4", gpus=4)[0]), *pods("old", 2, spec(gpus=1), on="a", labels=WEB)]
    even = spec(gpus=1, spread=(spread(key, app="web"),))
    case = Case((*there, *pods("p", 4, even, labels=WEB)), Policy((pool(*zones()),)))
    made = case.plan()
    assert list(placed(made).values()) == ["a", "a"]
    assert bought(made) == {"g.1": 2}
    assert_comes_true(case, made)


def test_pods_spread_over_existing_machines_although_one_is_ordered() -> None:
    there: list[Item] = [node("a", offering("g.4", gpus=4)), pod("old", spec(gpus=1), on="a", labels=WEB)]
    waiting = pods("p", 3, spec(gpus=1, spread=(spread(HOST, app="web"),)), labels=WEB)
    made = planned([*there, *waiting], state=State(upcoming=(Upcoming("m-1", "main", "g.1", "on-demand", "z1"),)))
    assert set(placed(made).values()) == {"a"}


def test_higher_priority_pods_take_existing_machines_before_spreading_pods() -> None:
    even = pods("even", 1, spec(gpus=1, spread=(spread(ZONE, app="web"),)), labels=WEB)
    made = planned([node("a"), *even, pod("high", spec(gpus=1, priority=10))])
    assert placed(made) == {"high": "a"}


@pytest.mark.parametrize("gpus", [2, 4])
def test_a_gang_that_spreads_takes_existing_machines_if_they_hold_all_of_it(gpus: int) -> None:
    there: list[Item] = [node("a", offering("g.4", gpus=gpus)), pod("old", on="a", labels=WEB)]
    even = spec(gpus=1, spread=(spread(HOST, app="web"),))
    made = planned([*there, *pods("p", 3, even, labels=WEB, options={"gang": "g"})])
    assert list(placed(made).values()) == (["a"] * 3 if gpus == 4 else [])
    assert bought(made) == ({} if gpus == 4 else {"g.1": 3})


def test_spread_over_zones_counts_pods_of_ordered_machines() -> None:
    coming = Upcoming("m-1", "main", "g.4", "on-demand", "z1")
    waiting = pods("p", 6, spec(gpus=1, spread=(spread(ZONE, app="web"),)), labels=WEB)
    made = planned(waiting, pool(*zones("g.4", 4.0, gpus=4)), state=State(upcoming=(coming,)))
    assert list(placed(made).values()) == ["m-1", "m-1"]
    assert zones_of(made) == {"z2": 2, "z3": 2}


@pytest.mark.parametrize("key", [HOST, ZONE])
def test_nothing_is_bought_for_pods_that_all_fit_on_ordered_machines(key: str) -> None:
    coming = tuple(Upcoming(f"m-{zone}", "main", "g.4", "on-demand", zone) for zone in ("z1", "z2"))
    waiting = pods("p", 6, spec(gpus=1, spread=(spread(key, app="web"),)), labels=WEB)
    case = Case(tuple(waiting), Policy((pool(*zones("g.4", 4.0, gpus=4)),)), State(upcoming=coming))
    made = case.plan()
    assert sorted(placed(made).values()) == ["m-z1"] * 3 + ["m-z2"] * 3
    assert made.machines == ()
    assert_comes_true(case, made)


def test_pods_keep_their_ordered_machines_within_the_skew_when_empty_machines_are_bought() -> None:
    coming = tuple(Upcoming(f"m-{number}", "main", "g.4", "on-demand", "z1") for number in range(2))
    even = pods("p", 4, spec(gpus=1, spread=(spread(HOST, app="web"),)), labels=WEB)
    menu = pool(*zones("g.4", 4.0, gpus=4))
    case = Case((*even, *pods("other", 5, spec(gpus=1))), Policy((menu,)), State(upcoming=coming))
    made = case.plan()
    assert sorted(home for name, home in placed(made).items() if name.startswith("p-")) == ["m-0", "m-1"]
    assert bought(made) == {"g.4": 2}
    assert_comes_true(case, made)


def test_a_pool_at_its_maximum_in_one_zone_limits_the_pods_in_other_zones() -> None:
    menu = (pool(*zones("g.1", names=("z1", "z2"), pool="grows")), pool(offering("g.1", zone="z3", pool="full"), max=1))
    made = planned(pods("p", 9, spec(gpus=1, spread=(spread(ZONE, app="web"),)), labels=WEB), *menu)
    counts = zones_of(made)
    assert max(counts.values()) - min(counts.values()) <= 1
    assert counts["z3"] == 1


def test_pods_with_zone_affinity_all_get_one_zone() -> None:
    made = planned(pods("p", 5, spec(gpus=1, affinity=(near(ZONE, app="web"),)), labels=WEB), pool(*zones("g.2", 2.0, gpus=2)))
    assert list(zones_of(made).values()) == [5]


def test_pods_with_affinity_follow_running_pods() -> None:
    runs: list[Item] = [node("a", offering("g.2", zone="z3", gpus=2)), pod("old", spec(gpus=2), on="a", labels=WEB)]
    made = planned([*runs, *pods("p", 2, spec(gpus=1, affinity=(near(ZONE, app="web"),)), labels=WEB)], pool(*zones()))
    assert zones_of(made) == {"z3": 2}


def test_pods_with_host_anti_affinity_get_a_machine_each() -> None:
    made = planned(pods("p", 4, spec(gpus=1, anti_affinity=(near(HOST, app="web"),)), labels=WEB), EIGHT)
    assert shares(made) == [1, 1, 1, 1]


def test_pods_with_anti_affinity_avoid_nodes_with_a_matching_pod() -> None:
    runs: list[Item] = [node("a", offering("g.8", gpus=8)), node("b", offering("g.8", gpus=8)), pod("old", on="a", labels=WEB)]
    made = planned([*runs, *pods("p", 2, spec(gpus=1, anti_affinity=(near(HOST, app="web"),)), labels=WEB)], EIGHT)
    assert list(placed(made).values()) == ["b"]
    assert bought(made) == {"g.8": 1}


def test_anti_affinity_of_one_pod_class_keeps_another_class_off_its_machine() -> None:
    proud = spec(gpus=1, anti_affinity=(near(HOST, app="web"),))
    made = planned([*pods("proud", 1, proud), *pods("p", 2, labels=WEB)], EIGHT)
    assert sorted(machine.pods for machine in made.machines) == [("default/p-0", "default/p-1"), ("default/proud-0",)]


def test_anti_affinity_of_a_running_pod_keeps_pending_pods_away() -> None:
    runs = pod("old", spec(gpus=1, anti_affinity=(near(HOST, app="web"),)), on="a")
    made = planned([node("a", offering("g.8", gpus=8)), runs, pod("p", labels=WEB)], EIGHT)
    assert (placed(made), bought(made)) == ({}, {"g.8": 1})


def test_pods_with_zone_anti_affinity_get_a_zone_each_and_the_rest_has_a_reason() -> None:
    made = planned(pods("p", 5, spec(gpus=1, anti_affinity=(near(ZONE, app="web"),)), labels=WEB), EIGHT)
    assert zones_of(made) == {"z1": 1, "z2": 1, "z3": 1}
    assert unplaced(made) == ["p-3", "p-4"]
    assert reasons(made, "p-4")[0].excluded_by == "topology"


def test_pods_with_the_same_host_port_get_a_machine_each() -> None:
    made = planned([*pods("p", 2, spec(cpu=1, host_ports=(HostPort(80),))), *pods("q", 2, spec(cpu=1, host_ports=(HostPort(81),)))], EIGHT)
    assert shares(made) == [2, 2]


def test_a_pod_is_not_placed_on_a_node_where_its_host_port_is_taken() -> None:
    web = spec(cpu=1, host_ports=(HostPort(80),))
    made = planned([node("a"), node("b"), pod("old", web, on="a"), *pods("p", 2, web)])
    assert list(placed(made).values()) == ["b"]
    assert bought(made) == {"g.1": 1}


@pytest.mark.parametrize(("skew", "machines"), [(1, 6), (2, 3), (3, 2)])
def test_spread_over_hosts_puts_at_most_max_skew_pods_on_a_new_machine(skew: int, machines: int) -> None:
    made = planned(pods("p", 6, spec(gpus=1, spread=(spread(HOST, skew=skew, app="web"),)), labels=WEB), EIGHT)
    assert len(made.machines) == machines
    assert max(shares(made)) <= skew


def test_spread_constraints_over_hosts_and_zones_hold_together() -> None:
    both = spec(gpus=1, spread=(spread(HOST, app="web"), spread(ZONE, app="web")))
    made = planned(pods("p", 6, both, labels=WEB), EIGHT)
    assert shares(made) == [1] * 6
    assert zones_of(made) == {"z1": 2, "z2": 2, "z3": 2}


def test_a_machine_opens_after_that_of_the_planned_pod_that_its_own_pod_has_affinity_to() -> None:
    follower = spec(gpus=1, affinity=(near(ZONE, app="web"),))
    made = planned([pod("lead", spec(gpus=1, node_selector=((ZONE, "z2"),)), labels=WEB), pod("follow", follower)], pool(*zones()))
    lead, follow = sorted(made.machines, key=lambda machine: machine.pods, reverse=True)
    assert lead.pods == ("default/lead",)
    assert (follow.zone, follow.opens_after) == ("z2", (lead.id,))
    assert lead.opens_after == ()


def test_a_pod_with_host_affinity_to_a_pod_of_the_same_plan_gets_the_same_machine() -> None:
    follower = spec(cpu=1, affinity=(near(HOST, app="web"),))
    made = planned([pod("lead", labels=WEB), pod("follow", follower)])
    assert [machine.pods for machine in made.machines] == [("default/follow", "default/lead")]


def test_chains_of_affinity_are_placed_in_order() -> None:
    chain = [pod("a", spec(gpus=1), labels={"app": "a"})]
    chain += [pod(name, spec(gpus=1, affinity=(near(ZONE, app=after),)), labels={"app": name}) for name, after in (("b", "a"), ("c", "b"))]
    made = planned(chain, pool(*zones()))
    assert len(zones_of(made)) == 1
    assert made.unplaced == ()


def test_a_pod_whose_affinity_matches_no_pod_is_unplaced_with_the_reason() -> None:
    made = planned([pod("p", spec(gpus=1, affinity=(near(ZONE, app="unknown"),)))], pool(*zones()))
    assert unplaced(made) == ["p"]
    assert reasons(made, "p")[0].excluded_by == "topology"


def test_pods_with_host_affinity_are_all_on_one_machine() -> None:
    made = planned(pods("p", 3, spec(gpus=2, affinity=(near(HOST, app="web"),)), labels=WEB), EIGHT)
    assert shares(made) == [3]


def test_pods_with_host_affinity_are_not_divided_between_two_nodes() -> None:
    items: list[Item] = [node(name, offering("g.2", gpus=2)) for name in "ab"]
    made = planned([*items, *pods("p", 4, spec(gpus=1, affinity=(near(HOST, app="web"),)), labels=WEB)], EIGHT)
    homes = [*placed(made).values(), *(machine.id for machine in made.machines if machine.pods)]
    assert len(set(homes)) == 1


def test_pods_with_host_affinity_that_exceed_one_machine_are_not_all_placed() -> None:
    made = planned(pods("p", 9, spec(gpus=1, affinity=(near(HOST, app="web"),)), labels=WEB), EIGHT)
    assert len(made.machines) <= 1
    assert len(made.unplaced) == 9 - sum(shares(made))


def test_min_domains_above_the_number_of_zones_limits_pods_per_zone_to_max_skew() -> None:
    few = spread(ZONE, app="web")
    asks = spec(gpus=1, spread=(type(few)(ZONE, 1, True, few.selector, min_domains=4),))
    made = planned(pods("p", 6, asks, labels=WEB), EIGHT)
    assert zones_of(made) == {"z1": 1, "z2": 1, "z3": 1}
    assert len(made.unplaced) == 3


def test_pods_of_sizes_that_no_single_machine_holds_still_spread_over_zones() -> None:
    wide: dict[str, Any] = {"spread": (spread(ZONE, app="web"),)}
    menu = pool(*zones("c.32", gpus=0, cpu=32, memory=32), *zones("r.4", gpus=0, cpu=4, memory=128))
    made = planned([*pods("p", 3, spec(cpu=30, **wide), labels=WEB), *pods("q", 3, spec(memory=100, **wide), labels=WEB)], menu)
    assert bought(made) == {"c.32": 3, "r.4": 3}
    assert zones_of(made) == {"z1": 2, "z2": 2, "z3": 2}


def test_pods_with_affinity_to_pods_left_unplaced_by_a_limit_are_unplaced_too() -> None:
    """A machine could be bought for the pod with affinity, but the pod that it needs gets none."""
    lead = spec(gpus=8, priority=1, affinity=(near(ZONE, app="web"),))
    menu = (pool(offering("g.8", 8.0, gpus=8), max=0), pool(offering("g.1", pool="small")))
    made = planned([pod("lead", lead, labels=WEB), pod("follow", spec(gpus=1, affinity=(near(ZONE, app="web"),)))], *menu)
    assert made.machines == ()
    assert unplaced(made) == ["follow", "lead"]


def test_pods_with_affinity_to_each_other_by_host_and_zone_get_one_machine() -> None:
    both = spec(gpus=2, affinity=(near(HOST, app="web"), near(ZONE, app="web")))
    assert shares(planned(pods("p", 3, both, labels=WEB), EIGHT)) == [3]


def test_pods_that_spread_over_zones_get_no_machine_whose_zone_the_cloud_chooses() -> None:
    mixed = pool(*zones("g.8", 8.0, gpus=8), chooser="cloud")
    made = planned(pods("p", 3, spec(gpus=1, spread=(spread(ZONE, app="web"),)), labels=WEB), mixed)
    assert (made.machines, len(made.unplaced)) == ((), 3)


def test_no_machine_is_bought_in_a_rack_that_anti_affinity_of_a_running_pod_excludes() -> None:
    """The pending pods have only a rule about zones, so none of their own requirements distinguishes the racks of a zone."""
    racks = [
        offering(f"g.{rack}", price, labels={RACK: rack}, zone=zone) for zone in ("z1", "z2") for rack, price in (("r1", 1.0), ("r2", 1.5))
    ]
    other = offering("c.1", gpus=0, labels={RACK: "r1"})
    proud = pod("proud", spec(cpu=1, anti_affinity=(near(RACK, app="web"),)), on="a")
    made = planned([node("a", other), proud, *pods("p", 2, spec(gpus=1, spread=(spread(ZONE, app="web"),)), labels=WEB)], pool(*racks))
    assert made.unplaced == ()
    assert [machine.price_per_hour for machine in made.machines] == [1.5, 1.5]


def test_pods_are_placed_after_the_pods_that_their_spread_constraint_counts() -> None:
    """The counted pod has no rule and binds to the node at once; the other pod must be within the skew after that."""
    spreads = spec(gpus=1, spread=(spread(ZONE, app="web"),))
    here: list[Item] = [node("a", offering("c.8", gpus=0)), node("b", offering("c.8", gpus=0, zone="z2"), unschedulable=True)]
    case = Case(
        (*here, *pods("counted", 2, spec(cpu=1), labels=WEB), pod("p", spreads, labels=WEB)), Policy((pool(*zones(names=("z1", "z2"))),))
    )
    made = case.plan()
    assert zones_of(made) == {"z2": 1}
    assert_comes_true(case, made)


def test_a_machine_whose_zone_the_cloud_chooses_satisfies_no_zone_rule() -> None:
    mixed = pool(*zones("c.8", gpus=0), chooser="cloud")
    homeless = spec(cpu=1, affinity=(near(HOST, app="web"),), node_affinity=affinity((ZONE, "DoesNotExist")))
    apart = spec(cpu=1, affinity=(near(HOST, app="web"),), anti_affinity=(near(ZONE, app="apart"),))
    made = planned([pod("lead", spec(cpu=1), labels=WEB), pod("homeless", homeless), pod("apart", apart, labels={"app": "apart"})], mixed)
    assert unplaced(made) == ["apart", "homeless"]


def test_spread_constraints_over_racks_and_zones_hold_together() -> None:
    """A pod that spreads over racks cannot go to nodes without a rack, regardless of their zones."""
    both = spec(gpus=1, spread=(spread(ZONE, app="web"), spread(RACK, app="other")))
    bare: list[Item] = [node(f"n-{zone.zone}", zone) for zone in zones()]
    made = planned([*bare, *pods("p", 3, both, labels=WEB)], pool(*zones(labels={RACK: "r1"})))
    assert placed(made) == {}
    assert zones_of(made) == {"z1": 1, "z2": 1, "z3": 1}


def test_one_machine_is_bought_for_pods_of_a_claim_that_only_one_pod_may_use() -> None:
    volume = PersistentVolume("v", claim="default/data", driver="csi.example.com", handle="v", phase="Bound")
    claim = PersistentVolumeClaim("default", "data", "v", bound=True, phase="Bound", access_modes=("ReadWriteOncePod",))
    made = planned([volume, claim, *pods("p", 3, spec(gpus=1, volumes=(VolumeUse(claim="data"),)))])
    assert bought(made) == {"g.1": 1}
    assert unplaced(made) == ["p-1", "p-2"]
    assert reasons(made, "p-1")[0].excluded_by == "volume"


def test_two_pods_that_mount_one_disk_for_writing_get_a_machine_each() -> None:
    disk = (VolumeUse(driver="gcePersistentDisk", handle="disk-1"),)
    made = planned([pod("p", spec(cpu=1, volumes=disk)), pod("q", spec(cpu=2, volumes=disk))], EIGHT)
    assert shares(made) == [1, 1]


def test_anti_affinity_to_namespaces_without_a_label_applies_to_all_namespaces() -> None:
    """kube-scheduler also matches a namespace selector against an empty label set, so DoesNotExist includes namespaces with the label."""
    red = Namespace("default", {"team": "red"})
    no_team = LabelSelector((Requirement("team", "DoesNotExist"),))
    apart = PodAffinityTerm(HOST, near(HOST, app="web").selector, (), no_team)
    made = planned([red, *pods("p", 3, spec(gpus=1, anti_affinity=(apart,)), labels=WEB)], EIGHT)
    assert shares(made) == [1, 1, 1]


def test_no_machine_is_bought_for_a_pod_with_an_unreadable_rule() -> None:
    garbled = PodAffinityTerm(HOST, LabelSelector((Requirement("app", "In", ("not a label",)),)), ("default",))
    made = planned([pod("p", spec(gpus=1, anti_affinity=(garbled,)))])
    assert bought(made) == {}
    assert reasons(made, "p")[0].excluded_by == "topology"


def test_a_machine_with_its_own_matching_pod_opens_without_waiting_for_others() -> None:
    follower = spec(gpus=1, affinity=(near(ZONE, app="web"),))
    there: list[Item] = [node("a", offering("g.1", zone="z2")), pod("old", on="a", labels=WEB)]
    near_old = planned(
        [*there, pod("lead", spec(gpus=1, node_selector=((ZONE, "z2"),)), labels=WEB), pod("follow", follower)], pool(*zones())
    )
    assert [machine.opens_after for machine in near_old.machines] == [(), ()]


def test_a_machine_opens_after_only_one_of_several_with_a_matching_pod() -> None:
    follower = spec(gpus=1, affinity=(near(ZONE, app="web"),))
    leads = pods("lead", 3, spec(gpus=1, node_selector=((ZONE, "z2"),)), labels=WEB)
    made = planned([*leads, pod("follow", follower)], pool(*zones()))
    assert sorted(len(machine.opens_after) for machine in made.machines) == [0, 0, 0, 1]
