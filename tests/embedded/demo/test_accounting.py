"""The explanation why a demo cost more than the lower bound, and the result of the autoscaler that it is compared with."""

from importlib import resources

import pytest
from msgspec.structs import replace

from gpuscaler.embedded.demo.accounting import PEER, cost_parts, explain_cost, in_one_pool, simulate_peer
from gpuscaler.embedded.demo.scenario import scenario
from gpuscaler.model.pools import Policy
from gpuscaler.settings import load_settings

TOLD = scenario(1)


@pytest.fixture(scope="module")
def policy() -> Policy:
    with resources.as_file(resources.files("gpuscaler.embedded.demo") / "run.yaml") as path:
        return load_settings(path).policy


def test_the_parts_of_the_cost_add_up_to_the_difference_from_the_lower_bound(policy: Policy) -> None:
    result = simulate_peer(TOLD, in_one_pool(policy))
    found_parts = list(cost_parts(result, policy, TOLD))

    assert sum(part.dollars for part in found_parts) == pytest.approx(result.cost - result.lower_bound)
    assert all(part.dollars >= 0 for part in found_parts)
    premium, idle, lost, _ = found_parts
    assert premium.dollars > idle.dollars > lost.dollars > 0
    assert f"{result.evictions} evictions" in lost.text


def test_small_parts_of_the_cost_have_no_line_and_a_demo_without_jobs_has_no_lines(policy: Policy) -> None:
    result = simulate_peer(TOLD, policy)
    lines = list(explain_cost(replace(result, lost_gpu_hours=0.0), policy, TOLD))

    assert lines[0].startswith(f"Why {result.cost / result.lower_bound:.1f} times the bound: ${result.lower_bound:.2f} pays only for the")
    assert not any("evictions" in line for line in lines)
    assert list(explain_cost(replace(result, lower_bound=0.0), policy, TOLD)) == []


def test_the_compared_autoscaler_is_configured_to_prefer_spot(policy: Policy) -> None:
    result = simulate_peer(TOLD, policy)

    assert result.policy == PEER
    assert [pool.name for pool in in_one_pool(policy).pools] == ["spot", "cpu"]
    assert {offering.pool for pool in in_one_pool(policy).pools for offering in pool.offerings} == {"spot", "cpu"}
    assert {row.market for row in result.machine_hours} == {"spot", "on-demand"}
    assert result.evictions > 0
    assert result.served == sum(job.pods for job in TOLD.trace.jobs)
