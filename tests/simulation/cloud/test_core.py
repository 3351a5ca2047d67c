"""The simulated cloud's core."""

import pytest
from tests.planning.building import offering

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Pool
from gpuscaler.simulation.cloud.core import SimulatedCloud
from gpuscaler.simulation.cloud.delays import NO_FAULTS, Delay, Delays, Faults
from gpuscaler.simulation.cloud.machines import (
    ANSWERED,
    FAILED,
    LOST,
    NO_CAPACITY,
    NOTICE,
    POOL_LIMIT,
    QUOTA_FULL,
    RECLAIMED,
    REGISTERED,
    TERMINATED,
    UNKNOWN_OFFERING,
    VISIBLE,
    CloudMachine,
    PurchaseAnswer,
    before_device_plugin,
)
from gpuscaler.simulation.cloud.markets import Markets, Steps
from gpuscaler.simulation.cloud.room import Quota

NONE = Delay(0, 0, 0)
GPU = offering("g5.xlarge", 3.6, pool="gpu", cpu=4, memory=16, pods=50)
CPU = offering("c6i.xlarge", 0.36, pool="cpu", gpus=0, cpu=4, memory=8, pods=50)
SPOT = offering("g5.xlarge", 1.2, pool="gpu", market="spot", cpu=4, memory=16, pods=50)
POOLS = (Pool("gpu", (GPU,), max=3), Pool("cpu", (CPU,)))
FIXED = Delays(boot=Delay(100, 100, 100), device_plugin=Delay(20, 20, 20), answer=NONE, image_pull=NONE)
#: A market that runs dry at 1000, for 500 seconds, and again every 10,000.
DRY_AT_1000 = Steps([0, 1000, 1500], [float("inf"), 0, float("inf")], period=10_000)


def cloud(*pools: Pool, **options: object) -> SimulatedCloud:
    return SimulatedCloud(pools or POOLS, **{"seed": 1, "delays": FIXED, **options})  # type: ignore[arg-type]


def spot(capacity: Steps = DRY_AT_1000, *, faults: Faults = NO_FAULTS, price: Steps | None = None) -> SimulatedCloud:
    markets = Markets({SPOT.key: capacity}, {SPOT.key: price} if price else None)
    return cloud(Pool("gpu", (SPOT, GPU)), markets=markets, faults=faults)


def ask(sky: SimulatedCloud, *offerings: OfferingKey, count: int = 1, now: float = 0, token: str = "a", **options: bool) -> PurchaseAnswer:
    """Order machines, and wait for the answer."""
    sky.ask(token, offerings, count=count, now=now, **options)
    (answer,) = [event.answer for event in sky.advance(now) if event.answer is not None]
    return answer


def events(sky: SimulatedCloud, until: float) -> list[tuple[float, str]]:
    return [(event.at, event.kind) for event in sky.advance(until)]


def test_the_gpus_of_a_machine_become_allocatable_after_it_registers() -> None:
    sky = cloud()
    (machine,) = ask(sky, GPU.key, now=1000).machines
    assert (sky.next_event(), sky.busy) == (1100, True)
    assert sky.advance(1099.9) == ()
    assert events(sky, 1500) == [(1100, REGISTERED), (1120, VISIBLE)]
    assert (machine.state, sky.next_event(), sky.busy) == (VISIBLE, None, False)


def test_a_machine_without_gpus_needs_no_device_plugin() -> None:
    sky = cloud()
    ask(sky, CPU.key)
    assert events(sky, 100) == [(100, REGISTERED), (100, VISIBLE)]


def test_repeating_a_token_buys_nothing_more() -> None:
    sky = cloud()
    first = ask(sky, GPU.key, count=2)
    sky.ask("a", (GPU.key,), count=2, now=5)
    assert sky.advance(5) == ()
    assert [machine.id for machine in sky.list()] == [machine.id for machine in first.machines]
    assert len(sky.list()) == 2


