"""What was allocated to whom, as the kubelet tells it; devices are still under the names that their plugins and drivers gave them."""

from dataclasses import dataclass

from gpuscaler.exporter.parts import Owner


@dataclass(frozen=True, slots=True)
class PluginDevice:
    """A device of a device plugin, allocated under an extended resource such as ``nvidia.com/gpu``."""

    resource: str
    id: str


@dataclass(frozen=True, slots=True)
class ClaimedDevice:
    """A device of a DRA driver: the name is unique in the pool, the pool among those of the driver."""

    driver: str
    pool: str
    name: str


@dataclass(frozen=True, slots=True)
class Allocation:
    """The devices of one container; one without a name has an owner whose ``uid`` is all that is known of its pod."""

    owner: Owner
    devices: tuple[PluginDevice | ClaimedDevice, ...]


@dataclass(frozen=True, slots=True)
class Allocations:
    """All that the kubelet told: containers with devices, and ``aside``, what could not be understood, in words."""

    found: tuple[Allocation, ...] = ()
    aside: tuple[str, ...] = ()
