"""Nodes of others with an instance type of a pool, while the cloud does not list its machines: they are not touched and do not count.

They may be of another node pool or scale set, or made by hand; labels may have been copied from a node of ours.
"""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from msgspec import Struct
from tests.control.account_stage import AccountStage
from tests.control.aws_stage import aws_stage
from tests.control.azure_stage import azure_stage
from tests.control.world import ONE_GPU_MACHINES, World, world

from gpuscaler.clouds.protocol import UNKNOWN, CloudError
from gpuscaler.control.records.status.status import Status
from gpuscaler.embedded.azure import SUBSCRIPTION
from gpuscaler.embedded.nodes import machines
from gpuscaler.kube.resources import NODES
from gpuscaler.model.instances import Inventory
from gpuscaler.model.well_known import POOL_LABEL

#: A machine of the account that is in no group of a pool.
FOREIGN: Mapping[str, str] = {
    "aws": "aws:///us-east-1a/i-0fedcba9876543210",
    "azure": (
        f"azure:///subscriptions/{SUBSCRIPTION}/resourceGroups/other/providers/Microsoft.Compute/virtualMachineScaleSets/theirs"
        "/virtualMachines/0"
    ),
}
THEIRS = "theirs"


class Scene(Struct):
    """A cloud with one pool ``gpus`` of one machine, and the calls without which its machines cannot be listed."""

    here: Any
    cloud: str
    calls: Mapping[str, Any]

    def begin_outage(self) -> None:
        self.here.fault(**self.calls)

    def end_outage(self) -> None:
        self.here.endpoint.faults.all.clear()

    async def add_foreign(self, labels: Mapping[str, str] = {}) -> None:
        """Add a node with all labels of a machine of the pool, except for those that gpuscaler writes."""
        (ours,) = await self.here.nodes()
        labels = {**{key: value for key, value in ours["metadata"]["labels"].items() if key != POOL_LABEL}, **labels}
        metadata = {"name": THEIRS, "labels": {**labels, "kubernetes.io/hostname": THEIRS}}
        await self.here.user.create(NODES, {**ours, "metadata": metadata, "spec": {"providerID": FOREIGN[self.cloud]}})

    async def check_untouched(self, labels: Mapping[str, str] = {}) -> None:
        (node,) = [node for node in await self.here.nodes() if node["metadata"]["name"] == THEIRS]
        assert node["spec"] == {"providerID": FOREIGN[self.cloud]}
        assert node["metadata"]["labels"].get(POOL_LABEL) == labels.get(POOL_LABEL)

    async def machines_of_pool(self) -> int:
        status: Status = await self.here.status()
        (pool,) = [pool for pool in status.pools if pool.name == "gpus"]
        return pool.machines


@pytest.fixture(autouse=True)
def _nodes_without_our_label(monkeypatch: pytest.MonkeyPatch) -> None:
    made = machines.node_of

    def node_of(*what: Any, **more: Any) -> dict[str, Any]:
        node = made(*what, **more)
        node["metadata"]["labels"].pop(POOL_LABEL, None)
        return node

    monkeypatch.setattr(machines, "node_of", node_of)


@asynccontextmanager
async def scene(cloud: str, folder: Path) -> AsyncIterator[Scene]:
    here: AccountStage
    if cloud == "azure":
        async with azure_stage(folder) as here:
            here.pool("gpus", count=1)
            await here.sleep(120)
            yield Scene(here, cloud, {"method": "GET", "path": "*/virtualMachines", "code": "InternalServerError", "status": 500})
    else:
        async with aws_stage(folder) as here:
            here.group("gpus", MinSize=1, DesiredCapacity=1)
            await here.sleep(120)
            yield Scene(here, cloud, {"operation": "DescribeInstances", "code": "InternalError", "status": 500})


@pytest.mark.parametrize("cloud", ["aws", "azure"])
async def test_a_node_of_others_is_neither_touched_nor_counted_if_the_cloud_has_listed_nothing_yet(cloud: str, tmp_path: Path) -> None:
    async with scene(cloud, tmp_path) as made:
        await made.add_foreign()
        made.begin_outage()
        made.here.start()
        await made.here.sleep(200)

        await made.check_untouched()
        assert await made.machines_of_pool() == 0
        made.end_outage()
        await made.here.sleep(200)
        await made.check_untouched()
        assert await made.machines_of_pool() == 1


@pytest.mark.parametrize("cloud", ["aws", "azure"])
async def test_a_node_of_others_is_neither_touched_nor_counted_if_the_cloud_stops_listing_machines(cloud: str, tmp_path: Path) -> None:
    async with scene(cloud, tmp_path) as made:
        made.here.start()
        await made.here.sleep(60)
        made.begin_outage()
        await made.add_foreign()
        await made.here.sleep(400)

        await made.check_untouched()
        assert await made.machines_of_pool() == 1


@pytest.mark.parametrize("cloud", ["aws", "azure"])
async def test_machines_of_the_pool_still_count_after_a_restart_if_the_cloud_stops_listing_machines(cloud: str, tmp_path: Path) -> None:
    """They have the pool label. A copied one counts too until the list is there, but its node is not touched."""
    async with scene(cloud, tmp_path) as made:
        made.here.start()
        await made.here.sleep(60)
        copied = {POOL_LABEL: "gpus"}
        await made.add_foreign(copied)
        await made.here.sleep(60)
        assert await made.machines_of_pool() == 1
        await made.here.stop()
        made.begin_outage()
        made.here.start(identity="two")
        await made.here.sleep(200)

        await made.check_untouched(copied)
        assert await made.machines_of_pool() == 2
        made.end_outage()
        await made.here.sleep(200)
        await made.check_untouched(copied)
        assert await made.machines_of_pool() == 1


# Buying before the first list


async def start_without_lists(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    async def inventory() -> Inventory:
        raise CloudError(UNKNOWN, "no answer")

    with monkeypatch.context() as patch:
        patch.setattr(here.cluster.provider, "inventory", inventory)
        here.start()
        await here.sleep(5.0)
        await here.submit("p", 1)
        await here.sleep(120.0)


async def test_nothing_is_bought_before_the_first_list_if_nodes_may_count_for_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(ONE_GPU_MACHINES) as here:
        (offering,) = here.policy.pools[0].offerings
        labels = {key: value for key, value in offering.labels.items() if key != POOL_LABEL}
        spec = {"providerID": "simulated:///us-east-1a/theirs", "taints": [{"key": "theirs", "effect": "NoSchedule"}]}
        await here.user.create(NODES, {"metadata": {"name": THEIRS, "labels": labels}, "spec": spec})
        await start_without_lists(here, monkeypatch)

        assert here.notes.orders == []
        assert here.notes.last is not None
        (unplaced,) = here.notes.last.unplaced
        assert unplaced.reasons[0].detail == (
            "nothing is bought before the cloud has listed its machines: by its instance type, node theirs may be of pool gpu and count "
            "for its limits"
        )
        await here.sleep(120.0)
        assert len(here.notes.orders) == 1


async def test_machines_are_bought_before_the_first_list_if_no_node_may_count_for_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(ONE_GPU_MACHINES) as here:
        await start_without_lists(here, monkeypatch)

        assert len(here.notes.orders) == 1
