"""The optimiser on problems with an optimum that can be computed by hand."""

import pytest
from tests.planning.mix.checking import assert_valid

from gpuscaler.planning.mix import Item, Limits, MixError, MixKind, Problem, SharedCap, Solution, solve

GIB, MIB = 1 << 30, 1 << 20
GPU = "nvidia.com/gpu"


def bought(problem: Problem, solution: Solution) -> dict[str, int]:
    """Machines by the key of their kind."""
    assert_valid(problem, solution)
    counts: dict[str, int] = {}
    for group in solution.groups:
        key = problem.kinds[group.kind].key
        counts[key] = counts.get(key, 0) + group.times
    return counts


def kind(key: str, cpu: int, mib: int, price: float, *, gpus: int = 0) -> MixKind:
    return MixKind(key, {"cpu": cpu, "memory": mib * MIB, "pods": 58, **({GPU: gpus} if gpus else {})}, price, gpus_counted=gpus)


FAMILIES = (
    kind("g5.xlarge", 3920, 14162, 1.006, gpus=1),
    kind("g5.2xlarge", 7910, 29317, 1.212, gpus=1),
    kind("g5.12xlarge", 47810, 180000, 5.672, gpus=4),
    kind("c6i.large", 1930, 3038, 0.085),
    kind("c6i.4xlarge", 15890, 28000, 0.68),
    kind("m6i.xlarge", 3920, 14162, 0.192),
)


@pytest.mark.parametrize("count", [2, 8, 64, 1000])
def test_each_gpu_pod_gets_a_small_machine_if_larger_ones_cost_more_per_gpu(count: int) -> None:
    problem = Problem((Item("a", count, {"cpu": 2000, "memory": 13 * GIB, "pods": 1, GPU: 1}),), FAMILIES)
    solution = solve(problem)
    assert bought(problem, solution) == {"g5.xlarge": count}
    assert solution.cost == pytest.approx(1.006 * count)
    assert solution.lower_bound == pytest.approx(solution.cost)
    assert solution.proven


def test_pods_without_gpus_fill_gpu_machines_but_never_cause_their_purchase() -> None:
    items = (
        Item("gpu", 4, {"cpu": 2000, "memory": 10 * GIB, "pods": 1, GPU: 1}),
        Item("cpu", 8, {"cpu": 1900, "memory": 1 * GIB, "pods": 1}),
    )
    problem = Problem(items, FAMILIES)
    solution = solve(problem)
    # One CPU pod beside each GPU pod; the other four on four c6i.large ($0.340), not on two m6i.xlarge ($0.384).
    assert bought(problem, solution) == {"g5.xlarge": 4, "c6i.large": 4}
    assert solution.cost == pytest.approx(4 * 1.006 + 4 * 0.085)


def test_pods_with_three_and_five_gpus_share_machines_with_eight() -> None:
    eight = (MixKind("eight", {"cpu": 96000, "pods": 110, GPU: 8}, 10.0, gpus_counted=8),)
    problem = Problem((Item("three", 10, {"cpu": 1, "pods": 1, GPU: 3}), Item("five", 10, {"cpu": 1, "pods": 1, GPU: 5})), eight)
    assert bought(problem, solve(problem)) == {"eight": 10}


def test_a_mix_for_fifty_thousand_equal_pods_is_one_group_of_machines() -> None:
    problem = Problem((Item("a", 50_000, {"cpu": 1000, "pods": 1}),), (MixKind("fifty", {"cpu": 50_000, "pods": 50}, 1.0),))
    solution = solve(problem)
    assert [(p.kind, dict(p.pods), p.times) for p in solution.groups] == [(0, {0: 50}, 1000)]
    assert solution.work_used < 50_000


def test_the_last_machine_of_a_mix_is_no_larger_than_the_remaining_pods_need() -> None:
    kinds = (MixKind("small", {"cpu": 1000, "pods": 10}, 1.1), MixKind("large", {"cpu": 10_000, "pods": 10}, 10.0))
    problem = Problem((Item("a", 21, {"cpu": 1000, "pods": 1}),), kinds)
    assert bought(problem, solve(problem)) == {"large": 2, "small": 1}


