"""Replays in virtual time. The stand-in planner buys one machine per pod and removes idle machines."""

import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace
from tests.planning.building import offering
from tests.simulation.first_fit import first_fit
from tests.simulation.pools import C8, FIXED, G1, G4, POLICY, trace

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import Policy, Pool
from gpuscaler.planning.plans import Move, Placement, Plan, PlannedMachine, PlannedRemoval, Reason, Unplaced
from gpuscaler.planning.state import State
from gpuscaler.simulation.cloud.delays import NO_FAULTS, Delay
from gpuscaler.simulation.policies.ours import Decide, Gpuscaler
from gpuscaler.simulation.replay import EPOCH, run
from gpuscaler.simulation.traces.traces import Job, Trace
from gpuscaler.simulation.world.meter import Result, UnservedReason
from gpuscaler.simulation.world.scheduler import SCORINGS

Script = Callable[[Cluster, State], Plan]


def replay(jobs: Trace, policy: Policy = POLICY, decide: Decide | None = None, **options: object) -> Result:
    scaler = Gpuscaler(policy, decide=decide or first_fit(policy))
    return run(jobs, policy, autoscaler=scaler, **{"delays": FIXED, "faults": NO_FAULTS, **options})  # type: ignore[arg-type]


def waits(result: Result) -> list[float]:
    """Seconds that pods waited, of those that ran."""
    return [pod_wait.seconds for pod_wait in result.waits if pod_wait.ran]


def machine(name: str, pods: tuple[str, ...] = (), *, of: object = G1, after: tuple[str, ...] = ()) -> PlannedMachine:
    assert hasattr(of, "pool")
    return PlannedMachine(name, of.pool, of.instance_type, of.market, of.zone, of.price, pods=pods, opens_after=after)  # type: ignore[attr-defined]


class Scripted:
    """Plans by number of the call, and the inputs of each call. After the script it removes idle machines."""

    def __init__(self, *plans: Plan | Script) -> None:
        self.plans = list(plans)
        self.calls: list[tuple[Cluster, State, float]] = []
        self.after = first_fit(POLICY)

    def __call__(self, cluster: Cluster, state: State, now: float) -> Plan:
        self.calls.append((cluster, state, now - EPOCH))
        if not self.plans:
            return Plan(removals=self.after(cluster, state, now).removals)
        step = self.plans.pop(0)
        return step if isinstance(step, Plan) else step(cluster, state)


def test_a_job_runs_once_its_machine_is_ready_and_the_machine_is_removed_after_its_idle_time() -> None:
    result = replay(trace(Job("a", 0, 600, gpus=1, cpu_milli=4000)))
    # Bought at 0.0, open at 120, done at 720, idle until 1020.001.
    assert result.wait.p50 == pytest.approx(120.0, abs=0.7)
    assert result.gpu_hours_used == pytest.approx(600 / 3600)
    assert result.ended - result.began == pytest.approx(1020, abs=0.7)
    assert result.cost == pytest.approx(3.6 * 1020 / 3600, abs=0.001)
    assert (result.served, result.unserved, result.evictions, result.kept) == (1, 0, 0, 1)
    assert [(row.pool, row.instance_type, row.machines) for row in result.machine_hours] == [("gpu", "g1", 1)]


def test_a_pod_that_fits_an_open_node_starts_immediately() -> None:
    result = replay(trace(Job("a", 0, 1000, gpus=4), Job("b", 0, 100, gpus=4), Job("c", 400, 50, gpus=4)))
    assert result.wait.mean == pytest.approx((120.6 + 120.6 + 0) / 3, abs=0.5)
    assert sum(row.machines for row in result.machine_hours) == 2


def test_a_machine_is_not_removed_if_a_job_arrives_before_its_idle_time_ends() -> None:
    result = replay(trace(Job("a", 0, 100, gpus=1), Job("b", 400, 100, gpus=1), Job("c", 2000, 100, gpus=1)))
    assert sum(row.machines for row in result.machine_hours) == 2


