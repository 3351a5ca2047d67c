"""F68: machines that never show their promised resources."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.control.aws_stage import Stage, aws_stage
from tests.control.test_lacking import EFA, NEVER, submit, with_resource
from tests.control.world import QUICK
from tests.faults.kit import faulty, status
from tests.objects import pod

from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.nodes.devices import Devices, Promise
from gpuscaler.kube.resources import PODS
from gpuscaler.lifecycle.pacing import Pace
from gpuscaler.simulation.cloud.delays import Faults, MissingResource


async def test_f68_two_machines_in_a_row_that_never_show_their_gpus_pause_their_type() -> None:
    async with faulty(faults=NEVER, pace=Pace(ready=60.0)) as here:
        await here.submit("p")
        await here.sleep(900.0)

        assert len(here.cluster.core.history()) == 2
        (breaker,) = (await status(here)).breakers
        assert (breaker.target, breaker.cause, breaker.open) == ("pool gpu g4dn.xlarge", "lacking", True)
        assert "machines never showed nvidia.com/gpu, 2 times" in breaker.text
        assert ["check the device plugin" in remark.text for remark in here.notes.remarks] == [True]


async def test_f68_pods_that_do_not_request_the_missing_resource_run() -> None:
    async with faulty(pace=Pace(ready=60.0)) as here:
        await here.kill()
        here.policy = with_resource(here.policy, EFA)
        here.start()
        await submit(here, "fast", EFA)
        await here.sleep(400.0)
        assert len(here.cluster.core.history()) == 2
        await here.submit("plain")
        await here.sleep(60.0)

        assert (await here.bound())["plain"]
        assert not (await here.bound())["fast"]
        assert len(here.cluster.core.history()) == 3


async def test_f68_machines_with_fewer_gpus_than_their_pods_request_are_not_bought_repeatedly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Devices.promise

    def promise(devices: Devices, node: str, promised: Promise) -> None:
        whole(devices, node, replace(promised, amounts={**promised.amounts, "nvidia.com/gpu": 7}))

    monkeypatch.setattr(Devices, "promise", promise)
    async with aws_stage(tmp_path) as here:
        here.group("gpus", instance_type="p5.48xlarge")
        here.start()
        await here.submit("all", "all-again", gpus=8)
        await here.submit("one")
        await here.sleep(540.0)

        bound = await here.bound()
        assert [name for name, node in bound.items() if node] == ["one"]
        assert len(here.machines()) <= 4
        status = await here.status()
        assert sum(waiting.count for waiting in status.waiting) == 2
        assert any(
            "which did not run there: node ip-10-0-0-" in entry.text and "has 7 nvidia.com/gpu, and the pod requests 8" in entry.text
            for entry in status.happened
        )


MIG = "nvidia.com/mig-1g.5gb"


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """NVIDIA's MIG manager divides all GPUs of each machine, under names of their own (the strategy "mixed")."""
    whole = Devices.promise

    def promise(devices: Devices, node: str, promised: Promise) -> None:
        whole(devices, node, replace(promised, amounts={"nvidia.com/gpu": 0, MIG: 56}))

    monkeypatch.setattr(Devices, "promise", promise)


async def ask(here: Stage, name: str, slices: int) -> None:
    body = pod(name, 0)
    body["spec"]["containers"][0]["resources"]["limits"] = {MIG: str(slices)}
    await here.user.create(PODS, body, namespace="default")


@pytest.mark.usefixtures("divided")
async def test_f68_machines_with_gpu_slices_open_correct_their_node_template_and_count_as_whole_gpus(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", instance_type="p4d.24xlarge", MinSize=1, DesiredCapacity=1)
        here.start(here.settings(more="limits: {gpus: 16}\n"))
        await ask(here, "first", 40)
        await here.sleep(120.0)
        assert (await here.bound())["first"]
        for name in ("second", "third"):
            await ask(here, name, 40)
        await here.submit("whole")
        await here.sleep(150.0)

        assert sorted(name for name, node in (await here.bound()).items() if node) == ["first", "second"]
        assert len(here.machines()) == 2
        waiting = {waiting.pods[0]: waiting.reason for waiting in (await here.status()).waiting}
        assert "p4d.24xlarge has 8 GPUs, the limit leaves 0" in waiting["default/third"]
        assert "1 nvidia.com/gpu requested, an empty machine has 0" in waiting["default/whole"]


@pytest.mark.usefixtures("divided")
async def test_f68_a_machine_whose_gpus_are_divided_runs_other_pods_and_is_not_bought_again(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", instance_type="p4d.24xlarge")
        here.start()
        await ask(here, "slice", 7)
        await here.sleep(5.0)
        (waiting,) = (await here.status()).waiting
        assert "declare it in the pool's resources, or with a tag of the pool in the cloud" in waiting.reason
        await here.submit("whole")
        await here.sleep(240.0)

        assert (await here.bound())["slice"]
        assert not (await here.bound())["whole"]
        assert len(here.machines()) == 1


async def test_f68_machines_of_a_groups_minimum_that_lack_gpus_delay_no_pod_and_are_not_replaced_repeatedly(
    tmp_path: Path,
) -> None:
    faults = Faults(
        never_registers=0.0, partial_grants=0.0, gpu_hours_between_failures=0.0, absent=(MissingResource("nvidia.com/gpu", "p4d.24xlarge"),)
    )
    async with aws_stage(tmp_path, Conditions(boot=QUICK, machines=faults)) as here:
        here.group("broken", instance_type="p4d.24xlarge", MinSize=2, DesiredCapacity=2)
        await here.sleep(100.0)
        here.group("sound", instance_type="p5.48xlarge")
        here.start()
        await here.submit("one", "other", gpus=8)
        await here.sleep(1300.0)
        assert all((await here.bound()).values())
        assert len(here.machines("sound")) == 2

        replaced = set(here.machines("broken"))
        await here.submit("late", gpus=8)
        await here.sleep(600.0)
        assert all((await here.bound()).values())

        await here.sleep(1200.0)
        assert len(replaced | set(here.machines("broken"))) <= 4
        assert (
            len([instance for instance in here.region.instances.values() if instance.group == "broken" and instance.state == "running"])
            == 2
        )
        (breaker, *_) = [breaker for breaker in (await here.status()).breakers if "never showed nvidia.com/gpu" in breaker.text]
        assert breaker.open
