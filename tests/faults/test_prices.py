"""F83: prices that cannot be read, and reports about the price of a machine."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.clouds.aws.prices.test_asking import SEVERED, account, guesses, prices
from tests.control.aws_stage import aws_stage
from tests.faults.test_zones import group
from tests.planning.building import node, offering, planned, pod, pool, spec
from tests.planning.scale_down.kit import movable

from gpuscaler.embedded.aws.hardware import instance_types
from gpuscaler.embedded.aws.serving.faults import Fault, outage
from gpuscaler.model.pools import BY_SIZE, Limits, Offering
from gpuscaler.planning.plans import Plan

THROTTLED = Fault(service="pricing", code="Throttling", message="Rate exceeded", times=1)


def plan_of_one_gpu(region: str, *faults: Fault, limits: Limits | None = None) -> Plan:
    """Return the plan for a pod of one GPU, in an account with groups of a small and of the largest type."""
    discovered = account(region, *faults, types=("g5.xlarge", "p5.48xlarge")).discover()
    pools = [aws_pool.pool for aws_pool in discovered.pools]
    return planned([pod("p", spec(gpus=1, cpu=2, memory=8))], *pools, limits=limits or Limits())


@pytest.mark.parametrize("fault", [SEVERED, outage("pricing"), THROTTLED], ids=["unreachable", "down", "throttled once"])
@pytest.mark.parametrize("region", ["us-east-2", "eu-central-1", "ap-northeast-2", "us-gov-west-1", "cn-north-1"])
def test_f83_without_list_prices_a_small_pod_gets_a_small_spot_machine_within_limits(region: str, fault: Fault) -> None:
    for limits in (None, Limits(dollars_per_hour=2.0)):
        (machine,) = plan_of_one_gpu(region, fault, limits=limits).machines
        assert (machine.instance_type, machine.market) == ("g5.xlarge", "spot")
        assert machine.price_per_hour == pytest.approx(instance_types.price("g5.xlarge", region, "spot"), rel=0.02)


def test_f83_one_throttled_price_request_changes_no_price() -> None:
    discovered = account("us-west-1", THROTTLED, types=("g5.xlarge", "p5.48xlarge")).discover()

    assert prices(discovered, "on-demand") == {
        name: instance_types.price(name, "us-west-1", "on-demand") for name in ("g5.xlarge", "p5.48xlarge")
    }
    assert guesses(discovered) == {""}


BIG, SMALL = offering("g.8", 16.0, gpus=8, cpu=96, memory=768), offering("g.1", 2.5, memory=60)


def planned_removals(big: Offering, small: Offering) -> list[str]:
    """Return the nodes that a plan removes when a replica that needs one GPU runs on a machine of eight."""
    made = planned([node("a", big), movable("x", "a", spec(gpus=1, cpu=2, memory=8))], pool(big, small))
    return [removal.node for removal in made.removals]


def test_f83_no_pod_is_moved_if_the_saving_is_unknown() -> None:
    assert planned_removals(BIG, SMALL) == ["a"]
    assert planned_removals(replace(BIG, price_from=BY_SIZE), SMALL) == []
    assert planned_removals(BIG, replace(SMALL, price_from=BY_SIZE)) == []
    assert planned_removals(BIG, replace(SMALL, price_from="us-east-1")) == ["a"]


async def test_f83_the_reported_price_is_that_of_the_granted_machine(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with aws_stage(tmp_path) as here:
        group(here, "g5.xlarge", "g5.48xlarge", zones=("us-east-1a",))
        here.start()
        await here.submit("train")
        await here.until(here.machines, 60)
        await here.sleep(70)
        spot = {name: instance_types.price(name, "us-east-1", "spot") for name in ("g5.xlarge", "g5.48xlarge")}
        range_ = f"${spot['g5.xlarge']:.2f} to ${spot['g5.48xlarge']:.2f}/h"
        texts = [entry.text for entry in (await here.status()).happened]
        (machine,) = here.region.instances.values()
        instance_type = machine.machine.offering.instance_type

        assert any(text == f"buys 1 machine at {range_} for 1 pod" for text in texts)
        assert any("ordered (or another of 2 offerings, chosen by the cloud)" in text and text.endswith(range_) for text in texts)
        assert (
            f"1 of 1 machine granted: 1 x {instance_type} spot in us-east-1a, ${spot[instance_type]:.2f}/h, ready in "
            in capsys.readouterr().out
        )
