"""F1 to F3 and F45: processes that die, stop and continue, and clocks that disagree or jump."""

import asyncio
from pathlib import Path

import pytest
from tests.control.replicas import Replica
from tests.faults.kit import faulty, refusing, replicated, status

from gpuscaler.clouds.aws.api.causes import interpret_error
from gpuscaler.clouds.protocol import Refusal

#: Nothing but the event loop is waited for, so one check of it is enough before time advances.


async def test_f01_if_a_leader_dies_right_after_sending_a_purchase_no_machine_is_bought_twice(tmp_path: Path) -> None:
    async with replicated(tmp_path) as here:
        leader = await here.leader()
        await here.submit()
        leader.pause.at = "buy"
        await stopped(leader)
        await leader.kill()
        # The request has left, and its answer reaches no process.
        leader.pause.resume()
        assert await here.until_taken_over(leader, within=30.0) <= 20.0
        await here.restart(leader)
        await here.sleep(120.0)

        assert len(here.here.cluster.core.history()) == 1
        assert all((await here.here.bound()).values())


async def stopped(replica: Replica) -> None:
    """Wait until the replica stands still; a call held back by a guard is never reached, and virtual time would run for ever."""
    async with asyncio.timeout(600.0):
        await replica.pause.reached.wait()


@pytest.mark.parametrize("seconds", [3.0, 14.0, 60.0])
@pytest.mark.parametrize("at", ["buy", "GET /api/v1/nodes/", "PATCH /api/v1/nodes/", "/binding", "PUT"])
async def test_f02_a_call_sent_after_a_pause_of_the_process_buys_no_machine_twice(tmp_path: Path, at: str, seconds: float) -> None:
    async with replicated(tmp_path) as here:
        leader = await here.leader()
        await here.sleep(5.0)
        leader.pause.at = at
        await here.submit()
        await stopped(leader)
        await here.sleep(seconds)
        leader.pause.resume()
        await here.sleep(150.0)

        assert len(here.here.cluster.core.history()) == 1
        assert all((await here.here.bound()).values())


async def test_f02_a_termination_sent_after_a_pause_of_the_process_ends_no_machine_in_use(tmp_path: Path) -> None:
    async with replicated(tmp_path) as here:
        leader = await here.leader()
        await here.submit("20s")
        await here.sleep(40.0)
        leader.pause.at = "remove"
        await stopped(leader)
        await here.submit()
        await here.sleep(60.0)
        leader.pause.resume()
        await here.sleep(120.0)

        assert (await here.here.bound())["p1"]
        assert len(here.here.cluster.core.history()) == 2


async def test_f03_of_two_replicas_with_clocks_minutes_apart_one_leads_until_it_is_disconnected(tmp_path: Path) -> None:
    async with replicated(tmp_path) as here:
        leader = await here.leader()
        await here.submit()
        await here.sleep(90.0)
        assert here.register.writers == [leader.name]
        assert here.register.calls > 3
        assert all((await here.here.bound()).values())
        leader.network.cut()
        assert 10.0 <= await here.until_taken_over(leader, within=30.0) <= 20.0
        leader.network.mend()
        await here.submit()
        await here.sleep(90.0)

        assert here.register.writers == [leader.name, here.other(leader).name]
        assert len(here.here.cluster.core.history()) == 2
        assert all((await here.here.bound()).values())


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
async def test_f45_a_system_clock_that_jumps_by_an_hour_ends_no_machine_early_or_late(tmp_path: Path, jump: float) -> None:
    async with replicated(tmp_path) as here:
        await here.submit("20s")
        await here.submit("10m")
        await here.sleep(65.0)
        for replica in here.replicas:
            replica.skew += jump
        await here.sleep(20.0)
        assert len(here.here.cluster.core.list()) == 2
        await here.submit("10m")
        await here.submit("10m")
        await here.sleep(40.0)
        # A machine that is on its way still arrives.
        assert len(here.here.cluster.core.history()) == 3
        await here.sleep(700.0)
        assert all((await here.here.bound()).values())
        assert len(here.here.cluster.core.history()) == 3
        await here.sleep(200.0)
        assert here.here.cluster.core.list() == ()
        leader = await here.leader()
        assert leader.place is not None
        assert any("3600 s" in trouble for trouble in leader.place.troubles())


@pytest.mark.parametrize("code", ["RequestExpired", "SignatureDoesNotMatch"])
async def test_f45_a_request_rejected_for_the_time_of_its_signature_pauses_the_pool_for_minutes_and_is_reported(code: str) -> None:
    message = interpret_error(code, "Signature expired: 20261122T080000Z is now earlier than 20261122T085500Z")
    async with faulty() as here:
        asked = refusing(here, lambda key: Refusal(message.cause, key, message.detail))
        await here.submit("p")
        await here.sleep(590.0)

        assert len(asked) == 1
        (breaker,) = (await status(here)).breakers
        assert "pool gpu: not permitted" in breaker.text
        assert code in breaker.text
