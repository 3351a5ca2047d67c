"""Pods by their cgroups: the pod of a process, and the pods that still have a cgroup.

The kubelet makes a cgroup for each pod (Kubernetes 1.35, ``pkg/kubelet/cm``), named with the pod's UID, below a cgroup for all pods named
``kubepods``. In it, the container runtime makes those of the containers, named with the container's id. The systemd driver spells a
path ``kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid with _>.slice/cri-containerd-<id>.scope``, the cgroupfs driver
``kubepods/burstable/pod<uid>/<id>``. If the runtime uses another driver than the kubelet, the path mixes both.
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

#: A UID from the API server, or the hash that is the UID of a static pod.
_UID: Final = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32}"
_POD: Final = re.compile(rf"(?:^|[/-])pod({_UID})(?:\.slice)?(?=[/:]|$)")
_CONTAINER: Final = re.compile(r"[/:-]([0-9a-f]{64})(?=\.scope|/|$)")
#: Greatest depth of the cgroup of all pods: below a cgroup root of the kubelet, of a node in a container, or of a version 1 controller.
_DEPTH: Final = 3


@dataclass(frozen=True, slots=True)
class ProcessPod:
    """The pod and container of a process. ``container`` is the runtime's id, empty if the path does not contain it."""

    uid: str
    container: str = ""


def parse_cgroups(cgroups: str) -> ProcessPod | None:
    """Read the pod from the content of ``/proc/<pid>/cgroup``, version 1 or 2; None outside of pods.

    A path seen from another cgroup namespace starts with ``/..`` but still names its pod.
    """
    for line in cgroups.splitlines():
        path = line.split(":", 2)[-1]
        # The first pod and its first container: containers nested inside a container have deeper ones.
        if pod := _POD.search(path):
            container = _CONTAINER.search(path, pod.end())
            return ProcessPod(pod[1].replace("_", "-"), container[1] if container else "")
    return None


class ProcessPods:
    """The processes below ``proc``, which must be the ``/proc`` of the machine: that of a pod with ``hostPID``, or a mount of it."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._any_found = False
        #: The places of the last requested processes. A process never moves to another pod.
        self._pods: dict[int, ProcessPod | None] = {}

    def places(self, pids: set[int]) -> dict[int, ProcessPod] | None:
        """The pod of each process, without processes outside of pods and those that ended.

        None if nothing is known: not one of the processes was ever found in ``/proc``, so they are in another PID namespace than ours.
        (A driver may also list no process there.) A pid from there may by chance be that of a process of ours, so processes of our own
        pod, which do not use GPUs, do not count.
        """
        self._pods = {pid: pod for pid, pod in self._pods.items() if pid in pids}
        if self._pods.keys() != pids:
            self._read_pods(pids - self._pods.keys())
        return {pid: pod for pid, pod in self._pods.items() if pod is not None} if self._any_found else None

    def _read_pods(self, pids: set[int]) -> None:
        own_cgroups = self._cgroups("self")
        own_pod = parse_cgroups(own_cgroups or "")
        for pid in pids:
            cgroups = self._cgroups(str(pid))
            if cgroups is None or cgroups == own_cgroups:
                continue
            process_pod = parse_cgroups(cgroups)
            if process_pod is None or own_pod is None or process_pod.uid != own_pod.uid:
                self._any_found = True
                self._pods[pid] = process_pod

    def _cgroups(self, pid: str) -> str | None:
        try:
            return (self._proc / pid / "cgroup").read_text(errors="replace")
        except OSError:
            return None


class LivePods:
    """The pods that have a cgroup below ``root``, the machine's ``/sys/fs/cgroup``."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._base: Path | None = None

    def uids(self) -> frozenset[str] | None:
        """The UIDs of these pods; None if the cgroups of pods cannot be seen."""
        if self._base is None or not self._base.is_dir():
            self._base = next(_bases(self._root, _DEPTH), None)
        uids = frozenset(_pods_below(self._base)) if self._base else frozenset()
        # This process runs on a node with pods, so if there are none, the cgroups seen here are not those of the node.
        return uids or None


def _bases(root: Path, depth: int) -> Iterator[Path]:
    """The cgroups of all pods, nearest first."""
    below = _folders(root)
    yield from (root / name for name in below if name.removesuffix(".slice").endswith("kubepods"))
    if depth > 1:
        for name in below:
            yield from _bases(root / name, depth - 1)


def _pods_below(base: Path) -> Iterator[str]:
    for name in _folders(base):
        if pod := _POD.search(name):
            yield pod[1].replace("_", "-")
        elif name.removesuffix(".slice").endswith(("burstable", "besteffort")):
            yield from (match[1].replace("_", "-") for folder in _folders(base / name) if (match := _POD.search(folder)))


def _folders(path: Path) -> list[str]:
    # scandir distinguishes folders from files without a call for each: a cgroup has sixty files, and this runs every second.
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
