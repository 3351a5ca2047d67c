"""The whole exporter with a driver that the test controls: the metrics during and after failures."""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace

import pytest
from tests.exporter.child import IMPATIENT, PROGRAM
from tests.exporter.fake_nvml import GIB, NOT_LOADED, FakeNvml
from tests.exporter.scraping import Scrape, scrape
from tests.exporter.skipping import SkippableTime
from tests.patience import PATIENCE

from gpuscaler.exporter import measured, service
from gpuscaler.exporter.lines import CallStart, Line
from gpuscaler.exporter.parts import Attribution, Device, Owner, Process
from gpuscaler.exporter.service import Exporter
from gpuscaler.exporter.supervising import Pace, Sampler

pytestmark = pytest.mark.looptime(False)

FIRST = "GPU-00000000-0000-4000-8000-000000000000"
SECOND = "GPU-00000000-0000-4000-8000-000000000001"
#: A measuring process that ended is restarted soon.
QUICK = Pace(first_wait=0.05, longest_wait=0.2)
POD = Owner("ml", "training-0", "main", "uid-0")


@dataclass
class Pods:
    """An attributor with answers from the test."""

    attribution: Attribution = field(default_factory=lambda: Attribution(source="pod-resources"))
    error: Exception | None = None
    asked: tuple[Sequence[Device], Sequence[Process]] = ((), ())
    closed: bool = False
    waits: float = 0.0

    async def attribute(self, devices: Sequence[Device], processes: Sequence[Process]) -> Attribution:
        self.asked = devices, processes
        await asyncio.sleep(self.waits)
        if self.error is not None:
            raise self.error
        return self.attribution

    async def close(self) -> None:
        self.closed = True


@dataclass
class Running:
    exporter: Exporter
    pods: Pods
    log: list[tuple[str, str]]

    def scrape(self) -> Scrape:
        return scrape(self.exporter.pages()["/metrics"]().body)

    async def until(self, wanted: Callable[[Scrape], bool]) -> Scrape:
        async with asyncio.timeout(PATIENCE):
            while not wanted(scrape := self.scrape()):  # noqa: ASYNC110  # it is another process that changes it
                await asyncio.sleep(0.02)
        return scrape

    def working(self, part: str) -> Callable[[Scrape], bool]:
        return lambda scrape: scrape.value("gpuscaler_exporter_working", part=part) == 1

    def stopped(self, part: str) -> Callable[[Scrape], bool]:
        return lambda scrape: scrape.value("gpuscaler_exporter_working", part=part) == 0


def recorded(sampler: Sampler) -> list[Line]:
    """The lines of the measuring process from now on."""
    lines, take = list[Line](), sampler.take

    def record(line: Line) -> None:
        lines.append(line)
        take(line)

    sampler.take = record
    return lines


@asynccontextmanager
async def exporting(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch, *, program: Sequence[str] = PROGRAM, pace: Pace = QUICK, interval: float = 0.1
) -> AsyncIterator[Running]:
    """An exporter that measures every ``interval`` seconds."""
    for name, value in nvml.environment.items():
        monkeypatch.setenv(name, value)
    pods, log = Pods(), list[tuple[str, str]]()
    exporter = Exporter(
        [sys.executable, *program, "nvml", f"{interval}", "0"],
        backend="nvml",
        interval=interval,
        node="node-1",
        attributor=pods,
        log=lambda level, text: log.append((level, text)),
        clock=time.monotonic,
        wall=time.time,
        pace=pace,
    )
    exporter.measured.expiry = 0.6
    life = asyncio.create_task(exporter.run())
    try:
        yield Running(exporter, pods, log)
    finally:
        life.cancel()
        with suppress(asyncio.CancelledError):
            await life
    assert pods.closed


