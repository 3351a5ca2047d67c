"""Restarts of the device plugin on a node of an Auto Scaling group."""

import json
from pathlib import Path

from tests.control.aws_stage import Stage, aws_stage

from gpuscaler.embedded.aws.wire.reading import Request
from gpuscaler.kube.resources import NODES

GPU = "nvidia.com/gpu"


async def all_bound(here: Stage) -> bool:
    bound = await here.bound()
    return bool(bound) and all(bound.values())


async def test_a_device_plugin_restart_of_45_seconds_on_an_idle_machine_causes_no_purchase(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", instance_type="p5.48xlarge")
        here.start()
        await here.submit("train", gpus=8, run_for="30s")
        await here.until(lambda: all_bound(here), 300)
        await here.sleep(90)
        (node,) = await here.nodes()
        name, status = node["metadata"]["name"], node["status"]
        none = {"status": {"allocatable": {**status["allocatable"], GPU: "0"}}}
        await here.user.merge_patch(NODES, name, none, subresource="status")
        await here.submit("next", gpus=8)
        await here.sleep(45)
        await here.user.merge_patch(NODES, name, {"status": {"allocatable": status["allocatable"]}}, subresource="status")
        await here.sleep(30)

        assert len(here.machines()) == 1
        assert (await here.bound())["next"] == name


async def test_a_restarted_kubelet_that_shows_no_capacity_causes_no_purchase(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", instance_type="p5.48xlarge")
        here.start()
        await here.submit("train", gpus=8, run_for="30s")
        await here.until(lambda: all_bound(here), 300)
        await here.sleep(90)
        (node,) = await here.nodes()
        name, status = node["metadata"]["name"], node["status"]
        none = {part: {**status[part], GPU: "0"} for part in ("capacity", "allocatable")}
        await here.user.merge_patch(NODES, name, {"status": none}, subresource="status")
        await here.submit("next", gpus=8)
        await here.sleep(90)
        whole = {part: status[part] for part in ("capacity", "allocatable")}
        await here.user.merge_patch(NODES, name, {"status": whole}, subresource="status")
        await here.sleep(30)

        assert len(here.machines()) == 1
        assert (await here.bound())["next"] == name


async def test_a_device_plugin_that_does_not_come_back_is_reported_with_its_node(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:
        here.group("gpus", instance_type="p5.48xlarge", MaxSize=1)
        here.start()
        await here.submit("train", gpus=8)
        await here.until(lambda: all_bound(here), 300)
        (node,) = await here.nodes()
        name = node["metadata"]["name"]
        none = {"status": {"allocatable": {**node["status"]["allocatable"], GPU: "0"}}}
        await here.user.merge_patch(NODES, name, none, subresource="status")
        await here.sleep(270)
        assert (await here.status()).troubles == ()
        await here.sleep(60)

        (trouble,) = (await here.status()).troubles
        assert trouble.startswith(f"node {name} had 8 {GPU} and has shown none for 5 min")
        assert (await here.bound())["train"] == name


async def test_faults_of_nodes_can_be_requested_through_the_control_path(tmp_path: Path) -> None:
    async with aws_stage(tmp_path) as here:

        def control(method: str, what: str, **body: object) -> object:
            asked = Request(method, f"/_control/{what}", {}, json.dumps(body).encode())
            answer = here.endpoint.handle(asked)
            assert answer.status == 200, answer.body
            return json.loads(answer.body)

        async def shown() -> str:
            return str((await here.nodes())[0]["status"]["allocatable"].get(GPU, "0"))

        here.group("gpus", instance_type="p5.48xlarge")
        here.start()
        await here.submit("train", gpus=8)
        await here.until(lambda: all_bound(here), 300)
        (node,) = await here.nodes()
        name = node["metadata"]["name"]
        control("PUT", "plugins", node=name, seconds=20.0)
        await here.sleep(10)
        assert await shown() == "0"
        await here.sleep(15)
        assert await shown() == "8"
        assert control("PUT", "absent", resource=GPU) == [{"resource": GPU, "instance_type": ""}]
        await here.sleep(5)
        assert await shown() == "0"
        assert control("DELETE", "absent") == []
        assert control("PUT", "kubelets", node=name) == [name]
        await here.sleep(90)
        ready = [node["status"] for node in (await here.nodes())[0]["status"]["conditions"] if node["type"] == "Ready"]
        assert ready == ["Unknown"]
        assert control("DELETE", "kubelets") == []
        await here.sleep(20)
        ready = [node["status"] for node in (await here.nodes())[0]["status"]["conditions"] if node["type"] == "Ready"]
        assert ready == ["True"]
