"""Machines that match none of their pool's offerings: they are counted, and nothing more is bought while they exist."""

from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest
from tests.control.aws_stage import Stage, aws_stage

from gpuscaler.embedded.aws.autoscaling import capacity
from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.serving import endpoint
from gpuscaler.kube.resources import EVENTS

pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

WHERE, WRITE = capacity._where, endpoint.write  # type: ignore[attr-defined]  # the name that the endpoint calls is replaced
#: Strings in replies for which AWS's model lists no values, with the operations that return them.
FREE = frozenset({("LaunchInstances", "MarketType"), ("DescribeAutoScalingGroups", "HealthStatus")})
#: The fields that identify a machine's offering.
TELLING = frozenset({"LaunchInstances", "DescribeAutoScalingGroups", "DescribeAutoScalingInstances", "DescribeInstances"})
P5 = "p5.48xlarge"
SOON = "pools:\n  - {name: p5-spot, idle_after: 1m}\n"


def as_the_user_guide_spells_it(instance_type: str, market: str, zone: str) -> dict[str, Any]:
    return {**WHERE(instance_type, market, zone), "MarketType": "Spot" if market == "spot" else "OnDemand"}


def replies(monkeypatch: pytest.MonkeyPatch, change: Callable[[str, str, str], str]) -> None:
    """Replace each text in the endpoint's replies by ``change(operation, field, text)`` from now on."""

    def changed(operation: str, name: str, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: changed(operation, key, element) for key, element in value.items()}
        if isinstance(value, list | tuple):
            return [changed(operation, name, one) for one in value]
        return change(operation, name, value) if isinstance(value, str) else value

    def write(model: Any, reply: Any, ident: str) -> Any:
        return WRITE(model, changed(model.name, "", reply), ident)

    monkeypatch.setattr(endpoint, "write", write)


async def events(here: Stage) -> list[dict[str, Any]]:
    return [msgspec.json.decode(body) for body in await here.user.list_all(EVENTS)]


async def train(here: Stage, seconds: float, *, more: str = "limits: {gpus: 64}\n") -> None:
    """Run one pod of eight GPUs on a spot group of p5 for ``seconds``."""
    here.group("p5-spot", market="spot", instance_type=P5, MaxSize=50)
    here.start(here.settings(more=more))
    await here.submit("train", gpus=8)
    await here.sleep(seconds)


async def test_one_pod_gets_one_machine_if_the_cloud_spells_the_market_as_in_its_user_guide(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "_where", as_the_user_guide_spells_it)
    async with aws_stage(tmp_path, Conditions()) as here:
        await train(here, 420.0)

        assert len(here.machines()) == 1
        assert (await here.bound())["train"]
        (pool,) = (await here.status()).pools
        assert pool.dollars_per_hour > 0


@pytest.mark.parametrize("seed", range(3))
async def test_upper_and_lower_case_in_replies_of_the_cloud_make_no_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    dice = Random(seed)

    def shaken(operation: str, name: str, text: str) -> str:
        mixed = "".join(map(dice.choice, zip(text.lower(), text.upper(), strict=True)))
        return mixed if (operation, name) in FREE else text

    replies(monkeypatch, shaken)
    async with aws_stage(tmp_path) as here:
        await train(here, 120.0)

        assert len(here.machines()) == 1
        assert (await here.bound())["train"]
        assert (await here.status()).breakers == ()


async def test_a_machine_of_an_unknown_type_counts_for_limits_and_stops_buying_while_it_exists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(operation: str, name: str, text: str) -> str:
        return "p5z.48xlarge" if operation in TELLING and (name, text) == ("InstanceType", P5) else text

    replies(monkeypatch, other)
    async with aws_stage(tmp_path) as here:
        await train(here, 30.0, more=f"limits: {{gpus: 64}}\n{SOON}")
        (stop,) = (await here.status()).breakers
        assert (stop.target, stop.cause, stop.open, stop.until) == ("pool p5-spot", "unfamiliar", True, None)
        assert f"{here.machines()[0]} is p5z.48xlarge spot us-east-1a, which the pool does not offer" in stop.text
        (limit,) = [limit for limit in (await here.status()).limits if limit.name == "gpus"]
        assert limit.used == 8
        await here.submit("later", gpus=8, run_for="30s")
        await here.sleep(300.0)

        assert len(here.machines()) == 1
        assert (await here.bound())["train"]
        (waiting,) = [waiting for waiting in (await here.status()).waiting if waiting.pods == ("default/later",)]
        assert "nothing is bought until this is resolved" in waiting.reason
        assert "MachineNotUnderstood" in {event["reason"] for event in await events(here)}

        # The machine is recognized again, and the other pod gets its machine.
        monkeypatch.setattr(endpoint, "write", WRITE)
        await here.sleep(120.0)

        assert (await here.status()).breakers == ()
        assert len(here.machines()) == 2
        assert (await here.bound())["later"]


async def test_the_clouds_list_corrects_the_offering_of_a_machine_that_was_granted_with_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(operation: str, name: str, text: str) -> str:
        return "p5z.48xlarge" if operation == "LaunchInstances" and (name, text) == ("InstanceType", P5) else text

    replies(monkeypatch, other)
    async with aws_stage(tmp_path) as here:
        await train(here, 60.0)

        assert len(here.machines()) == 1
        assert (await here.status()).breakers == ()