def test_a_job_that_no_pool_can_serve_is_counted_and_does_not_block_the_others() -> None:
    result = replay(trace(Job("big", 0, 60, gpus=64), Job("b", 10, 60, gpus=1)))
    assert (result.served, result.unserved) == (1, 1)
    assert waits(result) == [pytest.approx(120, abs=1)]
    assert result.wait.at_least == ("mean", "p95", "p99")


def test_the_same_seed_repeats_a_run_and_another_seed_draws_other_delays() -> None:
    jobs = trace(*(Job(f"j{n}", 97.0 * n, 300.0, gpus=1) for n in range(20)))

    def once(seed: int) -> Result:
        return run(jobs, POLICY, autoscaler=Gpuscaler(POLICY, decide=first_fit(POLICY)), seed=seed)

    assert once(3) == once(3)
    assert once(3).wait != once(4).wait


def test_parts_of_a_gpu_share_a_device_and_are_not_split_over_two() -> None:
    policy = Policy((Pool("gpu", (offering("g2", 2.0, pool="gpu", gpus=2),)),))
    jobs = trace(*(Job(f"j{n}", 0, 60, gpus=1, gpu_milli=600) for n in range(2)), Job("third", 300, 1000, gpus=1, gpu_milli=600))
    planner = Scripted(lambda _, __: Plan(machines=(machine("new-1", ("trace/j0", "trace/j1"), of=policy.pools[0].offerings[0]),)))
    result = replay(jobs, policy, planner)
    (node,) = planner.calls[-1][0].nodes.values()
    assert node.allocatable["gpuscaler.io/gpu-milli"] == 2000
    assert result.served == 3
    assert result.gpu_hours_used == pytest.approx(0.6 * (60 + 60 + 1000) / 3600)


def test_the_policy_is_called_once_shortly_after_simultaneous_arrivals() -> None:
    planner = Scripted(Plan())
    replay(trace(Job("a", 0, 60), Job("b", 100, 60, gpus=1), Job("c", 100.15, 60, gpus=1)), decide=planner)
    cluster, _, at = next(call for call in planner.calls if call[2] >= 100)
    assert at == pytest.approx(100.35)
    assert sorted(cluster.pods) == ["trace/a", "trace/b", "trace/c"]
    assert cluster.pods["trace/b"].unschedulable is True


def test_the_state_has_ordered_machines_with_the_pods_that_they_were_bought_for() -> None:
    planner = Scripted(Plan(machines=(machine("new-1", ("trace/a",)),)), Plan(), Plan())
    replay(trace(Job("a", 0, 60, gpus=1), Job("b", 50, 60, gpus=8), Job("c", 110, 60, gpus=8)), decide=planner)
    _, early, _ = planner.calls[1]
    assert [(upcoming.pods, upcoming.node, round(upcoming.since - EPOCH, 3)) for upcoming in early.upcoming] == [(("trace/a",), "", 0.2)]
    cluster, late, _ = planner.calls[2]
    (registered,) = late.upcoming
    node = cluster.nodes[registered.node]
    assert [str(taint) for taint in node.taints] == ["gpuscaler.io/arriving:NoSchedule"]
    assert "nvidia.com/gpu" not in node.allocatable


def test_the_state_has_open_nodes_with_labels_pods_and_idle_time() -> None:
    planner = Scripted(Plan(machines=(machine("new-1", ("trace/a",)),)))
    replay(trace(Job("a", 0, 60, gpus=1), Job("big", 200, 60, gpus=8), Job("bigger", 150, 60, gpus=16)), decide=planner)
    cluster, state, _ = next(call for call in planner.calls if call[2] > 150)
    (node,) = cluster.nodes.values()
    assert node.taints == ()
    assert node.labels["gpuscaler.io/pool"] == "gpu"
    assert node.labels["kubernetes.io/hostname"] == node.name
    assert node.allocatable["nvidia.com/gpu"] == 1
    assert (list(cluster.on_node), dict(state.idle_seconds)) == ([node.name], {node.name: 0.0})
    cluster, state, at = next(call for call in planner.calls if call[2] > 200)
    assert (cluster.on_node, "trace/a" in cluster.pods) == ({}, False)
    assert state.idle_seconds[node.name] == pytest.approx(at - 180.2)


