"""Properties of any driver: the one made from C, and a real one if this machine has a GPU, compared with ``nvidia-smi``.

On a machine with a GPU, ``python -m pytest tests/exporter/test_driver.py`` measures it.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.exporter.child import Child, measuring
from tests.exporter.fake_nvml import GIB, FakeNvml

from gpuscaler.exporter.fields import FIELDS

REAL = shutil.which("nvidia-smi") is not None and Path("/dev/nvidiactl").exists()


@dataclass(frozen=True)
class Driver:
    """A driver to measure with, and another program's output about its GPUs: rows of index, UUID, and the figures of :data:`ASKED`."""

    environment: Mapping[str, str]
    says: Callable[[], list[list[str]]]


#: Queries of nvidia-smi, each with the field that it is compared with, the factor from its unit to the field's unit, and the tolerance,
#: since the two are not measured at the same time.
ASKED = {
    "memory.total": ("memory_total_bytes", 1024**2, 0.01),
    "memory.used": ("memory_used_bytes", 1024**2, 0.05),
    "temperature.gpu": ("temperature_celsius", 1, 0.15),
    "power.draw": ("power_usage_milliwatts", 1000, 0.35),
    "clocks.mem": ("memory_clock_hertz", 1e6, 0.01),
}


def nvidia_smi() -> list[list[str]]:
    query = ",".join(["index", "uuid", *ASKED])
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
    return [line.split(", ") for line in done.stdout.splitlines()]


@pytest.fixture(params=["fake", *(["real"] if REAL else [])])
def driver(request: pytest.FixtureRequest, make_nvml: Callable[[int], FakeNvml]) -> Driver:
    if request.param == "real":
        return Driver({}, nvidia_smi)
    nvml = make_nvml(3)
    nvml.gpu[1].used = 12 * GIB
    rows = [
        [f"{number}", gpu.uuid.decode(), "81920", f"{gpu.used // 1024**2}", "34", "71.00", "2619"]
        for number, gpu in enumerate(nvml.gpu[:3])
    ]
    return Driver(nvml.environment, lambda: rows)


def settled(child: Child, key: str) -> Mapping[str, float]:
    """The second reading, which has the counters that need two samples, if the GPU supports them."""
    child.reading(key)
    return child.reading(key).values


def test_gpus_are_listed_in_the_drivers_order(driver: Driver) -> None:
    with measuring(driver.environment) as child:
        devices = child.devices()

    assert [[f"{device.number}", device.uuid] for device in devices.devices] == [row[:2] for row in driver.says()]
    assert devices.driver


def test_measured_values_agree_with_nvidia_smi(driver: Driver) -> None:
    rows = driver.says()
    with measuring(driver.environment) as child:
        values = {row[1]: settled(child, row[1]) for row in rows}

    for _, uuid, *texts in rows:
        for (field, scale, tolerance), text in zip(ASKED.values(), texts, strict=True):
            if not text.startswith("["):
                assert values[uuid][field] == pytest.approx(float(text) * scale, rel=tolerance, abs=scale), field


def test_every_measured_value_has_a_known_field_and_is_plausible(driver: Driver) -> None:
    with measuring(driver.environment) as child:
        values = [settled(child, device.uuid) for device in child.devices().devices]

    for measured in values:
        assert {"memory_used_bytes", "memory_total_bytes", "temperature_celsius"} <= set(measured)
        assert measured["memory_used_bytes"] <= measured["memory_total_bytes"]
        for key, value in measured.items():
            name, *labels = key.split(":")
            assert len(labels) == len(FIELDS[name].labels), key
            assert value >= 0, key
            assert value <= 1.01 or not name.endswith("_ratio"), key
            assert value <= 100 or name not in {"duty_cycle", "fanspeed_percent"}, key


def test_counters_of_the_driver_never_decrease(driver: Driver) -> None:
    with measuring(driver.environment) as child:
        key = child.devices().devices[0].uuid
        first, *_, last = [child.reading(key).values for _ in range(5)]

    counters = [name for name in first if FIELDS[name.partition(":")[0]].kind == "counter"]
    assert counters
    assert all(last[name] >= first[name] for name in counters)


@pytest.mark.parametrize("rounds", [12])
def test_one_measurement_takes_far_less_cpu_time_than_the_interval_between_measurements(driver: Driver, rounds: int) -> None:
    """Measured in CPU time: readings come on a fixed time grid, however long the driver takes."""
    with measuring(driver.environment, interval=0.1) as child:
        key = child.devices().devices[0].uuid
        for _ in range(2):
            at = child.reading(key).at
        before, began = cpu(child.process.pid), at
        for _ in range(rounds):
            at = child.reading(key).at
        used = cpu(child.process.pid) - before

    assert used / (at - began) < 0.5


def cpu(pid: int) -> float:
    """CPU time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
