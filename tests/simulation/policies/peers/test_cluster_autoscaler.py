"""Cluster Autoscaler's model against measurements of the real program, and in the corner cases that decide its cost."""

import pytest
from tests.planning.building import offering
from tests.simulation.policies.peers.recording import Recording, dry, pools_of, replay
from tests.simulation.pools import GIB, trace

from gpuscaler.model.pools import Offering, Policy, Pool
from gpuscaler.simulation.cloud.delays import Delay, Delays
from gpuscaler.simulation.policies.peers.cluster_autoscaler import ClusterAutoscaler
from gpuscaler.simulation.policies.peers.expanders import PRICE, PRIORITY, RANDOM, Option, expander_by_name
from gpuscaler.simulation.policies.peers.settings import ClusterAutoscalerSettings
from gpuscaler.simulation.traces.traces import Job
from gpuscaler.simulation.traces.workload import Shaping, members

HOURS = 3600.0


def group(market: str, zone: str, *, price: float = 1.0, gpus: int = 1, instance_type: str = "g1", pool: str = "all") -> Offering:
    return offering(instance_type, price, pool=pool, market=market, zone=zone, gpus=gpus, pods=50)


def one_on_demand(spot_groups: int) -> Policy:
    spot = tuple(group("spot", f"z{number}") for number in range(spot_groups))
    return Policy((Pool("all", (*spot, group("on-demand", "z0", price=3.0))),))


def minutes_to_on_demand(
    spot_groups: int, settings: ClusterAutoscalerSettings, *, seed: int = 0, patience: float = 10 * HOURS
) -> float | None:
    """Minutes from the pod's creation until an on-demand machine was asked for, with all spot groups dry."""
    policy = one_on_demand(spot_groups)
    scaler = Recording(ClusterAutoscaler(policy, settings, seed=seed))
    replay(trace(Job("a", 0.0, 60.0, gpus=1)), policy, scaler, markets=dry(policy, "spot"), until=patience)
    times = [at for at, purchase in scaler.purchases if purchase.offerings[0][1] == "on-demand"]
    return times[0] / 60.0 if times else None


@pytest.mark.parametrize(("groups", "minutes"), [(1, 15.7), (2, 91.5)])
def test_cluster_autoscaler_buys_on_demand_once_its_spot_timeouts_expire(groups: int, minutes: float) -> None:
    assert minutes_to_on_demand(groups, ClusterAutoscalerSettings(expander=PRIORITY)) == pytest.approx(minutes, abs=0.6)


def test_cluster_autoscaler_never_buys_on_demand_after_three_groups_without_capacity() -> None:
    assert minutes_to_on_demand(3, ClusterAutoscalerSettings(expander=PRIORITY)) is None


@pytest.mark.parametrize(
    ("groups", "least", "most"), [(1, 1.5, 1.5), (2, 2.5, 2.5), (3, 3.5, 3.5), (6, 6.5, 6.5), (12, 33, 36), (24, 85, 90)]
)
def test_cluster_autoscaler_reaches_on_demand_group_by_group_if_errors_are_reported_within_a_minute(
    groups: int, least: float, most: float
) -> None:
    settings = ClusterAutoscalerSettings(expander=PRIORITY, error_signal=60.0)
    minutes = minutes_to_on_demand(groups, settings)
    assert minutes is not None
    assert least - 0.5 <= minutes <= most + 0.5


def test_cluster_autoscaler_keeps_idle_gpu_nodes_while_another_pool_scales_up_every_nine_minutes() -> None:
    policy = Policy((Pool("gpu", (group("on-demand", "z0", pool="gpu"),)), Pool("big", (group("on-demand", "z1", gpus=8, pool="big"),))))
    # The job of one GPU ends after half an hour; every nine minutes a job of eight GPUs needs another machine, for ten hours.
    steady = [Job(f"b{number}", 540.0 * number, 12 * HOURS, gpus=8) for number in range(66)]
    scaler = Recording(ClusterAutoscaler(policy))
    replay(trace(Job("a", 0.0, 1800.0, gpus=1), *steady), policy, scaler, until=10 * HOURS)
    assert [at for at, _ in scaler.removals if at < 66 * 540.0] == []


def test_cluster_autoscaler_buys_56_machines_for_8_pods_without_gpu_label_and_with_a_slow_device_plugin() -> None:
    policy = Policy((Pool("all", (group("on-demand", "z0"),)),))
    slow_plugin = Delays(boot=Delay(12, 12, 12), device_plugin=Delay(120, 120, 120), answer=Delay(1, 1, 1), image_pull=Delay(0, 0, 0))
    pods = [Job(f"p{number}", 0.0, 3600.0, gpus=1) for number in range(8)]

    def bought(settings: ClusterAutoscalerSettings) -> int:
        result = replay(trace(*pods), policy, ClusterAutoscaler(policy, settings), delays=slow_plugin)
        return sum(row.machines for row in result.machine_hours)

    assert bought(ClusterAutoscalerSettings(gpu_label=False)) == 56
    assert bought(ClusterAutoscalerSettings()) == 8


def test_cluster_autoscaler_needs_fifteen_machines_for_pods_with_three_and_five_gpus() -> None:
    policy = Policy((Pool("all", (group("on-demand", "z0", gpus=8),)),))
    pods = [Job(f"p{number}", 0.0, 3600.0, gpus=3 if number < 10 else 5, cpu_milli=3 if number < 10 else 1) for number in range(20)]
    result = replay(trace(*pods), policy, ClusterAutoscaler(policy))
    # Pods of three come first here, two to a machine, and each of five then needs one of its own.
    assert sum(row.machines for row in result.machine_hours) == 15


