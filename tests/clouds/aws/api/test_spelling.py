"""AWS's free strings in any case and with any separators."""

from datetime import UTC, datetime
from random import Random

import pytest
from tests.clouds.aws.api.test_groups import SMALLEST

from gpuscaler.clouds.aws.api.groups import group_of
from gpuscaler.clouds.aws.api.spelling import LIFECYCLES, is_same_word, respelled
from gpuscaler.clouds.aws.buying.activities import launch_report
from gpuscaler.clouds.aws.buying.buying import launched_offering
from gpuscaler.clouds.aws.machines.listing import details_of, state_of
from gpuscaler.clouds.aws.templates.launches import launch_of
from gpuscaler.model.instances import PENDING, RUNNING, STOPPING, TERMINATED
from gpuscaler.model.offerings import OfferingKey

SPOT: OfferingKey = OfferingKey("gpus", "spot", "g5.xlarge", "us-east-1a")
ON_DEMAND: OfferingKey = OfferingKey("gpus", "on-demand", "g5.xlarge", "us-east-1a")
RESERVED: OfferingKey = OfferingKey("gpus", "reserved", "p5.48xlarge", "us-east-1a")


def vary_spelling(word: str, dice: Random) -> str:
    """The word in random case, with or without its dashes."""
    letters = "".join(dice.choice((letter.lower(), letter.upper())) for letter in word)
    return letters.replace("-", dice.choice(("-", "", "_")))


@pytest.mark.parametrize("word", LIFECYCLES)
def test_a_lifecycle_state_is_recognised_in_any_case(word: str) -> None:
    dice = Random(word)
    machine = {"InstanceId": "i-1", "LifecycleState": vary_spelling(word, dice), "HealthStatus": vary_spelling("Healthy", dice)}
    (seen,) = group_of({**SMALLEST, "Instances": [machine]}, "us-east-1").machines

    assert (seen.state, seen.healthy) == (word, True)
    assert state_of(seen.state) in (PENDING, RUNNING, STOPPING, TERMINATED)


def test_an_unknown_value_is_kept_unchanged() -> None:
    assert respelled("Teleporting", LIFECYCLES) == "Teleporting"
    assert respelled(None, LIFECYCLES) == ""
    assert not is_same_word(None, "spot")


@pytest.mark.parametrize("spelling", ["spot", "Spot", "SPOT", "s-pot"])
def test_a_spot_machine_is_recognised_in_any_spelling(spelling: str) -> None:
    reply = {"MarketType": spelling, "InstanceType": "g5.xlarge"}

    assert launched_offering(reply, (SPOT, ON_DEMAND)) == SPOT
    assert launched_offering({**reply, "InstanceType": "G5.xlarge"}, (SPOT,)) == SPOT


@pytest.mark.parametrize("spelling", ["on-demand", "OnDemand", "ON_DEMAND", "ondemand", ""])
def test_an_on_demand_machine_is_recognised_in_any_spelling(spelling: str) -> None:
    assert launched_offering({"MarketType": spelling, "InstanceType": "g5.xlarge"}, (SPOT, ON_DEMAND)) == ON_DEMAND


def test_an_unclear_market_is_that_of_the_only_ordered_offering() -> None:
    assert launched_offering({"MarketType": "Teleported", "InstanceType": "g5.xlarge"}, (SPOT,)) == SPOT
    assert launched_offering({"MarketType": "spot", "InstanceType": "p5.48xlarge"}, (RESERVED,)) == RESERVED
    assert launched_offering({}, (SPOT,)) == SPOT


@pytest.mark.parametrize("status", ["Failed", "FAILED", "failed"])
def test_a_failed_activity_is_recognised_in_any_case(status: str) -> None:
    began = datetime(2026, 11, 1, tzinfo=UTC)
    activity = {"Description": "Launching a new EC2 instance", "StartTime": began, "StatusCode": status, "StatusMessage": "no"}

    assert len(launch_report([activity], since=0.0).failures) == 1


def test_markets_of_instances_and_templates_are_read_in_any_case() -> None:
    launched = datetime(2026, 11, 1, tzinfo=UTC)
    instance = {"InstanceId": "i-0123456789", "LaunchTime": launched, "InstanceLifecycle": "Spot"}

    assert details_of([{"Instances": [instance]}])["i-0123456789"].market == "spot"
    assert launch_of({"InstanceMarketOptions": {"MarketType": "Spot"}}).market == "spot"
