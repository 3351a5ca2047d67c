"""The agent pools of the Terraform files in a simulated account: AKS's rules take them, and gpuscaler adopts each without a warning."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.clouds.azure.discovery.accounts import Azure, names, pool, reasons
from tests.generating.test_terraform_azure import ALL, pools

from gpuscaler.clouds.azure.api.ids import agent_pool_path
from gpuscaler.clouds.azure.discovery.accounts import Account
from gpuscaler.embedded.azure import SUBSCRIPTION, making

VERSION = "2025-05-01"
#: What the provider calls a property of an agent pool, and Azure's name.
PROPERTIES = {
    "vm_size": "vmSize",
    "mode": "mode",
    "priority": "scaleSetPriority",
    "eviction_policy": "scaleSetEvictionPolicy",
    "spot_max_price": "spotMaxPrice",
    "zones": "availabilityZones",
    "auto_scaling_enabled": "enableAutoScaling",
    "node_count": "count",
    "scale_down_mode": "scaleDownMode",
    "os_sku": "osSKU",
    "os_disk_size_gb": "osDiskSizeGB",
    "os_disk_type": "osDiskType",
    "max_pods": "maxPods",
    "node_public_ip_enabled": "enableNodePublicIP",
    "node_labels": "nodeLabels",
    "node_taints": "nodeTaints",
}


@pytest.fixture
async def azure() -> AsyncIterator[Azure]:
    served = Azure(subscriptions=(SUBSCRIPTION,), locations=("eastus", "westeurope"))
    await served.open()
    yield served
    await served.close()


def properties(block: dict[str, Any]) -> dict[str, Any]:
    """The properties of the agent pool that the provider makes of a block."""
    found = {PROPERTIES[name]: value for name, value in block.items() if name in PROPERTIES}
    return found | {"gpuProfile": {"driver": block["gpu_driver"]}, "osType": "Linux", "type": "VirtualMachineScaleSets"}


@pytest.mark.parametrize("name", ["s2-azure", "wide"])
async def test_every_pool_is_taken_by_aks_and_adopted_by_gpuscaler(azure: Azure, name: str) -> None:
    description = ALL[name]
    settings = description.cluster
    group = settings.resource_group or f"{settings.name}-rg"
    making.create_group(azure.account, group, location=settings.region)
    making.create_cluster(azure.account, settings.name, group, location=settings.region)
    arm = azure.arm()
    for pool_name, block in pools(name).items():
        body = {"properties": properties(block)}
        await arm.write("PUT", agent_pool_path(SUBSCRIPTION, group, settings.name, pool_name), version=VERSION, body=body)
        azure.later(600.0)
    discovered = await azure.discover(Account(SUBSCRIPTION, settings.name, group))
    assert sorted(names(discovered.pools)) == sorted(group.name for group in description.groups)
    assert list(reasons(discovered)) == ["nodepool1"]
    for wanted in description.groups:
        found = pool(discovered, wanted.name)
        assert found.capacity == 0
        [offering] = found.pool.offerings
        place = f"{settings.region}-{wanted.zone or 0}"
        assert (offering.instance_type, offering.market, offering.zone) == (wanted.instance_type.name, wanted.market, place)
        assert set(wanted.taints) <= {*offering.taints} or wanted.pool == "confidential"
        assert wanted.labels.items() <= dict(offering.labels).items()
    assert {
        found.pool.name: found.warnings for found in discovered.pools if found.warnings and found.pool.name[:3] not in {"amd", "con"}
    } == {}
