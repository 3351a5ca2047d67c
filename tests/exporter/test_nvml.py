"""The nvml backend in the measuring process: the real pynvml with a driver library that the test controls."""

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.exporter.child import ATTENTIVE, IMPATIENT, Child, measuring
from tests.exporter.fake_nvml import GIB, NO_PERMISSION, NOT_LOADED, STALE, UNKNOWN, FakeNvml, build

from gpuscaler.exporter.lines import Reading
from gpuscaler.exporter.parts import Instance, Process

FIRST = "GPU-00000000-0000-4000-8000-000000000000"
SECOND = "GPU-00000000-0000-4000-8000-000000000001"


def settled(child: Child, key: str = FIRST) -> dict[str, float]:
    """Values, once they include counters that need two samples."""
    return child.reading(key, lambda reading: "sm_active_ratio" in reading.values).values


def test_the_process_reports_devices_and_versions_first(nvml: FakeNvml) -> None:
    with measuring(nvml.environment) as child:
        devices = child.devices()

    assert [(device.uuid, device.number, device.minor) for device in devices.devices] == [(FIRST, 0, 0), (SECOND, 1, 1)]
    assert devices.devices[1].name == "NVIDIA H100 80GB HBM3"
    assert devices.devices[1].pci == "00000000:02:00.0"
    assert (devices.driver, devices.cuda) == ("580.95.05", "13.0")


def test_measured_values_have_the_units_in_their_names(nvml: FakeNvml) -> None:
    gpu = nvml.gpu[0]
    gpu.utilization, gpu.used = 40, 7 * GIB
    with measuring(nvml.environment) as child:
        values = settled(child)

    expected = {
        "duty_cycle": 40,
        "memory_used_bytes": 7 * GIB,
        "memory_total_bytes": 80 * GIB,
        "memory_reserved_bytes": GIB,
        "power_usage_milliwatts": 71000,
        "power_limit_watts": 700,
        "energy_joules": 5,
        "temperature_celsius": 34,
        "memory_temperature_celsius": 61,
        "sm_clock_hertz": 345e6,
        "clock_limited:idle": 1,
        "clock_limited:power_cap": 0,
        "nvlink_sent_bytes": 2048 * 1024,
        "nvlink_received_bytes": 1024 * 1024,
        "pcie_replays": 3,
        "ecc_errors:corrected:volatile": 1,
        "ecc_errors:uncorrected:aggregate": 12,
        "remapped_rows:corrected": 2,
        "remapped_rows:uncorrected": 1,
        "row_remap_pending": 1,
        "row_remap_failed": 0,
        "graphics_active_ratio": 0.4,
        "sm_active_ratio": 0.2,
        "memory_bandwidth_ratio": 0.125,
        "pcie_sent_bytes_per_second": 2 * 1024**2,
        "lost": 0,
    }
    assert {name: values[name] for name in expected} == expected


def test_an_unsupported_value_is_missing_and_requested_only_once(nvml: FakeNvml) -> None:
    gpu = nvml.gpu[0]
    gpu.fail("nvmlDeviceGetPowerUsage")
    with measuring(nvml.environment) as child:
        values = [child.reading(FIRST).values for _ in range(5)][-1]

    assert {"fanspeed_percent", "power_usage_milliwatts", "pcie_sent_bytes", "pipe_active_ratio:tensor"} & set(values) == set()
    assert gpu.count("nvmlDeviceGetPowerUsage") == gpu.count("nvmlDeviceGetFanSpeed") == 1
    assert nvml.gpu[1].count("nvmlDeviceGetPowerUsage") > 3


def test_a_driver_call_that_failed_once_is_repeated_in_the_next_reading(nvml: FakeNvml) -> None:
    gpu = nvml.gpu[0]
    with measuring(nvml.environment) as child:
        gpu.fail("nvmlDeviceGetPowerUsage", UNKNOWN)
        without = child.reading(FIRST, lambda reading: "power_usage_milliwatts" not in reading.values)
        gpu.fail("nvmlDeviceGetPowerUsage", 0)
        child.reading(FIRST, lambda reading: "power_usage_milliwatts" in reading.values)

    assert "temperature_celsius" in without.values


def test_missed_readings_are_skipped(nvml: FakeNvml) -> None:
    interval = 0.03
    with measuring(nvml.environment, interval=interval) as child:
        child.reading(FIRST)
        nvml.gpu[0].hang("nvmlDeviceGetTemperature")
        time.sleep(10 * interval)
        goes_on = time.monotonic()
        nvml.gpu[0].hang("")
        after = [child.reading(FIRST, lambda reading: reading.at > goes_on).at for _ in range(6)]

    # Ten rounds were due in the meantime.
    assert after[-1] - after[0] > 3 * interval


def test_slow_values_are_measured_in_every_tenth_reading_and_reported_in_each(nvml: FakeNvml) -> None:
    # Two intervals pass between the ninth reading and the next slow one, so that the process ends before it even on a busy machine.
    with measuring(nvml.environment, interval=0.1) as child:
        readings = [child.reading(FIRST) for _ in range(9)]

    assert all("remapped_rows:corrected" in reading.values for reading in readings)
    assert nvml.gpu[0].count("nvmlDeviceGetRemappedRows") == 1


