"""The client of the kubelet's socket, with working, failing and restarting kubelets."""

import socket
import time
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # it ships none
import pytest
from tests.exporter.attribution.kubelet import PLAIN, FakeKubelet, claim, container, count, devices, kubelet, part, pod, strict, varint

from gpuscaler.exporter.attribution.allocations import Allocation, Allocations, ClaimedDevice, PluginDevice
from gpuscaler.exporter.attribution.kubelet import KubeletError, PodResources
from gpuscaler.exporter.parts import Owner

GPU = "GPU-1f3a6d52-0000-4c11-9d3e-5b1c00000001"
TRAINER = pod("ml", "trainer-0", container("main", devices(GPU)))


def list_allocations(kubelet: FakeKubelet, *, timeout: float = 2.0) -> Allocations:
    client = PodResources(kubelet.path, timeout=timeout)
    try:
        return client.allocations()
    finally:
        client.close()


def test_only_containers_with_devices_are_returned_each_with_its_pod() -> None:
    with kubelet() as here:
        here.pods += [TRAINER]
        assert list_allocations(here).allocations == (Allocation(Owner("ml", "trainer-0", "main"), (PluginDevice("nvidia.com/gpu", GPU),)),)


def test_a_device_of_a_resource_claim_is_returned_with_driver_pool_and_name() -> None:
    with kubelet() as here:
        here.pods = [pod("ml", "inference", container("server", claims=[claim("gpu-0", "gpu-1")]))]
        allocation = list_allocations(here).allocations[0]
        assert allocation.devices == (
            ClaimedDevice("gpu.nvidia.com", "node-a", "gpu-0"),
            ClaimedDevice("gpu.nvidia.com", "node-a", "gpu-1"),
        )


def test_a_response_with_two_hundred_pods_of_many_containers_is_read() -> None:
    with kubelet() as here:
        here.pods = [
            pod("ml", f"worker-{n}", *(container(f"c{i}", devices(f"{GPU[:-4]}{n:04x}", numa=i)) for i in range(4))) for n in range(200)
        ]
        allocations = list_allocations(here).allocations
        assert len(allocations) == 800
        assert allocations[-1] == Allocation(Owner("ml", "worker-199", "c3"), (PluginDevice("nvidia.com/gpu", f"{GPU[:-4]}00c7"),))


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (pod("ml", b"bad-\xff\xfe", container("main", devices(GPU))), "'utf-8' codec can't decode byte 0xff in position 4"),
        (pod("ml", "bad", container("main", b"\x0a\x7f")), "the message ends 127 bytes too early"),
        (pod("ml", "bad", b"\x0b"), "saw wire type 3, expected 0, 1, 2 or 5"),
        (pod("ml", "bad", b"\x12\x80"), "the message ends in the middle of a number"),
        (pod("ml", "bad", b"\xff" * 12), "a number has more than ten bytes"),
    ],
)
def test_an_unparsable_entry_of_the_kubelets_response_is_skipped_and_the_others_are_used(odd: bytes, message: str) -> None:
    with kubelet() as here:
        here.pods = [odd, TRAINER]
        allocations = list_allocations(here)
        assert [allocation.owner.pod for allocation in allocations.allocations] == ["trainer-0"]
        assert len(allocations.problems) == 1
        assert allocations.problems[0].startswith(f"skipped pod 1 of the 2 that the kubelet lists: {message}")


def test_unknown_fields_of_later_kubernetes_versions_are_skipped() -> None:
    with kubelet() as here:
        # texts, and numbers with one to ten, four and eight bytes
        added = part(127, "new"), count(128, 2**63), varint(129 << 3 | 5) + bytes(4), varint(130 << 3 | 1) + bytes(8)
        here.pods = [TRAINER + b"".join(added)]
        assert list_allocations(here).allocations[0].owner.pod == "trainer-0"


def test_a_request_to_a_kubelet_that_does_not_answer_times_out() -> None:
    with kubelet() as here:
        here.hang(seconds=60.0)
        start = time.monotonic()
        with pytest.raises(KubeletError, match=r"did not answer within 0\.2 s"):
            list_allocations(here, timeout=0.2)
        assert time.monotonic() - start < 20.0