def test_an_order_beyond_a_pools_maximum_is_granted_in_part_with_the_reason() -> None:
    answer = ask(cloud(), GPU.key, count=5)
    (refusal,) = answer.refusals
    assert len(answer.machines) == 3
    assert (refusal.kind, refusal.missing) == (POOL_LIMIT, 2)
    assert "pool gpu may have 3 machines" in refusal.detail


def test_a_quota_counts_machines_of_all_pools_and_zones_until_they_end() -> None:
    other = offering("g5.2xlarge", 3.6, pool="more", zone="z2")
    pools = (Pool("gpu", (GPU,)), Pool("more", (other, SPOT)))
    sky = SimulatedCloud(pools, seed=1, delays=FIXED, quotas=[Quota(3, ("g5.xlarge", "g5.2xlarge"), "on-demand")])
    (first, _) = ask(sky, GPU.key, count=2).machines

    answer = ask(sky, other.key, count=2, token="b")
    (refusal,) = answer.refusals
    assert (len(answer.machines), refusal.kind, refusal.missing) == (1, QUOTA_FULL, 1)
    assert refusal.bucket == ("g5.xlarge", "g5.2xlarge")
    assert "the account may have 3 on-demand machines" in refusal.detail
    assert "and has 2, 2 more were asked for" in refusal.detail
    assert len(ask(sky, SPOT.key, token="c").machines) == 1

    sky.terminate(first.id, 1.0)
    assert len(ask(sky, GPU.key, token="d", now=1.0).machines) == 1


def test_an_exhausted_offering_has_no_capacity_until_a_machine_ends() -> None:
    scarce = offering("g5.xlarge", 3.6, pool="gpu", count=1)
    sky = cloud(Pool("gpu", (scarce,)))
    (machine,) = ask(sky, scarce.key).machines
    refused = ask(sky, scarce.key, now=1, token="b")
    assert (refused.machines, [(refusal.kind, refusal.missing) for refusal in refused.refusals]) == ((), [(NO_CAPACITY, 1)])
    sky.terminate(machine.id, 2)
    assert len(ask(sky, scarce.key, now=3, token="c").machines) == 1


def test_an_order_for_an_unknown_offering_is_refused_with_the_offerings_name() -> None:
    answer = ask(cloud(), OfferingKey("gpu", "spot", "p5.48xlarge", "z9"))
    assert answer.machines == ()
    (refusal,) = answer.refusals
    assert (refusal.kind, refusal.detail) == (UNKNOWN_OFFERING, "no offering gpu/spot/p5.48xlarge/z9")


def test_an_order_of_less_than_one_machine_is_an_error() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        cloud().ask("a", (GPU.key,), count=0, now=0)


def test_machines_are_billed_by_the_second_and_for_at_least_a_minute() -> None:
    sky = cloud()
    short, long = ask(sky, GPU.key, count=2).machines
    sky.terminate(short.id, 10)
    sky.terminate(long.id, 90)
    assert sky.cost(short, 500) == pytest.approx(3.6 * 60 / 3600)
    assert sky.cost(long, 500) == pytest.approx(3.6 * 90 / 3600)


def test_a_machine_that_ended_while_booting_never_registers() -> None:
    sky = cloud()
    (machine,) = ask(sky, GPU.key).machines
    sky.terminate(machine.id, 50)
    sky.terminate(machine.id, 70)
    assert (sky.next_event(), sky.advance(1000), sky.list(), sky.busy) == (None, (), (), False)
    assert (machine.state, machine.ended_at, sky.history()) == (TERMINATED, 50, (machine,))


def test_ending_an_unknown_machine_raises_a_key_error() -> None:
    with pytest.raises(KeyError, match="sim-77"):
        cloud().terminate("sim-77", 0)


