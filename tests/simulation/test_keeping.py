"""Replays on pools that keep their machines for large pods (``min_gpus_per_pod``)."""

import random

import pytest
from msgspec.structs import replace
from tests.planning.building import offering
from tests.simulation.pools import FIXED, trace

from gpuscaler.model.accelerators import count_accelerators
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Policy, Pool
from gpuscaler.planning.planner import Planner
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.state import State
from gpuscaler.simulation.cloud.delays import NO_FAULTS
from gpuscaler.simulation.policies.ours import Gpuscaler
from gpuscaler.simulation.policies.policies import POLICIES
from gpuscaler.simulation.policies.static import Static
from gpuscaler.simulation.replay import run
from gpuscaler.simulation.traces.traces import Job, Trace
from gpuscaler.simulation.world.autoscaler import Moment, View
from gpuscaler.simulation.world.meter import Result
from gpuscaler.simulation.world.scheduler import Scheduler

ONE = offering("s1", pool="small")
EIGHT = offering("b8", 7.0, pool="big", gpus=8, cpu=64, memory=256)
FREE = Policy((Pool("small", (ONE,), idle_after=600.0), Pool("big", (EIGHT,), idle_after=600.0)))
KEPT = replace(FREE, pools=(FREE.pools[0], replace(FREE.pools[1], min_gpus_per_pod=8)))
DAY = 86_400.0
#: A small job that stays for a day comes just after a big one has ended.
SQUATTER = trace(Job("big", 0, 3600, gpus=8), Job("small", 3800, DAY, gpus=1))


class RecordingScaler(Gpuscaler):
    """Ours, recording the GPU requests of the pods on each pool's machines."""

    def __init__(self, policy: Policy, *, steers: bool = True) -> None:
        super().__init__(policy, steers=steers)
        self.sizes: dict[str, set[int]] = {}

    def observe(self, moment: Moment, view: View) -> None:
        for machine in view.machines():
            self.sizes.setdefault(machine.offering.pool, set()).update(count_accelerators(spec.requests) for spec in machine.pods.values())
        super().observe(moment, view)


def replay(jobs: Trace, policy: Policy, *, steers: bool = True) -> tuple[Result, dict[str, set[int]]]:
    """The result, and the sizes of pods that ran in each pool."""
    scaler = RecordingScaler(policy, steers=steers)
    return run(jobs, policy, autoscaler=scaler, delays=FIXED, faults=NO_FAULTS), scaler.sizes


def machines(result: Result) -> dict[str, int]:
    counts: dict[str, int] = {}
    for row in result.machine_hours:
        counts[row.pool] = counts.get(row.pool, 0) + row.machines
    return counts


def test_a_small_job_is_not_placed_on_a_large_kept_machine() -> None:
    free, free_sizes = replay(SQUATTER, FREE)
    kept, kept_sizes = replay(SQUATTER, KEPT)

    assert free_sizes == {"big": {8, 1}}
    assert kept_sizes == {"big": {8}, "small": {1}}
    assert free.cost == pytest.approx(7.0 * (3800 + DAY + 600) / 3600, rel=0.01)
    assert kept.cost == pytest.approx((7.0 * (3720 + 600) + 1.0 * (DAY + 720)) / 3600, rel=0.01)


def test_kept_machines_are_closed_in_the_state_that_plans_get() -> None:
    taints_by_pool: dict[str, set[tuple[str, ...]]] = {}
    planner = Planner(KEPT)

    def decide(cluster: Cluster, state: State, now: float) -> Plan:
        for node in cluster.nodes.values():
            if node.name not in {machine.node for machine in state.upcoming}:
                taints_by_pool.setdefault(node.labels["gpuscaler.io/pool"], set()).add(tuple(taint.key for taint in node.taints))
        return planner.plan(cluster, state, now)

    run(SQUATTER, KEPT, autoscaler=Gpuscaler(KEPT, decide=decide), delays=FIXED, faults=NO_FAULTS)

    assert taints_by_pool == {"big": {("gpuscaler.io/arriving",)}, "small": {()}}


def test_a_large_job_starts_immediately_on_an_existing_kept_machine() -> None:
    result, _ = replay(trace(Job("a", 0, 3600, gpus=8), Job("b", 3800, 600, gpus=8)), KEPT)

    assert machines(result) == {"big": 1}
    assert [wait.seconds for wait in result.waits] == [pytest.approx(120.2, abs=0.1), pytest.approx(0.2, abs=0.1)]


