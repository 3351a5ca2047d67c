"""The current state of the GPUs, from the lines of the measuring process. Old values expire: none is served as if it were current."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gpuscaler.exporter.fields import FIELDS, WINDOWS
from gpuscaler.exporter.lines import Devices, Event, Line, Reading, Unavailable
from gpuscaler.exporter.parts import Device, Instance, Owner, Process
from gpuscaler.exporter.windows import SampleWindow

#: Longest period that a sample of the driver covers, in seconds (NVML: 1/6 to 1).
LOOKS_BACK = 1.0


class MeasuredDevice(NamedTuple):
    """A GPU or one of its MIG devices, with its last reading, which has not expired."""

    device: Device
    instance: Instance | None
    reading: Reading
    trails: dict[str, SampleWindow]

    @property
    def key(self) -> str:
        return self.device.uuid if self.instance is None else self.instance.uuid


class Measurements:
    """The last readings and events. A reading is served for ``expiry`` seconds. Times are from the machine's monotonic clock."""

    def __init__(self, expiry: float) -> None:
        self.expiry = expiry
        self.devices: tuple[Device, ...] = ()
        self.driver, self.cuda = "", ""
        #: Why there is nothing to measure: one word, and a sentence; both are empty while GPUs are measured.
        self.cause, self.trouble = "starting", "the driver has not been asked yet"
        #: XID errors by device and number, since this process started: their count, and when the last was reported.
        self.events: dict[tuple[str, int], tuple[int, float]] = {}
        self.readings = 0
        self._last: dict[str, Reading] = {}
        self._trails: dict[str, dict[str, SampleWindow]] = {}
        #: By device: the containers that had it last, and the time from which its readings are theirs.
        self._holders: dict[str, tuple[tuple[str, str, str], ...]] = {}
        self._since: dict[str, float] = {}

    def apply(self, line: Line) -> None:
        """Apply a line of the measuring process."""
        match line:
            case Reading():
                self._read(line)
            case Devices():
                self.devices, self.driver, self.cuda = line.devices, line.driver, line.cuda
                keys = {key for device in self.devices for key in (device.uuid, *(instance.uuid for instance in device.instances))}
                for removed in set(self._last) - keys:
                    del self._last[removed]
                    self._trails.pop(removed, None)
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
        if reading.at < self._since.get(reading.device, reading.at):
            return
        for key, value in reading.values.items():
            if key in FIELDS and FIELDS[key].windowed:
                trail = trails.get(key) or trails.setdefault(key, SampleWindow(max(WINDOWS)))
                trail.add(reading.at, value, reading.peaks.get(key))

    def assign(self, owners: Mapping[str, tuple[Owner, ...]], *, now: float, interval: float) -> None:
        """Set the ``owners`` of devices, as observed at ``now``. If the owners of a device changed, its windows restart.

        So no container gets figures of another. The windows restart with the first reading that covers no time before the change, neither
        in its value nor in its peak since the previous reading.
        """
        holders = {key: tuple((owner.namespace, owner.pod, owner.container) for owner in several) for key, several in owners.items()}
        self._since = {key: since for key, since in self._since.items() if since > now}
        for key in holders.keys() | self._holders.keys():
            if holders.get(key, ()) != self._holders.get(key, ()):
                self._trails.pop(key, None)
                self._since[key] = now + max(LOOKS_BACK, interval)
        self._holders = holders

    def current(self, now: float) -> Iterator[MeasuredDevice]:
        """Everything with a reading that has not expired, MIG devices after their GPU."""
        for device in self.devices:
            for instance in (None, *device.instances):
                key = device.uuid if instance is None else instance.uuid
                reading = self._last.get(key)
                if reading is not None and now - reading.at <= self.expiry:
                    yield MeasuredDevice(device, instance, reading, self._trails.get(key, {}))

    def processes(self, now: float) -> tuple[Process, ...]:
        """The processes on all devices."""
        return tuple(process for device in self.current(now) for process in device.reading.processes or ())
