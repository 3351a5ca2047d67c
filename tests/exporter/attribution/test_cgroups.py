"""The pod of a process is read from its cgroup, for every runtime, driver and version."""

from pathlib import Path

import pytest
from tests.exporter.attribution.node import FakeNode, container_id

from gpuscaler.exporter.attribution.cgroups import LivePods, ProcessPod, ProcessPods, parse_cgroups

UID = "0f8e1a52-3b61-4b0c-9a4e-6e2d5c1b7a90"
OTHER = "7b1c9d20-1111-4222-8333-0123456789ab"
ESCAPED = UID.replace("-", "_")
ID = container_id(0xC0FFEE)
STATIC = "5f3c8b1d2e4a6978c0d1e2f3a4b5c6d7"


@pytest.mark.parametrize(
    ("cgroups", "place"),
    [
        (
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{ESCAPED}.slice/cri-containerd-{ID}.scope",
            ProcessPod(UID, ID),
        ),
        (f"0::/kubepods.slice/kubepods-pod{ESCAPED}.slice/crio-{ID}.scope", ProcessPod(UID, ID)),
        (f"0::/kubepods.slice/kubepods-pod{ESCAPED}.slice/crio-{ID}.scope/container", ProcessPod(UID, ID)),
        (
            f"0::/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{ESCAPED}.slice/docker-{ID}.scope/init",
            ProcessPod(UID, ID),
        ),
        (f"0::/kubepods/burstable/pod{UID}/{ID}", ProcessPod(UID, ID)),
        (f"0::/kubepods/pod{UID}/{ID}/user.slice/session.scope", ProcessPod(UID, ID)),
        # From the cgroup namespace of another pod
        (f"0::/../../kubepods-burstable-pod{ESCAPED}.slice/cri-containerd-{ID}.scope", ProcessPod(UID, ID)),
        (f"0::/../../pod{UID}/{ID}", ProcessPod(UID, ID)),
        # Version 1, and a node in a container
        (
            f"12:pids:/kubepods/burstable/pod{UID}/{ID}\n11:memory:/kubepods/burstable/pod{UID}/{ID}\n1:name=systemd:/x\n",
            ProcessPod(UID, ID),
        ),
        (f"5:cpu,cpuacct:/docker/{container_id(7)}/kubelet/kubepods/besteffort/pod{UID}/{ID}\n0::/\n", ProcessPod(UID, ID)),
        (
            f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{ESCAPED}.slice/cri-containerd-{ID}.scope",
            ProcessPod(UID, ID),
        ),
        # containerd with the cgroupfs driver below a kubelet with the systemd driver
        (f"9:devices:/system.slice/containerd.service/kubepods-burstable-pod{ESCAPED}.slice:cri-containerd:{ID}", ProcessPod(UID, ID)),
        # A container in a container
        (f"0::/kubepods/pod{UID}/{ID}/docker/{container_id(9)}", ProcessPod(UID, ID)),
        # A static pod, whose UID is the hash of its file
        (f"0::/kubepods/burstable/pod{STATIC}/{ID}", ProcessPod(STATIC, ID)),
        (f"0::/kubepods/burstable/pod{UID}", ProcessPod(UID)),
    ],
)
def test_a_process_belongs_to_the_pod_and_container_of_its_cgroup(cgroups: str, place: ProcessPod) -> None:
    assert parse_cgroups(cgroups) == place


@pytest.mark.parametrize(
    "cgroups",
    [
        "",
        "0::/\n",
        "0::/user.slice/user-1000.slice/session-3.scope",
        "0::/system.slice/docker.service",
        f"0::/system.slice/docker-{ID}.scope",
        f"0::/machine.slice/libpod-{ID}.scope",
        "0::/kubepods.slice/kubepods-podinfo.slice",
        "no colons at all",
    ],
)
def test_a_process_outside_of_pods_has_no_pod(cgroups: str) -> None:
    assert parse_cgroups(cgroups) is None


