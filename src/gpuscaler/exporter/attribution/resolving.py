"""Resolves allocations to the owners of devices: device names to keys, pods to UIDs, without pods that are gone."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gpuscaler.exporter.attribution.allocations import Allocation, ClaimedDevice, PluginDevice
from gpuscaler.exporter.attribution.cgroups import ProcessPod
from gpuscaler.exporter.attribution.ids import DeviceIndex
from gpuscaler.exporter.attribution.names import ContainerNames
from gpuscaler.exporter.attribution.view import ApiView
from gpuscaler.exporter.parts import Owner

NVIDIA_DRA: Final = "gpu.nvidia.com"
#: Resources with devices that are GPUs or parts of one. NVIDIA's network operator has others under the same domain.
_GPUS: Final = re.compile(r"nvidia\.com/(gpu|mig-).*")


@dataclass(frozen=True, slots=True)
class Node:
    """Identities of pods and containers on a node. ``live`` has the UIDs of pods with a cgroup, None if these cannot be seen."""

    names: ContainerNames
    live: frozenset[str] | None
    api: ApiView

    def has_ended(self, uid: str) -> bool:
        return uid in self.api.finished or (self.live is not None and uid not in self.live)

    def pod(self, uid: str) -> tuple[str, str] | None:
        """Namespace and name of a pod."""
        return self.names.pod(uid) or self.api.pods.get(uid)

    def current(self, owner: Owner) -> Owner | None:
        """The owner with its pod's names and UID, as far as they are known; None if the pod is gone."""
        if owner.uid:
            if self.has_ended(owner.uid):
                return None
            pod = self.pod(owner.uid)
            return owner._replace(namespace=pod[0], pod=pod[1]) if pod else owner
        uids = list(self.names.uids(owner.namespace, owner.pod))
        live_uids = [uid for uid in uids if not self.has_ended(uid)]
        if uids and not live_uids:
            return None
        return owner._replace(uid=live_uids[0]) if len(live_uids) == 1 else owner

    def container(self, process_pod: ProcessPod) -> Owner | None:
        """The container in which a process runs, without the container's name if only the pod is known."""
        owner = self.names.container(process_pod.container) or self.api.containers.get(process_pod.container)
        if owner is not None:
            return owner
        pod = self.pod(process_pod.uid)
        return Owner(pod[0], pod[1], "", process_pod.uid) if pod else None


@dataclass(frozen=True, slots=True)
class Ownership:
    """The owners of each device by key. ``unnamed`` are UIDs of pods without a known name, ``unknown`` descriptions of unknown devices."""

    owners: Mapping[str, tuple[Owner, ...]]
    unnamed: frozenset[str]
    unknown: tuple[str, ...]
    unsliced: bool


def resolve_owners(allocations: tuple[Allocation, ...], devices: DeviceIndex, node: Node) -> Ownership:
    """Resolve ``allocations``. A container with several shares of a device owns it once.

    ``unsliced`` is whether a claimed device is missing in the known slices.
    """
    owners_by_key: dict[str, set[Owner]] = {}
    unnamed: set[str] = set()
    unknown: dict[str, None] = {}
    unsliced = False
    for allocation in allocations:
        owner = node.current(allocation.owner)
        if owner is None:
            continue
        if not owner.pod:
            unnamed.add(owner.uid)
            continue
        for device in allocation.devices:
            key = _key(device, devices, node.api)
            unsliced |= isinstance(device, ClaimedDevice) and device.driver == NVIDIA_DRA and _slice(device) not in node.api.slices
            if key is not None:
                owners_by_key.setdefault(key, set()).add(owner)
            elif devices and _is_gpu(device):
                unknown[f"{_describe_device(device)} of {owner.namespace}/{owner.pod}"] = None
    return Ownership({key: tuple(sorted(owners)) for key, owners in owners_by_key.items()}, frozenset(unnamed), tuple(unknown), unsliced)


def resolve_processes(pods: Mapping[int, ProcessPod], owners: Mapping[str, tuple[Owner, ...]], node: Node) -> dict[int, Owner]:
    """The container of each process, as in ``owners`` if it is listed there. Processes of pods without a known name are left out."""
    by_name = {(owner.namespace, owner.pod, owner.container): owner for owner in _all(owners)}
    containers: dict[tuple[str, str], set[Owner]] = {}
    for owner in by_name.values():
        containers.setdefault((owner.namespace, owner.pod), set()).add(owner)
    containers_by_pid: dict[int, Owner] = {}
    for pid, process_pod in pods.items():
        user = node.container(process_pod)
        if user is None:
            continue
        # If only one container of the pod has GPUs, it is that container.
        only = containers.get((user.namespace, user.pod), set())
        if not user.container and len(only) == 1:
            containers_by_pid[pid] = next(iter(only))
        else:
            containers_by_pid[pid] = by_name.get((user.namespace, user.pod, user.container), user)
    return containers_by_pid


def _all(owners: Mapping[str, tuple[Owner, ...]]) -> Iterator[Owner]:
    for several in owners.values():
        yield from several


def _slice(claimed_device: ClaimedDevice) -> tuple[str, str, str]:
    return claimed_device.driver, claimed_device.pool, claimed_device.name


def _key(device: PluginDevice | ClaimedDevice, devices: DeviceIndex, api: ApiView) -> str | None:
    if isinstance(device, PluginDevice):
        return devices.of_plugin(device.id, resource=device.resource)
    key = devices.of_uuid(api.slices.get(_slice(device), ""))
    return devices.of_claim(device.name) if key is None and device.driver == NVIDIA_DRA else key


def _is_gpu(device: PluginDevice | ClaimedDevice) -> bool:
    return _GPUS.fullmatch(device.resource) is not None if isinstance(device, PluginDevice) else device.driver == NVIDIA_DRA


def _describe_device(device: PluginDevice | ClaimedDevice) -> str:
    return (
        f"{device.resource} device {device.id}"
        if isinstance(device, PluginDevice)
        else f"{device.driver} device {device.name} of pool {device.pool}"
    )
