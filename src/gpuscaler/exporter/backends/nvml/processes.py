"""The processes on a device, and how much each uses if the driver reports it."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from gpuscaler.exporter.backends.nvml.library import Handle, NvmlError, code, is_unsupported, nvml
from gpuscaler.exporter.parts import Process

#: Compute, graphics, and clients of the MPS server, which are not among the compute processes. A process may be in several lists.
_LISTS: tuple[Callable[[Handle], Sequence[Any]], ...] = (
    nvml.nvmlDeviceGetComputeRunningProcesses_v3,
    nvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
    nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
)


class DeviceProcesses:
    """The processes of one device. ``shares`` False leaves out each one's share of the SMs: NVML does not report it for MIG devices."""

    def __init__(self, key: str, handle: Handle, *, shares: bool) -> None:
        self._key, self._handle = key, handle
        self._lists = list(_LISTS)
        self._shares = shares
        #: Time of the newest utilization sample seen, in microseconds of the driver's clock.
        self._newest_sample = 0

    def ask(self) -> tuple[Process, ...] | None:
        """The current processes, None if the device does not list them. Raises NVML's errors other than "not supported"."""
        memory: dict[int, int | None] = {}
        for ask in list(self._lists):
            try:
                for process in ask(self._handle):
                    memory[process.pid] = max(memory.get(process.pid) or 0, process.usedGpuMemory or 0) or process.usedGpuMemory
            except NvmlError as error:
                if not is_unsupported(error):
                    raise
                self._lists.remove(ask)
        if not self._lists:
            return None
        shares = self._used() if self._shares and memory else None
        return tuple(Process(self._key, pid, used, None if shares is None else shares.get(pid, 0.0)) for pid, used in memory.items())

    def _used(self) -> dict[int, float] | None:
        """Percent of the SMs by pid, over the samples since the last call; None if the device does not report it."""
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(self._handle, self._newest_sample)
        except NvmlError as error:
            if is_unsupported(error):
                self._shares = False
                return None
            # No process used the GPU since then; pynvml itself raises "success" if the list is empty.
            if code(error) in {nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_SUCCESS}:
                return {}
            raise
        utilization = defaultdict(list)
        for sample in samples:
            # Drivers leave garbage in samples of processes that ended: times in the past, utilization above 100 %.
            if sample.timeStamp > self._newest_sample and sample.smUtil <= 100:
                utilization[sample.pid].append(sample.smUtil)
        self._newest_sample = max([self._newest_sample, *(sample.timeStamp for sample in samples)])
        return {pid: sum(used) / len(used) for pid, used in utilization.items()}
