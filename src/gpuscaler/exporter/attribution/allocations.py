"""Allocations of devices to containers, as the kubelet reports them, with the device names of the plugins and drivers."""

from dataclasses import dataclass

from gpuscaler.exporter.parts import Owner


@dataclass(frozen=True, slots=True)
class PluginDevice:
    """A device of a device plugin, allocated under an extended resource such as ``nvidia.com/gpu``."""

    resource: str
    id: str


@dataclass(frozen=True, slots=True)
class ClaimedDevice:
    """A device of a DRA driver. The name is unique in the pool, the name of the pool among those of the driver."""

    driver: str
    pool: str
    name: str


@dataclass(frozen=True, slots=True)
class Allocation:
    """The devices of one container. If the names of its pod are unknown, the owner has only a ``uid``."""

    owner: Owner
    devices: tuple[PluginDevice | ClaimedDevice, ...]


@dataclass(frozen=True, slots=True)
class Allocations:
    """All that the kubelet reported: containers with devices, and ``problems``, messages about entries that could not be parsed."""

    allocations: tuple[Allocation, ...] = ()
    problems: tuple[str, ...] = ()
