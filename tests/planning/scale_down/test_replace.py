"""Consolidation by replacement: replaces machines with cheaper ones that are bought for their pods."""

from dataclasses import replace
from typing import Any

import pytest
from tests.planning.building import HOST, ZONE, near, node, offering, pool, spec, spread
from tests.planning.scale_down.kit import blockers, movable, removed, scale_down_of, situation

from gpuscaler.model.pods import Pod, PodSpec
from gpuscaler.model.pools import Budget, Limits, Offering
from gpuscaler.planning.scale_down import ScaleDownResult, scale_down
from gpuscaler.planning.state import State

WHOLE: dict[str, Any] = {"gpus": 8, "cpu": 96, "memory": 768}
ONE: dict[str, Any] = {"gpus": 1, "cpu": 8, "memory": 60, "pods": 50}
BIG = offering("g.8", 16.0, **WHOLE)
SMALL = offering("g.1", 2.5, **ONE)


def gpu(count: int = 1) -> PodSpec:
    return spec(gpus=count, cpu=2, memory=8)


def on(name: str, count: int, of: PodSpec | None = None, **fields: Any) -> list[Pod]:
    return [movable(f"{name}-{number}", name, of or gpu(), **fields) for number in range(count)]


def bought(result: ScaleDownResult) -> list[str]:
    return sorted(machine.instance_type for machine in result.machines)


def test_one_large_machine_is_split_into_several_small_ones() -> None:
    result = scale_down_of([node("a", BIG), *on("a", 3)], pool(BIG, SMALL))
    assert bought(result) == ["g.1", "g.1", "g.1"]
    (removal,) = result.removals
    assert removal.saving_per_hour == pytest.approx(16.0 - 7.5)
    assert set(removal.needs) == {machine.id for machine in result.machines}
    assert sorted(move.to for move in removal.moves) == ["replacement-1", "replacement-2", "replacement-3"]
    assert removal.reason == "its 3 pods run cheaper on 3 x g.1 (on-demand, z1), which saves $8.5000 per hour"
    assert all(machine.purpose == "replacement" and len(machine.pods) == 1 for machine in result.machines)


def test_a_machine_with_one_pod_is_replaced_by_a_small_one() -> None:
    (removal,) = scale_down_of([node("a", BIG), *on("a", 1)], pool(BIG, SMALL)).removals
    assert removal.reason == "its pod runs cheaper on 1 x g.1 (on-demand, z1), which saves $13.5000 per hour"


def test_several_machines_are_merged_into_one() -> None:
    small = offering("g.2", 5.0, **{**ONE, "gpus": 2, "cpu": 4})
    names = [f"n{number}" for number in range(5)]
    busy = [pod for name in names for pod in on(name, 1, gpu(1), options={})]
    crowded = [movable(f"side-{name}", name, spec(cpu=2, memory=8)) for name in names]
    result = scale_down_of([*(node(name, small) for name in names), *busy, *crowded], pool(BIG, small))
    assert bought(result) == ["g.8"]
    assert removed(result) == names
    assert sum(removal.saving_per_hour for removal in result.removals) == pytest.approx(25.0 - 16.0)
    assert all(removal.needs == ("replacement-1",) for removal in result.removals)


def test_pods_move_to_free_capacity_before_a_replacement_is_bought() -> None:
    keep = [node("keep", SMALL, do_not_disrupt=True), movable("cpu", "keep", spec(cpu=0.1))]
    result = scale_down_of([node("a", BIG), *on("a", 2), *keep], pool(BIG, SMALL))
    assert bought(result) == ["g.1"]
    assert sorted(move.to for move in result.removals[0].moves) == ["keep", "replacement-1"]
    assert result.removals[0].saving_per_hour == pytest.approx(13.5)
    assert result.removals[0].reason.startswith("its 2 pods run cheaper on 1 x g.1 (on-demand, z1) and on other nodes (1)")


def test_a_machine_is_not_replaced_by_an_equal_one() -> None:
    result = scale_down_of([node("a", SMALL), *on("a", 1)], pool(BIG, SMALL))
    assert result.machines == ()
    assert blockers(result) == {"a": "in-use"}