def test_the_client_connects_to_the_new_socket_of_a_restarted_kubelet() -> None:
    with kubelet() as here:
        here.pods = [TRAINER]
        client = PodResources(here.path, timeout=2.0)
        before = client.allocations()
        here.stop()
        here.path.unlink(missing_ok=True)
        with pytest.raises(KubeletError, match=r"no kubelet socket at .*kubelet\.sock"):
            client.allocations()
        here.start()
        assert client.allocations() == before
        client.close()


def test_after_a_kubelet_restart_the_first_or_second_request_succeeds() -> None:
    with kubelet() as here:
        here.pods = [TRAINER]
        client = PodResources(here.path, timeout=2.0)
        before = client.allocations()
        here.restart()
        try:
            after = client.allocations()
        except KubeletError:
            after = client.allocations()
        assert after == before
        client.close()


def test_a_socket_without_a_listener_raises_an_error_until_a_kubelet_listens() -> None:
    with kubelet() as here:
        here.stop()
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(here.path))
        client = PodResources(here.path, timeout=2.0)
        with pytest.raises(KubeletError, match="answered UNAVAILABLE"):
            client.allocations()
        here.restart()
        assert client.allocations() == Allocations()  # immediately, not after a growing pause
        client.close()


def test_a_file_in_place_of_the_socket_raises_an_error(tmp_path: Path) -> None:
    (tmp_path / "kubelet.sock").write_text("")
    with pytest.raises(KubeletError, match="is not a socket"):
        PodResources(tmp_path / "kubelet.sock").allocations()


def test_a_socket_folder_that_only_root_may_enter_raises_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, **_: Any) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "stat", refuse)
    with pytest.raises(KubeletError, match=r"no kubelet socket at /x/kubelet\.sock \(Permission denied\): expected to run as user 0"):
        PodResources(Path("/x/kubelet.sock")).allocations()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, r"answered RESOURCE_EXHAUSTED \(rejected by rate limit\)"),
        (grpc.StatusCode.INTERNAL, r"answered INTERNAL \(rejected by rate limit\)"),
        (grpc.StatusCode.UNIMPLEMENTED, r"expected Kubernetes 1\.20 or later"),
    ],
)
def test_an_error_response_of_the_kubelet_is_raised_and_the_next_request_is_sent(code: Any, message: str) -> None:
    with kubelet() as here:
        client = PodResources(here.path, timeout=2.0)
        here.fail(code, "rejected by rate limit")
        with pytest.raises(KubeletError, match=message):
            client.allocations()
        here.behave = None
        here.pods = [TRAINER]
        assert len(client.allocations().allocations) == 1
        client.close()


@pytest.mark.parametrize("answer", [b"\xff\xff\xff", TRAINER[:7], b"\x0a\x05\x0a"])
def test_a_response_that_is_not_a_pod_list_raises_an_error(answer: bytes) -> None:
    with kubelet() as here:
        here.behave = lambda _: answer
        with pytest.raises(KubeletError, match=r"that are not a v1\.ListPodResourcesResponse"):
            list_allocations(here)


def test_an_empty_pod_list_of_a_starting_kubelet_raises_an_error() -> None:
    with kubelet() as here:
        here.pods = []
        with pytest.raises(KubeletError, match="lists no pods"):
            list_allocations(here)
        here.pods = [PLAIN]
        assert list_allocations(here) == Allocations()


def test_requests_name_localhost_as_authority_because_servers_reject_the_socket_path() -> None:
    with kubelet() as here:
        here.pods = [TRAINER]
        door = here.path.with_name("door.sock")
        with strict(here.path, door) as seen:
            plain = grpc.insecure_channel(f"unix:{door}")
            with pytest.raises(grpc.RpcError):
                plain.unary_unary("/v1.PodResourcesLister/List")(b"", timeout=2.0)
            plain.close()
            client = PodResources(door, timeout=2.0)
            assert len(client.allocations().allocations) == 1
            client.close()
        assert b"localhost" in seen[-1]