def test_a_pod_placed_on_an_ordered_machine_waits_until_the_machine_is_open() -> None:
    def join(_: Cluster, state: State) -> Plan:
        return Plan(placements=(Placement("trace/b", state.upcoming[0].id),))

    planner = Scripted(Plan(machines=(machine("new-1", ("trace/a",), of=G4),)), join, Plan())
    result = replay(trace(Job("a", 0, 500, gpus=1), Job("b", 60, 500, gpus=1), Job("c", 90, 1, gpus=8)), decide=planner)
    assert planner.calls[2][1].upcoming[0].pods == ("trace/a", "trace/b")
    assert (result.served, result.kept, result.unserved) == (2, 2, 1)
    assert waits(result) == [pytest.approx(120, abs=1), pytest.approx(60, abs=1)]


def test_a_placement_that_does_not_fit_is_a_broken_promise_and_the_pod_is_pending_again() -> None:
    def overfill(cluster: Cluster, _: State) -> Plan:
        return Plan(placements=(Placement("trace/b", next(iter(cluster.nodes))),))

    planner = Scripted(Plan(machines=(machine("new-1", ("trace/a",)),)), overfill, Plan())
    result = replay(trace(Job("a", 0, 500, gpus=1), Job("b", 200, 10, gpus=1), Job("late", 700, 1, gpus=16)), decide=planner)
    assert (result.broken, result.served) == (1, 2)
    assert result.wait.p99 == pytest.approx(620 - 200, abs=5)
    (distrusted,) = planner.calls[2][0].nodes.values()
    assert [str(taint) for taint in distrusted.taints] == ["gpuscaler.io/promise-broken:NoSchedule"]
    (trusted,) = next(call for call in planner.calls if call[2] > 700)[0].nodes.values()
    assert trusted.taints == ()


def test_a_machine_does_not_open_before_those_that_must_open_first() -> None:
    plan = Plan(machines=(machine("new-1", ("trace/a",), after=("new-2",)), machine("new-2", of=C8)))
    alone = replace(plan, machines=(machine("new-1", ("trace/a",)),))
    uneven = replace(FIXED, boot=replace(FIXED.boot, low=50, mode=100, high=300))

    def wait(plan: Plan, seed: int) -> float:
        result = replay(trace(Job("a", 0, 10, gpus=1)), decide=Scripted(plan), delays=uneven, seed=seed)
        return result.wait.p50 or 0.0

    waits = [(wait(plan, seed), wait(alone, seed)) for seed in range(8)]
    assert all(behind >= first for behind, first in waits)
    assert any(behind > first for behind, first in waits)


def test_the_pods_of_a_gang_start_together_on_the_last_of_their_machines() -> None:
    def first(_: Cluster, __: State) -> Plan:
        return Plan(machines=(machine("new-1", ("trace/g#0",)),))

    def second(_: Cluster, __: State) -> Plan:
        return Plan(machines=(machine("new-1", ("trace/g#1",)),))

    planner = Scripted(first, second)
    result = replay(trace(Job("g", 0, 50, gpus=1, pods=2), Job("other", 40, 1, gpus=16)), decide=planner)
    # The second machine is bought at 40.2 and open at 160.2: the first stays closed until then.
    assert waits(result) == [pytest.approx(160.2), pytest.approx(160.2)]
    assert all(pod.options.gang == "g" and pod.options.gang_size == 2 for pod in planner.calls[0][0].pods.values())


def test_the_scheduler_does_not_start_single_pods_of_a_gang() -> None:
    jobs = trace(Job("warm", 0, 10, gpus=1), Job("g", 200, 50, gpus=1, pods=2))
    planner = Scripted(Plan(machines=(machine("new-1", ("trace/warm",)),)), Plan())
    result = replay(jobs, decide=planner)
    assert (result.served, result.unserved) == (1, 2)