def test_a_replacement_must_save_at_least_the_configured_minimum() -> None:
    items = [node("a", BIG), *on("a", 3)]
    assert len(scale_down_of(items, pool(BIG, SMALL), min_saving=7.8).machines) == 3
    result = scale_down_of(items, pool(BIG, SMALL), min_saving=8.6)
    assert result.machines == ()
    assert blockers(result) == {"a": "in-use"}


def test_a_small_saving_does_not_cover_the_overlap_of_both_machines() -> None:
    cheaper = offering("g.8x", 15.0, **WHOLE)
    assert scale_down_of([node("a", BIG), *on("a", 8)], pool(BIG, cheaper)).machines == ()
    much_cheaper = offering("g.8x", 14.0, **WHOLE)
    assert len(scale_down_of([node("a", BIG), *on("a", 8)], pool(BIG, much_cheaper)).machines) == 1


def test_work_lost_by_restarts_is_subtracted_from_the_saving_of_a_replacement() -> None:
    cheap = {"restart_cost": 3600.0}
    dear = {"restart_cost": 9 * 3600.0}
    assert len(scale_down_of([node("a", BIG), *on("a", 3, options=cheap)], pool(BIG, SMALL)).machines) == 3
    assert scale_down_of([node("a", BIG), *on("a", 3, options=dear)], pool(BIG, SMALL)).machines == ()


@pytest.mark.parametrize(
    "limits",
    [{"limits": Limits(machines=3)}, {"limits": Limits(gpus=10)}, {"limits": Limits(dollars_per_hour=20.0)}],
)
def test_replacements_and_the_machines_they_replace_together_respect_limits(limits: dict[str, Any]) -> None:
    assert scale_down_of([node("a", BIG), *on("a", 3)], pool(BIG, SMALL), **limits).machines == ()


def test_replacements_respect_the_maximum_of_their_pool() -> None:
    items = [node("a", BIG), *on("a", 3)]
    assert scale_down_of(items, pool(BIG, SMALL, max=3)).machines == ()
    assert len(scale_down_of(items, pool(BIG, SMALL, max=4)).machines) == 3


def test_no_more_replacements_of_an_offering_are_bought_than_its_stock() -> None:
    few = offering("g.1", 0.5, market="reserved", **ONE, count=2)
    high, low = offering("g.8", 16.0, pool="high", **WHOLE), offering("g.8", 16.0, pool="low", **WHOLE)
    offers = offering("g.1", 0.5, pool="both", market="reserved", **ONE, count=8)
    assert bought(scale_down_of([node("a", BIG), *on("a", 3)], pool(BIG, SMALL, few))) == ["g.1", "g.1", "g.1"]
    pools = (pool(high, name="high", priority=2), pool(low, name="low", priority=1), pool(offers, name="both", priority=3))
    result = scale_down_of([node("a", high), *on("a", 8), node("b", low), *on("b", 8)], *pools)
    assert bought(result) == ["g.1"] * 8
    assert removed(result) == ["a"]


def test_no_replacement_is_bought_from_an_offering_with_an_open_breaker() -> None:
    state = State(blocked_offerings=frozenset([SMALL.key]))
    assert scale_down_of([node("a", BIG), *on("a", 3)], pool(BIG, SMALL), state=state).machines == ()


def test_disruption_budgets_and_minimum_sizes_also_apply_to_replacements() -> None:
    items = [node("a", BIG), *on("a", 3)]
    assert blockers(scale_down_of(items, pool(BIG, SMALL, budgets=(Budget("0"),)))) == {"a": "budget"}
    assert blockers(scale_down_of(items, pool(BIG, SMALL, min=1))) == {"a": "minimum-size"}


def test_pods_do_not_move_from_a_pool_of_high_priority_to_one_of_lower_priority() -> None:
    def priced(name: str, market: str = "on-demand") -> tuple[Offering, Offering]:
        return offering("g.8", 16.0, pool=name, **WHOLE), offering("g.1", 2.5, pool=name, **ONE, market=market)

    big, small = priced("high")[0], priced("low")[1]
    items = [node("a", big), *on("a", 3)]
    low = pool(small, name="low")
    assert scale_down_of(items, pool(big, name="high", priority=5), low).machines == ()
    assert len(scale_down_of(items, pool(big, name="high"), low).machines) == 3


