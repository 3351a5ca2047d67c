"""Preferences break ties and never cost a machine, unless the policy asks to respect them."""

from typing import Any

import pytest
from tests.planning.building import (
    ARCH,
    HOST,
    TYPE,
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
    shares,
    spec,
    spread,
    term,
    unplaced,
    zones,
    zones_of,
)

from gpuscaler.model.cluster import Item
from gpuscaler.model.pools import Limits
from gpuscaler.model.selectors import LabelSelector

WEB = {"app": "web"}
THREE = pool(*zones("g.8", 8.0, gpus=8))
LIKES_Z2: dict[str, Any] = {"preferred_nodes": ((10, term((ZONE, "In", "z2"))),)}


def test_a_pod_gets_the_preferred_one_of_equal_nodes() -> None:
    items = [node(name, zone) for name, zone in zip("abc", zones(), strict=True)]
    assert placed(planned([*items, pod("p", spec(gpus=1, **LIKES_Z2))])) == {"p": "b"}


def test_of_equal_offerings_the_one_in_the_preferred_zone_is_bought() -> None:
    assert zones_of(planned(pods("p", 3, spec(gpus=8, **LIKES_Z2)), THREE)) == {"z2": 3}


def test_no_machine_is_bought_for_a_preference_if_an_existing_node_fits() -> None:
    menu = pool(offering("g.1", 1.0), offering("g.1", 1.1, zone="z2"))
    made = planned([node("a"), *pods("p", 2, spec(gpus=1, **LIKES_Z2))], menu)
    assert list(placed(made).values()) == ["a"]
    assert [machine.zone for machine in made.machines] == ["z1"]


def test_pods_with_preferred_anti_affinity_still_share_a_machine() -> None:
    likes = near(HOST, app="web", weight=100)
    made = planned(pods("p", 8, spec(gpus=1, preferred_anti_affinity=(likes,)), labels=WEB), THREE)
    assert bought(made) == {"g.8": 1}


def test_pods_with_a_preferred_spread_are_spread_where_it_costs_nothing() -> None:
    soft = spread(ZONE, hard=False, app="web")
    made = planned(pods("p", 6, spec(gpus=8, spread=(soft,)), labels=WEB), THREE)
    assert zones_of(made) == {"z1": 2, "z2": 2, "z3": 2}
    assert made.gap == 0.0


def test_of_equal_zones_pods_with_preferred_affinity_get_the_one_with_a_matching_pod() -> None:
    runs: list[Item] = [node("a", zones("g.1")[2]), pod("old", on="a", labels=WEB)]
    likes = near(ZONE, app="web", weight=50)
    made = planned([*runs, pod("p", spec(gpus=8, preferred_affinity=(likes,)))], THREE)
    assert zones_of(made) == {"z3": 1}


def test_the_preference_with_the_highest_weight_decides_between_equal_zones() -> None:
    likes = ((10, term((ZONE, "In", "z2"))), (20, term((ZONE, "In", "z3"))))
    assert zones_of(planned([pod("p", spec(gpus=8, preferred_nodes=likes))], THREE)) == {"z3": 1}


def test_an_equal_offering_of_a_preferred_pool_is_not_bought_beyond_its_maximum() -> None:
    menu = (pool(offering("g.1")), pool(offering("g.1", zone="z2", pool="full"), max=0))
    assert zones_of(planned([pod("p", spec(gpus=1, **LIKES_Z2))], *menu)) == {"z1": 1}


def respected(*args: Any, **more: Any) -> Any:
    return planned(*args, preferences="respect", **more)


def test_with_respected_preferences_a_preference_may_cost_a_machine() -> None:
    menu = pool(offering("g.1", 1.0), offering("g.1", 1.5, zone="z2"))
    made = respected([node("a"), pod("p", spec(gpus=1, **LIKES_Z2))], menu)
    assert [machine.zone for machine in made.machines] == ["z2"]


def test_with_respected_preferences_preferred_anti_affinity_gives_every_pod_a_machine() -> None:
    likes = near(HOST, app="web", weight=100)
    made = respected(pods("p", 4, spec(gpus=1, preferred_anti_affinity=(likes,)), labels=WEB), THREE)
    assert shares(made) == [1, 1, 1, 1]


def test_with_respected_preferences_a_preferred_spread_is_even() -> None:
    soft = spread(ZONE, hard=False, app="web")
    made = respected(pods("p", 5, spec(gpus=1, spread=(soft,)), labels=WEB), THREE)
    assert sorted(zones_of(made).values()) == [1, 2, 2]


def test_a_respected_preference_that_cannot_be_met_is_dropped() -> None:
    made = respected([pod("p", spec(gpus=1, preferred_nodes=((1, term((ZONE, "In", "z9"))),)))], THREE)
    assert (bought(made), unplaced(made)) == ({"g.8": 1}, [])


