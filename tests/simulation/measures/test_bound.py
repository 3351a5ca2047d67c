"""The lower bound in hindsight."""

import pytest
from tests.simulation.pools import C8, G1, G4, GIB, trace

from gpuscaler.model.pods import PodSpec
from gpuscaler.simulation.measures.bound import lower_bound
from gpuscaler.simulation.traces.traces import Job
from gpuscaler.simulation.traces.workload import Shaping, members


def spec(**fields: int) -> PodSpec:
    return members(trace(Job("a", 0, 1, **fields)), Shaping())[0].spec  # type: ignore[arg-type]


def test_the_lower_bound_of_jobs_that_fill_machines_is_the_price_of_the_machines() -> None:
    assert lower_bound([(spec(gpus=1), 10.0)], [G4]) == pytest.approx(10 / 4 * 12.0, rel=1e-5)


def test_the_lower_bound_uses_the_cheaper_machine() -> None:
    assert lower_bound([(spec(gpus=1), 10.0)], [G1, G4, C8]) == pytest.approx(10 / 4 * 12.0, rel=1e-5)
    assert lower_bound([(spec(cpu_milli=4000), 10.0)], [G1, G4, C8]) == pytest.approx(10 / 2 * 0.36, rel=1e-5)


def test_in_the_lower_bound_pods_with_different_resources_share_a_machine() -> None:
    # One takes the GPU and hardly a core, the other every core: together they still fit one g1.
    gpu, cpu = spec(gpus=1, cpu_milli=1000), spec(cpu_milli=7000)
    assert lower_bound([(gpu, 5.0), (cpu, 5.0)], [G1]) == pytest.approx(5 * 3.6, rel=1e-5)


def test_the_lower_bound_excludes_pods_that_no_offering_admits() -> None:
    assert lower_bound([(spec(gpus=64), 10.0)], [G1, G4]) == 0.0
    assert lower_bound([], [G1]) == 0.0


def test_the_lower_bound_of_a_pod_too_large_for_the_cheap_machine_uses_the_expensive_one() -> None:
    assert lower_bound([(spec(gpus=1, memory=100 * GIB), 1.0)], [G1, G4]) == pytest.approx(12.0 * 100 / 128, rel=1e-5)
