"""Two sets of pools on the same trace."""

import pytest
from msgspec.structs import replace
from tests.simulation.pools import C8, G1, G4, POLICY, trace

from gpuscaler.model.pools import Limits, Policy, Pool
from gpuscaler.simulation.measures.waits import PodWait, by_class
from gpuscaler.simulation.results.campaign import Setting, run_each
from gpuscaler.simulation.results.comparing import NAMED, Difference, difference, reduced_for_comparison
from gpuscaler.simulation.results.explaining import explain, pool_changes
from gpuscaler.simulation.traces.traces import Job
from gpuscaler.simulation.world.meter import Result

JOBS = trace(
    *(Job(f"small-{number}", 600.0 * number, 900, gpus=1) for number in range(8)),
    *(Job(f"large-{number}", 100.0 * number, 900, gpus=4) for number in range(7)),
    Job("c", 100, 500, cpu_milli=1000),
)
LARGE = Policy((Pool("gpu", (G4,), idle_after=300), Pool("cpu", (C8,), idle_after=300)))
SMALL = Policy((Pool("gpu", (G1,), idle_after=300), Pool("cpu", (C8,), idle_after=300)))


def runs(policy: Policy, *, seeds: int = 1) -> list[Result]:
    setting = Setting(trace=JOBS, policy=policy)
    return run_each([(setting, "gpuscaler", seed) for seed in range(seeds)], workers=1, reduce=reduced_for_comparison)


@pytest.fixture(scope="module")
def differences() -> dict[str, Difference]:
    before = runs(POLICY, seeds=2)
    return {"large": difference(before, runs(LARGE, seeds=2)), "small": difference(before, runs(SMALL, seeds=2))}


@pytest.mark.parametrize("name", ["large", "small"])
def test_differences_by_machine_and_by_holder_each_add_up_to_the_difference_in_cost(differences: dict[str, Difference], name: str) -> None:
    difference = differences[name]
    assert difference.cost.difference == pytest.approx((difference.cost.b or 0) - (difference.cost.a or 0))
    assert sum(row.cost.difference or 0 for row in difference.offerings) == pytest.approx(difference.cost.difference)
    assert sum(row.cost.difference or 0 for row in difference.classes) == pytest.approx(difference.cost.difference)
    contributions = [abs(row.cost.difference or 0) for row in difference.offerings]
    assert contributions == sorted(contributions, reverse=True)


def test_a_machine_offered_in_one_file_only_has_no_hours_with_the_other(differences: dict[str, Difference]) -> None:
    (g4,) = [row for row in differences["small"].offerings if row.instance_type == "g4"]
    assert (g4.hours.b, g4.cost.b) == (0, 0)
    assert (g4.hours.a or 0) > 0


def test_pods_that_run_with_only_one_file_are_counted_over_all_seeds_and_some_named(differences: dict[str, Difference]) -> None:
    difference = differences["small"]
    (large,) = difference.only_a
    assert (large.pod_class, large.pods, large.some) == ("4-7 GPUs", 14, tuple(f"trace/large-{number}" for number in range(NAMED)))
    assert difference.only_b == ()
    assert [reason.pods for reason in difference.why_not_b] == [7]
    (line,) = [sentence for sentence in explain(difference) if sentence.startswith("Run only with A")]
    assert line.startswith("Run only with A: 14 pods with 4-7 GPUs (trace/large-0, ")
    assert "With B 7 pods never ran because of: pool gpu" in line


def test_pods_that_never_run_with_the_second_file_count_as_waiting_longer_there(differences: dict[str, Difference]) -> None:
    (row,) = [row for row in differences["small"].waits if row.pod_class == "4-7 GPUs"]
    assert (row.pods, row.longer, row.shorter) == (14, 14, 0)
    assert "p50" in row.b.at_least
    assert any(
        sentence.startswith("Pods with 4-7 GPUs wait longer: median ") and "→ ≥ " in sentence for sentence in explain(differences["small"])
    )


def test_the_difference_of_waits_is_unknown_if_one_is_a_lower_bound(differences: dict[str, Difference]) -> None:
    difference = differences["small"]
    assert (difference.at_least_a, difference.at_least_b) == ((), ("wait_mean", "wait_p95", "wait_p99"))
    assert difference.figures["wait_p99"].difference is None
    assert (difference.figures["wait_p99"].b or 0) > 0
    assert difference.figures["wait_p50"].difference is not None


def test_the_cost_is_shown_with_its_spread_over_seeds(differences: dict[str, Difference]) -> None:
    difference = differences["large"]
    assert (difference.seeds, difference.cheaper, difference.sd is not None) == (2, 0, True)
    assert explain(difference)[0].startswith(
        f"B costs ${difference.cost.difference:,.2f} more than A: ${difference.cost.b:,.2f} instead of ${difference.cost.a:,.2f} (+"
    )
    assert explain(difference)[0].endswith("B costs less with 0 of them.")
    assert explain(difference)[-1] == "Pods are counted over all 2 seeds together."


def test_equal_pools_have_no_differences() -> None:
    equal = difference(runs(POLICY), runs(POLICY))
    assert explain(equal) == [f"B costs the same as A: ${equal.cost.a:,.2f}.", "No pod's wait changes noticeably."]
    assert all(change.difference in (0, None) for change in equal.figures.values())
    assert (equal.sd, equal.only_a, equal.only_b) == (None, (), ())


def test_runs_with_different_seeds_are_not_compared() -> None:
    result, other = runs(POLICY, seeds=2)
    with pytest.raises(ValueError, match="same seeds"):
        difference([result], [other])


def test_a_pod_created_in_only_one_run_is_neither_served_nor_unserved_in_the_other() -> None:
    (result,) = runs(POLICY)
    more = (*result.waits, PodWait("trace/service#r9", "1 GPU", 3.0, ran=True))
    compared = difference([result], [replace(result, waits=more, wait_by_class=by_class(more))])
    assert (compared.only_a, compared.only_b) == ((), ())


def test_differences_between_the_pools_files_are_listed_by_pool() -> None:
    cheaper = replace(G1, price=1.0)
    other = Policy(
        (Pool("gpu", (cheaper, replace(G4, zone="z2")), idle_after=60, max=3), Pool("new", (C8,))),
        limits=Limits(gpus=8, dollars_per_hour=2.5),
    )
    assert pool_changes(POLICY, other) == [
        "only A has the pool cpu",
        "only B has the pool new",
        "pool gpu: only A has g4 on-demand in z1",
        "pool gpu: only B has g4 on-demand in z2",
        "pool gpu: 1 offering has a different price",
        "pool gpu: idle_after: 300 s → 60 s",
        "pool gpu: max: none → 3",
        "limits: none → gpus 8, dollars_per_hour 2.5",
    ]
    assert pool_changes(POLICY, POLICY) == []
