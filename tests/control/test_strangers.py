"""Machines that cost money without use: not ordered by gpuscaler, never registered, or no longer needed."""

from collections.abc import Sequence

import pytest
from tests.control.test_replacing import serve
from tests.control.world import ONE_GPU_MACHINES, CallObserver, World, world

from gpuscaler.clouds.protocol import INTERRUPTION, MAINTENANCE, BuyResult, LostAnswerError, Notice, Order, UnfilledOrder
from gpuscaler.embedded.serving.alone import make_node, ready_conditions
from gpuscaler.kube.resources import CONFIG_MAPS, NODES, PODS
from gpuscaler.kube.transport import Request
from gpuscaler.lifecycle.pacing import Pace
from gpuscaler.simulation.cloud.delays import Faults
from gpuscaler.simulation.cloud.provider import CallFaults

#: Tests wait only for the event loop, so one pass over it is enough before time advances.

NEVER = Faults(never_registers=1.0, partial_grants=0.0, gpu_hours_between_failures=0.0)
QUICK_PACE = Pace(register=120.0, ready=120.0)
IDLE = f"{ONE_GPU_MACHINES}    idle_after: 60s\n"


async def launch(here: World) -> None:
    """Launch a machine in a pool, as another program does."""
    (pool,) = here.policy.pools
    await here.cluster.provider.buy(Order("another-writer", pool.name, (pool.offerings[0].key,), 1))


async def test_a_machine_bought_by_another_program_is_ended_if_it_never_registers() -> None:
    async with world(pace=QUICK_PACE, faults=NEVER) as here:
        here.start()
        await here.sleep(2.0)
        await launch(here)
        await here.sleep(110.0)
        assert len(here.cluster.core.list()) == 1
        await here.sleep(60.0)

        assert here.cluster.core.list() == ()
        assert here.notes.orders == []


async def test_an_unregistered_machine_is_ended_after_the_saved_state_was_lost() -> None:
    async with world(pace=QUICK_PACE, faults=NEVER) as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p")
        await here.sleep(30.0)
        (lost,) = here.cluster.core.list()
        await here.kill()
        await here.user.delete(CONFIG_MAPS, "gpuscaler-state", namespace="kube-system")
        here.start()
        await here.sleep(240.0)

        assert lost.id not in {machine.id for machine in here.cluster.core.list()}


async def test_a_machine_that_gpuscaler_did_not_order_serves_pods_and_is_removed_when_idle() -> None:
    async with world(IDLE) as here:
        here.start()
        await here.sleep(2.0)
        await launch(here)
        await here.sleep(60.0)
        await here.submit("p", 1, **{"gpuscaler.io/run-for": "30s"})
        await here.sleep(30.0)
        assert (await here.bound())["p"]
        await here.sleep(240.0)

        assert here.cluster.core.list() == ()
        assert here.notes.orders == []


async def test_a_pool_is_paused_and_reported_after_three_machines_in_a_row_never_registered() -> None:
    async with world(pace=QUICK_PACE, faults=NEVER) as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("p")
        await here.sleep(3600.0)

        assert len(here.cluster.core.history()) == 3
        assert here.cluster.core.list() == ()
        (remark,) = (remark for remark in here.notes.remarks if "never became nodes" in remark.text)
        assert remark.text.startswith("pool gpu: machines never became nodes, 3 times since ")
        assert here.notes.last is not None
        (unplaced,) = here.notes.last.unplaced
        assert "pool gpu: machines never became nodes" in unplaced.reasons[0].detail


