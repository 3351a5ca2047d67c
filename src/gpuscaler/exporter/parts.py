"""Types shared by backends, attribution and the metrics page.

Percentages are 0 to 100 and times are seconds of the machine's monotonic clock, which all processes of one machine share.
They are named tuples, since the process that calls the driver must stay small: msgspec alone would add a fifth to it.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol


class Instance(NamedTuple):
    """A MIG device: a compute instance in a GPU instance, as ``nvidia-smi mig -lgi`` numbers them.

    ``uuid`` starts with ``MIG-``; ``profile`` is, for example, ``1g.10gb``, or empty if the driver does not name it.
    """

    uuid: str
    gpu_instance: int
    compute_instance: int
    profile: str


class Device(NamedTuple):
    """A GPU. ``minor`` is n of ``/dev/nvidia<n>``, and -1 if unknown; ``number`` is its index among the GPUs of the machine.

    ``instances`` are its MIG devices. The ``uuid`` of a GPU or an instance is its key everywhere.
    """

    uuid: str
    number: int
    minor: int
    name: str
    pci: str = ""
    instances: tuple[Instance, ...] = ()


class Process(NamedTuple):
    """Use of a device by one process. ``device`` is a key; figures are None if the driver does not report them.

    ``pid`` is the process ID in the PID namespace of the driver, which is the host's.
    """

    device: str
    pid: int
    memory_bytes: int | None = None
    sm_percent: float | None = None


class Owner(NamedTuple):
    """A container that a device is allocated to. ``uid`` is the pod's, empty if only its name is known."""

    namespace: str
    pod: str
    container: str
    uid: str = ""


class Attribution(NamedTuple):
    """The containers that each device is allocated to.

    ``owners`` is keyed by GPUs and MIG devices. A device that is absent is not allocated; one with several owners is shared.
    ``processes`` has the container of each process by pid, without processes outside of pods. It is None if processes cannot be
    told apart (another PID namespace, no access to their cgroups). ``trouble`` says, for a person, why owners are unknown or come
    from a fallback; it is empty if there is no problem. ``source`` is where owners come from: ``pod-resources``, ``checkpoint``,
    or empty.
    """

    owners: Mapping[str, tuple[Owner, ...]] = {}
    processes: Mapping[int, Owner] | None = None
    source: str = ""
    trouble: str = ""


class Attributor(Protocol):
    """Finds the containers of devices."""

    async def attribute(self, devices: Sequence[Device], processes: Sequence[Process]) -> Attribution:
        """Called once per sampling interval, never concurrently. Returns within a second or two, with the last known answer if necessary.

        Problems outside of the exporter are never raised; they are reported in :attr:`Attribution.trouble`.
        """
        ...

    async def close(self) -> None: ...