def test_a_machine_kind_that_costs_nothing_is_used_first() -> None:
    kinds = (MixKind("free", {"cpu": 1000, "pods": 10}, 0.0, available=1), MixKind("paid", {"cpu": 1000, "pods": 10}, 1.0))
    problem = Problem((Item("a", 3, {"cpu": 1000, "pods": 1}),), kinds)
    assert bought(problem, solve(problem)) == {"free": 1, "paid": 2}


def test_a_more_expensive_equal_kind_serves_pods_beyond_the_limit_of_the_cheaper_one() -> None:
    kinds = (MixKind("spot", {"cpu": 1000, "pods": 10}, 0.3, available=2), MixKind("on-demand", {"cpu": 1000, "pods": 10}, 1.0))
    problem = Problem((Item("a", 5, {"cpu": 1000, "pods": 1}),), kinds)
    solution = solve(problem)
    assert bought(problem, solution) == {"spot": 2, "on-demand": 3}
    assert solution.lower_bound == pytest.approx(3.6)


def test_the_last_machine_under_a_limit_goes_to_the_pod_of_higher_priority() -> None:
    items = (Item("low", 3, {"cpu": 1000, "pods": 1}), Item("high", 2, {"cpu": 1000, "pods": 1}, priority=5))
    problem = Problem(items, (MixKind("only", {"cpu": 1000, "pods": 10}, 1.0),), limits=Limits(machines=3))
    solution = solve(problem)
    assert_valid(problem, solution)
    assert solution.unplaced == {0: 2}


def test_under_a_limit_as_many_pods_of_one_priority_as_possible_are_placed() -> None:
    items = (Item("big", 1, {"cpu": 4000, "pods": 1}), Item("small", 4, {"cpu": 1000, "pods": 1}))
    problem = Problem(items, (MixKind("only", {"cpu": 4000, "pods": 10}, 1.0),), limits=Limits(dollars_per_hour=1.5))
    solution = solve(problem)
    assert_valid(problem, solution)
    assert solution.unplaced == {0: 1}


def test_limits_on_gpus_and_on_a_pool_hold_together() -> None:
    kinds = (
        MixKind("a", {"cpu": 4000, "pods": 10, GPU: 1}, 1.0, pool="first", gpus_counted=1),
        MixKind("b", {"cpu": 4000, "pods": 10, GPU: 1}, 1.5, pool="second", gpus_counted=1),
    )
    items = (Item("gpu", 5, {"cpu": 1000, "pods": 1, GPU: 1}),)
    problem = Problem(items, kinds, limits=Limits(gpus=3, pools={"first": 2}))
    solution = solve(problem)
    assert bought(problem, solution) == {"a": 2, "b": 1}
    assert solution.unplaced == {0: 2}


def test_pods_that_fit_nowhere_are_unplaced_and_do_not_stop_the_others() -> None:
    items = (
        Item("huge", 2, {"cpu": 9000, "pods": 1}),
        Item("banned", 1, {"cpu": 1, "pods": 1}, allowed=()),
        Item("fine", 1, {"cpu": 1000, "pods": 1}),
    )
    problem = Problem(items, (MixKind("only", {"cpu": 1000, "pods": 10}, 1.0),))
    solution = solve(problem)
    assert bought(problem, solution) == {"only": 1}
    assert solution.unplaced == {0: 2, 1: 1}


@pytest.mark.parametrize(
    "problem",
    [
        Problem((), ()),
        Problem((Item("none", 0, {"cpu": 1}),), (MixKind("k", {"cpu": 1}, 1.0),)),
        Problem((Item("a", 3, {"cpu": 1}),), ()),
    ],
)
def test_a_problem_without_pods_or_kinds_gives_an_empty_mix(problem: Problem) -> None:
    solution = solve(problem)
    assert_valid(problem, solution)
    assert not solution.groups


def test_an_exhausted_limit_leaves_all_pods_unplaced() -> None:
    items = (Item("a", 3, {"cpu": 1, "pods": 1}),)
    problem = Problem(items, (MixKind("k", {"cpu": 1, "pods": 1}, 1.0),), limits=Limits(machines=0))
    solution = solve(problem)
    assert_valid(problem, solution)
    assert solution.unplaced == {0: 3}


