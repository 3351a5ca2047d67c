"""The simulated backend in the measuring process."""

from collections.abc import Iterator

import pytest
from tests.exporter.child import measuring

from gpuscaler.exporter.backends.simulated import Simulated
from gpuscaler.exporter.fields import FIELDS


def test_the_simulated_backend_reports_like_a_driver() -> None:
    with measuring({}, backend="simulated", gpus=3) as child:
        devices = child.devices()
        readings = [child.reading(device.uuid) for device in devices.devices]

    assert [len(device.instances) for device in devices.devices] == [0, 0, 3]
    assert devices.driver == "simulated"
    assert all({key.partition(":")[0] for key in reading.values} <= set(FIELDS) for reading in readings)


def test_a_single_simulated_gpu_has_no_mig_devices() -> None:
    assert [device.instances for device in Simulated(1).devices()] == [()]


def test_simulated_inference_load_comes_in_bursts_and_energy_only_grows() -> None:
    seconds: Iterator[float] = iter(range(1000))
    backend = Simulated(4, clock=lambda: float(next(seconds)))
    device = backend.devices()[2]
    values = [next(iter(backend.measure(device))).values for _ in range(60)]

    assert {value["duty_cycle"] for value in values} == {0, 90}
    energy = [value["energy_joules"] for value in values]
    assert energy == sorted(energy)
    assert energy[-1] > energy[0]


@pytest.mark.parametrize("count", [1, 8, 64])
def test_simulated_devices_have_distinct_uuids(count: int) -> None:
    devices = Simulated(count).devices()
    keys = [device.uuid for device in devices] + [instance.uuid for device in devices for instance in device.instances]

    assert len(devices) == count
    assert len(set(keys)) == len(keys)
