"""Which processes are on a device, and how much each uses where the driver tells."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from gpuscaler.exporter.backends.nvml.library import Handle, NvmlError, code, is_unsupported, nvml
from gpuscaler.exporter.parts import Process

#: Compute, graphics, and clients of the MPS server, which are not among the compute processes. One may be in several lists.
_LISTS: tuple[Callable[[Handle], Sequence[Any]], ...] = (
    nvml.nvmlDeviceGetComputeRunningProcesses_v3,
    nvml.nvmlDeviceGetGraphicsRunningProcesses_v3,
    nvml.nvmlDeviceGetMPSComputeRunningProcesses_v3,
)


class Processes:
    """The processes of one device. ``shares`` False leaves out how much of the SMs each uses: of a MIG device that is not told."""

    def __init__(self, key: str, handle: Handle, *, shares: bool) -> None:
        self._key, self._handle = key, handle
        self._lists = list(_LISTS)
        self._shares = shares
        #: Microseconds of the driver's clock: the newest sample of use that was seen.
        self._seen = 0

    def ask(self) -> tuple[Process, ...] | None:
        """Those of now, None where the device does not tell; raises NVML's errors that are about something else."""
        memory: dict[int, int | None] = {}
        for ask in list(self._lists):
            try:
                for one in ask(self._handle):
                    memory[one.pid] = max(memory.get(one.pid) or 0, one.usedGpuMemory or 0) or one.usedGpuMemory
            except NvmlError as error:
                if not is_unsupported(error):
                    raise
                self._lists.remove(ask)
        if not self._lists:
            return None
        shares = self._used() if self._shares and memory else None
        return tuple(Process(self._key, pid, used, None if shares is None else shares.get(pid, 0.0)) for pid, used in memory.items())

    def _used(self) -> dict[int, float] | None:
        """Percent of the SMs by pid, over the samples since the last asking; None where the device does not tell."""
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(self._handle, self._seen)
        except NvmlError as error:
            if is_unsupported(error):
                self._shares = False
                return None
            # Nobody used it since; pynvml raises success itself where the list is empty.
            if code(error) in {nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_SUCCESS}:
                return {}
            raise
        found = defaultdict(list)
        for sample in samples:
            # Drivers leave rubbish in samples of processes that ended: times of the past, use beyond all there is.
            if sample.timeStamp > self._seen and sample.smUtil <= 100:
                found[sample.pid].append(sample.smUtil)
        self._seen = max([self._seen, *(sample.timeStamp for sample in samples)])
        return {pid: sum(used) / len(used) for pid, used in found.items()}