def test_the_same_seed_gives_the_same_delays_and_another_seed_others() -> None:
    def arrivals(seed: int) -> list[float]:
        sky = cloud(seed=seed, delays=Delays(answer=NONE))
        return [machine.visible_at for machine in ask(sky, GPU.key, count=3).machines]

    assert arrivals(7) == arrivals(7)
    assert arrivals(7) != arrivals(8)
    assert all(180 <= at <= 300 for seed in range(50) for at in arrivals(seed))


def test_an_answer_of_the_cloud_is_delayed_and_shows_the_state_when_it_arrives() -> None:
    sky = cloud(delays=Delays(answer=Delay(2, 3, 5)))
    sky.ask("a", (GPU.key,), count=1, now=100)
    (event,) = sky.advance(105)
    assert event.kind == ANSWERED
    assert 102 <= event.at <= 105
    assert event.answer is not None
    assert event.answer.machines[0].bought_at == event.at


def test_if_a_market_has_no_capacity_the_next_fallback_is_granted() -> None:
    answer = ask(spot(), SPOT.key, GPU.key, count=2, now=1100)
    assert [machine.offering.market for machine in answer.machines] == ["on-demand", "on-demand"]
    assert [(refusal.kind, refusal.offering, refusal.missing) for refusal in answer.refusals] == [(NO_CAPACITY, SPOT.key, 2)]


def test_a_group_that_spreads_over_zones_grants_machines_from_each_zone_in_turn() -> None:
    other = offering("g5.xlarge", 3.6, pool="gpu", zone="z2")
    answer = ask(cloud(Pool("gpu", (GPU, other))), GPU.key, other.key, count=5, spread=True)
    assert sorted(machine.offering.zone for machine in answer.machines) == ["z1", "z1", "z1", "z2", "z2"]


def test_a_group_with_a_zone_without_capacity_takes_the_rest_from_other_zones() -> None:
    answer = ask(spot(), SPOT.key, GPU.key, count=4, now=1100, spread=True)
    assert [machine.offering.market for machine in answer.machines] == ["on-demand"] * 4
    assert len(answer.refusals) == 1


def test_an_order_that_stays_open_is_filled_once_capacity_returns() -> None:
    sky = spot()
    assert ask(sky, SPOT.key, count=2, now=1100, standing=True).machines == ()
    (event,) = [event for event in sky.advance(1550) if event.answer is not None]
    assert event.at == 1500
    assert event.answer is not None
    assert (event.answer.purchase, len(event.answer.machines)) == ("a", 2)


def test_a_withdrawn_order_is_not_filled() -> None:
    sky = spot()
    ask(sky, SPOT.key, now=1100, standing=True)
    sky.withdraw("a")
    assert sky.advance(5000) == ()
    assert sky.next_event() is None


def test_machines_of_a_market_that_loses_its_capacity_are_reclaimed_after_a_notice() -> None:
    sky = spot(faults=Faults(never_registers=0, gpu_hours_between_failures=0, reclaim=NONE, without_notice=0))
    (machine,) = ask(sky, SPOT.key, now=500).machines
    sky.advance(999)
    notice, lost = sky.advance(2000)
    assert (notice.kind, notice.at, notice.gone_at, notice.machine) == (NOTICE, 1000, 1120, machine)
    assert (lost.kind, lost.at, lost.why, machine.ended_at) == (LOST, 1120, RECLAIMED, 1120)


def test_machines_may_be_reclaimed_without_notice_and_at_different_times() -> None:
    sky = spot(faults=Faults(never_registers=0, partial_grants=0, gpu_hours_between_failures=0, without_notice=1))
    ask(sky, SPOT.key, count=20, now=500)
    sky.advance(999)
    lost = sky.advance(2000)
    assert {event.kind for event in lost} == {LOST}
    assert len({event.at for event in lost}) == 20
    assert all(1000 <= event.at <= 1180 for event in lost)


def test_a_market_with_reduced_capacity_reclaims_the_youngest_machines_beyond_it() -> None:
    sky = spot(Steps([0, 1000], [float("inf"), 1]), faults=Faults(never_registers=0, partial_grants=0, gpu_hours_between_failures=0))
    old, *young = ask(sky, SPOT.key, count=3, now=500).machines
    sky.advance(5000)
    assert sky.list() == (old,)
    assert all(machine.state == LOST for machine in young)


