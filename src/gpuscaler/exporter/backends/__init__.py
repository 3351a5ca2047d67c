"""How GPUs are asked: one small protocol, a backend for each kind of driver.

A backend lives in a process of its own (:mod:`gpuscaler.exporter.child`) and may block, hang or crash there. It says what it measures by
the names of :mod:`gpuscaler.exporter.fields`, in the units of that table; what a device does not support it leaves out.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from gpuscaler.exporter.parts import Device, Process

#: Names that ``--backend`` takes.
NAMES = ("nvml", "simulated")


class Reading(NamedTuple):
    """What a GPU or a MIG device does: ``device`` is its key, ``at`` the moment, ``values`` are named as fields are.

    A field with labels is named with their values after colons: ``ecc_errors:corrected:volatile``. ``peaks`` are for windows:
    the highest value since the reading before, where the driver keeps finer samples than are taken here. ``processes`` are None
    where the driver does not tell which there are.
    """

    device: str
    at: float
    values: Mapping[str, float]
    processes: Sequence[Process] | None = ()
    peaks: Mapping[str, float] = {}


class Event(NamedTuple):
    """An error that the driver told of. ``code`` is NVIDIA's XID, ``at`` when it was told."""

    device: str
    code: int
    at: float


class UnavailableError(Exception):
    """There is nothing to measure now. ``cause`` is one word for a label, the text a sentence for a person."""

    def __init__(self, cause: str, text: str) -> None:
        super().__init__(text)
        self.cause = cause


class StaleError(Exception):
    """The library that is loaded no longer fits the driver: only a new process can load the right one."""


class Backend(Protocol):
    def open(self) -> None:
        """Begin, or begin anew. Raises :class:`UnavailableError`, and :class:`StaleError`, as all that follows may."""
        ...

    def devices(self) -> tuple[Device, ...]:
        """What there is now; asked every few seconds, since GPUs go and MIG devices change."""
        ...

    def versions(self) -> tuple[str, str]:
        """Of the driver, and of CUDA or what stands for it; empty where unknown."""
        ...

    def measure(self, device: Device) -> Iterable[Reading]:
        """The GPU itself, then its MIG devices."""
        ...

    def events(self) -> Iterable[Event]:
        """Those since the last call; does not wait."""
        ...

    def close(self) -> None: ...


def make(name: str, *, devices: int) -> Backend:
    """The backend of that name, one of :data:`NAMES`; ``devices`` is how many GPUs the simulated one has.

    Raises :class:`UnavailableError` where what it needs is not installed.
    """
    if name == "simulated":
        from gpuscaler.exporter.backends.simulated import Simulated  # noqa: PLC0415  # only one backend is ever loaded

        return Simulated(devices)
    try:
        from gpuscaler.exporter.backends.nvml.backend import Nvml  # noqa: PLC0415  # as above
    except ModuleNotFoundError as error:
        raise UnavailableError(
            "not-installed",
            f"saw no Python module {error.name}, expected it for --backend nvml; pip install '.[exporter]' in a clone of gpuscaler",
        ) from error
    return Nvml()
