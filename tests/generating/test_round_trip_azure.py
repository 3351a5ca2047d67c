"""Generated files, applied to a simulated Azure account: gpuscaler finds what was described, runs pods from zero, and goes back to zero."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import yaml
from tests.clouds.azure.discovery.accounts import names, pool, reasons
from tests.clouds.azure.documents.documents import Prices
from tests.control.azure_stage import Stage, azure_stage
from tests.embedded.azure.memory import URL
from tests.generating.applying.objects import (
    all_objects,
    all_run,
    config_of,
    create_account,
    create_objects,
    described,
    gpu_nodes,
    submit,
    withdraw,
)
from tests.generating.applying.terraform_azure import CLIENT_ID, apply, arm_of, planned
from tests.generating.looking import complaints
from tests.generating.terraform.running import needs_terraform

from gpuscaler.cli.doctor.azure import inspected
from gpuscaler.cli.doctor.reading import evidence_of_objects
from gpuscaler.clouds.azure.discovery.discovery import Discovery
from gpuscaler.control.process.azure import accounts_of
from gpuscaler.doctor.checks.all_checks import CHECKS
from gpuscaler.doctor.findings import Report
from gpuscaler.doctor.running import run_checks
from gpuscaler.embedded.azure import SUBSCRIPTION
from gpuscaler.generating.description.resolved import Description
from gpuscaler.settings.pools_file import parse_settings

pytestmark = needs_terraform


@asynccontextmanager
async def applied(folder: Path, description: Description) -> AsyncIterator[Stage]:
    """A stage with the resources of the Terraform files. The device plugin is the one of the files for the cluster."""
    settings = description.cluster
    async with azure_stage(
        folder, cluster=settings.name, group=settings.resource_group, locations=(settings.region,), plugin=False
    ) as here:
        await apply(here, planned(folder, description, here.aks))
        yield here


def run_file(description: Description) -> str:
    config = config_of(description)
    return yaml.safe_dump({**config, "azure": {**config["azure"], "endpoint_url": URL}})


async def test_each_described_pool_is_found_without_a_warning(tmp_path: Path) -> None:
    description = described("s2-azure", subscription=SUBSCRIPTION)
    async with applied(tmp_path, description) as here:
        arm = arm_of(here)
        settings = parse_settings(run_file(description)).azure
        found = await Discovery(arm, accounts_of(settings), now=here.now, prices=Prices()).discover()
        await arm.close()
        assert sorted(names(found.pools)) == sorted(group.name for group in description.groups)
        assert {one.pool.name: one.warnings for one in found.pools if one.warnings} == {}
        assert sorted(reasons(found)) == ["general", "system"]
        for group in description.groups:
            (offering,) = pool(found, group.name).pool.offerings
            place = f"{description.cluster.region}-{group.zone or 0}"
            assert (offering.instance_type, offering.market, offering.zone) == (group.instance_type.name, group.market, place)


async def test_workloads_run_from_zero_and_the_pools_go_back_to_zero(tmp_path: Path) -> None:
    description = described("s2-azure", subscription=SUBSCRIPTION)
    async with applied(tmp_path, description) as here:
        others = len(await here.nodes())
        workloads = await create_objects(here, description)
        await create_account(here, description, client_id=CLIENT_ID)
        here.start(run_file(description))
        await submit(here, workloads)
        await here.until(lambda: all_run(here), 1200)
        assert complaints(await examine(here, description)) == []
        assert await gpu_nodes(here)
        await withdraw(here, workloads)

        async def all_gone() -> bool:
            """No machine with a GPU is left."""
            return not await gpu_nodes(here)

        await here.until(all_gone, 2400)
        await here.sleep(60)
        assert {group.name: here.capacity(group.name) for group in description.groups} == {group.name: 0 for group in description.groups}
        assert len(await here.nodes()) == others == len(here.machines())
        status = await here.status()
        assert (status.promises_broken, status.troubles) == (0, ())


async def examine(here: Stage, description: Description) -> Report:
    """What the doctor says of the cluster and its account."""
    evidence = replace(evidence_of_objects(await all_objects(here), now=here.now()), named=frozenset({description.controller.namespace}))
    arm = arm_of(here)
    try:
        return run_checks(await inspected(evidence, parse_settings(run_file(description)).azure, arm), CHECKS)
    finally:
        await arm.close()


async def test_the_doctor_finds_nothing_to_mend(tmp_path: Path) -> None:
    description = described("s2-azure", subscription=SUBSCRIPTION)
    async with applied(tmp_path, description) as here:
        await create_objects(here, description)
        await create_account(here, description, client_id=CLIENT_ID)
        await here.sleep(300)
        assert complaints(await examine(here, description)) == []