@pytest.mark.parametrize("killed", [False, True], ids=["alive", "killed"])
async def test_the_withdrawal_of_an_abandoned_order_is_repeated_until_the_cloud_confirms_it(
    killed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    async with world(calls=CallFaults(tokens=False)) as here:

        async def buy(_order: Order) -> BuyResult:
            raise LostAnswerError("the connection broke")

        async def withdraw(rest: UnfilledOrder) -> None:
            token = rest.order.token
            tried.append(token)
            if tried.count(token) < 4:
                raise LostAnswerError("the connection broke")

        with monkeypatch.context() as patch:
            patch.setattr(here.cluster.provider, "buy", buy)
            patch.setattr(here.cluster.provider, "withdraw", withdraw)
            here.start()
            await here.sleep(2.0)
            await here.submit("p")
            while not tried:
                await here.sleep(1.0)
            await here.user.delete(PODS, "p", namespace="default")
            first = tried[0]
            if killed:
                await here.kill()
                here.start()
            await here.sleep(600.0)

        assert here.controller is not None
        assert tried.count(first) == 4
        assert here.controller.memory.ledger.withdrawals == ()


LOOKS_LIKE_OURS = {
    "gpuscaler.io/pool": "gpu",
    "node.kubernetes.io/instance-type": "g5.12xlarge",
    "topology.kubernetes.io/zone": "us-east-1a",
}
BIG_AND_SMALL = IDLE.replace("types: [g4dn.xlarge]", "types: [g4dn.xlarge, g5.12xlarge]")


async def add_unlisted_node(here: World, instance: str) -> None:
    """Add a node with the labels of a large machine of a pool, which the cloud does not list."""
    (large,) = (offering for offering in here.policy.pools[0].offerings if offering.instance_type == "g5.12xlarge")
    node = make_node("theirs", large.allocatable, LOOKS_LIKE_OURS)
    made = {**node, "spec": {"providerID": instance} if instance else {}}
    await here.user.create(NODES, {**made, "status": {**node["status"], "conditions": ready_conditions(here.now())}})


@pytest.mark.parametrize("kind", [INTERRUPTION, MAINTENANCE])
@pytest.mark.parametrize("instance", ["aws:///us-east-1a/i-1", "simulated:///us-east-1a/theirs"])
async def test_a_node_that_the_cloud_does_not_list_is_left_alone_when_its_machine_is_interrupted(instance: str, kind: str) -> None:
    """Several clusters may share a queue of interruptions."""
    async with world(BIG_AND_SMALL) as here:
        await add_unlisted_node(here, instance)
        here.watchman = touched = WriteCollector()
        here.start()
        await here.submit("p")
        await here.sleep(20.0)
        here.announced.append(Notice(kind, instance, here.now() + 120.0))
        await here.sleep(400.0)

        assert await here.bound() == {"p": "theirs"}
        assert touched.paths == []
        assert [remark.text for remark in here.notes.remarks if "emptied" in remark.text] == []


@pytest.mark.parametrize(
    ("instance", "why"),
    [
        ("", "no spec.providerID identifies its machine"),
        ("aws:///us-east-1a/i-1", "the cloud's list for this cluster does not include machine aws:///us-east-1a/i-1"),
        ("simulated:///us-east-1a/theirs", "the cloud's list for this cluster does not include machine simulated:///us-east-1a/theirs"),
    ],
)
async def test_a_node_that_the_cloud_does_not_list_runs_pods_and_is_not_replaced(instance: str, why: str) -> None:
    async with world(BIG_AND_SMALL) as here:
        await add_unlisted_node(here, instance)
        here.watchman = touched = WriteCollector()
        here.start()
        await serve(here)
        await here.sleep(2400.0)

        assert list((await here.bound()).values()) == ["theirs"]
        assert here.notes.orders == []
        assert touched.paths == []
        assert here.notes.last is not None
        (blocked_node,) = here.notes.last.blocked_nodes
        assert (blocked_node.blocker, blocked_node.detail) == ("not-listed", f"{why}, so the node is not removed")


class WriteCollector(CallObserver):
    """Records the nodes, evictions and machines that were written to."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def write(self, request: Request) -> None:
        if "/nodes/" in request.path or request.path.endswith("/eviction"):
            self.paths.append(request.path)

    async def remove(self, ids: Sequence[str]) -> None:
        self.paths += ids
