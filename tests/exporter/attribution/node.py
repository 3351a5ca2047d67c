"""The files of a node that the exporter reads: /proc, cgroups, the links of container logs, the kubelet's checkpoint."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuscaler.exporter.attribution.attributor import NodePaths


def container_id(number: int) -> str:
    return f"{number:064x}"


@dataclass(frozen=True)
class FakeNode:
    """Files below ``root``, laid out as by a kubelet with the systemd cgroup driver, version 2, and containerd."""

    root: Path

    def places(self, socket: Path) -> NodePaths:
        return NodePaths(
            socket=socket,
            checkpoint=self.checkpoint,
            containers=self.root / "containers",
            cgroups=self.root / "cgroup",
            proc=self.root / "proc",
        )

    @property
    def checkpoint(self) -> Path:
        return self.root / "kubelet_internal_checkpoint"

    def runs(self, namespace: str, pod: str, container: str, *, uid: str, number: int = 1, pids: Sequence[int] = ()) -> None:
        """A container, with its link, its cgroup and its processes."""
        folder = self.root / "containers"
        folder.mkdir(exist_ok=True)
        link = folder / f"{pod}_{namespace}_{container}-{container_id(number)}.log"
        link.symlink_to(f"/var/log/pods/{namespace}_{pod}_{uid}/{container}/0.log")
        path = self.cgroup(uid)
        (self.root / "cgroup" / path).mkdir(parents=True, exist_ok=True)
        for pid in pids:
            self.process(pid, f"0::/{path}/cri-containerd-{container_id(number)}.scope\n")

    def process(self, pid: int | str, cgroups: str) -> None:
        folder = self.root / "proc" / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup").write_text(cgroups)

    def ends(self, uid: str) -> None:
        """The pod is finished: no process and no cgroup is left; the links stay until the kubelet removes them."""
        shutil.rmtree(self.root / "cgroup" / self.cgroup(uid))
        for process in (self.root / "proc").glob("*/cgroup"):
            if uid.replace("-", "_") in process.read_text():
                shutil.rmtree(process.parent)

    def keeps(self, *entries: tuple[str, str, str]) -> None:
        """A checkpoint with (pod UID, container, device id)."""
        rows = [
            {"PodUID": uid, "ContainerName": name, "ResourceName": "nvidia.com/gpu", "DeviceIDs": {"0": [device]}, "AllocResp": "CgA="}
            for uid, name, device in entries
        ]
        self.checkpoint.write_text(json.dumps({"Data": {"PodDeviceEntries": rows, "RegisteredDevices": {}}, "Checksum": 1}))

    @staticmethod
    def cgroup(uid: str) -> str:
        escaped = uid.replace("-", "_")
        return f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{escaped}.slice"