def test_ended_processes_and_those_outside_of_pods_are_left_out(tmp_path: Path) -> None:
    here = FakeNode(tmp_path)
    here.runs("ml", "a", "main", uid=UID, number=1, pids=[100])
    here.process(200, "0::/user.slice\n")
    assert ProcessPods(tmp_path / "proc").places({100, 200, 300}) == {100: ProcessPod(UID, container_id(1))}


def test_the_result_is_none_if_no_process_is_visible(tmp_path: Path) -> None:
    assert ProcessPods(tmp_path).places({100, 200}) is None
    assert ProcessPods(tmp_path).places(set()) is None


def test_a_process_of_our_own_pod_with_the_same_pid_is_not_mistaken_for_another(tmp_path: Path) -> None:
    here = FakeNode(tmp_path)
    here.process("self", f"0::/kubepods/pod{OTHER}/{container_id(5)}")
    here.process(1, f"0::/kubepods/pod{OTHER}/{container_id(4)}")
    here.process(7, f"0::/kubepods/pod{OTHER}/{container_id(5)}")
    assert ProcessPods(tmp_path / "proc").places({1, 7, 4711}) is None


def test_a_process_in_our_own_container_without_a_path_does_not_count_as_outside_of_pods(tmp_path: Path) -> None:
    here = FakeNode(tmp_path)
    here.process("self", "0::/")
    here.process(7, "0::/")
    assert ProcessPods(tmp_path / "proc").places({7}) is None


def test_ended_processes_do_not_count_as_invisible(tmp_path: Path) -> None:
    here = FakeNode(tmp_path)
    here.runs("ml", "a", "main", uid=UID, pids=[100])
    processes = ProcessPods(tmp_path / "proc")
    assert processes.places({100})
    here.ends(UID)
    assert processes.places(set()) == {}
    assert processes.places({100}) == {}


def test_a_process_with_a_reused_pid_is_recognised_as_new(tmp_path: Path) -> None:
    here = FakeNode(tmp_path)
    here.runs("ml", "a", "main", uid=UID, number=1, pids=[100])
    processes = ProcessPods(tmp_path / "proc")
    assert processes.places({100}) == {100: ProcessPod(UID, container_id(1))}
    assert processes.places({200}) == {}
    here.runs("ml", "b", "main", uid=OTHER, number=2, pids=[100])
    assert processes.places({100}) == {100: ProcessPod(OTHER, container_id(2))}


@pytest.mark.parametrize(
    "folder",
    [
        f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{ESCAPED}.slice",
        f"kubepods.slice/kubepods-pod{ESCAPED}.slice",
        f"kubepods/besteffort/pod{UID}",
        f"kubepods/pod{UID}",
        f"memory/kubepods/burstable/pod{UID}",
        f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/kubelet-kubepods-besteffort-pod{ESCAPED}.slice",
        f"kubelet/kubepods/pod{UID}",
    ],
)
def test_a_pod_is_live_as_long_as_its_cgroup_exists(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "system.slice" / "containerd.service").mkdir(parents=True)
    other = (tmp_path / folder).parent / Path(folder).name.replace(ESCAPED, OTHER.replace("-", "_")).replace(UID, OTHER)
    other.mkdir()
    live = LivePods(tmp_path)
    assert live.uids() == frozenset({UID, OTHER})
    (tmp_path / folder).rmdir()
    assert live.uids() == frozenset({OTHER})


def test_live_pods_are_unknown_if_no_cgroup_belongs_to_a_pod(tmp_path: Path) -> None:
    (tmp_path / "kubepods.slice").mkdir()
    assert LivePods(tmp_path).uids() is None
    assert LivePods(tmp_path / "absent").uids() is None


def test_pod_cgroups_are_found_again_after_the_kubelet_moves_them(tmp_path: Path) -> None:
    old = tmp_path / "kubepods" / f"pod{UID}"
    old.mkdir(parents=True)
    live = LivePods(tmp_path)
    assert live.uids() == frozenset({UID})
    old.rmdir()
    old.parent.rmdir()
    (tmp_path / "kubepods.slice" / f"kubepods-pod{OTHER.replace('-', '_')}.slice").mkdir(parents=True)
    assert live.uids() == frozenset({OTHER})
