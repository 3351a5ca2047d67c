"""The times of turns: soon after changes of awaited objects, and not after other changes."""

from tests.control.world import QUICK, CountingRecorder, World, world
from tests.objects import node

from gpuscaler.kube.resources import NODES
from gpuscaler.lifecycle.reconcile import Reconciliation
from gpuscaler.model.cluster import Cluster
from gpuscaler.simulation.cloud.delays import Delay, Delays

#: Machines boot for a long time.
SLOW = Delays(boot=Delay(300.0, 300.0, 300.0), device_plugin=QUICK.device_plugin, answer=QUICK.answer, image_pull=QUICK.image_pull)


class Counting(CountingRecorder):
    """Counts turns."""

    looks = 0

    def observed(self, seen: Reconciliation, cluster: Cluster, now: float, /) -> None:
        self.looks += 1
        super().observed(seen, cluster, now)


async def wait_for_machine(here: World) -> Counting:
    """A machine is starting, and everything else is at rest."""
    here.notes = notes = Counting()
    await here.user.create(NODES, node("other", unschedulable=True))
    here.start()
    await here.sleep(5.0)
    await here.submit("pod")
    await here.sleep(20.0)
    assert len(notes.orders) == 1
    return notes


async def test_heartbeats_of_unrelated_nodes_cause_no_extra_turns() -> None:
    async with world(delays=SLOW) as here:
        notes = await wait_for_machine(here)
        before = notes.looks
        for beat in range(40):
            await here.user.merge_patch(NODES, "other", {"metadata": {"annotations": {"beat": str(beat)}}})
            await here.sleep(0.5)
        # In 20 s there are two regular turns, one every 10 s.
        assert notes.looks - before <= 4


async def test_a_new_node_causes_an_early_turn_while_an_ordered_machine_is_expected() -> None:
    async with world(delays=SLOW) as here:
        notes = await wait_for_machine(here)
        before = notes.looks
        for number in range(4):
            await here.user.create(NODES, node(f"new{number}", unschedulable=True))
            await here.sleep(0.5)
        assert notes.looks >= before + 4
