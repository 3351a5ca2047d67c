"""Attribution of GPUs to containers, from the kubelet, the node and the API server."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc  # type: ignore[import-untyped]  # it ships none
import pytest
from tests.exporter.attribution.kubelet import FakeKubelet, claim, container, devices, kubelet, pod
from tests.exporter.attribution.node import FakeNode
from tests.patience import PATIENCE

from gpuscaler.exporter.attribution.attributor import NodeAttributor, Pace
from gpuscaler.exporter.parts import Attribution, Attributor, Device, Instance, Owner, Process

pytestmark = pytest.mark.looptime(False)

GPU = "GPU-1f3a6d52-7c1e-4c11-9d3e-5b1c00000001"
SECOND = "GPU-1f3a6d52-7c1e-4c11-9d3e-5b1c00000002"
PART = "MIG-5c0d3ef1-9a7b-5d10-a1c4-0123456789ab"
HERE = (Device(GPU, 0, 0, "NVIDIA H100 80GB HBM3"), Device(SECOND, 1, 1, "NVIDIA H100 80GB HBM3", "", (Instance(PART, 9, 0, "1g.10gb"),)))

UID = "0f8e1a52-3b61-4b0c-9a4e-6e2d5c1b7a90"
OTHER = "7b1c9d20-1111-4222-8333-0123456789ab"
TRAINER = pod("ml", "trainer-0", container("main", devices(GPU)))
SHARING = (
    pod("ml", "a", container("main", devices(f"{GPU}::0", resource="nvidia.com/gpu.shared"))),
    pod("ml", "b", container("main", devices(f"{GPU}::1", f"{GPU}::2", resource="nvidia.com/gpu.shared"))),
)


#: Seconds. Nothing here takes this long, but a busy machine may be slow.
PATIENT = Pace(timeout=5.0, patience=5.0)


@dataclass
class World:
    """A node with a kubelet, and a clock that only the test moves."""

    kubelet: FakeKubelet
    node: FakeNode
    attributor: Attributor
    now: list[float] = field(default_factory=lambda: [1000.0])

    async def ask(self, *processes: Process, after: float = 1.0, devices: tuple[Device, ...] = HERE) -> Attribution:
        self.now[0] += after
        return await self.attributor.attribute(devices, processes)


async def first_answer(here: World) -> Attribution:
    """The first answer, for a caller with little patience."""
    for _ in range(500):
        if (attribution := await here.ask()).owners:
            return attribution
        await asyncio.sleep(0.01)
    raise AssertionError("the kubelet never answered")


@asynccontextmanager
async def world(folder: Path, *, started: bool = True, pace: Pace = PATIENT) -> AsyncIterator[World]:
    with kubelet(started=started) as fake:
        now = [1000.0]
        node = FakeNode(folder)
        attributor = NodeAttributor(node.places(fake.path), clock=lambda: now[0], pace=pace)
        try:
            yield World(fake, node, attributor, now)
        finally:
            await attributor.close()


# Allocations


async def test_an_allocated_gpu_belongs_to_its_container_and_other_gpus_to_none(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.kubelet.pods += [TRAINER]
        assert await here.ask() == Attribution({GPU: (Owner("ml", "trainer-0", "main"),)}, None, "pod-resources")


async def test_a_mig_device_has_its_own_container_and_its_gpu_has_none(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.kubelet.pods += [pod("ml", "small", container("main", devices(PART, resource="nvidia.com/mig-1g.10gb")))]
        assert (await here.ask()).owners == {PART: (Owner("ml", "small", "main"),)}


async def test_a_container_may_have_several_gpus_and_a_pod_several_containers(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.kubelet.pods += [pod("ml", "wide", container("left", devices(GPU), devices(SECOND)), container("right", devices(SECOND)))]
        assert (await here.ask()).owners == {
            GPU: (Owner("ml", "wide", "left"),),
            SECOND: (Owner("ml", "wide", "left"), Owner("ml", "wide", "right")),
        }


async def test_a_shared_gpu_lists_each_of_its_containers_once_and_sorted(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.kubelet.pods += reversed(SHARING)
        assert (await here.ask()).owners == {GPU: (Owner("ml", "a", "main"), Owner("ml", "b", "main"))}


async def test_devices_of_resource_claims_are_found_by_their_drivers_names(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        claims = [claim("gpu-0"), claim("gpu-1-mig-1g10gb-19-3")]
        here.kubelet.pods += [pod("ml", "claims", container("main", claims=claims))]
        here.kubelet.pods += [pod("ml", "others", container("main", claims=[claim("gpu-1", driver="gpu.example.com")]))]
        assert (await here.ask()).owners == {GPU: (Owner("ml", "claims", "main"),), PART: (Owner("ml", "claims", "main"),)}


async def test_the_uid_of_a_pod_is_returned_if_the_node_shows_it(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.kubelet.pods += [TRAINER]
        here.node.runs("ml", "trainer-0", "main", uid=UID)
        assert (await here.ask()).owners == {GPU: (Owner("ml", "trainer-0", "main", UID),)}


async def test_devices_unknown_to_the_driver_are_reported_and_the_others_are_used(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.kubelet.pods += [
            TRAINER,
            pod("ml", "lost", container("main", devices("GPU-gone", "0000:01:00.0"), devices("3", resource="rdma/hca"))),
        ]
        attribution = await here.ask()
        assert attribution.owners.keys() == {GPU}
        assert (
            attribution.trouble
            == "the driver has no nvidia.com/gpu device GPU-gone of ml/lost, nvidia.com/gpu device 0000:01:00.0 of ml/lost"
        )


async def test_allocations_are_ignored_on_a_node_without_gpus(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.kubelet.pods += [TRAINER]
        assert await here.ask(devices=()) == Attribution({}, None, "pod-resources")


async def test_an_entry_that_cannot_be_parsed_is_reported_and_the_others_are_used(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.kubelet.pods += [pod("ml", b"\xff", container("main", devices(SECOND))), TRAINER]
        attribution = await here.ask()
        assert attribution.owners.keys() == {GPU}
        assert attribution.trouble.startswith("skipped pod 2 of the 3 that the kubelet lists: 'utf-8' codec")


# Pods that end


async def test_a_pod_that_the_kubelet_no_longer_lists_owns_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.kubelet.pods += [TRAINER]
        assert (await here.ask()).owners
        here.kubelet.pods.pop()
        assert not (await here.ask()).owners


async def test_a_finished_pod_that_the_kubelet_still_lists_owns_nothing(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.kubelet.pods += [TRAINER]
        here.node.runs("ml", "trainer-0", "main", uid=UID)
        here.node.runs("ml", "other", "main", uid=OTHER, number=2)
        assert (await here.ask()).owners
        here.node.ends(UID)
        assert not (await here.ask()).owners


async def test_after_a_pod_is_recreated_under_its_name_the_new_one_owns_the_gpu(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.kubelet.pods += [TRAINER]
        here.node.runs("ml", "trainer-0", "main", uid=UID)
        here.node.runs("ml", "trainer-0", "main", uid=OTHER, number=2)
        assert (await here.ask()).owners == {GPU: (Owner("ml", "trainer-0", "main"),)}
        here.node.ends(UID)
        assert (await here.ask()).owners == {GPU: (Owner("ml", "trainer-0", "main", OTHER),)}


# Problems of the kubelet


async def test_the_kubelets_last_response_is_used_while_it_restarts(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.kubelet.pods += [TRAINER]
        before = await here.ask()
        here.kubelet.stop()
        here.kubelet.path.unlink(missing_ok=True)
        away = await here.ask(after=30.0)
        assert away.owners == before.owners
        assert away.source == "pod-resources"
        assert "no kubelet socket" in away.trouble
        here.kubelet.pods = []
        here.kubelet.start()
        assert (await here.ask()).owners == before.owners  # it has not read its pods yet
        here.kubelet.pods = [TRAINER]
        assert await here.ask() == before


async def test_the_checkpoint_is_used_once_the_kubelet_has_not_answered_for_long(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.kubelet.pods += [TRAINER]
        here.node.runs("ml", "trainer-0", "main", uid=UID)
        here.node.keeps((UID, "main", GPU), (OTHER, "main", SECOND))
        before = await here.ask()
        here.kubelet.fail(grpc.StatusCode.UNAVAILABLE, "going away")
        attribution = await here.ask(after=61.0)
        assert attribution.source == "checkpoint"
        assert attribution.owners == before.owners  # the other pod has no cgroup any more
        assert "answered UNAVAILABLE (going away)" in attribution.trouble


async def test_the_checkpoint_is_used_immediately_if_the_kubelet_has_no_socket(tmp_path: Path) -> None:
    async with world(tmp_path, started=False) as here:
        here.node.runs("ml", "trainer-0", "main", uid=UID)
        here.node.keeps((UID, "main", GPU))
        attribution = await here.ask()
        assert (attribution.source, attribution.owners) == ("checkpoint", {GPU: (Owner("ml", "trainer-0", "main", UID),)})
        here.kubelet.pods += [TRAINER]
        here.kubelet.start()
        attribution = await here.ask()
        assert (attribution.source, attribution.trouble) == ("pod-resources", "")


async def test_the_number_of_pods_in_the_checkpoint_with_unknown_names_is_reported(tmp_path: Path) -> None:
    async with world(tmp_path, started=False) as here:
        here.node.keeps((UID, "main", GPU))
        attribution = await here.ask()
        assert not attribution.owners
        assert "only the UID is known: 1; expected " in attribution.trouble


async def test_without_a_kubelet_gpus_have_no_owners_and_the_reason_is_reported(tmp_path: Path) -> None:
    async with world(tmp_path, started=False) as here:
        attribution = await here.ask()
        assert (attribution.owners, attribution.source) == ({}, "")
        assert "no kubelet socket" in attribution.trouble
        assert "no kubelet checkpoint" in attribution.trouble


async def test_a_broken_checkpoint_is_reported_and_read_again_once_it_is_valid(tmp_path: Path) -> None:
    async with world(tmp_path, started=False) as here:
        here.node.runs("ml", "trainer-0", "main", uid=UID)
        here.node.checkpoint.write_text('{"Data":')
        assert "is not a kubelet checkpoint" in (await here.ask()).trouble
        here.node.keeps((UID, "main", GPU))
        assert (await here.ask()).owners.keys() == {GPU}


async def test_a_hanging_kubelet_does_not_block_attribution_and_gets_one_request_at_a_time(tmp_path: Path) -> None:
    async with world(tmp_path, pace=Pace(timeout=60.0, patience=0.05)) as here:
        here.kubelet.pods += [TRAINER]
        before = await first_answer(here)
        asked = here.kubelet.asked
        held = here.kubelet.hang(seconds=60.0)
        start = time.monotonic()
        assert (await here.ask()).owners == before.owners
        await asyncio.to_thread(held.wait, PATIENCE)
        for _ in range(4):
            assert (await here.ask()).owners == before.owners
        assert time.monotonic() - start < 30.0
        assert here.kubelet.asked == asked + 1


async def test_a_hanging_kubelet_is_queried_again_after_the_timeout(tmp_path: Path) -> None:
    async with world(tmp_path, pace=Pace(timeout=1.0, patience=0.05)) as here:
        here.kubelet.pods += [TRAINER]
        await first_answer(here)
        asked = here.kubelet.asked
        held = here.kubelet.hang(seconds=60.0)
        await here.ask()
        await asyncio.to_thread(held.wait, PATIENCE)
        here.kubelet.behave = None
        while "did not answer" not in (await here.ask()).trouble:
            assert here.kubelet.asked == asked + 1
        assert not (await first_answer(here)).trouble
        assert here.kubelet.asked == asked + 2


async def test_a_kubelet_slower_than_the_timeout_is_queried_again_at_each_call(tmp_path: Path) -> None:
    async with world(tmp_path, pace=Pace(timeout=5.0, patience=0.05)) as here:
        here.kubelet.pods += [TRAINER]
        await first_answer(here)
        here.kubelet.hang(seconds=0.1)
        for _ in range(2):
            asked = here.kubelet.asked
            await here.ask()
            async with asyncio.timeout(PATIENCE):
                while here.kubelet.asked == asked:  # noqa: ASYNC110  # a thread of another library counts
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.5)
            assert here.kubelet.asked == asked + 1


async def test_the_kubelets_last_response_expires(tmp_path: Path) -> None:
    async with world(tmp_path, pace=Pace(timeout=8.0, patience=0.05)) as here:
        here.kubelet.pods += [TRAINER]
        await first_answer(here)
        here.kubelet.hang(seconds=5.0)
        await here.ask()
        attribution = await here.ask(after=61.0)
        assert (attribution.owners, attribution.source) == ({}, "")
        assert "no answer yet from the kubelet" in attribution.trouble


async def test_closing_the_attributor_does_not_wait_for_a_hanging_kubelet(tmp_path: Path) -> None:
    with kubelet() as fake:
        fake.hang(seconds=60.0)
        attributor = NodeAttributor(FakeNode(tmp_path).places(fake.path), clock=lambda: 0.0, pace=Pace(timeout=60.0, patience=0.05))
        await attributor.attribute(HERE, ())
        start = time.monotonic()
        await attributor.close()
        assert time.monotonic() - start < 20.0


async def test_the_rate_of_kubelet_requests_is_limited(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.kubelet.pods += [TRAINER]
        for _ in range(50):
            assert (await here.ask(after=0.02)).owners
        assert 4 <= here.kubelet.asked <= 6


# Processes


async def test_processes_on_a_shared_gpu_are_distinguished_by_their_cgroups(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.kubelet.pods += SHARING
        here.node.runs("ml", "a", "main", uid=UID, number=1, pids=[100, 101])
        here.node.runs("ml", "b", "main", uid=OTHER, number=2, pids=[200])
        here.node.process(300, "0::/user.slice")
        attribution = await here.ask(*(Process(GPU, pid) for pid in (100, 101, 200, 300, 400)))
        first, second = attribution.owners[GPU]
        assert attribution.processes == {100: first, 101: first, 200: second}
        assert (first.uid, second.uid) == (UID, OTHER)
        assert not attribution.trouble


async def test_processes_on_shared_gpus_in_an_invisible_pid_namespace_are_reported(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.kubelet.pods += SHARING
        attribution = await here.ask(Process(GPU, 100))
        assert attribution.processes is None
        assert "expected hostPID" in attribution.trouble
        here.kubelet.pods = [TRAINER]
        attribution = await here.ask(Process(GPU, 100))
        assert (attribution.processes, attribution.trouble) == (None, "")


async def test_no_container_counts_as_idle_if_the_driver_lists_no_processes(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.kubelet.pods += SHARING
        attribution = await here.ask()
        assert (attribution.processes, attribution.trouble) == (None, "")


async def test_processes_are_not_distinguished_if_container_names_are_unknown(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.kubelet.pods += SHARING
        here.node.process(100, f"0::/kubepods/pod{UID}/{'ab' * 32}")
        attribution = await here.ask(Process(GPU, 100))
        assert attribution.processes is None


async def test_a_process_with_unknown_container_belongs_to_the_only_container_with_a_gpu(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.kubelet.pods += SHARING
        here.node.runs("ml", "a", "main", uid=UID, number=1)
        here.node.process(100, f"0::/kubepods/pod{UID}/{'ab' * 32}")
        attribution = await here.ask(Process(GPU, 100))
        assert attribution.processes == {100: attribution.owners[GPU][0]}


async def test_processes_of_pods_without_an_allocated_gpu_are_returned_too(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.node.runs("ops", "profiler", "main", uid=UID, pids=[100])
        assert (await here.ask(Process(GPU, 100))).processes == {100: Owner("ops", "profiler", "main", UID)}


# Delay


async def test_a_pod_that_starts_is_attributed_at_the_next_call(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        assert not (await here.ask()).owners
        here.kubelet.pods += [TRAINER]
        assert (await here.ask(after=1.0)).owners.keys() == {GPU}
