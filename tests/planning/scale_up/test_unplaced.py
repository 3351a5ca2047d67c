"""Reasons of unplaced pods: one per pool, with the offering that came nearest."""

from collections.abc import Mapping
from typing import Any

import pytest
from tests.planning.building import (
    ARCH,
    TYPE,
    ZONE,
    affinity,
    bought,
    near,
    node,
    offering,
    planned,
    pod,
    pool,
    reasons,
    spec,
)

from gpuscaler.model.pools import Pool
from gpuscaler.model.taints import Taint

MENU = (
    pool(offering("g.1")),
    pool(offering("h.8", 8.0, pool="large", gpus=8, cpu=96, zone="z2", taints=(Taint("team", "ml"),), market="spot")),
    pool(offering("arm.8", 0.5, pool="arm", gpus=0, labels={ARCH: "arm64"})),
)


def reasons_for(of: Mapping[str, Any], **more: Any) -> dict[str, tuple[str, str]]:
    """The reason of each pool of the menu for one pod."""
    made = planned([pod("p", spec(**of), **more)], *MENU)
    return {reason.pool: (reason.excluded_by, reason.detail) for reason in reasons(made, "p")}


@pytest.mark.parametrize(
    ("of", "words"),
    [
        ({"gpus": 16}, {"main": "resource", "large": "taint", "arm": "architecture"}),
        ({"gpus": 1, "node_selector": ((ZONE, "z9"),)}, {"main": "selector", "large": "selector", "arm": "selector"}),
        ({"gpus": 1, "node_affinity": affinity((TYPE, "In", "x"))}, {"main": "affinity", "large": "affinity", "arm": "affinity"}),
        ({"gpus": 2}, {"main": "resource", "large": "taint", "arm": "architecture"}),
        ({"gpus": 1, "affinity": (near(ZONE, app="x"),)}, {"main": "topology", "large": "taint", "arm": "architecture"}),
    ],
)
def test_the_reason_names_the_exclusion_that_changes_least(of: Mapping[str, Any], words: Mapping[str, str]) -> None:
    assert {name: word for name, (word, _) in reasons_for(of).items()} == words


def test_the_reason_for_every_pool_names_requested_and_available_values() -> None:
    reported = reasons_for({"gpus": 2})
    assert reported["main"][1] == "g.1 in z1: 2 nvidia.com/gpu requested, an empty machine has 1"
    assert "team" in reported["large"][1]
    assert reported["arm"][1] == "arm.8 in z1 is arm64; the pod has no selector or affinity on kubernetes.io/arch that admits it"


def test_reasons_show_memory_in_gibibytes_and_cpu_in_cores() -> None:
    assert reasons_for({"memory": 100})["main"][1] == "g.1 in z1: 100Gi memory requested, an empty machine has 32Gi"
    assert reasons_for({"cpu": 8.5, "memory": 40})["main"][1] == "g.1 in z1: 8.5 cpu requested, an empty machine has 8"


def test_reasons_do_not_show_the_internal_name_of_a_node_template() -> None:
    chosen = reasons_for({"cpu": 1, "node_selector": (("kubernetes.io/hostname", "old-1"),)})["main"]
    wanted = "label kubernetes.io/hostname=old-1 wanted, node has kubernetes.io/hostname=(a new name)"
    assert chosen == ("selector", f"g.1 in z1: {wanted}")


def test_the_reason_names_the_accelerator_if_several_resources_are_lacking() -> None:
    assert reasons_for({"cpu": 9, "gpus": 2})["main"][1] == "g.1 in z1: 2 nvidia.com/gpu requested, an empty machine has 1"


def test_the_reason_for_a_pool_comes_from_the_offering_that_nearly_fits() -> None:
    made = planned([pod("p", spec(gpus=6))], pool(offering("g.1"), offering("g.4", 4.0, gpus=4), offering("h.1")))
    assert reasons(made, "p")[0].detail == "g.4 in z1: 6 nvidia.com/gpu requested, an empty machine has 4"


def test_the_reason_names_a_market_that_no_pool_offers() -> None:
    made = planned([pod("p", options={"market": ("reserved",)})], MENU[0])
    (reason,) = reasons(made, "p")
    assert (reason.excluded_by, reason.detail) == ("market", "g.1 in z1 is on-demand; the pod wants reserved")


def test_the_reason_for_a_pool_without_offerings_is_market() -> None:
    made = planned([node("a"), pod("p", spec(gpus=9))], Pool("empty", ()))
    assert [(r.pool, r.excluded_by) for r in reasons(made, "p")] == [("empty", "market")]


def test_reasons_are_listed_in_the_order_of_the_pools_file() -> None:
    made = planned([pod("p", spec(gpus=99))], *MENU)
    assert [reason.pool for reason in reasons(made, "p")] == ["main", "large", "arm"]


def test_unplaced_pods_of_one_class_share_their_reasons() -> None:
    made = planned([pod(f"p-{n}") for n in range(3)], pool(offering(), max=1))
    assert bought(made) == {"g.1": 1}
    assert len({entry.reasons for entry in made.unplaced}) == 1


def test_the_reason_for_an_offering_set_comes_from_the_member_that_does_not_fit() -> None:
    mixed = pool(offering("g.1"), offering("g.8", 8.0, gpus=8), chooser="cloud")
    (reason,) = reasons(planned([pod("p", spec(gpus=8))], mixed), "p")
    assert (reason.excluded_by, reason.detail) == ("resource", "g.1 in z1: 8 nvidia.com/gpu requested, an empty machine has 1")
