"""The lines that the measuring process writes."""

import msgspec

from gpuscaler.exporter.parts import Device, Process


class _Line(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """An array whose first element is its type."""


class LibraryLoading(_Line, frozen=True, tag="opening"):
    """The driver's library is being loaded, which may take long if no other program keeps the driver loaded."""


class CallStart(_Line, frozen=True, tag="asking"):
    """Calls about one subject start: ``devices``, ``events``, or the UUID of a GPU."""

    about: str


class RoundEnd(_Line, frozen=True, tag="rested"):
    """A round is done; the next starts one interval after the start of this one."""


class Unavailable(_Line, frozen=True, tag="unavailable"):
    """See :class:`gpuscaler.exporter.backends.UnavailableError`. The process tries again after a while."""

    cause: str
    text: str


class Devices(_Line, frozen=True, tag="devices"):
    """The devices present, at the start and whenever they changed."""

    devices: tuple[Device, ...]
    driver: str
    cuda: str


class Reading(_Line, frozen=True, tag="reading"):
    """See :class:`gpuscaler.exporter.backends.Reading`."""

    device: str
    at: float
    values: dict[str, float]
    processes: tuple[Process, ...] | None
    peaks: dict[str, float]


class Event(_Line, frozen=True, tag="event"):
    """See :class:`gpuscaler.exporter.backends.Event`."""

    device: str
    code: int
    at: float


Line = LibraryLoading | CallStart | RoundEnd | Unavailable | Devices | Reading | Event
_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


def parse_line(line: bytes) -> Line:
    """Decode a line. Raises :class:`msgspec.DecodeError`."""
    return _decoder.decode(line)
