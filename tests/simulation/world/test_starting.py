"""Machines that exist before a run."""

import pytest
from msgspec.structs import replace
from tests.simulation.pools import C8, FIXED, G1, G4, POLICY, trace

from gpuscaler.model.pools import Policy, Pool
from gpuscaler.simulation.cloud.delays import NO_FAULTS
from gpuscaler.simulation.replay import run
from gpuscaler.simulation.traces.traces import Job
from gpuscaler.simulation.world.starting import StartError, machines_at_start

JOBS = trace(Job("a", 0, 600, gpus=1), Job("b", 0, 600, gpus=1), Job("c", 100, 600, gpus=1))
POLICIES = ("gpuscaler", "karpenter", "cluster-autoscaler", "static")


@pytest.mark.parametrize("name", POLICIES)
def test_under_every_policy_jobs_run_immediately_on_existing_machines(name: str) -> None:
    result = run(JOBS, POLICY, name=name, delays=FIXED, faults=NO_FAULTS, start={G4.key: 1})
    assert (result.served, result.wait.p99) == (3, 0.0)
    rows = {row.instance_type: row for row in result.machine_hours}
    assert rows["g4"].machines == 1
    assert rows["g4"].cost == pytest.approx(rows["g4"].hours * G4.price)


@pytest.mark.parametrize("name", POLICIES[:3])
def test_unneeded_existing_machines_are_removed(name: str) -> None:
    later = trace(Job("a", 0, 60, cpu_milli=1000), Job("b", 40_000, 60, cpu_milli=1000))
    result = run(later, POLICY, name=name, delays=FIXED, faults=NO_FAULTS, start={G1.key: 2, C8.key: 1})
    assert {row.instance_type: row.hours for row in result.machine_hours}["g1"] < 2 * 1.0


def test_a_static_fleet_keeps_the_machines_that_exist_at_the_start_and_adds_missing_ones() -> None:
    result = run(JOBS, POLICY, name="static", delays=FIXED, faults=NO_FAULTS, start={C8.key: 2, G1.key: 1})
    needed = run(JOBS, POLICY, name="static", delays=FIXED, faults=NO_FAULTS)
    fleet = {row.instance_type: row.machines for row in needed.machine_hours}
    assert {row.instance_type: row.machines for row in result.machine_hours} == {**fleet, "c8": 2, "g1": max(1, fleet.get("g1", 0))}


def test_initial_machines_are_the_pools_cheapest_type_in_its_most_stable_market_across_zones() -> None:
    spot = replace(G1, market="spot", price=0.5)
    pool = Pool("gpu", (G4, replace(G1, zone="z2"), spot, G1), max=5)
    policy = Policy((pool, Pool("cpu", (C8,))))
    assert machines_at_start(policy, {"gpu": 3, "cpu": 1}) == {C8.key: 1, G1.key: 2, replace(G1, zone="z2").key: 1}
    assert machines_at_start(policy, {"gpu/g4": 2, "gpu": 0}) == {G4.key: 2}
    assert machines_at_start(Policy((Pool("gpu", (spot,)),)), {"gpu": 1}) == {spot.key: 1}
    assert machines_at_start(policy, {}) == {}


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"gpus": 1}, "saw the pool gpus, expected one of gpu, cpu"),
        ({"gpu/g9": 1}, "saw the type g9, which pool gpu does not have; expected one of g1, g4"),
        ({"gpu/g1": 2, "gpu": 2}, "saw 4 machines of pool gpu, expected at most 3, which is its max"),
    ],
)
def test_an_impossible_number_of_initial_machines_is_an_error_with_the_reason(sizes: dict[str, int], message: str) -> None:
    policy = replace(POLICY, pools=(replace(POLICY.pools[0], max=3), POLICY.pools[1]))
    with pytest.raises(StartError, match=message):
        machines_at_start(policy, sizes)
