"""The NVML backend: measures all GPUs that the driver of the machine shows."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress

from gpuscaler.exporter.backends import Event, Reading, StaleError, UnavailableError
from gpuscaler.exporter.backends.nvml.events import Events
from gpuscaler.exporter.backends.nvml.inventory import Gpu, list_gpus
from gpuscaler.exporter.backends.nvml.library import NvmlError, code, is_closed, is_lost, is_stale, nvml, text_of
from gpuscaler.exporter.backends.nvml.measuring import DeviceReader
from gpuscaler.exporter.parts import Device

#: Meaning of NVML's errors at startup: one word for a label, and a message that says what to do.
_CAUSES: Mapping[int, tuple[str, str]] = {
    nvml.NVML_ERROR_LIBRARY_NOT_FOUND: (
        "no-library",
        "saw no libnvidia-ml.so.1, expected it from NVIDIA's driver; install the driver, or let the NVIDIA container runtime mount it",
    ),
    nvml.NVML_ERROR_DRIVER_NOT_LOADED: ("no-driver", "saw no NVIDIA driver in the kernel, expected it loaded; see the kernel's log"),
    nvml.NVML_ERROR_NO_PERMISSION: ("forbidden", "saw no permission for NVIDIA's devices, expected /dev/nvidiactl in the container"),
}


class Nvml:
    """Implements :class:`gpuscaler.exporter.backends.Backend`. Handles of a GPU stay valid until the driver is unloaded."""

    def __init__(self) -> None:
        self._gpus: dict[int, Gpu] = {}
        self._readers: dict[str, DeviceReader] = {}
        self._events: Events | None = None

    def open(self) -> None:
        self.close()
        with _converted_errors():
            nvml.nvmlInit()
            self._events = Events()

    def versions(self) -> tuple[str, str]:
        cuda = text_of(nvml.nvmlSystemGetCudaDriverVersion_v2)
        return text_of(nvml.nvmlSystemGetDriverVersion), f"{int(cuda) // 1000}.{int(cuda) % 1000 // 10}" if cuda else ""

    def devices(self) -> tuple[Device, ...]:
        with _converted_errors():
            self._gpus = list_gpus(self._gpus)
            self._update_readers()
        if not self._gpus:
            raise UnavailableError("no-devices", "saw a driver that shows no GPU, expected at least one; see nvidia-smi and the kernel log")
        return tuple(gpu.device for gpu in self._gpus.values())

    def _update_readers(self) -> None:
        """Start measuring new devices and stop measuring removed ones. A GPU whose MIG mode changed is set up again: its probes differ."""
        gpus = {gpu.device.uuid: gpu for gpu in self._gpus.values() if gpu.handle is not None}
        parts = {part.instance.uuid: (gpu.handle, part) for gpu in self._gpus.values() for part in gpu.parts}
        for key, reader in list(self._readers.items()):
            if key not in parts and (key not in gpus or reader.divided != gpus[key].divided):
                self._readers.pop(key).close()
        for key, gpu in gpus.items():
            if key not in self._readers:
                self._readers[key] = DeviceReader(key, gpu.handle, divided=gpu.divided)
            if self._events is not None:
                self._events.add(key, gpu.handle)
        for key, (whole, part) in parts.items():
            if key not in self._readers:
                self._readers[key] = DeviceReader(key, part.handle, parent=whole, gpu_instance=part.instance.gpu_instance)

    def measure(self, device: Device) -> Iterator[Reading]:
        """Read the device. A GPU that fell off the bus has only the field ``lost``."""
        try:
            for key in (device.uuid, *(instance.uuid for instance in device.instances)):
                if key in self._readers:
                    reading = self._readers[key].read(time.monotonic())
                    yield reading if key != device.uuid else reading._replace(values={**reading.values, "lost": 0.0})
                elif key == device.uuid:
                    yield Reading(key, time.monotonic(), {"lost": 1.0})
        except NvmlError as error:
            if not is_lost(error):
                raise _convert_error(error) from error
            yield Reading(device.uuid, time.monotonic(), {"lost": 1.0})

    def events(self) -> Iterator[Event]:
        if self._events is not None:
            with _converted_errors():
                yield from self._events.poll()

    def close(self) -> None:
        """Release everything; also works after the driver was unloaded."""
        for reader in self._readers.values():
            reader.close()
        with suppress(NvmlError):
            if self._events is not None:
                self._events.close()
            nvml.nvmlShutdown()
        self._gpus, self._readers, self._events = {}, {}, None


@contextmanager
def _converted_errors() -> Iterator[None]:
    try:
        yield
    except NvmlError as error:
        raise _convert_error(error) from error


def _convert_error(error: Exception) -> Exception:
    """Convert an NVML error to one of this package's errors."""
    if is_stale(error):
        return StaleError(
            "saw a driver with another version than the library libnvidia-ml.so.1, expected the same; "
            "if this persists, restart the pod, so that it gets the new library"
        )
    cause, text = _CAUSES.get(code(error), ("closed" if is_closed(error) else "failed", f"saw NVML fail: {error}"))
    return UnavailableError(cause, text)
