"""A dry run observes and plans like a controller, and never writes anything (I9)."""

from pathlib import Path

import pytest
from tests.control.replicas import Replica, WriteChecker
from tests.control.world import ONE_GPU_MACHINES, World, seeded_random, world

from gpuscaler.embedded.apiserver.faults import Fault, broken, throttled
from gpuscaler.kube.resources import NODES, PODS
from gpuscaler.simulation.cloud.provider import CallFaults

#: Tests wait only for the event loop, so one pass over it is enough before time advances.

POOLS = f"{ONE_GPU_MACHINES}    idle_after: 60s\n"


@pytest.mark.parametrize("seed", range(12))
async def test_a_dry_run_beside_an_active_controller_only_reads(seed: int, tmp_path: Path) -> None:
    dice = seeded_random(seed, "dry run")
    file = tmp_path / "run.yaml"
    file.write_text(f"cloud: simulated\n{POOLS}")
    calls = CallFaults(throttled=0.1, lost=0.1, stale_seconds=dice.choice((0.0, 90.0)))
    async with world(POOLS, seed=seed, calls=calls) as here:
        here.start()
        dry = Replica(here, file, "dry", WriteChecker(here), dry_run=True)
        await here.sleep(5.0)
        for number in range(6):
            # Sometimes the live one does not run, so that work is left for the other to plan.
            if dice.random() < 0.4:
                await here.kill()
            await here.submit(f"p{number}", 1, **{"gpuscaler.io/run-for": dice.choice(("20s", "5m"))})
            here.cluster.api.faults.add(dice.choice((Fault(chance=0.2, refusal=broken()), Fault(chance=0.2, refusal=throttled()))))
            await here.sleep(dice.choice((5.0, 40.0)))
            here.cluster.api.faults.clear()
            await here.sleep(dice.choice((5.0, 90.0)))
            dry.check()
            if here.deaths.dead.is_set():
                here.start()

        assert dry.line.methods == {"GET"}
        assert dry.desk.writes == 0
        assert dry.register.calls == 0
        assert dry.record.plans > 20
        await dry.kill()


async def test_a_dry_run_reports_what_it_would_buy_and_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(f"cloud: simulated\n{POOLS}")
    async with world(POOLS) as here:
        await here.submit("p")
        await here.sleep(5.0)
        dry = Replica(here, file, "dry", WriteChecker(here), dry_run=True)
        before = await objects(here)
        await here.sleep(300.0)

        assert dry.record.last is not None
        assert [machine.pods for machine in dry.record.last.machines] == [("default/p",)]
        assert dry.record.orders == []
        assert await objects(here) == before
        assert here.cluster.core.history() == ()
        await dry.kill()


async def objects(here: World) -> list[bytes]:
    """All pods and nodes in their current state."""
    return [*await here.user.list_all(PODS), *await here.user.list_all(NODES)]