def test_machines_that_never_register_are_paid_until_they_are_ended() -> None:
    sky = cloud(faults=Faults(never_registers=1, gpu_hours_between_failures=0))
    (machine,) = ask(sky, GPU.key).machines
    assert (sky.next_event(), sky.busy) == (None, False)
    sky.terminate(machine.id, 900)
    assert sky.cost(machine, 5000) == pytest.approx(3.6 * 900 / 3600)


def test_machines_fail_at_the_configured_rate() -> None:
    sky = cloud(Pool("gpu", (GPU,)), faults=Faults(never_registers=0, gpu_hours_between_failures=100))
    ask(sky, GPU.key, count=2000)
    lost = [event for event in sky.advance(3600 * 10_000) if event.kind == LOST]
    assert {event.why for event in lost} == {FAILED}
    hours = [event.at / 3600 for event in lost]
    assert sum(hours) / len(hours) == pytest.approx(100, rel=0.1)


def test_a_spot_purchase_of_several_machines_may_be_granted_in_part() -> None:
    sky = spot(faults=Faults(never_registers=0, partial_grants=1, gpu_hours_between_failures=0))
    answer = ask(sky, SPOT.key, count=10)
    assert 1 <= len(answer.machines) < 10
    assert [(refusal.kind, refusal.missing) for refusal in answer.refusals] == [(NO_CAPACITY, 10 - len(answer.machines))]


def test_each_second_is_billed_at_its_current_price() -> None:
    sky = spot(price=Steps([0, 600], [3.6, 7.2]))
    (machine,) = ask(sky, SPOT.key).machines
    assert sky.cost(machine, 900) == pytest.approx(0.6 + 0.6)
    assert sky.dollars_per_hour(100) == 3.6
    sky.terminate(machine.id, 900)
    assert sky.cost(machine, 9000) == pytest.approx(1.2)
    assert sky.dollars_per_hour(1000) == 0


def test_a_machine_that_exists_at_the_start_is_open_immediately() -> None:
    sky = cloud()
    machine: CloudMachine = sky.start(GPU.key, 50)
    assert (machine.state, sky.list(), sky.next_event()) == (VISIBLE, (machine,), None)


def test_a_delay_without_low_mode_and_high_in_ascending_order_is_refused() -> None:
    with pytest.raises(ValueError, match="low <= mode <= high"):
        Delay(10, 5, 20)


def test_before_its_device_plugin_starts_a_node_has_only_the_kubelets_resources() -> None:
    assert before_device_plugin(GPU.allocatable) == {"cpu": 4000, "memory": 2**34, "pods": 50}


def test_the_simulation_does_not_wait_for_gpus_that_never_become_allocatable() -> None:
    sky = cloud(Pool("gpu", (GPU,)), faults=Faults(never_registers=0, gpu_hours_between_failures=0, partial_grants=0, never_visible=0.5))
    machines = ask(sky, GPU.key, count=40).machines
    cloud_events = events(sky, 1000)
    assert [kind for _, kind in cloud_events].count(REGISTERED) == 40
    visible = [kind for _, kind in cloud_events].count(VISIBLE)
    assert 10 < visible < 30
    assert sum(machine.state == REGISTERED for machine in machines) == 40 - visible
    assert not sky.busy


def test_some_machines_that_never_register_have_a_fault_that_the_cloud_reports() -> None:
    sky = cloud(Pool("gpu", (GPU,)), faults=Faults(never_registers=1, gpu_hours_between_failures=0, partial_grants=0, impaired=0.5))
    faults = [machine.fault for machine in ask(sky, GPU.key, count=40).machines]
    assert 10 < faults.count("Instance reachability check failed") < 30
    assert set(faults) == {"", "Instance reachability check failed"}