def test_a_moved_pod_restarts_loses_its_work_and_frees_its_machine() -> None:
    def move(cluster: Cluster, _: State) -> Plan:
        old = cluster.pods["trace/a"].node_name
        return Plan(
            machines=(replace(machine("new-9"), purpose="replacement"),),
            removals=(PlannedRemoval(old, "cheaper elsewhere", (Move("trace/a", "new-9"),), ("new-9",)),),
        )

    planner = Scripted(Plan(machines=(machine("new-1", ("trace/a",), of=G4),)), move, Plan())
    result = replay(trace(Job("a", 0, 1000, gpus=1), Job("nudge", 200, 1, gpus=16), Job("nudge2", 250, 1, gpus=16)), decide=planner)
    (draining,) = planner.calls[2][1].disrupting
    assert draining == planner.calls[1][0].pods["trace/a"].node_name
    # Runs from 120, is moved when the replacement opens at 320.6, and starts again there.
    assert (result.evictions, result.served, result.unserved) == (1, 1, 2)
    assert result.lost_gpu_hours == pytest.approx(200.6 / 3600, rel=0.01)
    assert result.gpu_hours_used == pytest.approx(1000 / 3600)
    hours = {row.instance_type: row.hours for row in result.machine_hours}
    assert hours["g4"] == pytest.approx(320.6 / 3600, rel=0.01)


def test_a_refused_purchase_is_recorded_and_its_offering_is_blocked_in_the_state() -> None:
    policy = Policy((Pool("gpu", (G1,), max=1), Pool("cpu", (C8,))))
    both = Plan(machines=(machine("new-1", ("trace/a",)), machine("new-2", ("trace/b",))))
    planner = Scripted(both, Plan())
    result = replay(trace(Job("a", 0, 60, gpus=1), Job("b", 0, 60, gpus=1), Job("c", 30, 1, gpus=16)), policy, planner)
    assert planner.calls[1][1].blocked_offerings == {G1.key}
    assert [decision.kind for decision in result.decisions][:2] == ["buy", "refused"]
    assert "pool gpu may have 1 machines" in result.decisions[1].why
    assert result.served == 2


@pytest.mark.parametrize("name", ["karpenter", "cluster-autoscaler", "static"])
def test_pods_that_fit_nowhere_are_distinguished_from_pending_ones_even_without_reasons(name: str) -> None:
    jobs = trace(Job("a", 0, 60, gpus=1), Job("huge", 0, 60, gpus=64), Job("b", 0, 60, cpu_milli=1000))
    full = replace(POLICY, pools=tuple(replace(pool, max=0) for pool in POLICY.pools))
    result = run(jobs, full, name=name, delays=FIXED, faults=NO_FAULTS)
    assert result.unserved_reasons == (
        UnservedReason(2, "still waiting when the run ended"),
        UnservedReason(1, "no machine of any pool could hold it"),
    )


def test_a_replay_ends_even_if_its_policy_never_acts() -> None:
    planner = Scripted(*[Plan()] * 1000)
    result = replay(trace(Job("a", 0, 60, gpus=1)), decide=planner)
    assert (result.served, result.unserved) == (0, 1)
    assert len(planner.calls) < 20


def test_a_pod_like_one_refused_by_a_limit_triggers_no_plan_until_a_machine_is_removed() -> None:
    def refuse(cluster: Cluster, state: State) -> Plan:
        waiting = [key for bucket in cluster.unbound.values() for key in bucket.keys]
        refused = tuple(Unplaced(key, (Reason("gpu", "limit", "none left"),)) for key in waiting)
        return Plan(unplaced=refused, removals=first_fit(POLICY)(cluster, state, 0.0).removals)

    first = Plan(machines=(machine("new-1", ("trace/a",)),))
    alike = [Job(f"b{number}", 200 + number, 60, gpus=4) for number in range(20)]
    planner = Scripted(first, *[refuse] * 20)
    result = replay(trace(Job("a", 0, 500, gpus=1), *alike), decide=planner)
    assert (result.served, result.unserved) == (1, 20)
    assert result.unserved_reasons == (UnservedReason(20, "pool gpu: limit: none left"),)
    assert len([at for _, _, at in planner.calls if 200 <= at < 220]) == 1
    # The idle machine is removed at 920.2: the refused pod triggers a plan at once.
    assert [round(at, 1) for _, _, at in planner.calls if 920 <= at < 930] == [920.2, 920.2]


