"""A controller that dies at any step between intent and arrival neither buys twice nor loses machines (I2, I3)."""

import pytest
from tests.control.world import ONE_GPU_MACHINES, DeathPlan, seeded_random, world
from tests.soaking import SEED, again, part_of_runs

from gpuscaler.model.pools import BIND, NOMINATE
from gpuscaler.simulation.cloud.provider import CallFaults

#: A tenth of the schedules of `make soak RUNS=N`.
RUNS = part_of_runs(10)

#: Tests wait only for the event loop, so one pass over it is enough before time advances.


@pytest.mark.parametrize("seed", range(RUNS))
async def test_a_controller_killed_at_any_step_buys_no_machine_twice_and_loses_none(seed: int) -> None:
    try:
        await run_with_restarts(SEED * 1_000_000 + seed)
    except BaseException as error:
        error.add_note(again(f"test_a_controller_killed_at_any_step_buys_no_machine_twice_and_loses_none[{seed}]"))
        raise


async def run_with_restarts(seed: int) -> None:
    dice = seeded_random(seed, "restarts")
    pods = dice.randint(1, 4)
    tokens = dice.random() < 0.6
    faults = CallFaults(
        throttled=dice.choice((0.0, 0.1)),
        lost=dice.choice((0.0, 0.0, 0.3)),
        stale_seconds=dice.choice((0.0, 90.0)),
        tokens=tokens,
    )
    steering = seeded_random(seed, "steering").choice((BIND, BIND, BIND, NOMINATE))
    async with world(f"steering: {steering}\n{ONE_GPU_MACHINES}", seed=seed, calls=faults) as here:
        here.start(DeathPlan(dice.randint(1, 12), before=dice.random() < 0.5))
        await here.sleep(3.0)
        for number in range(pods):
            await here.submit(f"p{number}")
        for _ in range(dice.randint(1, 3)):
            if await here.until_dead(150.0):
                await here.sleep(dice.choice((0.0, 5.0, 30.0)))
                here.start(DeathPlan(dice.randint(1, 12), before=dice.random() < 0.5))
        here.deaths.at = None
        if here.deaths.dead.is_set():
            await here.kill()
            here.start()
        for _ in range(40):
            await here.sleep(20.0)
            if all((await here.bound()).values()):
                break
        bought = here.cluster.core.history()
        assert all((await here.bound()).values()), (await here.bound(), here.notes.failures[-3:])
        assert len(bought) == pods, [(machine.id, machine.purchase) for machine in bought]
        assert here.controller is not None
        for _ in range(60):
            # With lists that lag and often fail, the result of an order shows late.
            await here.sleep(20.0)
            if not here.controller.memory.ledger.coming:
                break
        assert not here.controller.memory.ledger.coming
        assert len(here.cluster.core.history()) == pods
