"""Resolves allocations to the owners of devices: device names to keys, pods to UIDs, without pods that are gone."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from gpuscaler.exporter.attribution.allocations import Allocation, ClaimedDevice, PluginDevice
from gpuscaler.exporter.attribution.cgroups import Place
from gpuscaler.exporter.attribution.ids import KnownDevices
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

    def gone(self, uid: str) -> bool:
        return uid in self.api.finished or (self.live is not None and uid not in self.live)

    def pod(self, uid: str) -> tuple[str, str] | None:
        """Namespace and name of a pod."""
        return self.names.pod(uid) or self.api.pods.get(uid)

    def current(self, owner: Owner) -> Owner | None:
        """The owner with its pod's names and UID, as far as they are known; None if the pod is gone."""
        if owner.uid:
            if self.gone(owner.uid):
                return None
            pod = self.pod(owner.uid)
            return owner._replace(namespace=pod[0], pod=pod[1]) if pod else owner
        uids = list(self.names.uids(owner.namespace, owner.pod))
        here = [uid for uid in uids if not self.gone(uid)]
        if uids and not here:
            return None
        return owner._replace(uid=here[0]) if len(here) == 1 else owner

    def container(self, place: Place) -> Owner | None:
        """The container in which a process runs, without the container's name if only the pod is known."""
        owner = self.names.container(place.container) or self.api.containers.get(place.container)
        if owner is not None:
            return owner
        pod = self.pod(place.uid)
        return Owner(pod[0], pod[1], "", place.uid) if pod else None


@dataclass(frozen=True, slots=True)
class Owned:
    """The owners of each device by key. ``unnamed`` are UIDs of pods without a known name, ``unknown`` descriptions of unknown devices."""

    owners: Mapping[str, tuple[Owner, ...]]
    unnamed: frozenset[str]
    unknown: tuple[str, ...]
    unsliced: bool


def owned(allocations: tuple[Allocation, ...], devices: KnownDevices, node: Node) -> Owned:
    """Resolve ``allocations``. A container with several shares of a device owns it once.

    ``unsliced`` is whether a claimed device is missing in the known slices.
    """
    found: dict[str, set[Owner]] = {}
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
                found.setdefault(key, set()).add(owner)
            elif devices and _is_gpu(device):
                unknown[f"{_shown(device)} of {owner.namespace}/{owner.pod}"] = None
    return Owned({key: tuple(sorted(owners)) for key, owners in found.items()}, frozenset(unnamed), tuple(unknown), unsliced)


def users(places: Mapping[int, Place], owners: Mapping[str, tuple[Owner, ...]], node: Node) -> dict[int, Owner]:
    """The container of each process, as in ``owners`` if it is listed there. Processes of pods without a known name are left out."""
    known = {(owner.namespace, owner.pod, owner.container): owner for owner in _all(owners)}
    containers: dict[tuple[str, str], set[Owner]] = {}
    for owner in known.values():
        containers.setdefault((owner.namespace, owner.pod), set()).add(owner)
    found: dict[int, Owner] = {}
    for pid, place in places.items():
        user = node.container(place)
        if user is None:
            continue
        # If only one container of the pod has GPUs, it is that container.
        only = containers.get((user.namespace, user.pod), set())
        if not user.container and len(only) == 1:
            found[pid] = next(iter(only))
        else:
            found[pid] = known.get((user.namespace, user.pod, user.container), user)
    return found


def _all(owners: Mapping[str, tuple[Owner, ...]]) -> Iterator[Owner]:
    for several in owners.values():
        yield from several


def _slice(claimed_device: ClaimedDevice) -> tuple[str, str, str]:
    return claimed_device.driver, claimed_device.pool, claimed_device.name


def _key(one: PluginDevice | ClaimedDevice, devices: KnownDevices, api: ApiView) -> str | None:
    if isinstance(one, PluginDevice):
        return devices.of_plugin(one.id, resource=one.resource)
    key = devices.of_uuid(api.slices.get(_slice(one), ""))
    return devices.of_claim(one.name) if key is None and one.driver == NVIDIA_DRA else key


def _is_gpu(one: PluginDevice | ClaimedDevice) -> bool:
    return _GPUS.fullmatch(one.resource) is not None if isinstance(one, PluginDevice) else one.driver == NVIDIA_DRA


def _shown(one: PluginDevice | ClaimedDevice) -> str:
    return f"{one.resource} device {one.id}" if isinstance(one, PluginDevice) else f"{one.driver} device {one.name} of pool {one.pool}"
