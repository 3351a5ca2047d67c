"""Two processes, clocks that disagree, networks that break, pauses between check and send: one writes at a time (I10)."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from tests.control.replicas import Register, Replica, holder
from tests.control.world import ONE_GPU_MACHINES, World, luck, world

from gpuscaler.clouds.simulated_provider import CallFaults

RUNS = int(os.environ.get("SOAK_RUNS", "1000")) // 8
SEED = int(os.environ.get("SOAK_SEED", "0"))
FILE = f"cloud: simulated\n{ONE_GPU_MACHINES}    idle_after: 60s\n"

#: Nothing but the event loop is waited for, so one look at it is enough before time goes on.
pytestmark = pytest.mark.looptime(noop_cycles=1)


class Pair:
    """Two replicas, ``one`` and ``second``, whose times of day are minutes apart."""

    def __init__(self, here: World, file: Path) -> None:
        self.here, self.file = here, file
        self.register = Register(here)
        self.pods = 0
        self.replicas = [self.replica("one", 120.0), self.replica("second", -120.0)]

    def replica(self, name: str, skew: float) -> Replica:
        return Replica(self.here, self.file, name, self.register, skew=skew)

    async def sleep(self, seconds: float) -> None:
        while seconds > 0:
            await self.here.sleep(min(seconds, 5.0))
            seconds -= 5.0
            for one in self.replicas:
                one.check()
            await self.nothing_is_lost()

    async def nothing_is_lost(self) -> None:
        """A pod that runs keeps its machine."""
        machines = {one.id for one in self.here.cluster.core.list()}
        for pod in await self.here.pods():
            node = pod["spec"].get("nodeName")
            lost = node and pod["status"].get("phase") == "Running" and node not in machines
            assert not lost, f"machine {node} was ended under pod {pod['metadata']['name']}"

    async def submit(self, runs: str = "") -> None:
        await self.here.submit(f"p{self.pods}", 1, **({"gpuscaler.io/run-for": runs} if runs else {}))
        self.pods += 1

    async def leader(self) -> Replica:
        name = await holder(self.here)
        return next(one for one in self.replicas if one.name == name)

    def other(self, one: Replica) -> Replica:
        return next(other for other in self.replicas if other is not one)

    async def taken_over(self, after: Replica, *, within: float) -> float:
        """Seconds until somebody else leads than ``after``."""
        began = self.here.now()
        while await holder(self.here) in ("", after.name):
            assert self.here.now() < began + within, f"nobody took over from {after.name} within {within:g} s"
            await asyncio.sleep(0.1)
        return self.here.now() - began

    async def restart(self, one: Replica) -> None:
        self.replicas[self.replicas.index(one)] = self.replica(one.name + "x", one.skew)

    async def close(self) -> None:
        for one in self.replicas:
            one.network.mend()
            await one.kill()


@asynccontextmanager
async def pair(folder: Path, *, seed: int = 0, calls: CallFaults | None = None) -> AsyncIterator[Pair]:
    file = folder / "run.yaml"
    file.write_text(FILE)
    async with world(FILE.removeprefix("cloud: simulated\n"), seed=seed, calls=calls) as here:
        made = Pair(here, file)
        try:
            await made.sleep(5.0)
            yield made
        finally:
            await made.close()


async def test_one_of_two_leads_and_does_all_the_work(tmp_path: Path) -> None:
    async with pair(tmp_path) as here:
        await here.submit()
        await here.sleep(90.0)

        assert len(here.register.writers) == 1
        assert here.register.calls > 3
        assert all((await here.here.bound()).values())


@pytest.mark.parametrize("how", ["dies", "is cut off", "stops"])
@pytest.mark.parametrize("seed", range(4))
async def test_another_leads_within_20_seconds(tmp_path: Path, how: str, seed: int) -> None:
    async with pair(tmp_path) as here:
        await here.sleep(10.0 + 0.7 * seed)
        leader = await here.leader()
        if how == "is cut off":
            leader.network.cut()
        else:
            leader.pause.stop()
        if how == "dies":
            leader.network.cut()
        took = await here.taken_over(leader, within=30.0)

        assert took <= 20.0


async def test_a_leader_that_dies_right_after_the_purchase_left_buys_nothing_twice(tmp_path: Path) -> None:
    async with pair(tmp_path) as here:
        leader = await here.leader()
        await here.submit()
        leader.pause.at = "buy"
        await stopped(leader)
        # It left, and is answered by nobody.
        leader.pause.go_on()
        await asyncio.sleep(0.1)
        await leader.kill()
        await here.restart(leader)
        await here.sleep(120.0)

        assert len(here.here.cluster.core.history()) == 1
        assert all((await here.here.bound()).values())


async def stopped(one: Replica) -> None:
    await one.pause.reached.wait()


@pytest.mark.parametrize("seconds", [3.0, 14.0, 60.0])
@pytest.mark.parametrize("at", ["buy", "GET /api/v1/nodes/", "PATCH /api/v1/nodes/", "/status", "PUT"])
async def test_what_was_checked_before_a_pause_and_is_sent_after_it_does_no_harm(tmp_path: Path, at: str, seconds: float) -> None:
    async with pair(tmp_path) as here:
        leader = await here.leader()
        await here.sleep(5.0)
        leader.pause.at = at
        await here.submit()
        await stopped(leader)
        await here.sleep(seconds)
        leader.pause.go_on()
        await here.sleep(150.0)

        assert len(here.here.cluster.core.history()) == 1
        assert all((await here.here.bound()).values())


async def test_the_end_of_a_machine_that_is_sent_after_a_pause_ends_none_that_is_used(tmp_path: Path) -> None:
    async with pair(tmp_path) as here:
        leader = await here.leader()
        await here.submit("20s")
        await here.sleep(40.0)
        leader.pause.at = "remove"
        await stopped(leader)
        await here.submit()
        await here.sleep(60.0)
        leader.pause.go_on()
        await here.sleep(120.0)

        assert (await here.here.bound())["p1"]
        assert len(here.here.cluster.core.history()) == 2


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
async def test_a_clock_that_is_set_by_an_hour_ends_no_machine_early_and_none_late(tmp_path: Path, jump: float) -> None:
    async with pair(tmp_path) as here:
        await here.submit("20s")
        await here.submit("10m")
        await here.sleep(65.0)
        for one in here.replicas:
            one.skew += jump
        await here.sleep(20.0)
        assert len(here.here.cluster.core.list()) == 2
        await here.submit("10m")
        await here.submit("10m")
        await here.sleep(40.0)
        # One that is on its way goes on to come.
        assert len(here.here.cluster.core.history()) == 3
        await here.sleep(700.0)
        assert all((await here.here.bound()).values())
        assert len(here.here.cluster.core.history()) == 3
        await here.sleep(200.0)
        assert here.here.cluster.core.list() == ()
        leader = await here.leader()
        assert leader.place is not None
        assert any("3600 s" in one for one in leader.place.troubles())


class Schedule:
    """Whatever may happen to two processes and what they reach, in an order that ``dice`` decide; then everything heals."""

    def __init__(self, here: Pair, dice: Random) -> None:
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
        pause.go_on()

    async def stop_at(self) -> None:
        """Between the fence and what follows it."""
        pause = self.one().pause
        pause.at = self.dice.choice(("buy", "remove", "GET /api/v1/nodes/", "/nodes/", "/status", "configmaps"))
        await self.submit()
        await self.here.sleep(self.dice.choice((1.0, 8.0, 25.0, 60.0)))
        pause.go_on()

    async def deafen(self) -> None:
        line = self.one().line
        line.deaf = True
        await self.here.sleep(self.dice.choice((3.0, 9.0, 25.0)))
        line.deaf = False

    async def die(self) -> None:
        one = self.one()
        await one.kill()
        await self.here.restart(one)

    async def leave(self) -> None:
        """End in good order: the lease is given back."""
        one = self.one()
        await one.end()
        await self.here.restart(one)


@pytest.mark.parametrize("seed", range(RUNS))
async def test_whatever_happens_one_writes_at_a_time_and_the_work_is_done(seed: int, tmp_path: Path) -> None:
    seed += SEED * 1_000_000
    dice = luck(seed, "leadership")
    calls = CallFaults(lost=dice.choice((0.0, 0.0, 0.2)), stale_seconds=dice.choice((0.0, 0.0, 90.0)))
    async with pair(tmp_path, seed=seed, calls=calls) as here:
        dry = Replica(here.here, here.file, "dry", Register(here.here), dry_run=True) if seed % 4 == 0 else None
        await Schedule(here, dice).run()

        bound = await here.here.bound()
        assert all(bound.values()), {one.name: one.record.failures[-3:] for one in here.replicas}
        assert len(here.here.cluster.core.history()) <= here.pods, "a machine was bought twice"
        if dry is not None:
            # I9: it sees and plans the same, and only ever reads.
            assert dry.line.methods == {"GET"}
            assert dry.desk.writes == 0
            assert dry.record.plans
            await dry.kill()
