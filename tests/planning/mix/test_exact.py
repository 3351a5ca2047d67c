"""Comparison with exhaustive search: small random problems, with and without limits."""

import pytest
from tests.planning.mix.checking import assert_valid, exact, small_problem, unmet_by_priority

from gpuscaler.planning.mix import solve
from gpuscaler.planning.mix.certificate import certify


@pytest.mark.parametrize("seed", range(80))
def test_the_mix_is_the_cheapest_and_its_lower_bound_is_proven(seed: int) -> None:
    problem = small_problem(seed)
    solution = solve(problem)
    assert_valid(problem, solution)
    unmet, cost = exact(problem)
    assert unmet_by_priority(problem, solution) == unmet
    assert solution.cost == pytest.approx(cost)
    assert solution.lower_bound <= cost + 1e-9
    certificate = certify(problem, solution)
    assert certificate.holds, certificate
    assert certificate.bound == pytest.approx(solution.lower_bound, rel=1e-5)


@pytest.mark.parametrize("seed", range(60))
def test_under_limits_high_priorities_come_first_and_the_bound_holds_for_placed_pods(seed: int) -> None:
    problem = small_problem(seed, limited=True)
    solution = solve(problem)
    assert_valid(problem, solution)
    unmet, cost = exact(problem)
    mine = unmet_by_priority(problem, solution)
    assert mine >= unmet
    assert mine[:1] == unmet[:1]
    if mine == unmet:
        assert solution.cost == pytest.approx(cost)
    certificate = certify(problem, solution)
    assert certificate.holds, certificate
    assert certificate.bound == pytest.approx(solution.lower_bound, rel=1e-5, abs=1e-9)
