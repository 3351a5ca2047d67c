"""When the loop looks: soon after what somebody waits for, and not at what concerns nobody."""

from tests.control.world import QUICK, Notes, World, world
from tests.objects import node

from gpuscaler.kube.resources import NODES
from gpuscaler.lifecycle.reconcile import Look
from gpuscaler.model.cluster import Cluster
from gpuscaler.simulation.cloud.delays import Delay, Delays

#: Machines boot for a long time.
SLOW = Delays(boot=Delay(300.0, 300.0, 300.0), device_plugin=QUICK.device_plugin, answer=QUICK.answer, image_pull=QUICK.image_pull)


class Counting(Notes):
    """Counts looks."""

    looks = 0

    def looked(self, seen: Look, cluster: Cluster, now: float, /) -> None:
        self.looks += 1
        super().looked(seen, cluster, now)


async def waiting(here: World) -> Counting:
    """A machine is on its way, and everything else has come to rest."""
    here.notes = notes = Counting()
    await here.user.create(NODES, node("other", unschedulable=True))
    here.start()
    await here.sleep(5.0)
    await here.submit("pod")
    await here.sleep(20.0)
    assert len(notes.orders) == 1
    return notes


async def test_heartbeats_of_nodes_that_nobody_waits_for_are_not_looked_at() -> None:
    async with world(delays=SLOW) as here:
        notes = await waiting(here)
        before = notes.looks
        for beat in range(40):
            await here.user.merge_patch(NODES, "other", {"metadata": {"annotations": {"beat": str(beat)}}})
            await here.sleep(0.5)
        # In 20 s the loop turns every 10 s by itself.
        assert notes.looks - before <= 4


async def test_a_node_that_is_new_is_looked_at_soon_while_a_machine_is_awaited() -> None:
    async with world(delays=SLOW) as here:
        notes = await waiting(here)
        before = notes.looks
        for number in range(4):
            await here.user.create(NODES, node(f"new{number}", unschedulable=True))
            await here.sleep(0.5)
        assert notes.looks >= before + 4