def test_a_replacement_lists_its_choices_if_the_cloud_chooses() -> None:
    other = offering("g.1", 2.6, zone="z2", **ONE)
    big = offering("g.8", 16.0, pool="old", **WHOLE)
    result = scale_down_of([node("a", big), *on("a", 1)], pool(big, name="old"), pool(SMALL, other, chooser="cloud"))
    (machine,) = result.machines
    assert [(choice.zone, choice.price_per_hour) for choice in machine.choices] == [("z1", 2.5), ("z2", 2.6)]
    assert machine.price_per_hour == 2.6


def test_a_pod_that_requires_on_demand_is_not_moved_to_new_spot() -> None:
    spot = offering("g.1", 0.8, market="spot", **ONE)
    items = [node("a", BIG), *on("a", 1, options={"market": ("on-demand",)})]
    assert scale_down_of(items, pool(BIG, spot)).machines == ()
    assert [machine.market for machine in scale_down_of([node("a", BIG), *on("a", 1)], pool(BIG, spot)).machines] == ["spot"]


def test_only_machines_with_a_saving_are_replaced() -> None:
    items = [node("a", BIG), *on("a", 2), node("b", BIG), *on("b", 8)]
    result = scale_down_of(items, pool(BIG, SMALL))
    assert removed(result) == ["a"]
    assert blockers(result) == {"b": "in-use"}


def test_a_search_for_replacements_that_is_stopped_early_is_reported() -> None:

    request = situation([node("a", BIG), *on("a", 3)], pool(BIG, SMALL))
    result = scale_down(replace(request, should_stop=lambda: True))
    assert result.stopped_early
    assert result.machines == ()
    assert not scale_down(request).stopped_early


def test_the_saving_of_a_merger_is_compared_with_the_minimum_as_a_whole() -> None:
    small = offering("g.2", 5.0, **{**ONE, "gpus": 2, "cpu": 4})
    names = [f"n{number}" for number in range(5)]
    busy = [movable(f"{kind}-{name}", name, of) for name in names for kind, of in (("gpu", gpu()), ("cpu", spec(cpu=2, memory=8)))]
    items = [*(node(name, small) for name in names), *busy]
    assert len(scale_down_of(items, pool(BIG, small), min_saving=4.9).removals) == 5
    fewer = [*(node(name, small) for name in names[:4]), *busy[:8]]
    assert len(scale_down_of(fewer, pool(BIG, small), min_saving=2.6).removals) == 4
    assert scale_down_of(fewer, pool(BIG, small), min_saving=4.9).removals == ()


def test_moved_pods_with_anti_affinity_to_each_other_get_separate_replacements() -> None:
    alone = spec(gpus=1, cpu=2, memory=1, anti_affinity=(near(HOST, app="web"),))
    two = offering("g.2", 3.0, **{**ONE, "gpus": 2})
    result = scale_down_of([node("a", BIG), node("b", BIG), *on("a", 1, alone), *on("b", 1, alone)], pool(BIG, two))
    assert bought(result) == ["g.2", "g.2"]
    assert sorted(len(machine.pods) for machine in result.machines) == [1, 1]


def test_the_replacement_for_a_pod_with_a_zone_rule_is_in_its_zone() -> None:
    even = spec(gpus=1, cpu=2, memory=1, spread=(spread(ZONE, app="web"),))
    here = offering("g.1", 2.6, **ONE, zone="z1")
    cheaper = offering("g.1", 2.5, **ONE, zone="z2")
    result = scale_down_of([node("a", BIG), *on("a", 1, even)], pool(BIG, here, cheaper))
    assert [machine.zone for machine in result.machines] == ["z1"]


def test_a_reserved_machine_is_not_emptied_without_a_saving() -> None:
    reserved = offering("g.8", 0.0, market="reserved", **WHOLE)
    result = scale_down_of([node("a", reserved), *on("a", 1)], pool(reserved, SMALL))
    assert blockers(result) == {"a": "no-saving"}
