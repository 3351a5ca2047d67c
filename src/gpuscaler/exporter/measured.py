"""What is known of the GPUs now, from the lines of the measuring process. Old values expire: none is served as if it were of now."""

from collections.abc import Iterator
from typing import NamedTuple

from gpuscaler.exporter.fields import FIELDS, WINDOWS
from gpuscaler.exporter.lines import Devices, Event, Line, Reading, Unavailable
from gpuscaler.exporter.parts import Device, Instance, Process
from gpuscaler.exporter.windows import Trail


class Known(NamedTuple):
    """A GPU, or a MIG device of it, with its last reading, which is not older than it may be."""

    device: Device
    instance: Instance | None
    reading: Reading
    trails: dict[str, Trail]

    @property
    def key(self) -> str:
        return self.device.uuid if self.instance is None else self.instance.uuid


class Measured:
    """``expiry`` is how many seconds a reading may be served. Times are of the machine's monotonic clock."""

    def __init__(self, expiry: float) -> None:
        self.expiry = expiry
        self.devices: tuple[Device, ...] = ()
        self.driver, self.cuda = "", ""
        #: Why there is nothing to measure: one word, and a sentence; empty while there is.
        self.cause, self.trouble = "starting", "the driver was not asked yet"
        #: XID errors by device and number, since this process began: how many, and when the last was told.
        self.events: dict[tuple[str, int], tuple[int, float]] = {}
        self.readings = 0
        self._last: dict[str, Reading] = {}
        self._trails: dict[str, dict[str, Trail]] = {}

    def take(self, line: Line) -> None:
        """Fold in what the measuring process said."""
        match line:
            case Reading():
                self._read(line)
            case Devices():
                self.devices, self.driver, self.cuda = line.devices, line.driver, line.cuda
                keys = {key for device in self.devices for key in (device.uuid, *(one.uuid for one in device.instances))}
                for gone in set(self._last) - keys:
                    del self._last[gone], self._trails[gone]
            case Event():
                count, _ = self.events.get((line.device, line.code), (0, 0.0))
                self.events[line.device, line.code] = count + 1, line.at
            case Unavailable():
                self.cause, self.trouble = line.cause, line.text
                if line.cause != "failed":
                    self.devices = ()
            case _:
                pass

    def _read(self, reading: Reading) -> None:
        self.cause, self.trouble = "", ""
        self.readings += 1
        self._last[reading.device] = reading
        trails = self._trails.setdefault(reading.device, {})
        for key, value in reading.values.items():
            if key in FIELDS and FIELDS[key].windowed:
                trail = trails.get(key) or trails.setdefault(key, Trail(max(WINDOWS)))
                trail.add(reading.at, value, reading.peaks.get(key))

    def known(self, now: float) -> Iterator[Known]:
        """Everything with a reading that has not expired, MIG devices after their GPU."""
        for device in self.devices:
            for instance in (None, *device.instances):
                key = device.uuid if instance is None else instance.uuid
                reading = self._last.get(key)
                if reading is not None and now - reading.at <= self.expiry:
                    yield Known(device, instance, reading, self._trails[key])

    def processes(self, now: float) -> tuple[Process, ...]:
        """On all devices."""
        return tuple(process for known in self.known(now) for process in known.reading.processes or ())
