"""Gangs are placed completely or not at all, by default in one zone and on one GPU product."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace
from tests.planning.building import (
    ARCH,
    JOB,
    PRODUCT,
    TYPE,
    ZONE,
    affinity,
    bought,
    node,
    offering,
    placed,
    planned,
    pod,
    pods,
    pool,
    reasons,
    spec,
    unplaced,
    zones,
)

from gpuscaler.model.cluster import Item
from gpuscaler.model.pods import Pod, PodSpec
from gpuscaler.model.pools import Limits
from gpuscaler.model.workloads import PodGroup, Workload
from gpuscaler.planning.state import State, Upcoming

EIGHT = spec(gpus=8, cpu=8)


def gang(name: str, count: int, of: PodSpec = EIGHT, *, first: int = 0, **more: Any) -> list[Pod]:
    options: Mapping[str, Any] = {"gang": name, "gang_size": count, **more.pop("options", {})}
    return [pod(f"{name}-{number}", of, options=options, **more) for number in range(first, count)]


def big(zone: str, price: float = 8.0, *, product: str = "A100", **more: Any) -> Any:
    return offering(f"g.8{product[0]}", price, zone=zone, gpus=8, labels={PRODUCT: product}, **more)


def test_a_gang_is_placed_in_one_zone_even_if_two_zones_would_be_cheaper() -> None:
    made = planned(gang("train", 3), pool(big("z1", 5.0, count=2), big("z2", 8.0)))
    assert [machine.zone for machine in made.machines] == ["z2"] * 3


def test_a_gang_member_without_a_machine_gets_one_near_a_nominated_member() -> None:
    first, second = gang("train", 2)
    there = node("a", big("z1"))

    made = planned([there, replace(first, nominated_node="a"), second], pool(big("z1"), big("z2", 5.0)))

    assert [(machine.zone, machine.pods) for machine in made.machines] == [("z1", (second.key,))]


def test_a_gang_takes_the_cheapest_zone_that_holds_all_of_it() -> None:
    made = planned(gang("train", 3), pool(big("z1", 9.0), big("z2", 8.0), big("z3", 8.5)))
    assert [machine.zone for machine in made.machines] == ["z2"] * 3


def test_a_gang_runs_on_one_gpu_product() -> None:
    made = planned(gang("train", 3), pool(big("z1", 5.0, count=2), big("z1", 8.0, product="H100")))
    assert bought(made) == {"g.8H": 3}


def test_a_gang_with_topology_any_goes_to_the_cheapest_zones() -> None:
    made = planned(gang("train", 3, options={"gang_topology": "any"}), pool(big("z1", 5.0, count=2), big("z2", 8.0)))
    assert sorted(machine.zone for machine in made.machines) == ["z1", "z1", "z2"]


def test_a_gang_uses_several_pools_when_one_is_too_small() -> None:
    made = planned(gang("train", 4), pool(big("z1", pool="one"), max=2), pool(big("z1", pool="two"), max=2))
    assert sorted(machine.pool for machine in made.machines) == ["one", "one", "two", "two"]


def test_a_gang_that_does_not_fit_gets_nothing_and_reports_how_many_members_fit() -> None:
    made = planned(gang("train", 4), pool(big("z1"), max=3))
    assert made.machines == ()
    assert unplaced(made) == [f"train-{n}" for n in range(4)]
    assert [(r.excluded_by, r.detail) for r in reasons(made, "train-0")] == [
        ("gang", "at most 3 of 4 members fit in one zone on one GPU product; a gang is placed completely or not at all")
    ]


def test_a_gang_that_cannot_be_placed_takes_no_capacity_from_others() -> None:
    made = planned([node("a", big("z1")), *gang("train", 4), pod("p")], pool(big("z1"), max=3))
    assert placed(made) == {"p": "a"}


def test_no_machine_is_bought_for_a_gang_before_all_its_members_exist() -> None:
    made = planned(gang("train", 4)[:3], pool(big("z1")))
    assert made.machines == ()
    assert reasons(made, "train-0")[0].detail == "3 of 4 members exist; machines are bought once all exist"


def test_all_members_are_placed_if_a_gang_has_more_than_its_minimum() -> None:
    members = gang("train", 4, options={"gang_size": 2})
    assert bought(planned(members, pool(big("z1")))) == {"g.8A": 4}


def test_a_gang_without_a_size_consists_of_all_its_pods() -> None:
    members = gang("train", 3, options={"gang_size": 0})
    assert unplaced(planned(members, pool(big("z1"), max=2))) == ["train-0", "train-1", "train-2"]


def test_the_size_of_a_gang_comes_from_its_pod_group_object() -> None:
    members = gang("train", 2, options={"gang_size": 0, "gang_source": "coscheduling"})
    group = PodGroup("coscheduling", "default", "train", min_member=3)
    assert planned([*members, group], pool(big("z1"))).machines == ()


def test_running_gang_members_fix_the_zone_and_count_towards_the_size() -> None:
    runs = pod("train-0", EIGHT, on="a", options={"gang": "train", "gang_size": 3})
    made = planned([node("a", big("z2")), runs, *gang("train", 3, first=1)], pool(big("z1", 1.0), big("z2", 9.0)))
    assert [machine.zone for machine in made.machines] == ["z2", "z2"]


def test_a_gang_keeps_its_promised_machine_unless_another_zone_is_cheaper() -> None:
    coming = Upcoming("m-1", "main", "g.8A", "on-demand", "z2", pods=("default/train-0",))
    made = planned(gang("train", 2), pool(big("z1", 9.0), big("z2", 9.0)), state=State(upcoming=(coming,)))
    assert placed(made) == {"train-0": "m-1"}
    assert [machine.zone for machine in made.machines] == ["z2"]


def test_a_gang_uses_existing_machines_of_its_zone_before_it_buys() -> None:
    made = planned([node("a", big("z2")), node("b", big("z2")), *gang("train", 3)], pool(big("z1", 8.0), big("z2", 8.0)))
    assert sorted(placed(made).values()) == ["a", "b"]
    assert [machine.zone for machine in made.machines] == ["z2"]


def test_a_gang_without_running_members_moves_to_a_cheaper_zone_after_losing_a_machine() -> None:
    dry, fixed, other = big("z1", 4.0, market="spot"), big("z1", 8.0), big("z2", 5.0, market="spot", product="H100")
    first, second = gang("train", 2)
    comes = Upcoming("m-1", "main", "g.8A", "spot", "z1", pods=(first.key,))

    lost = planned([first, second], pool(dry, fixed, other), state=State(upcoming=(comes,), blocked_offerings=frozenset({dry.key})))
    none = planned([first, second], pool(dry, fixed, other), state=State(upcoming=(comes,)))

    assert (placed(lost), bought(lost)) == ({}, {"g.8H": 2})
    assert (placed(none), bought(none)) == ({"train-0": "m-1"}, {"g.8A": 1})


def test_an_idle_spot_machine_does_not_draw_a_gang_to_on_demand_if_new_spot_costs_less() -> None:
    dry, fixed, other = big("z1", 4.0, market="spot"), big("z1", 8.0), big("z2", 5.0, market="spot", product="H100")
    made = planned([node("a", dry), *gang("train", 2)], pool(dry, fixed, other), state=State(blocked_offerings=frozenset({dry.key})))
    assert (placed(made), bought(made)) == ({}, {"g.8H": 2})


def test_a_machine_that_other_pods_also_use_counts_as_free_for_a_gang() -> None:
    dry, fixed, other = big("z1", 4.0, market="spot"), big("z1", 8.0), big("z2", 5.0, market="spot", product="H100")
    roomy = replace(dry, allocatable={name: 2 * amount for name, amount in dry.allocatable.items()})
    runs = pod("other", EIGHT, on="a")
    made = planned(
        [node("a", roomy), runs, *gang("train", 2)], pool(dry, fixed, other), state=State(blocked_offerings=frozenset({dry.key}))
    )
    assert (placed(made), [machine.market for machine in made.machines]) == ({"train-0": "a"}, ["on-demand"])


def test_nodes_without_a_gpu_product_label_have_the_product_of_their_type() -> None:
    unlabelled = offering("g.8A", gpus=8)
    bare = [node(name, replace(unlabelled, labels={key: unlabelled.labels[key] for key in (ZONE, TYPE)})) for name in "ab"]
    made = planned([*bare, *gang("train", 3)], pool(big("z1"), big("z1", 1.0, product="H100", count=2)))
    assert sorted(placed(made).values()) == ["a", "b"]
    assert bought(made) == {"g.8A": 1}
    runs = pod("train-0", EIGHT, on="a", options={"gang": "train", "gang_size": 2})
    made = planned([bare[0], runs, *gang("train", 2, first=1)], pool(big("z1")))
    assert bought(made) == {"g.8A": 1}


def test_a_gang_runs_on_one_gpu_product_even_if_new_nodes_have_no_product_label() -> None:
    def plain(name: str, price: float, product: str, count: int) -> Any:
        made = offering(name, price, zone="z1", gpus=8, count=count)
        return replace(made, labels={key: value for key, value in made.labels.items() if key != PRODUCT}, product=product)

    one, same, other = plain("g.8A", 5.0, "A100", 2), plain("g.8B", 6.0, "A100", 1), plain("h.8", 1.0, "H100", 2)

    assert bought(planned(gang("train", 3), pool(one, same, other))) == {"g.8A": 2, "g.8B": 1}


def test_gang_members_without_gpus_use_cpu_machines_in_the_zone_of_the_others() -> None:
    cpus = [offering("c.1", 0.1, zone=zone, gpus=0, cpu=4) for zone in ("z1", "z2")]
    launcher = pod("train-launcher", spec(cpu=4), options={"gang": "train", "gang_size": 3})
    full = spec(gpus=8, cpu=64)
    made = planned([launcher, *gang("train", 2, full, options={"gang_size": 3})], pool(*cpus, big("z1", 9.0, cpu=64), big("z2", cpu=64)))
    assert bought(made) == {"c.1": 1, "g.8A": 2}
    assert {machine.zone for machine in made.machines} == {"z2"}


def test_a_running_gang_member_without_gpus_fixes_the_zone_but_no_gpu_product() -> None:
    cpu = offering("c.1", 0.1, zone="z2", gpus=0)
    runs = pod("train-launcher", spec(cpu=1), on="c", options={"gang": "train", "gang_size": 3})
    made = planned([node("c", cpu), runs, *gang("train", 2, options={"gang_size": 3})], pool(big("z1", 1.0), big("z2", 9.0)))
    assert [machine.zone for machine in made.machines] == ["z2", "z2"]


def test_a_running_gang_member_with_gpus_fixes_the_product_beside_one_without_gpus() -> None:
    cpu = offering("c.1", 0.1, gpus=0)
    launcher = pod("train-launcher", spec(cpu=1), on="c", options={"gang": "train", "gang_size": 3})
    worker = pod("train-0", EIGHT, on="a", options={"gang": "train", "gang_size": 3})
    items: list[Item] = [node("c", cpu), launcher, node("a", big("z1")), worker, *gang("train", 2, first=1, options={"gang_size": 3})]
    made = planned(items, pool(big("z1", 9.0), big("z1", 1.0, product="H100")))
    assert bought(made) == {"g.8A": 1}


def test_gangs_with_the_same_name_in_two_namespaces_are_two_gangs() -> None:
    other = spec(gpus=8, cpu=8, namespace="other")
    made = planned([*gang("train", 2), *gang("train", 2, other)], pool(big("z1", 5.0, count=2), big("z2", 8.0)))
    assert sorted(machine.zone for machine in made.machines) == ["z1", "z1", "z2", "z2"]


def test_a_gang_with_pods_of_two_classes_is_one_gang() -> None:
    leader = [pod("lead", spec(cpu=4), options={"gang": "train", "gang_size": 3})]
    made = planned([*leader, *gang("train", 2, options={"gang_size": 3})], pool(big("z1"), max=1), pool(big("z2", pool="two")))
    assert {machine.zone for machine in made.machines} == {"z2"}
    assert made.unplaced == ()


def test_gangs_of_pods_without_gpus_share_machines_of_any_type_in_one_zone() -> None:
    small = spec(cpu=4)
    menu = pool(*(offering(f"c.{n}", n / 4, gpus=0, cpu=n, zone=zone, count=1) for n in (4, 8) for zone in ("z1", "z2")))
    made = planned(gang("mpi", 3, small), menu)
    assert bought(made) == {"c.4": 1, "c.8": 1}
    assert len({machine.zone for machine in made.machines}) == 1


@pytest.mark.parametrize("machines", [3, 4])
def test_a_gang_is_not_placed_partly_because_of_a_limit(machines: int) -> None:
    made = planned(gang("train", 4), pool(big("z1")), limits=Limits(machines=machines))
    assert len(made.machines) == (4 if machines == 4 else 0)


def test_under_one_limit_the_gang_with_the_higher_priority_is_placed() -> None:
    first = gang("a", 3)
    second = gang("b", 3, spec(gpus=8, cpu=8, priority=5))
    made = planned([*first, *second], pool(big("z1")), limits=Limits(machines=4))
    assert unplaced(made) == ["a-0", "a-1", "a-2"]


def test_a_gang_is_not_placed_in_a_pool_whose_zone_the_cloud_chooses() -> None:
    mixed = pool(*zones("g.8A", 8.0, gpus=8, names=("z1", "z2")), chooser="cloud")
    made = planned(gang("train", 2), mixed)
    assert made.machines == ()
    assert unplaced(made) == ["train-0", "train-1"]


def test_no_machine_is_bought_for_a_native_group_below_its_minimum() -> None:
    group = PodGroup("workload", "default", "train/workers", min_member=4)
    native = {"gang": "train/workers/0", "gang_source": "workload"}
    short = planned([group, *pods("w", 3, options=native)])
    whole = planned([group, *pods("w", 4, options=native)])
    assert not short.machines
    assert "3 of 4 members exist" in short.unplaced[0].reasons[0].detail
    assert len(whole.machines) == 4


def test_a_native_group_without_a_gang_policy_is_not_a_gang() -> None:
    group = PodGroup("workload", "default", "train/workers", min_member=0)
    made = planned([group, *pods("w", 3, options={"gang": "train/workers/0", "gang_source": "workload"})], limits=Limits(gpus=2))
    assert len(made.machines) == 2


def test_an_annotated_job_without_a_size_is_as_large_as_its_parallelism() -> None:
    job = Workload("Job", "default", "train", uid=JOB.uid, replicas=4, observed=2)
    members = pods("w", 2, options={"gang": "train", "gang_source": "annotation"}, owner=JOB)
    made = planned([job, *members])
    assert "2 of 4 members exist" in made.unplaced[0].reasons[0].detail


def test_a_gang_is_not_placed_on_ordered_machines_of_undecided_zone() -> None:
    mixed = pool(*zones("g.8A", 8.0, gpus=8, names=("z1", "z2")), chooser="cloud")
    choices = tuple(("g.8A", "on-demand", zone) for zone in ("z1", "z2"))
    coming = tuple(Upcoming(f"m-{n}", "main", "g.8A", "on-demand", "z1", choices=choices) for n in range(2))
    made = planned(gang("train", 2), mixed, state=State(upcoming=coming))
    assert unplaced(made) == ["train-0", "train-1"]


def test_a_pod_does_not_share_a_gang_machine_of_a_market_that_it_excludes() -> None:
    rider = pod("rider", spec(cpu=1), options={"market": ("on-demand",)})
    made = planned([*gang("train", 1, spec(gpus=1)), rider], pool(offering(market="spot")))
    assert [machine.pods for machine in made.machines] == [("default/train-0",)]
    assert unplaced(made) == ["rider"]


def test_a_pod_does_not_share_a_gang_machine_of_an_architecture_that_it_excludes() -> None:
    arm = offering(labels={ARCH: "arm64"})
    anywhere = spec(gpus=1, node_affinity=affinity((ARCH, "In", "arm64", "amd64")))
    made = planned([*gang("train", 1, anywhere), pod("rider", spec(cpu=1))], pool(arm))
    assert [machine.pods for machine in made.machines] == [("default/train-0",)]
    assert unplaced(made) == ["rider"]


def test_pods_fill_existing_and_ordered_machines_before_the_machines_of_a_gang() -> None:
    gangs = gang("train", 2, spec(cpu=1, node_affinity=affinity((ZONE, "In", "z2"))))
    coming = Upcoming("m-1", "main", "g.4", "on-demand", "z1")
    made = planned(
        [*gangs, pod("apart", spec(gpus=1))],
        pool(offering("g.4", 4.0, gpus=4), offering("g.1", 1.0, zone="z2")),
        state=State(upcoming=(coming,)),
    )
    assert placed(made) == {"apart": "m-1"}
