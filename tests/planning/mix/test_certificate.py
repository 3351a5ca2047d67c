"""The independent check of bounds."""

import msgspec
import pytest

from gpuscaler.planning.mix import Duals, Item, Limits, MixKind, Problem, resource_bound, solve
from gpuscaler.planning.mix.certificate import certify, limit_charges

KINDS = (MixKind("one", {"cpu": 4000, "pods": 10}, 1.0, pool="p"), MixKind("two", {"cpu": 9000, "pods": 10}, 2.0, pool="p"))
PROBLEM = Problem((Item("a", 7, {"cpu": 3000, "pods": 1}), Item("b", 5, {"cpu": 1000, "pods": 1})), KINDS)


def test_the_duals_of_a_solution_prove_its_lower_bound() -> None:
    solution = solve(PROBLEM)
    certificate = certify(PROBLEM, solution)
    assert certificate.holds
    assert certificate.bound == pytest.approx(solution.lower_bound)


def test_the_certificate_rejects_duals_that_are_too_high_and_names_the_kind() -> None:
    solution = solve(PROBLEM)
    greedy = msgspec.structs.replace(solution, duals=Duals(tuple(2 * value for value in solution.duals.items)))
    certificate = certify(PROBLEM, greedy)
    assert not certificate.holds
    assert certificate.worst == pytest.approx(2.0, rel=1e-6)
    assert certificate.kind in {"one", "two"}
    assert certificate.bound == pytest.approx(solution.lower_bound, rel=1e-6)


def test_the_certificate_rejects_a_slightly_raised_dual() -> None:
    solution = solve(PROBLEM)
    values = list(solution.duals.items)
    values[values.index(max(values))] *= 1.01
    assert not certify(PROBLEM, msgspec.structs.replace(solution, duals=Duals(tuple(values)))).holds


def test_without_duals_the_proven_lower_bound_is_zero() -> None:
    solution = msgspec.structs.replace(solve(PROBLEM), duals=Duals())
    certificate = certify(PROBLEM, solution)
    assert certificate.holds
    assert certificate.bound == 0.0


def test_the_resource_bound_is_proven_by_its_duals_and_at_most_the_lower_bound_of_the_mix() -> None:
    solution, mix = resource_bound(PROBLEM), solve(PROBLEM)
    certificate = certify(PROBLEM, solution)
    assert certificate.holds
    assert certificate.bound == pytest.approx(solution.lower_bound)
    # 26 vCPU at the price of the larger machine, which has the cheaper vCPU.
    assert solution.lower_bound == pytest.approx(26 * 2 / 9)
    assert solution.lower_bound <= mix.lower_bound


def test_the_resource_bound_ignores_pods_that_fit_no_kind() -> None:
    large = Item("large", 3, {"cpu": 99_000, "pods": 1})
    solution = resource_bound(msgspec.structs.replace(PROBLEM, items=(large, *PROBLEM.items)))
    assert solution.unplaced == {0: 3}
    assert solution.lower_bound == pytest.approx(resource_bound(PROBLEM).lower_bound)
    alone = resource_bound(msgspec.structs.replace(PROBLEM, items=(large,)))
    assert (alone.unplaced, alone.lower_bound) == ({0: 3}, 0.0)


def test_duals_of_limits_raise_the_permitted_value_of_a_machine() -> None:
    problem = msgspec.structs.replace(PROBLEM, limits=Limits(pools={"p": 4}, dollars_per_hour=20.0))
    solution = solve(problem)
    certificate = certify(problem, solution)
    assert certificate.holds
    assert certificate.bound == pytest.approx(solution.lower_bound, rel=1e-6)
    duals = Duals((0.0, 0.0), {"pool:p": 0.5, "machines": 0.25, "gpus": 9.0, "kind:one": 1.0, "dollars": 2.0})
    charges = [charge * weight for charge, weight in limit_charges(duals, problem.kinds[0])]
    assert sorted(charges) == [0.0, 0.25, 0.5, 1.0, 2.0]


def test_saved_proofs_keep_their_field_names() -> None:
    problem, solution = (msgspec.to_builtins(value) for value in (PROBLEM, solve(PROBLEM)))
    assert set(problem) == {"items", "kinds", "together", "apart", "limits", "device_resource"}
    assert set(problem["kinds"][0]) == {"key", "capacity", "price", "pool", "limit", "gpus"}
    assert set(problem["items"][0]) == {"key", "count", "request", "allowed", "per_machine", "priority"}
    numbers = {"cost", "lower_bound", "lower_bound_kind", "proven", "duals", "work_used", "brake"}
    assert set(solution) == {"machines", "unmet", *numbers}
