"""F71 to F74: whose a machine is, by the cloud's list alone, and what groups launch by themselves."""

from typing import Any

import pytest
from tests.control.leaving import run
from tests.control.world import World
from tests.faults.kit import IDLE, all_bound, faulty, status, taints, watch_of
from tests.faults.test_people import launch

from gpuscaler.embedded import machines
from gpuscaler.kube.resources import NODES
from gpuscaler.planning.keeping import ARRIVING_TAINT
from gpuscaler.planning.membership import POOL_LABEL

pytestmark = pytest.mark.looptime(noop_cycles=1)

MINIMUM = f"{IDLE}    min: 1\n"


@pytest.fixture(autouse=True)
def _nodes_without_our_label(monkeypatch: pytest.MonkeyPatch) -> None:
    made = machines.node_of

    def node_of(*what: Any, **more: Any) -> dict[str, Any]:
        node = made(*what, **more)
        node["metadata"]["labels"].pop(POOL_LABEL, None)
        return node

    monkeypatch.setattr(machines, "node_of", node_of)


async def closed(here: World) -> list[str]:
    return [node["metadata"]["name"] for node in await here.nodes() if ARRIVING_TAINT in taints(node)]


async def test_f71_machines_that_joined_while_no_controller_ran_are_opened_used_and_given_back() -> None:
    async with faulty(IDLE) as here:
        await here.kill()
        await launch(here, 2)
        await here.sleep(3600.0)
        assert len(await closed(here)) == 2
        here.start()
        await run(here, "web")
        await here.sleep(60.0)
        assert await closed(here) == []
        assert await all_bound(here)
        await here.sleep(600.0)

        assert len(here.cluster.core.list()) == 1
        assert here.notes.orders == []


async def test_f71_a_node_that_stays_closed_and_is_on_no_list_is_named() -> None:
    async with faulty(IDLE) as here:
        await launch(here)
        await here.sleep(60.0)
        (ours,) = await here.nodes()
        labels = {**ours["metadata"]["labels"], POOL_LABEL: "gpu"}
        spec = {"providerID": "simulated:///us-east-1a/theirs", "taints": [{"key": ARRIVING_TAINT, "effect": "NoSchedule"}]}
        await here.user.create(NODES, {**ours, "metadata": {"name": "theirs", "labels": labels}, "spec": spec})
        await here.sleep(1200.0)

        assert await closed(here) == ["theirs"]
        assert watch_of(here).to("/nodes/theirs") == []
        (warning,) = (await status(here)).warnings
        assert warning.startswith(f"node theirs is closed by the taint {ARRIVING_TAINT}, and nothing here opens or removes it")


async def test_f72_a_node_that_is_on_no_list_is_no_part_of_a_pools_minimum() -> None:
    async with faulty(MINIMUM) as here:
        await here.sleep(60.0)
        (ours,) = await here.nodes()
        labels = {**ours["metadata"]["labels"], POOL_LABEL: "gpu", "kubernetes.io/hostname": "theirs"}
        body = {"metadata": {"name": "theirs", "labels": labels}, "spec": {"providerID": "simulated:///us-east-1a/theirs"}}
        await here.user.create(NODES, {**ours, **body})
        await here.sleep(1200.0)

        assert len(here.cluster.core.history()) == 1, "the one machine that the minimum asks for was removed"
        assert watch_of(here).ended == []
        assert [pool.machines for pool in (await status(here)).pools] == [1]