def test_a_cap_on_copies_spreads_pods_over_machines() -> None:
    problem = Problem((Item("a", 4, {"cpu": 100, "pods": 1}, per_machine=1),), (MixKind("k", {"cpu": 4000, "pods": 10}, 1.0),))
    assert bought(problem, solve(problem)) == {"k": 4}


def test_a_shared_cap_counts_its_items_together() -> None:
    items = (Item("a", 2, {"cpu": 100, "pods": 1}), Item("b", 2, {"cpu": 200, "pods": 1}), Item("c", 5, {"cpu": 100, "pods": 1}))
    problem = Problem(items, (MixKind("k", {"cpu": 4000, "pods": 10}, 1.0),), shared_caps=(SharedCap((0, 1), 2),))
    assert bought(problem, solve(problem)) == {"k": 2}


def test_items_of_an_exclusive_pair_share_no_machine() -> None:
    items = (Item("a", 3, {"cpu": 100, "pods": 1}), Item("b", 3, {"cpu": 200, "pods": 1}))
    problem = Problem(items, (MixKind("k", {"cpu": 4000, "pods": 10}, 1.0),), exclusive_pairs=((0, 1),))
    assert bought(problem, solve(problem)) == {"k": 2}


def test_gpu_shares_are_packed_device_by_device() -> None:
    # Six shares of 600 add up to 3600 of 4000, but two of them never share a device.
    kinds = (MixKind("four", {"cpu": 64000, "pods": 64, "gpuscaler.io/gpu-milli": 4000}, 4.0),)
    problem = Problem((Item("a", 6, {"cpu": 1000, "pods": 1, "gpuscaler.io/gpu-milli": 600}),), kinds)
    assert bought(problem, solve(problem)) == {"four": 2}


def test_whole_gpus_and_gpu_shares_fill_a_machine_exactly() -> None:
    kinds = (MixKind("four", {"cpu": 64000, "pods": 64, "gpuscaler.io/gpu-milli": 4000}, 4.0),)
    items = (
        Item("two", 1, {"cpu": 1000, "pods": 1, "gpuscaler.io/gpu-milli": 2000}),
        Item("most", 2, {"cpu": 1000, "pods": 1, "gpuscaler.io/gpu-milli": 700}),
        Item("rest", 2, {"cpu": 1000, "pods": 1, "gpuscaler.io/gpu-milli": 300}),
    )
    problem = Problem(items, kinds)
    assert bought(problem, solve(problem)) == {"four": 1}


@pytest.mark.parametrize(
    ("items", "kinds", "shared_caps", "message"),
    [
        ((Item("a", 1, {}), Item("a", 1, {})), (), (), "item key 'a' is used more than once"),
        ((), (MixKind("k", {}, 1.0), MixKind("k", {}, 2.0)), (), "kind key 'k' is used more than once"),
        ((Item("a", -1, {}),), (), (), "item 'a' has a negative count"),
        ((Item("a", 1, {"cpu": -1}),), (), (), "item 'a' has a negative count or request"),
        ((Item("a", 1, {}, allowed=(3,)),), (MixKind("k", {}, 1.0),), (), "item 'a' allows kinds 3 to 3; there are 1"),
        ((Item("a", 1, {"gpuscaler.io/gpu-milli": 1500}),), (), (), "expected at most 1000, or a multiple of 1000"),
        ((), (MixKind("k", {}, float("nan")),), (), "kind 'k' has the price nan"),
        ((Item("a", 1, {}),), (), (SharedCap((4,), 1),), "shared_caps and exclusive_pairs name items 0 to 0; saw 4 to 4"),
    ],
)
def test_an_inconsistent_problem_is_rejected_with_the_name_of_the_object(
    items: tuple[Item, ...], kinds: tuple[MixKind, ...], shared_caps: tuple[SharedCap, ...], message: str
) -> None:
    with pytest.raises(MixError, match=message):
        solve(Problem(items, kinds, shared_caps))
