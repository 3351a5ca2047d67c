"""Bindings that come to nothing, or half of them."""

import re

from tests.control.test_binding import SCATTERED
from tests.control.world import ONE_GPU_MACHINES, World
from tests.faults.guarding import Watch
from tests.faults.kit import all_bound, bought, faulty, status

from gpuscaler.embedded.failures import Failure
from gpuscaler.embedded.faults import Fault
from gpuscaler.kube.transport import Request

BIND = f"steering: bind\n{ONE_GPU_MACHINES}"
OURS = "pods/p[0-9]*/binding"


async def in_time(here: World, seconds: float) -> bool:
    for _ in range(int(seconds)):
        await here.sleep(1.0)
        if await all_bound(here):
            return True
    return False


async def test_f101_where_bindings_are_refused_pods_are_nominated_and_come_to_their_machines_all_the_same() -> None:
    async with faulty(BIND) as here:
        said = 'pods "p0" is forbidden: User "gpuscaler" cannot create resource "pods/binding" in API group ""'
        here.cluster.api.faults.add(Fault("POST", OURS, times=4, refusal=Failure(403, "Forbidden", said)))
        for number in range(4):
            await here.submit(f"p{number}")
        await bought(here, 4)

        assert await in_time(here, 120.0)
        assert len(here.cluster.core.history()) == 4
        assert any("cannot create" in one and "steering: nominate" in one for one in (await status(here)).troubles)


class Deadly(Watch):
    """Kills the controller as it sends its second binding of ours."""

    def __init__(self, here: World) -> None:
        super().__init__(here)
        self.sent = 0

    async def write(self, request: Request) -> None:
        await super().write(request)
        if re.search(OURS, request.path):
            self.sent += 1
            if self.sent == 2:
                self._here.deaths.dead.set()


async def test_f102_a_gang_of_which_some_is_bound_when_the_leader_dies_is_bound_by_the_next_and_nothing_is_bought_twice() -> None:
    async with faulty(BIND, watch=Deadly) as here:
        for number in range(4):
            await here.submit(f"p{number}", 1, **{"gpuscaler.io/gang": "g", "gpuscaler.io/gang-size": "4"})
        assert await here.until_dead(300.0)
        assert [bool(node) for node in (await here.bound()).values()].count(True) == 1
        here.start()

        assert await in_time(here, 120.0)
        assert len(here.cluster.core.history()) == 4


async def test_f103_nothing_is_bound_beside_a_device_plugin_that_restarts_nor_is_another_machine_bought() -> None:
    async with faulty(BIND, delays=SCATTERED) as here:
        for number in range(2):
            await here.submit(f"p{number}", 1, **{"gpuscaler.io/gang": "g", "gpuscaler.io/gang-size": "2"})
        await bought(here, 2)
        machines = [one.id for one in here.cluster.core.list()]
        # The second machine takes minutes longer; when it comes, the plugin of the first restarts.
        first = await shows(here, machines)
        second = next(one for one in machines if one != first)
        for _ in range(100):
            if await shows(here, [second], wait=False):
                break
            here.cluster.machines.devices.restart(first, seconds=60.0)
            await here.sleep(5.0)
            assert here.notes.stray == []
            assert len(here.cluster.core.history()) == 2
        for _ in range(40):
            await here.sleep(1.0)
            assert here.notes.stray == []
        assert not any((await here.bound()).values())

        assert await in_time(here, 120.0)
        assert len(here.cluster.core.history()) == 2


async def shows(here: World, machines: list[str], *, wait: bool = True) -> str:
    """The first of ``machines`` whose node shows its GPU; empty where none does, and nobody waits."""
    while True:
        for one in await here.nodes():
            if one["metadata"]["name"] in machines and one["status"].get("allocatable", {}).get("nvidia.com/gpu", "0") != "0":
                return str(one["metadata"]["name"])
        if not wait:
            return ""
        await here.sleep(0.5)
