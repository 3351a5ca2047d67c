"""Generated files, applied to a simulated AWS account: gpuscaler finds what was described, runs pods from zero, and goes back to zero."""

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml
from tests.control.aws_stage import Stage, aws_stage
from tests.doctor.aws_accounts import Beside, SessionBeside
from tests.generating.applying.aws import AwsDriver
from tests.generating.corpus import FOLDER

from gpuscaler.cli.doctor.aws import inspected
from gpuscaler.cli.doctor.reading import evidence_of_objects
from gpuscaler.clouds.aws.api.calls import Calls
from gpuscaler.clouds.aws.discovery.discovery import Discovery, DiscoveryResult
from gpuscaler.clouds.aws.discovery.regions import Scope
from gpuscaler.doctor.checks.all_checks import CHECKS
from gpuscaler.doctor.findings import INFO, Report
from gpuscaler.doctor.running import run_checks
from gpuscaler.generating.bundle import files_of
from gpuscaler.generating.description.reading import read_description
from gpuscaler.generating.description.resolved import Description
from gpuscaler.kube import resources
from gpuscaler.kube.errors import Conflict, NotFound
from gpuscaler.kube.resources import PODS, Resource
from gpuscaler.settings.pools_file import parse_settings

pytest.importorskip("boto3", reason="boto3 is not installed: make setup brings it")

RESOURCES = {(resource.api_version, resource.kind): resource for resource in vars(resources).values() if isinstance(resource, Resource)}
#: vCPUs of P and of G and VT instances, on demand and spot.
QUOTAS = ("L-417A185B", "L-7212CCBC", "L-DB2E81BA", "L-3819A6DF", "L-C4BD4855")
NAMES = ("s0-kops", "s1-eksctl", "s1-self-managed", "s3-metrics")


def described(name: str, account: str) -> Description:
    text = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    text["cluster"]["account"] = account
    return read_description(yaml.safe_dump(text), name)


def apply(here: Stage, description: Description) -> AwsDriver:
    """Apply the files of the cloud in their order."""
    driver = AwsDriver(here, description.cluster.name)
    for file in files_of(description):
        text = file.text(explain=False)
        if file.path.startswith("cloudformation/"):
            driver.cloudformation(text)
        elif file.path == "kops/instancegroups.yaml":
            driver.kops(text)
        elif file.path in {"eksctl/cluster.yaml", "eksctl/nodegroups.yaml"}:
            driver.eksctl(text)
            driver.protect_new_machines()
    return driver


async def create_objects(here: Stage, description: Description) -> list[dict[str, Any]]:
    """Apply the files of the cluster in their order; return the workloads that request GPUs, without creating them."""
    workloads = []
    if description.tool == "kops":
        # kOps' add-on for GPUs has it, beside NVIDIA's device plugin as it is shipped.
        runtime_class = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}
        await here.user.create(resources.RUNTIME_CLASSES, runtime_class)
    for file in files_of(description):
        if not file.path.startswith(("kubernetes/", "workloads/")):
            continue
        for made in yaml.safe_load_all(file.text(explain=False)):
            resource = RESOURCES.get((made["apiVersion"], made["kind"]))
            if made["kind"] in {"Deployment", "Job", "StatefulSet"}:
                workloads.append(made)
            elif resource is not None:
                namespace = made["metadata"].get("namespace", "")
                with suppress(Conflict):
                    await here.user.create(resource, made, namespace=namespace)
                    continue
                await here.user.delete(resource, made["metadata"]["name"], namespace=namespace)
                await here.user.create(resource, made, namespace=namespace)
    return workloads


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
    """The run file in the values of the chart."""
    (values,) = [file for file in files_of(description) if file.path == "gpuscaler/values.yaml"]
    config: Mapping[str, Any] = yaml.safe_load(values.text(explain=False))["config"]
    return yaml.safe_dump({**config, "http": {"enabled": False}, "pages": {"enabled": False}})


def general_machines(description: Description) -> int:
    """The number of machines without GPUs that the files create."""
    return description.general.min if description.tool == "eksctl" and description.cluster.create else 0


@pytest.mark.parametrize("name", NAMES)
async def test_each_described_group_is_found_as_a_pool_without_a_warning(name: str, tmp_path: Path) -> None:
    description = described(name, "123456789012")
    async with aws_stage(tmp_path, region=description.cluster.region) as here:
        apply(here, description)
        found = discover(here, description)
        shown = {
            (offering.instance_type, offering.market, offering.zone, pool.pool.min, pool.pool.max)
            for pool in found.pools
            for offering in pool.pool.offerings
        }
        assert shown == {(group.instance_type.name, group.market, group.zone, group.min, group.max) for group in description.groups}
        assert len(found.pools) == len(description.groups)
        # Groups of eksctl and kOps have other names than the pools, which their label names.
        assert [warning for pool in found.pools for warning in pool.warnings if "the pool is called" not in warning] == []
        assert {pool.pool.name for pool in found.pools} == {group.name for group in description.groups}
        assert not found.failed


@pytest.mark.parametrize("name", NAMES)
async def test_workloads_run_from_zero_and_the_groups_go_back_to_zero(name: str, tmp_path: Path) -> None:
    description = described(name, "123456789012")
    async with aws_stage(tmp_path, region=description.cluster.region) as here:
        apply(here, description)
        workloads = await create_objects(here, description)
        here.start(run_file(description))
        for workload in workloads:
            resource = RESOURCES[workload["apiVersion"], workload["kind"]]
            await here.user.create(resource, workload, namespace=workload["metadata"]["namespace"])

        async def all_run() -> bool:
            """Every pod of the workloads runs."""
            pods = [pod for pod in await here.all(PODS) if pod["metadata"]["namespace"] != "kube-system"]
            return bool(pods) and all(pod["status"].get("phase") == "Running" for pod in pods)

        await here.until(all_run, 900)
        assert here.machines()
        for workload in workloads:
            resource = RESOURCES[workload["apiVersion"], workload["kind"]]
            with suppress(NotFound):
                await here.user.delete(resource, workload["metadata"]["name"], namespace=workload["metadata"]["namespace"])

        async def all_gone() -> bool:
            """No machine with a GPU is left."""
            return not any("nvidia.com/gpu" in node["status"]["capacity"] for node in await here.nodes())

        await here.until(all_gone, 1800)
        await here.sleep(60)
        # What is left are the machines without GPUs, as many as described.
        assert sum(here.desired(group) for group in here.region.groups) == len(await here.nodes()) == general_machines(description)
        status = await here.status()
        assert (status.promises_broken, status.troubles) == (0, ())


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
    objects = []
    for (api_version, kind), resource in RESOURCES.items():
        with suppress(NotFound):
            objects += [{"apiVersion": api_version, "kind": kind, **found} for found in await here.all(resource)]
    waits: list[float] = []
    calls = Calls(sleep=waits.append, random=Random(0), session=SessionBeside(here.session, beside))
    evidence = replace(evidence_of_objects(objects, now=here.now()), named=frozenset({description.controller.namespace}))
    settings = parse_settings(run_file(description)).aws
    return run_checks(inspected(evidence, settings, calls), CHECKS)


@pytest.mark.parametrize("name", NAMES)
async def test_the_doctor_finds_nothing_to_mend(name: str, tmp_path: Path) -> None:
    description = described(name, "123456789012")
    async with aws_stage(tmp_path, region=description.cluster.region) as here:
        driver = apply(here, description)
        await create_objects(here, description)
        await here.sleep(300)
        report = await examine(here, description, driver)
        assert [(finding.check, finding.object, finding.seen) for finding in report.findings if finding.severity != INFO] == []
