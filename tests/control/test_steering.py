"""Who gets the seats of a machine that opens, seen from outside."""

from itertools import count

import pytest
from tests.control.world import luck, pod, world

from gpuscaler.clouds.delays import Delay, Delays
from gpuscaler.kube.resources import PODS
from gpuscaler.planning.opening import RESTLESS_SECONDS
from gpuscaler.planning.steering import PATIENCE_SECONDS

#: Machines arrive in any order, minutes apart.
SCATTERED = Delays(
    boot=Delay(20.0, 60.0, 400.0), device_plugin=Delay(1.0, 2.0, 3.0), answer=Delay(0.5, 1.0, 2.0), image_pull=Delay(0, 0, 0)
)

#: A machine is ready so many seconds after it was asked for.
STEADY = Delays(boot=Delay(20, 20, 20), device_plugin=Delay(1, 1, 1), answer=Delay(1, 1, 1), image_pull=Delay(0, 0, 0))
READY = 22.0


@pytest.mark.parametrize("seed", range(4))
async def test_of_equal_pods_the_oldest_get_the_machines_that_open_first(seed: int) -> None:
    async with world(seed=seed, delays=SCATTERED) as here:
        here.start()
        await here.sleep(2.0)
        names = [f"p{number}" for number in range(6)]
        luck(seed, "names").shuffle(names)
        for name in names:
            await here.user.create(PODS, pod(name), namespace="default")
            # Ages are told by the second.
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


@pytest.mark.parametrize("busy", [False, True])
async def test_a_machine_opens_a_moment_later_where_pods_are_tried_all_the_time(busy: bool) -> None:
    async with world(delays=STEADY) as here:

        async def try_on() -> None:
            for number in count():
                status = {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": str(number)}]}
                await here.user.merge_patch(PODS, "large", {"status": status}, namespace="default", subresource="status")
                await here.sleep(0.1)

        here.start()
        await here.submit("large", gpus=99)
        await here.submit("p")
        if busy:
            here.support(try_on())
        began = here.now()
        while not (await here.bound())["p"]:
            await here.sleep(0.1)

        late = here.now() - began - READY
        assert (late >= RESTLESS_SECONDS) == busy
        assert late < PATIENCE_SECONDS
