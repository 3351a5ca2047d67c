"""Many machines of an Azure pool that become idle are removed with few calls, also while another program reads a lot."""

import asyncio
from pathlib import Path

import pytest
from tests.control.azure_stage import Stage, azure_stage
from tests.embedded.azure.memory import URL, MemoryHttp

from gpuscaler.kube.resources import DEPLOYMENTS

POOLS = "pools:\n  - {name: gpus, idle_after: 20s, max: 100}\n"


async def read_machines(here: Stage) -> None:
    """Another program that lists the machines more often than Azure allows."""
    http = MemoryHttp(here.endpoint, delay=0.1)
    url = f"{URL}{here.scale_set('gpus').id}/virtualMachines?api-version=2024-11-01&$expand=instanceView"
    while True:
        await http.request("GET", url, headers={"authorization": "Bearer another"})
        await asyncio.sleep(0.5)


@pytest.mark.parametrize("machines", [10, 40])
@pytest.mark.parametrize(("api", "call"), [("agentpool", "/deleteMachines"), ("vmss", "/delete")])
async def test_many_idle_machines_are_removed_with_few_calls(tmp_path: Path, api: str, call: str, machines: int) -> None:
    async with azure_stage(tmp_path) as here:
        here.pool("gpus")
        here.start(here.settings(api=api, more=POOLS))
        await here.deploy("work", machines)
        await here.until(lambda: here.count_registered("gpus") == machines)
        await here.until(here.all_bound)
        here.support(read_machines(here))
        began = here.now()
        for left in (machines // 2, machines // 4, 0):
            # While an operation of AKS deletes some machines, others become idle.
            await here.user.merge_patch(DEPLOYMENTS, "work", {"spec": {"replicas": left}}, namespace="default")
            await here.sleep(10.0)
        await here.until(lambda: not here.machines("gpus"))

        # AKS takes one operation of a pool at a time, and each of these takes 35 s.
        assert here.now() - began <= 150.0
        assert [write.path for write in here.endpoint.refused] == []
        deletions = [write for write in here.endpoint.writes if write.path.endswith(call)]
        assert len(deletions) <= 4
        assert here.deletions() == machines
