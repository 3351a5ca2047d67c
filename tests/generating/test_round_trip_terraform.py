"""Terraform files of AWS, applied to a simulated account: pools as described, a doctor without findings, and a pod from zero and back."""

from functools import cache
from pathlib import Path

import pytest
import yaml
from tests.control.aws_stage import Stage, aws_stage
from tests.generating.applying.aws import AwsDriver
from tests.generating.applying.terraform import Plan, apply, plan_of
from tests.generating.corpus import FOLDER
from tests.generating.terraform.running import needs_terraform
from tests.generating.test_round_trip_aws import create_objects, discover, examine, run_file

from gpuscaler.doctor.findings import INFO
from gpuscaler.generating.description.reading import read_description
from gpuscaler.generating.description.resolved import Description
from gpuscaler.kube.resources import PODS

pytestmark = needs_terraform
#: A node group takes a second of Terraform, so the descriptions have few.
SCENES = {"s4-terraform": {"nodes": "managed"}, "s1-self-managed": {"tool": "terraform"}}


@cache
def described(name: str) -> Description:
    text = yaml.safe_load((FOLDER / f"{name}.yaml").read_text()) | SCENES[name]
    text["cluster"] |= {"account": "123456789012", "create": False}
    if name == "s4-terraform":
        text["gpu_pools"][1] |= {"types": ["g5.12xlarge"]}
        del text["gpu_pools"][1]["gpus"]
    return read_description(yaml.safe_dump(text), name)


@cache
def planned(name: str, folder: Path) -> Plan:
    return plan_of(folder / name, described(name))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("terraform")


def made(here: Stage, name: str, folder: Path) -> AwsDriver:
    """Apply the plan, and run the command of the README after it."""
    description = described(name)
    driver = AwsDriver(here, description.cluster.name)
    apply(driver, planned(name, folder), description)
    if description.managed:
        driver.protect_new_machines()
    return driver


@pytest.mark.parametrize("name", SCENES)
async def test_each_described_group_is_a_pool_and_the_doctor_finds_nothing(name: str, folder: Path, tmp_path: Path) -> None:
    description = described(name)
    async with aws_stage(tmp_path, region=description.cluster.region) as here:
        driver = made(here, name, folder)
        found = discover(here, description)
        shown = {
            (pool.pool.name, offering.instance_type, offering.market, offering.zone, pool.pool.min, pool.pool.max)
            for pool in found.pools
            for offering in pool.pool.offerings
        }
        assert shown == {
            (group.name, group.instance_type.name, group.market, group.zone, group.min, group.max) for group in description.groups
        }
        assert [warning for pool in found.pools for warning in pool.warnings if "the pool is called" not in warning] == []
        await create_objects(here, description)
        await here.sleep(300)
        report = await examine(here, description, driver)
        assert [(finding.check, finding.object, finding.seen) for finding in report.findings if finding.severity != INFO] == []


@pytest.mark.parametrize("name", SCENES)
async def test_a_pod_runs_from_zero_and_the_groups_go_back_to_zero(name: str, folder: Path, tmp_path: Path) -> None:
    description = described(name)
    async with aws_stage(tmp_path, region=description.cluster.region) as here:
        made(here, name, folder)
        await create_objects(here, description)
        here.start(run_file(description))
        tolerations = [{"key": "nvidia.com/gpu", "operator": "Exists"}, {"key": "gpu-pool", "operator": "Exists"}]
        spec = {
            "tolerations": tolerations,
            "containers": [{"name": "main", "image": "cuda", "resources": {"limits": {"nvidia.com/gpu": 1}}}],
        }
        await here.user.create(PODS, {"metadata": {"name": "one"}, "spec": spec}, namespace="default")

        async def runs() -> bool:
            (pod,) = [pod for pod in await here.all(PODS) if pod["metadata"]["namespace"] == "default"]
            return bool(pod["status"].get("phase") == "Running")

        await here.until(runs, 900)
        assert here.machines()
        await here.user.delete(PODS, "one", namespace="default")

        async def all_gone() -> bool:
            """No machine is left."""
            return not await here.nodes()

        await here.until(all_gone, 1800)
        assert sum(here.desired(group) for group in here.region.groups) == 0
