"""Resolves the names that device plugins and DRA drivers give to a GPU to the keys of the driver's devices."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

from gpuscaler.exporter.parts import Device, Instance

_UUID: Final = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"
#: Python refuses to read numbers of thousands of digits.
_N: Final = r"[0-9]{1,9}"
#: ``GPU-…``, ``MIG-…`` and the suffixes of plugins that allocate shares: ``::3`` (NVIDIA), ``-3`` (HAMi), ``-_-3`` (gpushare).
_BY_UUID: Final = re.compile(rf"((?:gpu|mig)-{_UUID})(?:(?:::|[-_]).*)?", re.IGNORECASE)
#: MIG devices before driver 470: the GPU's UUID, the GPU instance, the compute instance.
_OLD_MIG: Final = re.compile(rf"mig-(gpu-{_UUID})/({_N})/({_N})(?:::.*)?", re.IGNORECASE)
#: GKE's plugin: the device file, a GPU instance of it, and a share of either.
_BY_FILE: Final = re.compile(rf"nvidia({_N})(?:/gi({_N}))?(?:/vgpu{_N})?(?:::.*)?")
#: Numbers as in nvidia-smi: GPUs in the order of their PCI addresses, and the MIG devices of a GPU.
_BY_NUMBER: Final = re.compile(rf"({_N})(?::({_N}))?(?:::.*)?")
_BY_PCI: Final = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}:[0-9a-f]{2}\.[0-7])(?:::.*)?", re.IGNORECASE)
#: NVIDIA's DRA driver names a GPU by its minor number, and a MIG device by GPU, profile, profile's number and place.
_BY_CLAIM: Final = re.compile(rf"gpu-({_N})(?:-mig-(.+)-{_N}-{_N})?")


def _pci(domain: str | None, address: str) -> str:
    # NVML writes the domain with eight digits, sysfs and most plugins with four.
    return f"{int(domain or '0', 16):x}:{address.lower()}"


class DeviceIndex:
    """The devices of a node by each of their names.

    A name is first looked up as it is, so that a driver with other kinds of names works too.
    """

    def __init__(self, devices: Sequence[Device]) -> None:
        self._keys = {
            key.lower(): key for device in devices for key in (device.uuid, *(instance.uuid for instance in device.instances)) if key
        }
        self._by_uuid = {device.uuid.lower(): device for device in devices}
        self._by_minor = {device.minor: device for device in devices if device.minor >= 0}
        self._by_number = {device.number: device for device in devices if device.number >= 0}
        self._by_pci: dict[str, Device] = {}
        for device in devices:
            if device.pci and (match := _BY_PCI.fullmatch(device.pci)):
                self._by_pci[_pci(match[1], match[2])] = device

    def __bool__(self) -> bool:
        return bool(self._keys)

    def of_plugin(self, device_id: str, *, resource: str) -> str | None:
        """The key of a device that a device plugin allocated as ``resource``, or None if no device here has that name.

        Plain numbers and device files are accepted only under NVIDIA's resource names: other plugins number things that are not GPUs.
        """
        key = self._keys.get(device_id.lower())
        if key is not None:
            return key
        if match := _BY_UUID.fullmatch(device_id):
            return self._keys.get(match[1].lower())
        if match := _OLD_MIG.fullmatch(device_id):
            return _instance(self._by_uuid.get(match[1].lower()), gpu_instance=int(match[2]), compute_instance=int(match[3]))
        if match := _BY_PCI.fullmatch(device_id):
            return _key(self._by_pci.get(_pci(match[1], match[2])))
        if not resource.startswith("nvidia.com/"):
            return None
        if match := _BY_FILE.fullmatch(device_id):
            device = self._by_minor.get(int(match[1]))
            return _key(device) if match[2] is None else _instance(device, gpu_instance=int(match[2]))
        if match := _BY_NUMBER.fullmatch(device_id):
            device = self._by_number.get(int(match[1]))
            return _key(device) if match[2] is None else _nth(device, int(match[2]))
        return None

    def of_claim(self, name: str) -> str | None:
        """The key of the device that NVIDIA's DRA driver calls ``name``, if the name alone identifies it."""
        match = _BY_CLAIM.fullmatch(name)
        if match is None:
            return None
        device = self._by_minor.get(int(match[1]))
        return _key(device) if match[2] is None else _only_of_profile(device, match[2])

    def of_uuid(self, uuid: str) -> str | None:
        return self._keys.get(uuid.lower())


def _key(device: Device | None) -> str | None:
    return None if device is None else device.uuid


def _instances(device: Device | None) -> tuple[Instance, ...]:
    return () if device is None else device.instances


def _instance(device: Device | None, *, gpu_instance: int, compute_instance: int | None = None) -> str | None:
    return _only(
        instance.uuid
        for instance in _instances(device)
        if instance.gpu_instance == gpu_instance and compute_instance in (None, instance.compute_instance)
    )


def _nth(device: Device | None, index: int) -> str | None:
    instances = _instances(device)
    return instances[index].uuid if index < len(instances) else None


def _only_of_profile(device: Device | None, profile: str) -> str | None:
    # Device names of claims may not contain dots and plus signs: 1g.10gb+me is 1g10gb-me.
    return _only(instance.uuid for instance in _instances(device) if _letters(instance.profile) == _letters(profile))


def _letters(profile: str) -> str:
    return "".join(filter(str.isalnum, profile)).lower()


def _only(keys: Iterable[str]) -> str | None:
    """The key if there is exactly one; None for several, rather than an arbitrary one."""
    listed = list(keys)
    return listed[0] if len(listed) == 1 else None
