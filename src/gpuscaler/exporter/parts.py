"""What backends measure, what attribution answers, and what metrics are made of.

Percentages are 0 to 100 and times are seconds of the machine's monotonic clock, which all processes of one machine share.
Named tuples, since the process that calls the driver must stay small: msgspec alone would add a fifth to it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class Instance(NamedTuple):
    """A MIG device: a compute instance in a GPU instance, as ``nvidia-smi mig -lgi`` numbers them.

    ``uuid`` begins with ``MIG-``; ``profile`` is as in ``1g.10gb``, or empty where the driver does not name it.
    """

    uuid: str
    gpu_instance: int
    compute_instance: int
    profile: str


class Device(NamedTuple):
    """A GPU. ``minor`` is n of ``/dev/nvidia<n>`` and -1 where unknown; ``number`` is its place among those of the machine.

    ``instances`` are its MIG devices. ``uuid``, here and of an instance, is the key of everything that is said of either.
    """

    uuid: str
    number: int
    minor: int
    name: str
    pci: str = ""
    instances: tuple[Instance, ...] = ()


class Process(NamedTuple):
    """What one process does on a device. ``device`` is a key; figures are None where the driver does not tell them.

    ``pid`` is as the driver's namespace of processes numbers them: the host's.
    """

    device: str
    pid: int
    memory_bytes: int | None = None
    sm_percent: float | None = None


class Owner(NamedTuple):
    """A container that a device is allocated to. ``uid`` is the pod's, empty where only its name is known."""

    namespace: str
    pod: str
    container: str
    uid: str = ""


class Attribution(NamedTuple):
    """Which containers each device is for.

    ``owners`` has the keys of devices and of MIG devices; one that is absent is allocated to nobody, one with several owners is
    shared. ``processes`` tells the container of each process by its pid, those outside of pods left out; it is None where
    processes cannot be told apart (another namespace of processes, no access to their cgroups). ``trouble`` says why owners are
    not known or only from a fallback, for a person; it is empty where all is well. ``source`` is where owners come from:
    ``pod-resources``, ``checkpoint``, or nothing.
    """

    owners: Mapping[str, tuple[Owner, ...]] = {}
    processes: Mapping[int, Owner] | None = None
    source: str = ""
    trouble: str = ""


class Attributor(Protocol):
    """Finds the containers of devices."""

    async def attribute(self, devices: Sequence[Device], processes: Sequence[Process]) -> Attribution:
        """Asked once per sampling interval, never twice at once. Answers within a second or two, from what it saw last if need be.

        It never raises for what it finds outside: that is told in :attr:`Attribution.trouble`.
        """
        ...

    async def close(self) -> None: ...
