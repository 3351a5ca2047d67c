"""If the exporter has permission, it reads from the API server what the node does not show."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.exporter.attribution.kubelet import claim, container, kubelet, pod
from tests.exporter.attribution.node import FakeNode, container_id
from tests.kube.scripted import Reply, Scripted, failure, page

from gpuscaler.exporter.attribution.attributor import NodeAttributor, Pace
from gpuscaler.exporter.attribution.cluster import ClusterNames
from gpuscaler.exporter.parts import Attribution, Device, Instance, Owner, Process
from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import PODS, RESOURCE_SLICES

pytestmark = pytest.mark.looptime(False)

GPU = "GPU-1f3a6d52-7c1e-4c11-9d3e-5b1c00000001"
PART = "MIG-5c0d3ef1-9a7b-5d10-a1c4-0123456789ab"
TWIN = "MIG-77aa11bb-1f2e-5d10-b2d5-ba9876543210"
HERE = (Device(GPU, 0, 0, "NVIDIA H100 80GB HBM3", "", (Instance(PART, 9, 0, "1g.10gb"), Instance(TWIN, 10, 0, "1g.10gb"))),)
UID = "0f8e1a52-3b61-4b0c-9a4e-6e2d5c1b7a90"
STATIC = "5f3c8b1d2e4a6978c0d1e2f3a4b5c6d7"


def listed_pod(name: str, *, uid: str = UID, phase: str = "Running", number: int = 1, **metadata: Any) -> dict[str, Any]:
    status = {"name": "main", "containerID": f"containerd://{container_id(number)}", "ready": True}
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": uid, **metadata},
        "spec": {"nodeName": "node-a"},
        "status": {"phase": phase, "containerStatuses": [status]},
    }


def listed_slice(*devices: dict[str, Any], pool: str = "node-a") -> dict[str, Any]:
    return {
        "metadata": {"name": "s"},
        "spec": {"driver": "gpu.nvidia.com", "nodeName": "node-a", "pool": {"name": pool}, "devices": list(devices)},
    }


def uuid(value: str) -> dict[str, Any]:
    return {"type": {"string": "mig"}, "uuid": {"string": value}, "cudaComputeCapability": {"version": "9.0.0"}, "index": {"int": 3}}


class UnlistedNode:
    """An attributor without a kubelet's socket, on a node that shows nothing, with an API server that answers ``replies``."""

    def __init__(self, folder: Path, *replies: Reply | Exception, socket: Path | None = None) -> None:
        self.now = 1000.0
        self.node = FakeNode(folder)
        self.server = Scripted(*replies)
        self.names = ClusterNames(Client(self.server), "node-a", clock=lambda: self.now)
        places = self.node.places(socket or folder / "kubelet.sock")
        self.attributor = NodeAttributor(places, clock=lambda: self.now, cluster=self.names, pace=Pace(timeout=5.0, patience=5.0))

    async def ask(self, *processes: Process, after: float = 1.0) -> Attribution:
        """An answer, after the requests that it causes have finished."""
        self.now += after
        attribution = await self.attributor.attribute(HERE, processes)
        for _ in range(20):
            await asyncio.sleep(0)
        return attribution


async def test_pods_of_the_checkpoint_get_their_names_from_the_api_server(tmp_path: Path) -> None:
    here = UnlistedNode(tmp_path, page(listed_pod("trainer-0")))
    here.node.keeps((UID, "main", GPU))
    assert not (await here.ask()).owners
    attribution = await here.ask()
    assert attribution.owners == {GPU: (Owner("ml", "trainer-0", "main", UID),)}
    request = here.server.requests[0]
    assert (request.path, request.query["fieldSelector"]) == ("/api/v1/pods", "spec.nodeName=node-a")
    await here.attributor.close()


async def test_a_finished_pod_of_the_checkpoint_owns_nothing(tmp_path: Path) -> None:
    here = UnlistedNode(tmp_path, page(listed_pod("trainer-0")), page(listed_pod("trainer-0", phase="Succeeded")))
    here.node.keeps((UID, "main", GPU))
    await here.ask()
    assert (await here.ask()).owners
    await here.ask(after=10.0)
    assert not (await here.ask()).owners
    await here.attributor.close()


async def test_a_static_pod_is_identified_by_its_config_hash(tmp_path: Path) -> None:
    here = UnlistedNode(tmp_path, page(listed_pod("gpu-monitor-node-a", annotations={"kubernetes.io/config.hash": STATIC})))
    here.node.keeps((STATIC, "main", GPU))
    await here.ask()
    assert (await here.ask()).owners == {GPU: (Owner("ml", "gpu-monitor-node-a", "main", STATIC),)}
    await here.attributor.close()


