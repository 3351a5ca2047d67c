"""The exporter as a whole: it measures, attributes and serves; none of these waits for another."""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpuscaler import __version__
from gpuscaler.exporter import exposition
from gpuscaler.exporter.answering import Answer, Pages
from gpuscaler.exporter.exposition import Page, device_labels, format_labels, format_number
from gpuscaler.exporter.footprint import footprint
from gpuscaler.exporter.lines import Line
from gpuscaler.exporter.measured import Measurements
from gpuscaler.exporter.parts import Attribution, Attributor
from gpuscaler.exporter.supervising import Pace, Sampler
from gpuscaler.exporter.xids import REMEDIES, catalogue, severity

if TYPE_CHECKING:
    # It needs an HTTP client of many megabytes, which only exporters on Azure load.
    from gpuscaler.exporter.scheduled_events.watching import EventWatcher

#: A reading is served for this many intervals, and at least for this many seconds.
EXPIRY = 3, 5.0
#: Seconds after which an attribution that does not answer counts as unknown.
ATTRIBUTION = 10.0

#: Takes a level and a sentence.
Tell = Callable[[str, str], None]


@dataclass(slots=True)
class Exporter:
    """The exporter. ``command`` starts the measuring process. ``clock`` is the monotonic clock, ``wall`` gives seconds since the epoch.

    ``events`` watches what the cloud schedules for the machine, if that is wanted.
    """

    command: Sequence[str]
    backend: str
    interval: float
    node: str
    attributor: Attributor
    log: Tell
    clock: Callable[[], float]
    wall: Callable[[], float]
    pace: Pace = field(default_factory=Pace)
    events: "EventWatcher | None" = None
    attribution: Attribution = field(default_factory=Attribution, init=False)
    measured: Measurements = field(init=False)
    sampler: Sampler = field(init=False)
    _logged: dict[str, str] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.measured = Measurements(max(EXPIRY[0] * self.interval, EXPIRY[1]))
        self.sampler = Sampler(
            self.command,
            interval=self.interval,
            take=self._take,
            warn=lambda text: self.log("warning", text),
            clock=self.clock,
            pace=self.pace,
        )

    async def run(self) -> None:
        """Run until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.sampler.run(), name="measuring")
                tasks.create_task(self._attribute(), name="attribution")
                if self.events is not None:
                    tasks.create_task(self.events.run(), name="events")
        finally:
            await self.attributor.close()

    def pages(self) -> Pages:
        pages = {"/metrics": self._metrics, "/healthz": self._health, "/readyz": self._health, "/": self._front_page}
        events = self.events
        return pages if events is None else {**pages, "/scheduled-events": lambda: Answer(events.page(), "application/json")}

    def _take(self, line: Line) -> None:
        self.measured.apply(line)
        if self.measured.cause != "starting":
            self._log_change("gpus", self.measured.trouble, well=f"measuring {len(self.measured.devices)} GPUs")

    async def _attribute(self) -> None:
        """Attribute devices once per interval, independently of measuring."""
        while True:
            due = self.clock() + self.interval
            now = self.clock()
            try:
                async with asyncio.timeout(ATTRIBUTION):
                    self.attribution = await self.attributor.attribute(self.measured.devices, self.measured.processes(now))
            except TimeoutError:
                self.attribution = Attribution(trouble=f"saw no answer about the pods of GPUs for {ATTRIBUTION:g} s")
            except Exception as error:  # noqa: BLE001  # no failure of attribution may stop the measuring of GPUs
                self.attribution = Attribution(trouble=f"attribution failed: {type(error).__name__}: {error}")
            if self.attribution.source:
                self.measured.assign(self.attribution.owners, now=self.clock(), interval=self.interval)
            self._log_change("pods", self.attribution.trouble, well=f"pods of GPUs are known from {self.attribution.source}")
            await asyncio.sleep(max(0.0, due - self.clock()))

    def _log_change(self, part: str, trouble: str, *, well: str) -> None:
        """Log one line when a problem starts, changes or ends."""
        if self._logged.get(part) != trouble:
            self._logged[part] = trouble
            self.log("warning" if trouble else "info", f"{part}: {trouble or well}")

    def _metrics(self) -> Answer:
        now = self.clock()
        page = Page()
        self._add_own_metrics(page, now)
        exposition.add_devices(page, self.measured, self.attribution, node=self.node, now=now)
        exposition.add_events(page, self.measured, node=self.node, epoch=self.wall() - now)
        return Answer(page.text(), exposition.CONTENT_TYPE)

    def _add_own_metrics(self, page: Page, now: float) -> None:
        """Add the metrics of the exporter itself."""
        measured, sampler = self.measured, self.sampler
        if measured.devices or measured.cause not in {"starting", "failed"}:
            page.add("nvidia_gpu_num_devices", "GPUs of the node").append(f"nvidia_gpu_num_devices {len(measured.devices)}")
        working = page.add("gpuscaler_exporter_working", "1 while the part works: GPUs are measured, pods known, events read and reported")
        working.append(f'gpuscaler_exporter_working{{part="gpus"}} {int(any(True for _ in measured.current(now)))}')
        working.append(f'gpuscaler_exporter_working{{part="pods"}} {int(not self.attribution.trouble and bool(self.attribution.source))}')
        if self.events is not None:
            self.events.add_metrics(page)
        labels = {"version": __version__, "backend": self.backend, "driver_version": measured.driver, "cuda_version": measured.cuda}
        page.add("gpuscaler_exporter_info", "1; versions of the exporter, the driver and CUDA").append(
            f"gpuscaler_exporter_info{{{','.join(format_labels(labels))}}} 1"
        )
        for name, kind, help_, value in (
            ("readings_total", "counter", "Readings taken, of GPUs and MIG devices", measured.readings),
            ("measuring_starts_total", "counter", "How often the measuring process was started", sampler.starts),
            ("stuck_processes", "gauge", "Killed measuring processes that the driver has not released yet", sampler.stuck),
        ):
            page.add(f"gpuscaler_exporter_{name}", help_, kind).append(f"gpuscaler_exporter_{name} {value}")
        for process, pid in (("serving", os.getpid()), ("measuring", sampler.pid)):
            usage = footprint(pid) if pid else None
            if usage is not None:
                for name, help_, kind, amount in (
                    ("cpu_seconds_total", "CPU time that the process used", "counter", usage.cpu_seconds),
                    ("resident_memory_bytes", "Memory of the process", "gauge", usage.resident_bytes),
                ):
                    metric = f"gpuscaler_exporter_{name}"
                    page.add(metric, help_, kind).append(f'{metric}{{process="{process}"}} {format_number(amount)}')
        for device in measured.devices:
            lines = page.add("gpuscaler_gpu_hung", "1 if the driver does not answer for the GPU")
            lines.append(f"gpuscaler_gpu_hung{{{device_labels(device, None, self.node)}}} {int(device.uuid in sampler.hung)}")
        for measured_device in measured.current(now):
            lines = page.add("gpuscaler_gpu_last_sample_timestamp_seconds", "Time of the last measurement of the device")
            at = format_number(round(self.wall() - (now - measured_device.reading.at), 3))
            labelled = device_labels(measured_device.device, measured_device.instance, self.node)
            lines.append(f"gpuscaler_gpu_last_sample_timestamp_seconds{{{labelled}}} {at}")

    def _health(self) -> Answer:
        """Always healthy: without GPUs or a kubelet, a restart would not help."""
        return Answer(b"ok\n")

    def _front_page(self) -> Answer:
        """The page for people: devices, the pods that use them, and problems."""
        now = self.clock()
        lines = [f"gpuscaler exporter {__version__} on {self.node}", ""]
        for device in self.measured.current(now):
            owners = self.attribution.owners.get(device.key, ())
            pods = ", ".join(f"{owner.namespace}/{owner.pod} ({owner.container})" for owner in owners) or "no pod"
            indent, name = ("  ", device.instance.profile) if device.instance else ("", device.device.name)
            duty = device.reading.values.get("duty_cycle")
            busy = "" if duty is None else f"  {duty:g} %"
            lines.append(f"{indent}{device.key}  {name}{busy}  for {pods}")
        lines += ["", *(list(self._troubles(now)) or ["no problems"]), "", "/metrics is for Prometheus", ""]
        return Answer("\n".join(lines).encode())

    def _troubles(self, now: float) -> Iterator[str]:
        if self.measured.trouble:
            yield f"GPUs: {self.measured.trouble}"
        if self.attribution.trouble:
            yield f"pods: {self.attribution.trouble}"
        if self.events is not None:
            yield from self.events.troubles()
        for device in self.measured.current(now):
            if device.reading.values.get("lost"):
                yield f"{device.key}: fell off the bus; reset or replace it"
        for uuid in sorted(self.sampler.hung):
            yield f"{uuid}: the driver does not answer for this device; see dmesg, and reset the GPU"
        yield from self._recovery_actions(now)

    def _recovery_actions(self, now: float) -> Iterator[str]:
        """Recovery actions that drivers ask for; for GPUs whose driver reports none, the actions that their XID errors require."""
        reported: set[str] = set()
        for device in self.measured.current(now):
            for key, value in device.reading.values.items():
                name, _, action = key.partition(":")
                if name == "recovery_action" and value:
                    reported.add(device.key)
                    if action != "none":
                        yield f"{device.key}: the driver asks for a recovery ({action}): {REMEDIES[action]}"
        errors = catalogue()
        for (uuid, code), (_, at) in sorted(self.measured.events.items()):
            if severity(code) == "critical" and uuid not in reported:
                xid = errors.errors[code]
                error = f"{uuid}: XID {code} ({xid.description}), {now - at:.0f} s ago"
                yield f"{error}; {REMEDIES[xid.action]}; from NVIDIA's catalogue of {errors.date}"
