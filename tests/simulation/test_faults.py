"""Faults in a replay: markets without capacity, machines that fail, and the consequences for pods."""

import random
from itertools import pairwise

import pytest
from msgspec.structs import replace
from tests.planning.building import offering
from tests.simulation.first_fit import first_fit
from tests.simulation.pools import C8, FIXED, G1, G4, NONE, POLICY, trace

from gpuscaler.model.pools import Policy, Pool
from gpuscaler.planning.plans import Plan, PlannedMachine
from gpuscaler.simulation.cloud.delays import NO_FAULTS, Delay, Faults
from gpuscaler.simulation.cloud.markets import Markets, Steps
from gpuscaler.simulation.policies.ours import Gpuscaler
from gpuscaler.simulation.policies.policies import POLICIES, autoscaler_of
from gpuscaler.simulation.replay import EPOCH, run
from gpuscaler.simulation.traces.traces import Job, Trace
from gpuscaler.simulation.traces.workload import Shaping, members
from gpuscaler.simulation.world.autoscaler import Decisions, View
from gpuscaler.simulation.world.meter import Result

PLENTY = float("inf")
SPOT = replace(G1, market="spot", price=1.2)
BOTH = Policy((Pool("gpu", (SPOT, G1), idle_after=300),))
#: Machines are reclaimed at once when their market runs dry, after a notice of two minutes.
NOTICED = replace(NO_FAULTS, reclaim=NONE, without_notice=0.0)
HOUR = 3600.0


def replay(jobs: Trace, policy: Policy = BOTH, **options: object) -> Result:
    return run(jobs, policy, **{"delays": FIXED, "faults": NOTICED, **options})  # type: ignore[arg-type]


def dry(*spells: tuple[float, float]) -> Markets:
    """The spot market, dry in each spell (from, to)."""
    times, values = ([], []) if spells and not spells[0][0] else ([0.0], [PLENTY])
    for begin, end in spells:
        times += [begin, end]
        values += [0.0, PLENTY]
    return Markets({SPOT.key: Steps(times, values)}, began=EPOCH)


def hours(result: Result) -> dict[str, float]:
    return {row.market: row.hours for row in result.machine_hours}


def test_spot_is_bought_while_it_has_capacity() -> None:
    result = replay(trace(Job("a", 0, HOUR, gpus=1)), markets=dry())
    assert set(hours(result)) == {"spot"}
    assert (result.capacity_errors, result.failover.max) == (0, None)


@pytest.mark.parametrize("seed", range(5))
def test_failover_from_a_dozen_spot_offerings_without_capacity_to_on_demand_takes_at_most_ten_seconds(seed: int) -> None:
    spots = [offering(f"s{number}", 1 + number / 100, pool="gpu", market="spot") for number in range(12)]
    markets = Markets({offering.key: Steps([0], [0]) for offering in spots})
    delays = replace(FIXED, answer=Delay(1, 1.5, 5))
    result = replay(trace(Job("a", 0, HOUR, gpus=1)), Policy((Pool("gpu", (*spots, G1)),)), markets=markets, delays=delays, seed=seed)
    assert (result.served, set(hours(result))) == (1, {"on-demand"})
    assert result.failover.max is not None
    assert 0 <= result.failover.max <= 10