async def test_gpu_metrics_have_the_labels_of_the_pod_until_it_is_gone(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    async with exporting(nvml, monkeypatch) as running:
        before = await running.until(running.working("gpus"))
        nvml.gpu[1].utilization, nvml.gpu[1].used = 55, GIB
        running.pods.attribution = Attribution({SECOND: (POD,)}, None, "pod-resources")
        await running.until(lambda scrape: scrape.values("nvidia_gpu_duty_cycle", pod_name="training-0", uuid=SECOND) == [55])
        # The figures of a GPU are not attributed to a pod that is gone.
        running.pods.attribution = Attribution({}, None, "pod-resources")
        await running.until(lambda scrape: scrape.pods("nvidia_gpu_duty_cycle", uuid=SECOND) == [None])

    assert before.value("nvidia_gpu_num_devices") == 2


async def test_the_attributor_gets_the_current_devices_and_processes(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.gpu[0].run((4001, 10, GIB))
    async with exporting(nvml, monkeypatch) as running:
        await running.until(lambda _: bool(running.pods.asked[1]))
        devices, processes = running.pods.asked

    assert [device.uuid for device in devices] == [FIRST, SECOND]
    assert [process.pid for process in processes] == [4001]


async def test_without_a_driver_the_exporter_serves_and_logs_once_and_measures_once_the_driver_exists(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.state.init_result = NOT_LOADED
    async with exporting(nvml, monkeypatch, program=IMPATIENT) as running:
        without = await running.until(lambda scrape: scrape.values("nvidia_gpu_num_devices") == [0])
        warnings = [text for level, text in running.log if level == "warning"]
        nvml.state.init_result = 0
        await running.until(running.working("gpus"))

    assert without.value("gpuscaler_exporter_working", part="gpus") == 0
    assert len(warnings) == 1
    assert "no NVIDIA driver in the kernel" in warnings[0]
    assert ("info", "gpus: measuring 2 GPUs") in running.log


async def test_a_hanging_driver_causes_missing_values_and_does_not_delay_scrapes(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, pace = SkippableTime(), replace(QUICK, patience=60.0, dying=0.05)
    async with exporting(nvml, monkeypatch, pace=pace) as running:
        await running.until(running.working("gpus"))
        lines = recorded(running.exporter.sampler)
        nvml.gpu[0].hang("nvmlDeviceGetTemperature")
        longest = 0.0

        def none(scrape: Scrape) -> bool:
            nonlocal longest
            began = time.thread_time()
            running.scrape()
            longest = max(longest, time.thread_time() - began)
            return scrape.values("nvidia_gpu_temperature_celsius", uuid=FIRST) == []

        gap = await running.until(none)
        for hangs in (1, 2):
            await running.until(lambda _: nvml.gpu[0].hung == hangs and lines[-1:] == [CallStart(FIRST)])  # noqa: B023  # called in this round
            await clock.skip(pace.patience)
        # The other GPU is measured again once the first is skipped.
        await running.until(lambda scrape: scrape.values("nvidia_gpu_temperature_celsius", uuid=SECOND) == [34])
        hung = await running.until(lambda scrape: scrape.value("gpuscaler_gpu_hung", uuid=FIRST) == 1)
        front = running.exporter.pages()["/"]().body.decode()
        nvml.gpu[0].hang("")

    assert gap.values("nvidia_gpu_num_devices") == [2]
    assert hung.value("gpuscaler_gpu_hung", uuid=SECOND) == 0
    assert f"{FIRST}: the driver does not answer for this device" in front
    assert longest < 0.1
    assert any("saw no answer from the driver" in text for _, text in running.log)


async def test_a_killed_measuring_process_is_replaced_and_windowed_metrics_continue(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with exporting(nvml, monkeypatch) as running:
        nvml.gpu[0].utilization = 88
        await running.until(lambda scrape: scrape.values("nvidia_gpu_duty_cycle", uuid=FIRST) == [88])
        nvml.gpu[0].utilization = 0
        os.kill(running.exporter.sampler.pid, 9)
        after = await running.until(lambda scrape: scrape.values("nvidia_gpu_duty_cycle", uuid=FIRST) == [0])

    assert after.value("gpuscaler_exporter_measuring_starts_total") == 2
    assert after.value("gpuscaler_gpu_duty_cycle_ratio_max", uuid=FIRST, window="15s") == 0.88


async def test_a_pods_maximum_excludes_samples_of_the_previous_pod_on_its_gpu(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measured, "LOOKS_BACK", 0.2)
    nvml.gpu[0].utilization = 88
    async with exporting(nvml, monkeypatch) as running:
        running.pods.attribution = Attribution({FIRST: (POD,)}, None, "pod-resources")
        await running.until(
            lambda scrape: scrape.values("gpuscaler_gpu_duty_cycle_ratio_max", pod_name="training-0", window="60s") == [0.88]
        )
        # For a moment nothing is known; that is not another pod.
        running.pods.attribution = Attribution(trouble="the kubelet is away")
        unknown = await running.until(running.stopped("pods"))
        nvml.gpu[0].utilization = 5
        running.pods.attribution = Attribution({FIRST: (POD._replace(pod="training-1"),)}, None, "pod-resources")
        after = await running.until(lambda scrape: bool(scrape.values("gpuscaler_gpu_duty_cycle_ratio_max", pod_name="training-1")))

    assert unknown.values("gpuscaler_gpu_duty_cycle_ratio_max", uuid=FIRST, window="60s") == [0.88]
    assert after.values("gpuscaler_gpu_duty_cycle_ratio_max", pod_name="training-1") == [0.05, 0.05]


async def test_a_gpu_that_fell_off_the_bus_is_reported_and_has_no_values(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    async with exporting(nvml, monkeypatch) as running:
        await running.until(running.working("gpus"))
        nvml.gpu[0].lost, nvml.gpu[0].xid, nvml.gpu[0].xid_count = 1, 79, 1
        scrape = await running.until(lambda scrape: scrape.values("gpuscaler_gpu_lost", uuid=FIRST) == [1])
        await running.until(lambda scrape: scrape.values("gpuscaler_gpu_xid_errors_total", uuid=FIRST, severity="critical") == [1])
        when = running.scrape().value("gpuscaler_gpu_last_xid_error_timestamp_seconds", uuid=FIRST, xid="79")
        front = running.exporter.pages()["/"]().body.decode()

    assert scrape.values("nvidia_gpu_temperature_celsius", uuid=FIRST) == []
    assert scrape.values("nvidia_gpu_temperature_celsius", uuid=SECOND) == [34]
    assert when == pytest.approx(time.time(), abs=30)
    assert f"{FIRST}: fell off the bus" in front
    assert f"{FIRST}: XID 79 (the GPU fell off the bus), " in front
    assert "no problems" not in front


async def test_the_recovery_action_of_the_driver_takes_precedence_over_the_catalogue(
    nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvml.gpu[1].recovery = 99
    # The driver is asked for the action in every tenth reading.
    async with exporting(nvml, monkeypatch, interval=0.02) as running:
        await running.until(running.working("gpus"))
        for gpu in nvml.gpu[0], nvml.gpu[1]:
            gpu.xid, gpu.xid_count = 95, 1
        await running.until(lambda scrape: len(scrape.values("gpuscaler_gpu_xid_errors_total", action="reset")) == 2)
        before = running.exporter.pages()["/"]().body.decode()
        nvml.gpu[0].recovery = 4
        scrape = await running.until(
            lambda scrape: scrape.values("gpuscaler_gpu_recovery_action", uuid=FIRST, action="drain_and_reset") == [1]
        )
        after = running.exporter.pages()["/"]().body.decode()

    # The driver reports "none" for the first GPU, and no action for the second.
    assert f"{FIRST}: XID" not in before
    assert f"{SECOND}: XID 95 (memory error that was not contained), " in before
    assert "; reset the GPU; from NVIDIA's catalogue of 2025-10-29" in before
    assert f"{FIRST}: the driver asks for a recovery (drain_and_reset): stop the processes that use it, and reset the GPU" in after
    assert scrape.values("gpuscaler_gpu_recovery_action", uuid=FIRST, action="none") == [0]
    assert scrape.values("gpuscaler_gpu_recovery_action", uuid=SECOND) == []


async def test_gpus_are_served_without_pod_labels_if_attribution_fails(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    async with exporting(nvml, monkeypatch) as running:
        running.pods.attribution = Attribution({FIRST: (POD,)}, None, "pod-resources")
        await running.until(lambda scrape: scrape.pods("nvidia_gpu_temperature_celsius", uuid=FIRST) == ["training-0"])
        running.pods.error = RuntimeError("no such table")
        broken = await running.until(running.stopped("pods"))
        front = running.exporter.pages()["/"]().body.decode()
        running.pods.error = None
        await running.until(running.working("pods"))

    assert broken.pods("nvidia_gpu_temperature_celsius", uuid=FIRST) == [None]
    assert "pods: attribution failed: RuntimeError: no such table" in front
    assert [text for level, text in running.log if level == "warning"] == ["pods: attribution failed: RuntimeError: no such table"]


async def test_gpus_are_served_without_pod_labels_if_attribution_hangs(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "ATTRIBUTION", 0.2)
    async with exporting(nvml, monkeypatch) as running:
        running.pods.attribution = Attribution({FIRST: (POD,)}, None, "pod-resources")
        await running.until(lambda scrape: scrape.pods("nvidia_gpu_temperature_celsius", uuid=FIRST) == ["training-0"])
        running.pods.waits = 60.0
        without = await running.until(running.stopped("pods"))
        front = running.exporter.pages()["/"]().body.decode()

    assert without.pods("nvidia_gpu_temperature_celsius", uuid=FIRST) == [None]
    assert "pods: saw no answer about the pods of GPUs for 0.2 s" in front


async def test_the_exporter_reports_its_own_resource_usage(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    async with exporting(nvml, monkeypatch) as running:
        scrape = await running.until(running.working("gpus"))

    assert scrape.value("gpuscaler_exporter_info", driver_version="580.95.05", cuda_version="13.0", backend="nvml") == 1
    assert scrape.value("gpuscaler_exporter_resident_memory_bytes", process="measuring") > 5e6
    assert scrape.value("gpuscaler_gpu_last_sample_timestamp_seconds", uuid=FIRST) == pytest.approx(time.time(), abs=30)


async def test_the_html_page_shows_gpus_and_pods(nvml: FakeNvml, monkeypatch: pytest.MonkeyPatch) -> None:
    nvml.gpu[0].divide(("1g.10gb", 20, GIB))
    async with exporting(nvml, monkeypatch) as running:
        running.pods.attribution = Attribution({SECOND: (POD,)}, None, "pod-resources")
        await running.until(lambda scrape: scrape.pods("nvidia_gpu_temperature_celsius", uuid=SECOND) == ["training-0"])
        await running.until(lambda scrape: scrape.values("nvidia_gpu_duty_cycle", uuid="MIG-0-0") == [20])
        page = running.exporter.pages()["/"]().body.decode()

    assert f"{SECOND}  NVIDIA H100 80GB HBM3  0 %  for ml/training-0 (main)" in page
    assert "  MIG-0-0  1g.10gb  20 %  for no pod" in page
    assert "no problems" in page
