"""How GPUs are measured: one small protocol, with a backend for each kind of driver.

A backend runs in a separate process (:mod:`gpuscaler.exporter.child`) and may block, hang or crash there. It names its values as in
:mod:`gpuscaler.exporter.fields` and uses the units of that table; it leaves out what a device does not support.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

from gpuscaler.exporter.parts import Device, Process

#: Names that ``--backend`` accepts.
NAMES = ("nvml", "simulated")


class Reading(NamedTuple):
    """One measurement of a GPU or a MIG device: ``device`` is its key, ``at`` the time, ``values`` are keyed by field name.

    The key of a field with labels has their values after colons: ``ecc_errors:corrected:volatile``. ``peaks`` are for windows:
    the highest value since the previous reading, if the driver keeps finer samples than are taken here. ``processes`` is None
    if the driver does not list processes.
    """

    device: str
    at: float
    values: Mapping[str, float]
    processes: Sequence[Process] | None = ()
    peaks: Mapping[str, float] = {}


class Event(NamedTuple):
    """An error that the driver reported. ``code`` is NVIDIA's XID, ``at`` the time of the report."""

    device: str
    code: int
    at: float


class UnavailableError(Exception):
    """There is nothing to measure now. ``cause`` is one word for a label; the text is a sentence for a person."""

    def __init__(self, cause: str, text: str) -> None:
        super().__init__(text)
        self.cause = cause


class StaleError(Exception):
    """The loaded library no longer matches the driver: only a new process can load the right one."""


class Backend(Protocol):
    def open(self) -> None:
        """Start, or start again. Raises :class:`UnavailableError` and :class:`StaleError`, as may all methods below."""
        ...

    def devices(self) -> tuple[Device, ...]:
        """The devices present now; called every few seconds, since GPUs disappear and MIG devices change."""
        ...

    def versions(self) -> tuple[str, str]:
        """Versions of the driver, and of CUDA or its equivalent; empty if unknown."""
        ...

    def measure(self, device: Device) -> Iterable[Reading]:
        """Readings of the GPU itself, then of its MIG devices."""
        ...

    def events(self) -> Iterable[Event]:
        """Events since the last call; does not wait."""
        ...

    def close(self) -> None: ...


def make(name: str, *, devices: int) -> Backend:
    """Create the backend with that name, one of :data:`NAMES`; ``devices`` is the number of GPUs of the simulated backend.

    Raises :class:`UnavailableError` if a package that it needs is not installed.
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