def test_the_preference_with_the_lowest_weight_is_dropped_first() -> None:
    likes = ((10, term((ZONE, "In", "z2"))), (20, term((ZONE, "In", "z3"))))
    menu = pool(offering("g.1", 1.0), *zones(price=2.0, names=("z2", "z3")))
    assert zones_of(respected([pod("p", spec(gpus=1, preferred_nodes=likes))], menu)) == {"z3": 1}


def test_requirements_stay_required_with_respected_preferences() -> None:
    wants = spec(
        gpus=1,
        node_affinity=affinity((ZONE, "In", "z1", "z2")),
        preferred_nodes=((9, term((ZONE, "In", "z2", "z3"))), (1, term((TYPE, "In", "none")))),
    )
    assert zones_of(respected([pod("p", wants)], THREE)) == {"z2": 1}
    assert unplaced(respected([pod("p", spec(gpus=1, node_affinity=affinity((ZONE, "In", "z9")), **LIKES_Z2))], THREE)) == ["p"]


def test_a_preference_is_dropped_only_for_pods_without_a_preferred_place() -> None:
    menu = (pool(offering("g.1", 1.0)), pool(offering("g.1", 1.5, zone="z2", pool="small"), max=2))
    made = respected(pods("p", 5, spec(gpus=1, **LIKES_Z2)), *menu)
    assert zones_of(made) == {"z1": 3, "z2": 2}


def test_preferred_anti_affinity_of_one_pod_excludes_no_other_pod() -> None:
    """Pods with preferred anti-affinity leave free capacity on their machines, which other pods use, as with kube-scheduler."""
    likes = near(HOST, app="web", weight=100)
    made = respected([*pods("p", 2, spec(gpus=4, preferred_anti_affinity=(likes,)), labels=WEB), *pods("q", 1, spec(cpu=1))], THREE)
    assert len(made.machines) == 2
    later = respected(
        [node("a", zones("g.8", gpus=8)[0]), pod("lone", spec(gpus=1, preferred_anti_affinity=(likes,)), on="a"), pod("p", labels=WEB)]
    )
    assert placed(later) == {"p": "a"}


def test_under_a_limit_priority_counts_more_than_respected_preferences() -> None:
    modest, important = spec(gpus=1), spec(gpus=1, priority=9, preferred_nodes=((1, term((ZONE, "In", "z9"))),))
    made = respected([pod("a", modest), pod("z", important)], limits=Limits(machines=1))
    assert unplaced(made) == ["a"]


def test_a_preference_is_dropped_for_all_members_of_a_gang_together() -> None:
    likes = spec(gpus=8, **LIKES_Z2)
    gang = [pod(f"g-{n}", likes, options={"gang": "g", "gang_size": 3}) for n in range(3)]
    roomy = pool(*zones("g.8", 8.0, gpus=8))
    small = (pool(offering("g.8", 8.0, gpus=8)), pool(offering("g.8", 8.0, gpus=8, zone="z2", pool="small"), max=2))
    assert zones_of(respected(gang, roomy)) == {"z2": 3}
    assert zones_of(respected(gang, *small)) == {"z1": 3}


def test_preferred_node_affinity_does_not_change_the_zones_of_a_required_spread() -> None:
    """kube-scheduler counts all zones that required affinity admits, so the preferred zone may exceed the others by only one pod."""
    even = spec(gpus=1, spread=(spread(ZONE, app="web"),), **LIKES_Z2)
    made = respected([node("a", offering("c.8", gpus=0)), *pods("p", 4, even, labels=WEB)], pool(*zones(names=("z1", "z2"))))
    assert zones_of(made) == {"z1": 2, "z2": 2}


def test_with_respected_preferences_pods_get_their_preferred_architecture() -> None:
    likes = spec(gpus=1, preferred_nodes=((1, term((ARCH, "In", "arm64"))),))
    menu = pool(offering("g.1", 1.0), offering("g.1a", 2.0, labels={ARCH: "arm64"}))
    assert bought(respected([pod("p", likes)], menu)) == {"g.1a": 1}


def test_a_gang_goes_to_its_preferred_zone_although_another_is_cheaper() -> None:
    menu = pool(offering("g.1", 1.0), offering("g.1", 2.0, zone="z2"))
    gang = [pod(f"g-{n}", spec(gpus=1, **LIKES_Z2), options={"gang": "g", "gang_size": 3}) for n in range(3)]
    assert zones_of(respected([node("a"), node("b"), node("c"), *gang], menu)) == {"z2": 3}


@pytest.mark.parametrize("preferences", ["ignore", "respect"])
def test_a_preference_whose_selector_matches_no_pod_is_ignored(preferences: str) -> None:
    soft = type(spread(ZONE, hard=False))(ZONE, 1, False, None)
    made = planned(
        [pod("p", spec(gpus=1, spread=(soft,), preferred_affinity=(near(ZONE, weight=1),)), labels=WEB)], preferences=preferences
    )
    assert bought(made) == {"g.1": 1}
    assert LabelSelector() == near(ZONE).selector
