"""The agent pools of the Terraform files in a simulated account: AKS's rules take them, and gpuscaler adopts each without a warning."""

from collections.abc import AsyncIterator

import pytest
from tests.clouds.azure.discovery.accounts import Azure, names, pool, reasons
from tests.generating.applying.terraform_azure import properties
from tests.generating.test_terraform_azure import ALL, pools

from gpuscaler.clouds.azure.api.ids import agent_pool_path
from gpuscaler.clouds.azure.discovery.accounts import Account
from gpuscaler.embedded.azure import SUBSCRIPTION, making

VERSION = "2025-05-01"


@pytest.fixture
async def azure() -> AsyncIterator[Azure]:
    served = Azure(subscriptions=(SUBSCRIPTION,), locations=("eastus", "westeurope"))
    await served.open()
    yield served
    await served.close()


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
