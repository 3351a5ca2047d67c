"""Generated files, applied to a simulated AWS account: gpuscaler finds what was described, runs pods from zero, and goes back to zero."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from msgspec import structs
from tests.control.aws_stage import Stage, aws_stage
from tests.doctor.aws_accounts import Beside, SessionBeside
from tests.generating.applying import terraform_aws
from tests.generating.applying.aws import AwsDriver
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
from tests.generating.looking import complaints
from tests.generating.terraform.running import needs_terraform

from gpuscaler.cli.doctor.aws import inspected
from gpuscaler.cli.doctor.reading import evidence_of_objects
from gpuscaler.clouds.aws.api.calls import Calls
from gpuscaler.clouds.aws.discovery.discovery import Discovery, DiscoveryResult
from gpuscaler.clouds.aws.discovery.regions import Scope
from gpuscaler.doctor.checks.all_checks import CHECKS
from gpuscaler.doctor.findings import INFO, Report
from gpuscaler.doctor.running import run_checks
from gpuscaler.generating.bundle import files_of
from gpuscaler.generating.description.resolved import Description
from gpuscaler.settings.pools_file import parse_settings

pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

ACCOUNT = "123456789012"
#: vCPUs of P and of G and VT instances, on demand and spot.
QUOTAS = ("L-417A185B", "L-7212CCBC", "L-DB2E81BA", "L-3819A6DF", "L-C4BD4855")
NAMES = [
    *("s0-kops", "s1-eksctl", "s1-self-managed", "s3-metrics"),
    *(pytest.param(name, marks=needs_terraform) for name in ("s4-terraform", "s4-self-managed")),
]


async def apply(here: Stage, description: Description, folder: Path) -> AwsDriver:
    """Apply the files of the cloud in their order, with the commands of the README."""
    driver = AwsDriver(here, description.cluster.name)
    if description.tool == "terraform":
        terraform_aws.apply(driver, terraform_aws.planned(folder, description))
    for file in files_of(description):
        text = file.text(explain=False)
        if file.path.startswith("cloudformation/"):
            driver.cloudformation(text)
        elif file.path == "kops/instancegroups.yaml":
            driver.kops(text)
        elif file.path.startswith("eksctl/"):
            driver.eksctl(text)
        if "--new-instances-protected-from-scale-in" in file.apply:
            driver.protect_new_machines()
        driver.addons |= set(re.findall(r"^eksctl create addon .* --name=(\S+)", file.apply, re.MULTILINE))
    await driver.start_addons()
    return driver


def discover(here: Stage, description: Description) -> DiscoveryResult:
    waits: list[float] = []
    calls = Calls(sleep=waits.append, random=Random(0), session=here.session)
    scope = Scope(description.cluster.name, (), {})
    discovery = Discovery(calls, scope, regions=(description.cluster.region,), now=here.now)
    try:
        return discovery.discover()
    finally:
        discovery.close()


def run_file(description: Description) -> str:
    return yaml.safe_dump(config_of(description))


def general_machines(description: Description) -> int:
    """The number of machines without GPUs that the files create."""
    return description.general.min if description.tool != "kops" and description.cluster.create else 0


@pytest.mark.parametrize("name", NAMES)
async def test_each_described_group_is_found_as_a_pool_without_a_warning(name: str, tmp_path: Path) -> None:
    description = described(name, account=ACCOUNT)
    async with aws_stage(tmp_path, region=description.cluster.region) as here:
        await apply(here, description, tmp_path)
        found = discover(here, description)
        shown = {
            (offering.instance_type, offering.market, offering.zone, pool.pool.min, pool.pool.max)
            for pool in found.pools
            for offering in pool.pool.offerings
        }
        assert shown == {(group.instance_type.name, group.market, group.zone, group.min, group.max) for group in description.groups}
        assert len(found.pools) == len(description.groups)
        # Groups of the tools have other names than the pools, which their label names.
        assert [warning for pool in found.pools for warning in pool.warnings if "the pool is called" not in warning] == []
        assert {pool.pool.name for pool in found.pools} == {group.name for group in description.groups}
        assert not found.failed


@pytest.mark.parametrize("name", NAMES)
async def test_workloads_run_from_zero_and_the_groups_go_back_to_zero(name: str, tmp_path: Path) -> None:
    description = described(name, account=ACCOUNT)
    async with aws_stage(tmp_path, region=description.cluster.region) as here:
        driver = await apply(here, description, tmp_path)
        workloads = await create_objects(here, description)
        await create_account(here, description)
        here.start(run_file(description))
        await submit(here, workloads)
        await here.until(lambda: all_run(here), 900)
        assert here.machines()
        assert complaints(await examine(here, description, driver)) == []
        await withdraw(here, workloads)

        async def all_gone() -> bool:
            """No machine with a GPU is left."""
            return not await gpu_nodes(here)

        await here.until(all_gone, 1800)
        await here.sleep(60)
        # What is left are the machines without GPUs, as many as described.
        assert sum(here.desired(group) for group in here.region.groups) == len(await here.nodes()) == general_machines(description)
        status = await here.status()
        assert (status.promises_broken, status.troubles) == (0, ())


def waits(workload: Mapping[str, Any]) -> bool:
    """Whether its pods wait for spot machines for some minutes, as its file says, before they take more expensive ones."""
    return "gpuscaler.io/spot-wait" in workload["spec"]["template"]["metadata"].get("annotations", {})


@needs_terraform
@pytest.mark.parametrize(("name", "waiting", "bought", "running"), [("s4-terraform", False, 5, 90), ("s4-self-managed", True, 605, 690)])
async def test_where_spot_runs_dry_on_demand_machines_are_bought_within_seconds(
    name: str, waiting: bool, bought: float, running: float, tmp_path: Path
) -> None:
    description = described(name, account=ACCOUNT)
    async with aws_stage(tmp_path, region=description.cluster.region) as here:
        await apply(here, description, tmp_path)
        workloads = [workload for workload in await create_objects(here, description) if waits(workload) == waiting]
        here.limit(0, market="spot")
        here.start(run_file(description))
        await submit(here, workloads)
        await here.sleep(bought)
        machines = [instance.machine for instance in here.region.instances.values() if "general" not in instance.group]
        assert len(machines) == 3
        assert {machine.offering.market for machine in machines} == {"on-demand"}
        await here.until(lambda: all_run(here), running - bought)


async def examine(here: Stage, description: Description, driver: AwsDriver) -> Report:
    """What the doctor says of the cluster and its account."""
    beside = Beside()
    # Which quota an account has is not in the files.
    beside.quotas = dict.fromkeys(QUOTAS, 1_000_000.0)
    for name, rule in driver.rules.items():
        pattern = json.dumps(rule["EventPattern"])
        beside.rules[here.region.name, name] = {"Name": name, "State": rule["State"], "EventPattern": pattern}
        beside.targets[here.region.name, name] = {target["Arn"] for target in rule["Targets"]}
    beside.trusts = {name: role["AssumeRolePolicyDocument"] for name, role in driver.roles.items()}
    waits: list[float] = []
    calls = Calls(sleep=waits.append, random=Random(0), session=SessionBeside(here.session, beside))
    evidence = evidence_of_objects(await all_objects(here), now=here.now())
    evidence = replace(evidence, named=frozenset({description.controller.namespace}))
    settings = parse_settings(run_file(description)).aws
    report = run_checks(inspected(evidence, settings, calls), CHECKS)
    # EKS turns CapacityRebalance on for managed groups of spot machines, of which the doctor informs.
    findings = tuple(finding for finding in report.findings if (finding.check, finding.severity) != ("D6", INFO))
    # kOps' webhook knows the roles of ServiceAccounts from a ConfigMap, which the doctor does not read.
    unchecked = tuple(
        entry for entry in report.unchecked if description.tool != "kops" or entry.subject != "the rights of gpuscaler's role"
    )
    return structs.replace(report, findings=findings, unchecked=unchecked)


@pytest.mark.parametrize("name", NAMES)
async def test_the_doctor_finds_nothing_to_mend(name: str, tmp_path: Path) -> None:
    description = described(name, account=ACCOUNT)
    async with aws_stage(tmp_path, region=description.cluster.region) as here:
        driver = await apply(here, description, tmp_path)
        await create_objects(here, description)
        await create_account(here, description)
        await here.sleep(300)
        assert complaints(await examine(here, description, driver)) == []
