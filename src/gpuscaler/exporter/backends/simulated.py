"""Simulated GPUs for demos and tests: each plays a fixed role, the same in every run.

Training keeps a GPU busy, inference comes in bursts, a notebook is mostly idle. With two or more GPUs, the last is divided by MIG.
"""

import math
import time
from collections.abc import Callable, Iterator

from gpuscaler.exporter.backends import Event, Reading
from gpuscaler.exporter.parts import Device, Instance

_NAME = "NVIDIA H100 80GB HBM3"
_GIB = 1024**3
_MEMORY = 80 * _GIB
_PROFILES = ("3g.40gb", "2g.20gb", "1g.10gb")


def _training(at: float) -> float:
    return 0.96 + 0.03 * math.sin(at / 7)


def _inference(at: float) -> float:
    """Two seconds of work, then eight without."""
    return 0.9 if at % 10 < 2 else 0.0


def _notebook(at: float) -> float:
    return 0.35 if at % 300 < 20 else 0.0


def _idle(_at: float) -> float:
    return 0.0


_PARTS: tuple[Callable[[float], float], ...] = (_training, _training, _inference, _inference, _notebook, _training, _idle)


class Simulated:
    """A backend with ``count`` simulated GPUs; time is the machine's monotonic clock."""

    def __init__(self, count: int, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._devices = tuple(_device(number, count) for number in range(count))
        #: Joules used by each GPU, and the time up to which they are counted.
        self._energy = dict.fromkeys(range(count), 0.0)
        self._until = dict.fromkeys(range(count), clock())

    def open(self) -> None:
        """Do nothing: the GPUs are always there."""

    def devices(self) -> tuple[Device, ...]:
        return self._devices

    def versions(self) -> tuple[str, str]:
        return "simulated", ""

    def measure(self, device: Device) -> Iterator[Reading]:
        at = self._clock()
        busy = _PARTS[device.number % len(_PARTS)](at + device.number)
        if not device.instances:
            yield Reading(device.uuid, at, {**self._values(device.number, busy, at), **_use(busy, _MEMORY)})
            return
        yield Reading(device.uuid, at, self._values(device.number, busy, at))
        for instance in device.instances:
            share = _training(at) if instance.gpu_instance == 1 else _inference(at + instance.gpu_instance)
            yield Reading(instance.uuid, at, _use(share, int(instance.profile.partition(".")[2][:-2]) * _GIB))

    def _values(self, number: int, busy: float, at: float) -> dict[str, float]:
        """Values of the whole GPU."""
        watts = 70 + 630 * busy
        self._energy[number] += watts * (at - self._until[number])
        self._until[number] = at
        return {
            "power_usage_milliwatts": round(watts * 1000),
            "energy_joules": round(self._energy[number], 3),
            "power_limit_watts": 700.0,
            "temperature_celsius": round(30 + 40 * busy),
            "sm_clock_hertz": 1.98e9 if busy else 3.45e8,
            "memory_clock_hertz": 2.619e9,
            "clock_limited:idle": float(not busy),
            "lost": 0.0,
        }

    def events(self) -> Iterator[Event]:
        return iter(())

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def _use(busy: float, memory: int) -> dict[str, float]:
    return {
        "duty_cycle": round(100 * busy),
        "memory_total_bytes": memory,
        "memory_used_bytes": round(memory * 0.8 * (busy > 0)),
        "memory_busy_ratio": round(busy * 0.6, 2),
        "graphics_active_ratio": round(busy, 4),
        "sm_active_ratio": round(busy * 0.9, 4),
    }


def _device(number: int, count: int) -> Device:
    divided = count > 1 and number == count - 1
    instances = tuple(
        Instance(f"MIG-00000000-0000-4000-8000-{number:06d}{place:06d}", place + 1, 0, profile) for place, profile in enumerate(_PROFILES)
    )
    uuid = f"GPU-00000000-0000-4000-8000-{number:012d}"
    return Device(uuid, number, number, _NAME, f"00000000:{number + 1:02X}:00.0", instances if divided else ())
