"""Two processes, clocks that disagree, networks that break, pauses between check and send: one writes at a time (I10)."""

from pathlib import Path
from random import Random

import pytest
from tests.control.replicas import Replica, ReplicaPair, WriteChecker, pair
from tests.control.world import seeded_random
from tests.soaking import SEED, part_of_runs

from gpuscaler.simulation.cloud.provider import CallFaults

RUNS = part_of_runs(8)

#: Tests wait only for the event loop, so one pass over it is enough before time advances.


@pytest.mark.parametrize("how", ["dies", "is cut off", "stops"])
@pytest.mark.parametrize("seed", range(4))
async def test_after_a_leader_dies_another_controller_leads_within_20_seconds(tmp_path: Path, how: str, seed: int) -> None:
    async with pair(tmp_path) as here:
        await here.sleep(10.0 + 0.7 * seed)
        leader = await here.leader()
        if how == "is cut off":
            leader.network.cut()
        else:
            leader.pause.stop()
        if how == "dies":
            leader.network.cut()
        took = await here.until_taken_over(leader, within=30.0)

        assert took <= 20.0


class Schedule:
    """Random faults of two processes and their connections, in an order from ``dice``; then everything recovers."""

    def __init__(self, here: ReplicaPair, dice: Random) -> None:
        self.here, self.dice = here, dice

    async def run(self) -> None:
        steps = (self.submit, self.submit, self.wait, self.cut, self.stop, self.stop_at, self.deafen, self.die, self.leave)
        for _ in range(10):
            await self.dice.choice(steps)()
            await self.here.sleep(self.dice.choice((0.5, 4.0, 15.0)))
        for _ in range(30):
            await self.here.sleep(20.0)
            if all((await self.here.here.bound()).values()):
                return

    def one(self) -> Replica:
        return self.dice.choice(self.here.replicas)

    async def submit(self) -> None:
        await self.here.submit(self.dice.choice(("20s", "90s", "", "")))

    async def wait(self) -> None:
        await self.here.sleep(self.dice.choice((5.0, 60.0)))

    async def cut(self) -> None:
        network = self.one().network
        network.cut()
        await self.here.sleep(self.dice.choice((1.0, 8.0, 25.0)))
        network.mend()

    async def stop(self) -> None:
        pause = self.one().pause
        pause.stop()
        await self.here.sleep(self.dice.choice((1.0, 8.0, 25.0, 60.0)))
        pause.resume()

    async def stop_at(self) -> None:
        """Suspend a process between the fence and the call."""
        pause = self.one().pause
        pause.at = self.dice.choice(("buy", "remove", "GET /api/v1/nodes/", "/nodes/", "/status", "configmaps"))
        await self.submit()
        await self.here.sleep(self.dice.choice((1.0, 8.0, 25.0, 60.0)))
        pause.resume()

    async def deafen(self) -> None:
        line = self.one().line
        line.deaf = True
        await self.here.sleep(self.dice.choice((3.0, 9.0, 25.0)))
        line.deaf = False

    async def die(self) -> None:
        replica = self.one()
        await replica.kill()
        await self.here.restart(replica)

    async def leave(self) -> None:
        """End a process in good order: the lease is released."""
        replica = self.one()
        await replica.end()
        await self.here.restart(replica)


@pytest.mark.parametrize("seed", range(RUNS))
async def test_under_random_faults_one_controller_at_a_time_writes_and_all_pods_are_served(seed: int, tmp_path: Path) -> None:
    seed += SEED * 1_000_000
    dice = seeded_random(seed, "leadership")
    calls = CallFaults(lost=dice.choice((0.0, 0.0, 0.2)), stale_seconds=dice.choice((0.0, 0.0, 90.0)))
    async with pair(tmp_path, seed=seed, calls=calls) as here:
        dry = Replica(here.here, here.file, "dry", WriteChecker(here.here), dry_run=True) if seed % 4 == 0 else None
        await Schedule(here, dice).run()

        bound = await here.here.bound()
        assert all(bound.values()), {replica.name: replica.record.failures[-3:] for replica in here.replicas}
        assert len(here.here.cluster.core.history()) <= here.pods, "a machine was bought twice"
        if dry is not None:
            # I9: it observes and plans the same, and only reads.
            assert dry.line.methods == {"GET"}
            assert dry.desk.writes == 0
            assert dry.record.plans
            await dry.kill()