def test_cluster_autoscaler_removes_empty_nodes_after_ten_minutes_ten_at_a_time() -> None:
    policy = Policy((Pool("all", (group("on-demand", "z0"),)),))
    scaler = Recording(ClusterAutoscaler(policy))
    replay(trace(*[Job(f"p{number}", 0.0, 1200.0, gpus=1) for number in range(25)]), policy, scaler)
    moments = sorted({at for at, _ in scaler.removals})
    assert [sum(at == moment for at, _ in scaler.removals) for moment in moments] == [10, 10, 5]
    ended = 30.0 + 121.0 + 1200.0
    assert ended + 600.0 <= moments[0] <= ended + 620.0


def test_cluster_autoscaler_waits_half_a_minute_for_more_pods_with_gpus() -> None:
    policy = Policy((Pool("all", (group("on-demand", "z0"),)),))
    scaler = Recording(ClusterAutoscaler(policy))
    replay(trace(Job("a", 0.0, 600.0, gpus=1), Job("b", 25.0, 600.0, gpus=1)), policy, scaler)
    assert [(at, len(purchase.machines)) for at, purchase in scaler.purchases] == [(30.0, 2)]


def test_in_cluster_autoscalers_model_a_pools_maximum_limits_all_its_groups_together() -> None:
    policy = Policy((Pool("all", (group("on-demand", "z0"), group("on-demand", "z1")), max=3),))
    result = replay(trace(*[Job(f"p{number}", 0.0, 600.0, gpus=1) for number in range(5)]), policy, ClusterAutoscaler(policy))
    assert result.unserved == 0
    assert max(sample.paid for sample in result.timeline) == 3


def test_cluster_autoscaler_keeps_a_pools_minimum() -> None:
    policy = Policy((Pool("all", (group("on-demand", "z0"),), min=2),))
    scaler = Recording(ClusterAutoscaler(policy))
    replay(trace(*[Job(f"p{number}", 0.0, 600.0, gpus=1) for number in range(5)]), policy, scaler)
    assert len(scaler.removals) == 3


def test_expander_least_waste_chooses_the_group_with_least_unused_and_price_the_cheapest_group() -> None:
    policy = pools_of(["g5.xlarge", "g5.12xlarge"])
    job = trace(Job("a", 0.0, 600.0, gpus=1, cpu_milli=3000, memory=12 * GIB))
    for name in ("least-waste", PRICE):
        result = replay(job, policy, ClusterAutoscaler(policy, ClusterAutoscalerSettings(expander=name)))
        assert [row.instance_type for row in result.machine_hours] == ["g5.xlarge"]


def test_expander_price_buys_gpu_machines_for_pods_without_gpus_only_if_nothing_else_fits() -> None:
    plain = offering("c8", 30.0, pool="cpu", zone="z0", gpus=0, pods=50)
    pods = ((members(trace(Job("a", 0.0, 60.0, cpu_milli=1000, memory=GIB)), Shaping())[0].spec, 4),)
    options = [Option(plain, 1, pods), Option(group("on-demand", "z0"), 1, pods)]
    assert expander_by_name(PRICE, seed=0)(options).offering.instance_type == "c8"


def test_expander_random_depends_only_on_the_seed() -> None:
    options = [Option(group("on-demand", f"z{number}"), 1, ()) for number in range(5)]

    def drawn(seed: int) -> list[str]:
        choose = expander_by_name(RANDOM, seed=seed)
        return [choose(options).offering.zone for _ in range(20)]

    assert drawn(1) == drawn(1)
    assert drawn(1) != drawn(2)


def test_an_unknown_expander_is_reported_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown expander 'cheapest': expected one of random, least-waste, priority, price"):
        expander_by_name("cheapest", seed=0)


def bursts(jobs_later: int) -> tuple[Recording, list[float]]:
    """Twelve machines of four GPUs that become empty together, and pods of one GPU that come a minute later; and when those ran."""
    policy = Policy((Pool("all", (group("on-demand", "z0", gpus=4),)),))
    jobs = [Job(f"a{number}", 0.0, 1000.0, gpus=4) for number in range(12)]
    jobs += [Job(f"b{number}", 1300.0 + 30.0 * number, 20000.0, gpus=1) for number in range(jobs_later)]
    recording = Recording(ClusterAutoscaler(policy))
    result = replay(trace(*jobs), policy, recording)
    return recording, [pod_wait.seconds for pod_wait in result.waits]


def test_cluster_autoscaler_sets_at_most_ten_soft_taints_per_loop() -> None:
    recording, _ = bursts(0)
    moments = [at for at, _, unneeded in recording.marks if unneeded]
    # Between a machine's opening and its pod's arrival it is not unneeded; all are when the pods have ended.
    assert len(moments) == 12
    assert moments == [moments[0]] * 10 + [pytest.approx(moments[0] + 10.0)] * 2


def test_a_node_that_is_needed_again_loses_its_soft_taint_and_gets_the_next_pods() -> None:
    recording, waits = bursts(4)
    lifted = [node for _, node, unneeded in recording.marks if not unneeded]
    # Without soft taints the emptiest would be filled, four nodes with a pod each.
    assert len(lifted) == 1
    assert max(waits[-4:]) == 0.0
    assert len([node for at, node in recording.removals if at < 15000.0]) == 11