class Counting(Gpuscaler):
    """Records when each offering is asked."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.asked: list[tuple[float, str]] = []

    def decide(self, view: View, now: float) -> Decisions:
        decisions = super().decide(view, now)
        self.asked += [(now, key[2]) for purchase in decisions.purchases for key in purchase.offerings if key[1] == "spot"]
        return decisions


def test_an_offering_without_capacity_is_tried_only_a_few_times_an_hour_despite_many_pods() -> None:
    spots = [offering(f"s{number}", 1 + number / 100, pool="gpu", market="spot") for number in range(3)]
    policy = Policy((Pool("gpu", (*spots, G1)),))
    counting = Counting(policy)
    jobs = trace(*(Job(f"j{number}", 10.0 * number, 600, gpus=1) for number in range(360)))
    replay(jobs, policy, autoscaler=counting, markets=Markets({offering.key: Steps([0], [0]) for offering in spots}))
    for spot_offering in spots:
        at = [now for now, kind in counting.asked if kind == spot_offering.instance_type]
        assert 1 <= len(at) <= 8
        assert all(later - earlier >= 180 for earlier, later in pairwise(at))


def test_spot_is_bought_again_once_it_has_capacity() -> None:
    jobs = trace(Job("a", 0, 600, gpus=1), Job("b", 2 * HOUR, 600, gpus=1))
    result = replay(jobs, markets=dry((0, HOUR)))
    assert set(hours(result)) == {"spot", "on-demand"}
    bought = [decision.what for decision in result.decisions if decision.kind == "buy"]
    assert ["spot" in what for what in bought] == [False, True]


def test_a_reclaimed_pod_continues_from_its_last_checkpoint() -> None:
    markets = dry((5000, 2 * HOUR))
    result = replay(trace(Job("a", 0, 3 * HOUR, gpus=1)), markets=markets, checkpoint=HOUR)
    # It runs from 120 on and gets its notice at 5000; of its 4880 s of work the first hour is saved.
    assert (result.reclaimed, result.evictions, result.served) == (0, 1, 1)
    assert result.lost_gpu_hours == pytest.approx((4880 - HOUR) / HOUR, rel=0.01)
    assert result.gpu_hours_used == pytest.approx(3)
    whole = replay(trace(Job("a", 0, 3 * HOUR, gpus=1)), markets=markets, checkpoint=0)
    assert whole.lost_gpu_hours == pytest.approx(4880 / HOUR, rel=0.01)
    assert whole.ended - whole.began > result.ended - result.began


def test_pods_of_a_machine_that_vanishes_without_notice_are_lost_with_it() -> None:
    result = replay(trace(Job("a", 0, 2 * HOUR, gpus=1)), markets=dry((5000, 9000)), faults=replace(NOTICED, without_notice=1.0))
    assert (result.reclaimed, result.evictions, result.served) == (1, 1, 1)
    assert [decision.why for decision in result.decisions if decision.kind == "lost"] == ["reclaimed by the cloud"]


def test_the_pods_of_a_gang_restart_together() -> None:
    pods = Policy((Pool("gpu", (SPOT, G1), idle_after=300),))
    faults = replace(NO_FAULTS, gpu_hours_between_failures=1.0)
    result = replay(trace(Job("g", 0, HOUR, gpus=1, pods=3)), pods, faults=faults, checkpoint=600, seed=3)
    assert (result.served, result.unserved) == (3, 0)
    assert result.evictions > 0
    assert result.evictions % 3 == 0


def test_machines_that_fail_are_replaced_and_all_jobs_finish() -> None:
    jobs = trace(*(Job(f"j{number}", 10.0 * number, 4 * HOUR, gpus=1) for number in range(10)))
    result = replay(jobs, faults=replace(NO_FAULTS, gpu_hours_between_failures=10.0))
    assert result.failed > 0
    assert (result.served, result.unserved) == (10, 0)
    assert result.gpu_hours_used == pytest.approx(40)


def test_a_machine_that_never_registers_is_replaced_after_fifteen_minutes() -> None:
    faults = Faults(never_registers=0.3, partial_grants=0, gpu_hours_between_failures=0)
    results = [replay(trace(Job("a", 0, 60, gpus=1)), faults=faults, seed=seed) for seed in range(8)]
    assert all(result.served == 1 for result in results)
    waits = sorted(result.wait.p50 or 0.0 for result in results)
    assert waits[0] == pytest.approx(120.6, abs=1)
    assert waits[-1] >= 900 + 120
    late = next(result for result in results if (result.wait.p50 or 0) > 900)
    assert any("did not register within 900 s" in decision.why for decision in late.decisions)


def test_after_three_machines_of_an_offering_never_registered_no_fourth_is_bought_that_day() -> None:
    faults = Faults(never_registers=1, partial_grants=0, gpu_hours_between_failures=0)
    given_up = [
        decision.at for decision in replay(trace(Job("a", 0, 60, gpus=1)), faults=faults).decisions if "did not register" in decision.why
    ]
    assert len([at for at in given_up if at < given_up[0] + 86_400]) == 3


def test_the_first_pod_on_a_machine_waits_for_its_image_and_later_pods_do_not() -> None:
    jobs = trace(Job("a", 0, 100, gpus=1), Job("b", 300, 100, gpus=1))
    result = replay(jobs, delays=replace(FIXED, image_pull=Delay(40, 40, 40)))
    assert result.wait.mean == pytest.approx((160 + 0) / 2, abs=1)


def test_pods_that_arrive_while_the_image_is_pulled_wait_for_it_too() -> None:
    only = Policy((Pool("gpu", (G4,)),))
    jobs = trace(Job("a", 0, 600, gpus=1), Job("b", 0, 600, gpus=1), Job("c", 130, 600, gpus=1), Job("d", 300, 600, gpus=1))
    result = run(jobs, only, delays=replace(FIXED, image_pull=Delay(40, 40, 40)), faults=NO_FAULTS)
    waits = {wait.pod.removeprefix("trace/"): wait.seconds for wait in result.waits}
    # Open at 120 and a debounce, the image there 40 s later, for all pods: the first, those beside it and those that came meanwhile.
    assert waits["a"] == pytest.approx(160.0, abs=2.0)
    assert waits["b"] == waits["a"]
    assert waits["c"] == pytest.approx(waits["a"] - 130.0)
    assert waits["d"] == 0.0


def test_without_bindings_by_the_controller_pods_run_where_the_scheduler_puts_them() -> None:
    policy = Policy((Pool("gpu", (G4, G1)), Pool("cpu", (C8,))))
    big = PlannedMachine("new-1", "gpu", "g4", "on-demand", "z1", 12.0, pods=("trace/big",))
    small = [PlannedMachine(f"new-{n}", "gpu", "g1", "on-demand", "z1", 3.6, pods=(f"trace/s{n}",)) for n in (2, 3)]
    jobs = trace(Job("big", 0.2, HOUR, gpus=4), Job("s2", 0, HOUR, gpus=1), Job("s3", 0, HOUR, gpus=1))

    def buying() -> object:
        plans = [Plan(machines=(big, *small))]
        after = first_fit(policy)
        return lambda cluster, state, now: (
            plans.pop() if plans and len(cluster.pods) == 3 else Plan() if plans else after(cluster, state, now)
        )

    def kept(*, steers: bool, seed: int) -> Result:
        scaler = Gpuscaler(policy, steers=steers, decide=buying())  # type: ignore[arg-type]
        uneven = replace(FIXED, boot=Delay(50, 100, 300))
        return replay(jobs, policy, autoscaler=scaler, delays=uneven, seed=seed)

    steered = [kept(steers=True, seed=seed) for seed in range(10)]
    loose = [kept(steers=False, seed=seed) for seed in range(10)]
    assert all((result.served, result.broken) == (3, 0) for result in steered)
    assert all(result.served == 3 for result in loose)
    assert any(result.broken for result in loose)


@pytest.mark.parametrize("name", [*POLICIES, "static"])
def test_policies_do_not_get_the_remaining_time_of_running_jobs(name: str) -> None:
    draw = random.Random(5)
    jobs = [
        Job(f"j{number:02}", draw.uniform(0, 2000), draw.choice([HOUR, 2 * HOUR, 5 * HOUR]), gpus=draw.choice([1, 2]))
        for number in range(20)
    ]
    other = [
        replace(job, duration=duration) for job, duration in zip(jobs, draw.sample([job.duration for job in jobs], len(jobs)), strict=True)
    ]
    fleet = members(trace(*jobs), Shaping())

    def decisions(jobs: list[Job]) -> list[tuple[float, str, str]]:
        autoscaler = autoscaler_of(name, POLICY, fleet)
        result = replay(trace(*jobs), POLICY, autoscaler=autoscaler, delays=replace(FIXED, answer=Delay(1, 2, 3)))
        return [
            (decision.at, decision.kind, decision.what)
            for decision in result.decisions
            if decision.at < EPOCH + min(job.submit for job in jobs) + HOUR
        ]

    assert decisions(jobs) == decisions(other)


@pytest.mark.parametrize("late", range(0, 100, 10))
def test_a_gang_works_once_its_last_image_is_pulled_and_ends_together_despite_lost_machines(late: int) -> None:
    delays = replace(FIXED, image_pull=Delay(10, 50, 100))
    result = replay(trace(Job("g", 0, 600, gpus=1, pods=3)), delays=delays, markets=dry((650.0 + late, 2 * HOUR)), seed=3)
    assert len({pod_wait.seconds for pod_wait in result.waits}) == 1
    assert (result.served, result.timeline[-1].wanted) == (3, 0)


def test_an_on_demand_job_with_a_given_restart_cost_moves_back_to_spot() -> None:
    jobs, markets = trace(Job("a", 0, 12 * HOUR, gpus=1), Job("b", 3 * HOUR, 60, gpus=1)), dry((0, HOUR))
    offerings = [
        replace(
            offering, labels={**offering.labels, "node.kubernetes.io/instance-type": "g1", "karpenter.sh/capacity-type": offering.market}
        )
        for offering in (SPOT, G1)
    ]
    policy = Policy((Pool("gpu", tuple(offerings), idle_after=300),))
    stays = replay(jobs, policy, markets=markets)
    moves = replay(jobs, policy, markets=markets, shaping=Shaping(restart_cost=600))
    assert (stays.served, moves.served) == (2, 2)
    assert hours(stays)["on-demand"] > 12
    assert hours(moves)["on-demand"] < 6
    assert moves.evictions == 1
    assert moves.cost < stays.cost
