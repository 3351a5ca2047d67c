"""The simulated cloud's core."""

import pytest

from gpuscaler.clouds.delays import Delay, Delays
from gpuscaler.clouds.simulated import (
    NO_CAPACITY,
    POOL_LIMIT,
    REGISTERED,
    TERMINATED,
    UNKNOWN_OFFERING,
    VISIBLE,
    SimulatedCloud,
    before_device_plugin,
)
from gpuscaler.model.pools import Offering, Pool

GPU = Offering("gpu", "on-demand", "g5.xlarge", "z1", 3.6, {"cpu": 4000, "memory": 2**34, "pods": 50, "nvidia.com/gpu": 1}, {})
CPU = Offering("cpu", "on-demand", "c6i.xlarge", "z1", 0.36, {"cpu": 4000, "memory": 2**33, "pods": 50}, {})
POOLS = (Pool("gpu", (GPU,), max=3), Pool("cpu", (CPU,)))
FIXED = Delays(boot=Delay(100, 100, 100), device_plugin=Delay(20, 20, 20))


def cloud(**options: object) -> SimulatedCloud:
    return SimulatedCloud(POOLS, **{"seed": 1, "delays": FIXED, **options})  # type: ignore[arg-type]


def test_a_gpu_machine_registers_first_and_shows_its_gpus_later() -> None:
    sky = cloud()
    (machine,) = sky.buy(GPU.key, count=1, now=1000, token="a").machines
    assert sky.next_event() == 1100
    assert sky.advance(1099.9) == ()
    assert [(event.at, event.state) for event in sky.advance(1500)] == [(1100, REGISTERED), (1120, VISIBLE)]
    assert (machine.state, sky.next_event()) == (VISIBLE, None)


def test_a_machine_without_gpus_needs_no_device_plugin() -> None:
    sky = cloud()
    sky.buy(CPU.key, count=1, now=0, token="a")
    assert [(event.at, event.state) for event in sky.advance(100)] == [(100, REGISTERED), (100, VISIBLE)]


def test_a_token_that_is_used_again_buys_nothing_and_gets_the_same_answer() -> None:
    sky = cloud()
    first = sky.buy(GPU.key, count=2, now=0, token="a")
    assert sky.buy(GPU.key, count=2, now=5, token="a") is first
    assert [machine.id for machine in sky.list()] == [machine.id for machine in first.machines]
    assert len(sky.list()) == 2


def test_a_pool_at_its_maximum_grants_a_part_and_says_why_not_all() -> None:
    grant = cloud().buy(GPU.key, count=5, now=0, token="a")
    assert len(grant.machines) == 3
    assert grant.refusal is not None
    assert (grant.refusal.kind, grant.refusal.missing) == (POOL_LIMIT, 2)
    assert "pool gpu may have 3 machines" in grant.refusal.detail


def test_an_offering_that_has_run_out_is_no_capacity_until_a_machine_ends() -> None:
    scarce = Offering("gpu", "on-demand", "g5.xlarge", "z1", 3.6, GPU.allocatable, {}, count=1)
    sky = SimulatedCloud((Pool("gpu", (scarce,)),))
    (machine,) = sky.buy(scarce.key, count=1, now=0, token="a").machines
    refused = sky.buy(scarce.key, count=1, now=1, token="b")
    assert refused.machines == ()
    assert refused.refusal is not None
    assert (refused.refusal.kind, refused.refusal.missing) == (NO_CAPACITY, 1)
    sky.terminate(machine.id, 2)
    assert len(sky.buy(scarce.key, count=1, now=3, token="c").machines) == 1


def test_an_unknown_offering_is_refused_by_name() -> None:
    grant = cloud().buy(("gpu", "spot", "p5.48xlarge", "z9"), count=1, now=0, token="a")
    assert grant.machines == ()
    assert grant.refusal is not None
    assert (grant.refusal.kind, grant.refusal.detail) == (UNKNOWN_OFFERING, "no offering gpu/spot/p5.48xlarge/z9")


def test_nothing_can_be_bought_in_a_count_below_one() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        cloud().buy(GPU.key, count=0, now=0, token="a")


def test_billing_is_by_the_second_with_a_minimum_of_a_minute() -> None:
    sky = cloud()
    short, long = sky.buy(GPU.key, count=2, now=0, token="a").machines
    sky.terminate(short.id, 10)
    sky.terminate(long.id, 90)
    assert short.cost(500) == pytest.approx(3.6 * 60 / 3600)
    assert long.cost(500) == pytest.approx(3.6 * 90 / 3600)


def test_a_machine_that_ended_while_booting_never_registers() -> None:
    sky = cloud()
    (machine,) = sky.buy(GPU.key, count=1, now=0, token="a").machines
    sky.terminate(machine.id, 50)
    sky.terminate(machine.id, 70)
    assert (sky.next_event(), sky.advance(1000), sky.list()) == (None, (), ())
    assert (machine.state, machine.terminated_at, sky.history()) == (TERMINATED, 50, (machine,))


def test_ending_an_unknown_machine_is_a_key_error() -> None:
    with pytest.raises(KeyError, match="sim-77"):
        cloud().terminate("sim-77", 0)


def test_the_same_seed_gives_the_same_delays_and_another_seed_others() -> None:
    def arrivals(seed: int) -> list[float]:
        sky = cloud(seed=seed, delays=Delays())
        return [machine.visible_at for machine in sky.buy(GPU.key, count=3, now=0, token="a").machines]

    assert arrivals(7) == arrivals(7)
    assert arrivals(7) != arrivals(8)
    assert all(180 <= at <= 300 for seed in range(50) for at in arrivals(seed))


def test_a_delay_whose_bounds_are_out_of_order_is_refused() -> None:
    with pytest.raises(ValueError, match="low <= mode <= high"):
        Delay(10, 5, 20)


def test_before_its_device_plugin_a_node_shows_only_what_the_kubelet_counts() -> None:
    assert before_device_plugin(GPU.allocatable) == {"cpu": 4000, "memory": 2**34, "pods": 50}