def test_cost_is_never_below_the_lower_bound_and_no_machine_is_paid_at_the_end() -> None:
    jobs = trace(*(Job(f"j{n}", 61.0 * n, 10.0 + 37 * (n % 11), gpus=n % 5, cpu_milli=1000) for n in range(60)))
    result = replay(jobs)
    assert 0 < result.lower_bound <= result.cost
    assert result.served == 60
    last = result.timeline[-1]
    assert (last.wanted, last.used, last.paid, last.dollars_per_hour) == (0, 0, 0, 0)


@pytest.mark.parametrize("seed", range(8))
def test_the_production_planner_serves_every_pod_that_fits_and_pays_for_all_used_machines(seed: int) -> None:
    draw = random.Random(seed)
    jobs = [
        Job(
            f"j{number}",
            draw.uniform(0, 4000),
            draw.expovariate(1 / 900),
            pods=draw.choice([1, 1, 1, 2]),
            gpus=draw.choice([0, 1, 1, 2, 4]),
            cpu_milli=draw.choice([0, 500, 4000]),
        )
        for number in range(40)
    ]
    jobs += [replace(job, id=f"{job.id}p", gpu_milli=300) for job in jobs if job.gpus == 1 and job.pods == 1 and seed % 2]
    result = run(trace(*jobs), POLICY, seed=seed, scoring=draw.choice(SCORINGS))
    assert (result.served, result.unserved) == (sum(job.pods for job in jobs), 0)
    assert result.gpu_hours_used == pytest.approx(sum(job.pods * job.gpu_share * job.duration for job in jobs) / 3600)
    assert result.lower_bound <= result.cost
    assert all(sample.used <= sample.paid + 1e-6 for sample in result.timeline)
    assert all(sample.used <= sample.wanted + 1e-6 for sample in result.timeline)
    # Machines that are idle for long are removed: nothing is paid for at the end.
    assert result.timeline[-1].paid == 0


def test_a_pool_keeps_its_minimum_number_of_machines_when_all_jobs_have_finished() -> None:
    policy = Policy((replace(POLICY.pools[0], min=1), POLICY.pools[1]))
    result = run(trace(Job("a", 0, 60, gpus=1), Job("b", 0, 60, gpus=4)), policy, delays=FIXED)
    assert result.timeline[-1].paid in (1, 4)
    assert result.unserved == 0


def test_the_progress_callback_gets_the_number_of_arrived_pods() -> None:
    counts: list[int] = []
    replay(trace(Job("a", 0, 1), Job("b", 0, 1), Job("c", 9, 1)), progress=counts.append)
    assert counts == [2, 3]


@pytest.mark.parametrize("seed", range(5))
def test_the_oldest_of_interchangeable_pods_starts_on_the_first_ready_machine(seed: int) -> None:
    jobs = trace(*(Job(f"{number}", 10.0 * number, 4000, gpus=1) for number in range(4)))
    one_gpu = Policy((Pool("gpu", (G1,)),))
    result = run(jobs, one_gpu, delays=replace(FIXED, boot=Delay(50, 100, 300)), faults=NO_FAULTS, seed=seed)
    seconds = {wait.pod.removeprefix("trace/"): wait.seconds for wait in result.waits}
    starts = [10.0 * number + seconds[f"{number}"] for number in range(4)]
    assert starts == sorted(starts)
    assert (result.kept, result.broken, sum(1 for decision in result.decisions if decision.kind == "buy")) == (4, 0, 4)
