"""Which pods run on a machine that opens, as seen from outside the controller."""

import pytest
from tests.control.world import seeded_random, world
from tests.objects import pod

from gpuscaler.kube.resources import PODS
from gpuscaler.simulation.cloud.delays import Delay, Delays

#: Machines arrive in any order, minutes apart.
SCATTERED = Delays(
    boot=Delay(20.0, 60.0, 400.0), device_plugin=Delay(1.0, 2.0, 3.0), answer=Delay(0.5, 1.0, 2.0), image_pull=Delay(0, 0, 0)
)


@pytest.mark.parametrize("seed", range(4))
async def test_the_oldest_of_equal_pods_run_on_the_machines_that_open_first(seed: int) -> None:
    async with world(seed=seed, delays=SCATTERED) as here:
        here.start()
        await here.sleep(2.0)
        names = [f"p{number}" for number in range(6)]
        seeded_random(seed, "names").shuffle(names)
        for name in names:
            await here.user.create(PODS, pod(name), namespace="default")
            # Ages have a resolution of one second.
            await here.sleep(1.1)
        order: list[str] = []
        for _ in range(500):
            await here.sleep(1.0)
            bound = {name for name, node in (await here.bound()).items() if node}
            order += sorted(bound - set(order), key=names.index)
            if len(order) == len(names):
                break

        assert order == names
        await here.sleep(120.0)
        assert len(here.cluster.core.history()) == len(names)
        assert here.notes.outcomes == {"Kept": len(names)}
        assert here.notes.stray == []