async def test_containers_of_processes_come_from_the_api_server(tmp_path: Path) -> None:
    here = UnlistedNode(tmp_path, page(listed_pod("trainer-0", number=7)))
    here.node.process(100, f"0::/kubepods/pod{UID}/{container_id(7)}")
    assert (await here.ask(Process(GPU, 100))).processes is None
    assert (await here.ask(Process(GPU, 100))).processes == {100: Owner("ml", "trainer-0", "main", UID)}
    await here.attributor.close()


async def test_a_container_that_has_no_id_yet_has_no_processes(tmp_path: Path) -> None:
    waiting = listed_pod("waiting", uid=STATIC)
    waiting["status"]["containerStatuses"][0]["containerID"] = ""
    here = UnlistedNode(tmp_path, page(waiting, listed_pod("trainer-0")))
    here.node.process(100, f"0::/kubepods/pod{UID}")
    await here.ask(Process(GPU, 100))
    assert (await here.ask(Process(GPU, 100))).processes == {100: Owner("ml", "trainer-0", "", UID)}
    await here.attributor.close()


async def test_pods_are_requested_from_the_api_server_at_most_every_ten_seconds(tmp_path: Path) -> None:
    here = UnlistedNode(tmp_path, *[page() for _ in range(9)])
    here.node.keeps((UID, "main", GPU))
    for _ in range(35):
        await here.ask()
    assert len(here.server.requests) == 4
    await here.attributor.close()


async def test_the_api_server_gets_no_requests_if_the_node_has_all_information(tmp_path: Path) -> None:
    here = UnlistedNode(tmp_path, page())
    here.node.runs("ml", "trainer-0", "main", uid=UID)
    here.node.keeps((UID, "main", GPU))
    assert (await here.ask()).owners
    assert not here.server.requests
    await here.attributor.close()


async def test_a_refusal_by_the_api_server_is_reported_and_the_request_is_retried_later(tmp_path: Path) -> None:
    here = UnlistedNode(tmp_path, failure(403, "Forbidden"), page(listed_pod("trainer-0")))
    here.node.keeps((UID, "main", GPU))
    await here.ask()
    assert "pods of this node cannot be listed: " in (await here.ask()).trouble
    await here.ask(after=10.0)
    assert (await here.ask()).owners
    assert not here.names.view.trouble
    await here.attributor.close()


async def test_an_unparsable_object_from_the_api_server_is_skipped(tmp_path: Path) -> None:
    here = UnlistedNode(tmp_path, page({"metadata": 7}, {"status": {}}, listed_pod("trainer-0")))
    await here.names.refresh(PODS)
    assert here.names.view.pods == {UID: ("ml", "trainer-0")}
    await here.attributor.close()


@pytest.mark.parametrize("shape", ["v1", "v1beta1"])
async def test_devices_of_resource_claims_are_found_by_the_uuid_in_their_resource_slice(tmp_path: Path, shape: str) -> None:
    names = "gpu-0-mig-1g10gb-19-0", "gpu-0-mig-1g10gb-19-1"
    devices = [{"name": name, "attributes": uuid(key)} for name, key in zip(names, (PART, TWIN), strict=True)]
    if shape == "v1":
        replies = [page(listed_slice(*devices), listed_slice({"name": "gpu-7"}, pool="elsewhere"))]
    else:
        old = [{"name": device["name"], "basic": {"attributes": device["attributes"]}} for device in devices]
        replies = [failure(404, "NotFound"), failure(404, "NotFound"), page(listed_slice(*old))]
    with kubelet() as fake:
        here = UnlistedNode(tmp_path, *replies, socket=fake.path)
        fake.pods += [
            pod("ml", "first", container("main", claims=[claim(names[0])])),
            pod("ml", "second", container("main", claims=[claim(names[1])])),
        ]
        assert not (await here.ask()).owners
        assert (await here.ask()).owners == {PART: (Owner("ml", "first", "main"),), TWIN: (Owner("ml", "second", "main"),)}
        assert here.server.requests[-1].path == f"/apis/resource.k8s.io/{shape}/resourceslices"
        await here.attributor.close()


async def test_without_resource_slices_devices_of_claims_are_found_by_their_names(tmp_path: Path) -> None:
    with kubelet() as fake:
        here = UnlistedNode(tmp_path, *[failure(404, "NotFound") for _ in range(3)], socket=fake.path)
        fake.pods += [pod("ml", "first", container("main", claims=[claim("gpu-0")]))]
        await here.ask()
        attribution = await here.ask()
        assert (attribution.owners, attribution.trouble) == ({GPU: (Owner("ml", "first", "main"),)}, "")
        await here.ask(after=30.0)
        assert len(here.server.requests) == 3
        assert not here.names.due(RESOURCE_SLICES)
        await here.attributor.close()


async def test_closing_cancels_a_request_to_the_api_server(tmp_path: Path) -> None:
    here = UnlistedNode(tmp_path)  # never answers
    here.node.keeps((UID, "main", GPU))
    await here.ask()
    await asyncio.wait_for(here.attributor.close(), 5.0)
    assert here.server.requests
