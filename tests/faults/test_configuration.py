"""F82: a configuration of a pool that a cloud refused, fixed where the pool itself shows no change."""

from functools import reduce
from pathlib import Path

import pytest
from tests.control.aws_stage import Stage, aws_stage

from gpuscaler.clouds.aws.api import causes
from gpuscaler.embedded.aws.hardware.hardware import Trouble
from gpuscaler.kube.resources import EVENTS
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.state.askable_offerings import openness
from gpuscaler.planning.state.breakers import Breakers, step
from gpuscaler.planning.state.offering_events import Asked, Event, Granted, Refused

HOUR, DAY = 3600.0, 86_400.0
#: The codes of the table, and siblings of ``InvalidAMIID.NotFound``, which it recognises by prefix.
CODES = (*causes._CODES, "InvalidAMIID.Unavailable", "InvalidKeyPair.NotFound", "InvalidSubnetID.NotFound", "InvalidGroup.NotFound")
KEY = OfferingKey("gpus", "on-demand", "g5.xlarge", "us-east-1a")


@pytest.mark.parametrize("code", CODES)
def test_f82_a_refused_configuration_fixed_within_an_hour_is_tried_again_within_a_day(code: str) -> None:
    cause = causes.interpret_error(code, "").cause
    breakers, now = step(Breakers(), Refused(KEY, 0.0, cause=cause)), 0.0
    while now < HOUR:
        (breaker,) = breakers.open
        assert breaker.until is not None
        assert openness(breakers, [KEY], breaker.until - 1.0).blocked == {KEY}
        now = breaker.until
        assert not openness(breakers, [KEY], now).blocked
        answer: Event = Granted(KEY, now) if now >= HOUR else Refused(KEY, now, cause=cause)
        breakers = reduce(step, [Asked(KEY, now), answer], breakers)

    assert now <= DAY
    assert breakers.open == ()


async def events(here: Stage, reason: str) -> list[str]:
    events = await here.user.list_all(EVENTS)
    return [event.decode() for event in events if f'"{reason}"'.encode() in event]


@pytest.mark.parametrize(
    ("code", "launch", "away"),
    [
        # For most of a pause no process leads, which saves time.
        ("InvalidAMIID.Unavailable", "auto", 2400.0),
        # Three machines that never became nodes pause their pool for a day.
        ("Client.InternalError", "desired-capacity", DAY - 1800.0),
        ("VcpuLimitExceeded", "auto", 1200.0),
    ],
)
async def test_f82_a_fix_outside_of_the_group_is_found_by_retrying_even_after_a_restart(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], code: str, launch: str, away: float
) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus")
        here.region.hardware.troubles.append(Trouble(code=code))
        here.start(here.settings(launch=launch))
        await here.submit("train")
        await here.sleep(300)
        (breaker,) = (await here.status()).breakers
        assert breaker.open
        assert breaker.until is not None
        assert code in breaker.text
        if code.startswith("Client."):
            assert "give the service-linked role of Auto Scaling a grant" in breaker.text
        else:
            assert any(code in event for event in await events(here, "OfferingRefused"))

        await here.sleep(2700)
        here.region.hardware.troubles.clear()
        await here.stop()
        await here.sleep(away)
        here.start(here.settings(launch=launch), identity="two")
        await here.sleep(60)
        assert not await served(here), "it was paused for longer"
        await here.until(lambda: served(here), DAY - away)
    # Machines that never became nodes have no Node to write an Event about.
    assert "an Event could not be written" not in capsys.readouterr().out


async def test_f82_a_changed_group_is_tried_again_at_once(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus")
        here.region.hardware.troubles.append(Trouble(code="InvalidAMIID.Unavailable"))
        here.start()
        await here.submit("train")
        await here.sleep(300)
        here.region.hardware.troubles.clear()
        here.client("autoscaling").update_auto_scaling_group(AutoScalingGroupName="gpus", MaxSize=11)
        await here.until(lambda: served(here), 600)


async def served(here: Stage) -> bool:
    return all((await here.bound()).values())
