"""What is known of the GPUs now, from the lines of the measuring process. Old values expire: none is served as if it were of now."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gpuscaler.exporter.fields import FIELDS, WINDOWS
from gpuscaler.exporter.lines import Devices, Event, Line, Reading, Unavailable
from gpuscaler.exporter.parts import Device, Instance, Owner, Process
from gpuscaler.exporter.windows import Trail

#: Seconds that a sample of the driver looks back at most (NVML: 1/6 to 1).
LOOKS_BACK = 1.0


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
        #: By device, the containers it was for last, and since when what is measured is theirs.
        self._holders: dict[str, tuple[tuple[str, str, str], ...]] = {}
        self._since: dict[str, float] = {}

    def take(self, line: Line) -> None:
        """Fold in what the measuring process said."""
        match line:
            case Reading():
                self._read(line)
            case Devices():
                self.devices, self.driver, self.cuda = line.devices, line.driver, line.cuda
                keys = {key for device in self.devices for key in (device.uuid, *(one.uuid for one in device.instances))}
                for gone in set(self._last) - keys:
                    del self._last[gone]
                    self._trails.pop(gone, None)
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
                trail = trails.get(key) or trails.setdefault(key, Trail(max(WINDOWS)))
                trail.add(reading.at, value, reading.peaks.get(key))

    def assign(self, owners: Mapping[str, tuple[Owner, ...]], *, now: float, interval: float) -> None:
        """Devices are for ``owners``, as was seen ``now``. The windows of one that changed hands begin anew: nobody is blamed for others.

        They begin with the first reading that can tell nothing of the time before, neither itself nor its peak since the reading before.
        """
        holders = {key: tuple((owner.namespace, owner.pod, owner.container) for owner in several) for key, several in owners.items()}
        self._since = {key: since for key, since in self._since.items() if since > now}
        for key in holders.keys() | self._holders.keys():
            if holders.get(key, ()) != self._holders.get(key, ()):
                self._trails.pop(key, None)
                self._since[key] = now + max(LOOKS_BACK, interval)
        self._holders = holders

    def known(self, now: float) -> Iterator[Known]:
        """Everything with a reading that has not expired, MIG devices after their GPU."""
        for device in self.devices:
            for instance in (None, *device.instances):
                key = device.uuid if instance is None else instance.uuid
                reading = self._last.get(key)
                if reading is not None and now - reading.at <= self.expiry:
                    yield Known(device, instance, reading, self._trails.get(key, {}))

    def processes(self, now: float) -> tuple[Process, ...]:
        """On all devices."""
        return tuple(process for known in self.known(now) for process in known.reading.processes or ())