def test_gpus_before_ampere_have_retired_pages_and_later_gpus_have_remapped_rows(nvml: FakeNvml) -> None:
    nvml.gpu[0].fail("nvmlDeviceGetRemappedRows")
    with measuring(nvml.environment) as child:
        old, new = child.reading(FIRST).values, child.reading(SECOND).values

    pages = {"retired_pages:corrected": 5, "retired_pages:uncorrected": 4, "page_retirement_pending": 1}
    assert {name: old[name] for name in pages} == pages
    assert "remapped_rows:corrected" not in old
    assert "remapped_rows:corrected" in new
    assert set(pages) & set(new) == set()


def test_an_old_driver_is_measured_with_the_calls_that_it_has(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    nvml = FakeNvml(build(tmp_path, "-DBEFORE_HOPPER"), tmp_path_factory.mktemp("old"), 1)
    nvml.gpu[0].used = 2 * GIB
    with measuring(nvml.environment) as child:
        child.reading(FIRST)
        values = child.reading(FIRST).values

    # Before version 2 of the call, the driver's own reserved memory counts as used.
    assert values["memory_used_bytes"] == 3 * GIB
    assert values["clock_limited:idle"] == 1
    assert {"memory_reserved_bytes", "sm_active_ratio"} & set(values) == set()


def test_mig_devices_are_measured_separately(nvml: FakeNvml) -> None:
    nvml.gpu[0].divide(("3g.40gb", 90, 30 * GIB), ("1g.10gb", 0, 0))
    nvml.gpu[0].run((4001, 30, 5 * GIB))
    with measuring(nvml.environment) as child:
        device = child.devices().devices[0]
        reading = child.reading(FIRST)
        whole = reading.values
        inside = child.reading("MIG-0-0").processes
        parts = [settled(child, f"MIG-0-{place}") for place in (0, 1)]

    assert device.instances == (Instance("MIG-0-0", 3, 0, "3g.40gb"), Instance("MIG-0-1", 4, 0, "1g.10gb"))
    assert "duty_cycle" not in whole
    assert whole["power_usage_milliwatts"] == 71000
    assert [(part["duty_cycle"], part["memory_used_bytes"], part["memory_total_bytes"]) for part in parts] == [
        (90, 30 * GIB, 40 * GIB),
        (0, 0, 10 * GIB),
    ]
    assert "power_usage_milliwatts" not in parts[0]
    # NVML reports no SM utilization for processes of MIG devices; no process is reported twice.
    assert inside == (Process("MIG-0-0", 4001, 5 * GIB, None),)
    assert reading.processes == ()


def test_a_gpu_with_mig_turned_off_is_measured_as_a_whole_again(nvml: FakeNvml) -> None:
    nvml.gpu[0].divide()
    with measuring(nvml.environment, program=ATTENTIVE) as child:
        child.reading(FIRST, lambda reading: "duty_cycle" not in reading.values)
        nvml.gpu[0].mig, nvml.gpu[0].utilization = 0, 70
        child.reading(FIRST, lambda reading: reading.values.get("duty_cycle") == 70)
        nvml.gpu[0].divide(("3g.40gb", 90, 30 * GIB))
        child.reading("MIG-0-0")


def test_processes_are_reported_with_memory_and_sm_utilization(nvml: FakeNvml) -> None:
    gpu = nvml.gpu[0]
    gpu.run((4001, 30, 5 * GIB), (4002, 0, GIB))
    gpu.sample_time = 1000
    with measuring(nvml.environment) as child:
        first = child.reading(FIRST).processes
        idle = child.reading(FIRST).processes

    assert first == (Process(FIRST, 4001, 5 * GIB, 30), Process(FIRST, 4002, GIB, 0))
    # No newer sample: no process has used the GPU since.
    assert idle == (Process(FIRST, 4001, 5 * GIB, 0), Process(FIRST, 4002, GIB, 0))


def test_an_empty_process_list_is_distinguished_from_an_unknown_one(nvml: FakeNvml) -> None:
    for call in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetGraphicsRunningProcesses_v3"):
        nvml.gpu[1].fail(call)
    nvml.gpu[1].run((4001, 30, GIB))
    with measuring(nvml.environment) as child:
        assert child.reading(FIRST).processes == ()
        assert child.reading(SECOND).processes is None


def test_a_utilization_burst_between_two_readings_is_reported_as_a_peak(nvml: FakeNvml) -> None:
    gpu = nvml.gpu[0]
    gpu.sample_time, gpu.sample_count, gpu.peak = 500, 3, 77
    with measuring(nvml.environment) as child:
        # Samples from before the start are not a burst.
        assert child.reading(FIRST).peaks == {}
        gpu.peak, gpu.sample_time = 95, 900
        burst = child.reading(FIRST, lambda reading: bool(reading.peaks))

    assert burst.peaks == {"duty_cycle": 95}
    assert burst.values["duty_cycle"] == 0


def test_xid_errors_are_reported_with_their_gpu(nvml: FakeNvml) -> None:
    with measuring(nvml.environment) as child:
        child.reading(FIRST)
        nvml.gpu[1].xid, nvml.gpu[1].xid_count = 79, 2
        events = [child.event() for _ in range(2)]

    assert [(event.device, event.code) for event in events] == [(SECOND, 79), (SECOND, 79)]


def test_the_recovery_action_is_reported_until_the_gpu_has_recovered(nvml: FakeNvml) -> None:
    def asked(reading: Reading) -> list[str]:
        return [key.partition(":")[2] for key, value in reading.values.items() if key.startswith("recovery_action:") and value]

    def asks(name: str, reading: Reading) -> bool:
        return asked(reading) == [name]

    nvml.gpu[1].recovery = 99
    # The driver is asked for the action in every tenth reading.
    with measuring(nvml.environment, interval=0.01) as child:
        seen = [asked(child.reading(FIRST))]
        for number, name in ((1, "reset"), (2, "reboot"), (42, "unknown"), (0, "none")):
            nvml.gpu[0].recovery = number
            seen.append(asked(child.reading(FIRST, partial(asks, name))))
        silent = asked(child.reading(SECOND))

    assert seen == [["none"], ["reset"], ["reboot"], ["unknown"], ["none"]]
    assert silent == []


def test_a_gpu_that_fell_off_the_bus_is_reported_as_lost_until_it_returns(nvml: FakeNvml) -> None:
    with measuring(nvml.environment) as child:
        child.reading(FIRST)
        nvml.gpu[0].lost = 1
        lost = child.reading(FIRST, lambda reading: reading.values.get("lost") == 1)
        other = child.reading(SECOND)
        nvml.gpu[0].lost = 0
        back = child.reading(FIRST, lambda reading: reading.values.get("lost") == 0)

    assert lost.values == {"lost": 1}
    assert other.values["temperature_celsius"] == 34
    assert back.values["temperature_celsius"] == 34


@pytest.mark.parametrize(
    ("result", "cause", "words"), [(NOT_LOADED, "no-driver", "see the kernel's log"), (NO_PERMISSION, "forbidden", "/dev/nvidiactl")]
)
def test_an_unavailable_driver_is_reported_with_advice(nvml: FakeNvml, result: int, cause: str, words: str) -> None:
    nvml.state.init_result = result
    with measuring(nvml.environment) as child:
        unavailable = child.unavailable()

    assert unavailable.cause == cause
    assert words in unavailable.text


def test_a_driver_without_gpus_is_reported(make_nvml: Callable[[int], FakeNvml]) -> None:
    with measuring(make_nvml(0).environment) as child:
        assert child.unavailable().cause == "no-devices"


def test_a_missing_driver_library_is_reported_and_loaded_once_it_is_installed(nvml: FakeNvml) -> None:
    nvml.uninstall()
    with measuring(nvml.environment, program=IMPATIENT) as child:
        unavailable = child.unavailable()
        nvml.install()
        devices = child.devices()

    assert unavailable.cause == "no-library"
    assert len(devices.devices) == 2


def test_a_driver_that_was_unloaded_is_opened_again_once_it_is_loaded(nvml: FakeNvml) -> None:
    with measuring(nvml.environment, program=IMPATIENT) as child:
        child.reading(FIRST)
        nvml.gpu[0].fail("nvmlDeviceGetTemperature", NOT_LOADED)
        assert child.unavailable().cause == "no-driver"
        nvml.gpu[0].fail("nvmlDeviceGetTemperature", 0)
        child.reading(FIRST)

    assert nvml.state.opened == 2


def test_the_process_ends_after_a_driver_upgrade_so_that_the_new_library_is_loaded(nvml: FakeNvml) -> None:
    with measuring(nvml.environment) as child:
        child.reading(FIRST)
        nvml.gpu[0].fail("nvmlDeviceGetTemperature", STALE)
        assert "another version" in child.unavailable().text
        assert child.ended() == 1


def test_a_skipped_gpu_is_not_measured(nvml: FakeNvml) -> None:
    nvml.gpu[0].hang("nvmlDeviceGetTemperature")
    with measuring(nvml.environment, FIRST) as child:
        child.reading(SECOND)
        child.reading(SECOND)

    assert nvml.gpu[0].count("nvmlDeviceGetTemperature") == 0


def test_on_sigterm_the_process_closes_the_driver_library(nvml: FakeNvml) -> None:
    with measuring(nvml.environment) as child:
        child.reading(FIRST)
        before = nvml.state.closed
        child.process.terminate()
        assert child.ended() == 0

    assert nvml.state.closed == before + 1


def test_the_measuring_process_ends_when_its_output_is_closed(nvml: FakeNvml) -> None:
    with measuring(nvml.environment) as child:
        child.reading(FIRST)
        assert child.process.stdout is not None
        child.process.stdout.close()
        assert child.ended() == 0