def test_a_large_job_beyond_a_limit_starts_as_soon_as_another_job_ends() -> None:
    single = replace(KEPT, pools=(KEPT.pools[0], replace(KEPT.pools[1], max=1)))

    result, _ = replay(trace(Job("a", 0, 50_000, gpus=8), Job("b", 10, 600, gpus=8)), single)

    assert machines(result) == {"big": 1}
    assert result.waits[1].seconds == pytest.approx(50_000 + 120 - 10, abs=1.0)


def test_a_small_job_does_not_run_on_a_machine_bought_for_a_large_job() -> None:
    result, sizes = replay(trace(Job("big", 0, 600, gpus=8), *(Job(f"s{n}", 119.0, 600, gpus=1) for n in range(8))), KEPT)

    assert sizes == {"big": {8}, "small": {1}}
    assert machines(result) == {"big": 1, "small": 8}


def test_jobs_without_gpus_stay_off_kept_machines() -> None:
    _, sizes = replay(trace(Job("big", 0, 3600, gpus=8), Job("none", 3800, 600, cpu_milli=1000)), KEPT)

    assert sizes == {"big": {8}, "small": {0}}


def test_a_gang_of_large_pods_is_placed_on_existing_kept_machines() -> None:
    result, sizes = replay(trace(*(Job(f"j{n}", 0, 3600, gpus=8) for n in range(2)), Job("gang", 3800, 600, gpus=8, pods=2)), KEPT)

    assert sizes == {"big": {8}}
    assert machines(result) == {"big": 2}


def test_a_job_that_waits_for_a_machine_of_a_closed_pool_starts_when_another_job_ends() -> None:
    closed = Policy((Pool("gpu", (replace(ONE, pool="gpu"), replace(EIGHT, pool="gpu")), idle_after=600.0, closed=True),))

    result, _ = replay(trace(Job("a", 0, 300, gpus=1), Job("b", 400, 3600, gpus=1)), closed)

    # The machine of "a" is ready at 120 s, so "a" ends at 420 s; the next plan at a resync gives its room to "b".
    assert machines(result) == {"gpu": 2}
    assert 20 <= result.waits[1].seconds <= 31


@pytest.mark.parametrize("seed", range(3))
def test_no_small_pod_ever_runs_on_a_kept_machine_and_no_pod_is_left_out(seed: int) -> None:
    draw = random.Random(seed)
    jobs = [
        Job(f"j{n}", draw.uniform(0, 20_000), draw.uniform(60, 9000), gpus=draw.choice((0, 1, 1, 2, 8)), cpu_milli=1000) for n in range(60)
    ]
    mid = replace(KEPT.pools[0], name="mid", offerings=(replace(EIGHT, pool="mid", instance_type="m8", price=8.0),), min_gpus_per_pod=2)

    result, sizes = replay(trace(*jobs), replace(KEPT, pools=(*KEPT.pools, mid)))

    assert result.unserved == 0
    assert sizes["big"] == {8}
    assert sizes["mid"] <= {2, 8}
    assert sizes["small"] == {0, 1}


def test_autoscalers_that_do_not_bind_pods_ignore_min_gpus_per_pod() -> None:
    def once(name: str, policy: Policy) -> Result:
        return run(SQUATTER, policy, autoscaler=POLICIES[name](policy), delays=FIXED, faults=NO_FAULTS)

    for name in ("karpenter", "cluster-autoscaler"):
        assert once(name, KEPT) == once(name, FREE)


def test_a_static_fleet_is_sized_without_min_gpus_per_pod() -> None:
    pods = [Job("big", 0, 600, gpus=6), Job("small", 0, 600, gpus=1)]

    def fleet(policy: Policy) -> Result:
        return run(trace(*pods), policy, name=Static.name, delays=FIXED, faults=NO_FAULTS)

    assert fleet(KEPT) == fleet(FREE)


def test_without_bindings_by_the_controller_a_kept_machine_is_open_to_all_pods() -> None:
    _, sizes = replay(SQUATTER, KEPT, steers=False)

    assert sizes == {"big": {8, 1}}


def test_the_scheduler_binds_no_pod_to_a_kept_node_but_a_plan_can() -> None:
    books = Scheduler([ONE, EIGHT], kept={"big"})
    books.add("b", EIGHT)
    pod = PodSpec(digest="p", namespace="n", requests={"nvidia.com/gpu": 1, "cpu": 1000})

    assert (books.best(pod), books.fits(pod, "b")) == (None, True)
    books.add("s", ONE)
    assert books.best(pod) == "s"
