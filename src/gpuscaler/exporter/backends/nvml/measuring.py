"""Measures one device repeatedly; a call that the device does not support is made only once."""

from contextlib import suppress

from gpuscaler.exporter.backends import Reading
from gpuscaler.exporter.backends.nvml import gpm
from gpuscaler.exporter.backends.nvml.library import Handle, NvmlError, is_unsupported, nvml, raise_if_general, tolerated
from gpuscaler.exporter.backends.nvml.probes import GPU, MIG, Probe
from gpuscaler.exporter.backends.nvml.processes import DeviceProcesses
from gpuscaler.exporter.parts import Process

#: Slow probes run in one of this many rounds.
SLOW_ROUNDS = 10


class DeviceReader:
    """A GPU, ``divided`` by MIG or not, or a MIG device of ``parent`` in ``gpu_instance``."""

    def __init__(self, key: str, handle: Handle, *, divided: bool = False, parent: Handle | None = None, gpu_instance: int = 0) -> None:
        self.divided = divided
        self._key, self._handle, self._whole = key, handle, parent is None
        self._probes = list(GPU if parent is None else MIG)
        self._processes = DeviceProcesses(key, handle, shares=parent is None)
        self._gpm: gpm.Gpm | None = None
        self._fine_since = 0 if self._whole else None
        self._slow: dict[str, float] = {}
        self._rounds = 0
        with suppress(NvmlError):
            if gpm.is_supported(handle if parent is None else parent):
                self._gpm = gpm.Gpm(handle) if parent is None else gpm.Gpm(parent, gpu_instance)

    def read(self, at: float) -> Reading:
        """Take a reading. Raises NVML's errors only if they concern the whole GPU, the driver or the library."""
        values: dict[str, float] = {}
        slow_round = self._rounds % SLOW_ROUNDS == 0
        self._rounds += 1
        for probe in tuple(self._probes):
            if not probe.slow or slow_round:
                self._ask(probe, self._slow if probe.slow else values)
        values.update(self._slow)
        values.update(self._counters())
        if not self._whole and "graphics_active_ratio" in values:
            # NVML has no duty cycle for a MIG device; this is the same share of time, for the instance.
            values["duty_cycle"] = values["graphics_active_ratio"] * 100
        processes: tuple[Process, ...] | None = None
        with tolerated():
            # The processes of a divided GPU are listed for its MIG devices.
            processes = () if self.divided else self._processes.ask()
        return Reading(self._key, at, values, processes, self._peaks())

    def _ask(self, probe: Probe, into: dict[str, float]) -> None:
        try:
            into.update(probe.ask(self._handle))
        except NvmlError as error:
            raise_if_general(error)
            if not is_unsupported(error):
                return
            self._probes.remove(probe)
            if probe.otherwise is not None:
                self._probes.append(probe.otherwise)
                self._ask(probe.otherwise, into)

    def _counters(self) -> dict[str, float]:
        if self._gpm is None:
            return {}
        try:
            return dict(self._gpm.ask())
        except NvmlError as error:
            raise_if_general(error)
            if is_unsupported(error):
                self.close()
            return {}

    def _peaks(self) -> dict[str, float]:
        """Peaks since the previous reading: the driver samples the duty cycle more often than once a second, so bursts are visible."""
        if self._fine_since is None:
            return {}
        try:
            _, samples = nvml.nvmlDeviceGetSamples(self._handle, nvml.NVML_GPU_UTILIZATION_SAMPLES, self._fine_since)
        except NvmlError as error:
            raise_if_general(error)
            if is_unsupported(error):
                self._fine_since = None
            return {}
        fresh = [sample for sample in samples if sample.timeStamp > self._fine_since and sample.sampleValue.uiVal <= 100]
        if not fresh:
            return {}
        # The first answer has all samples that the driver kept, also from before this process started.
        first, self._fine_since = self._fine_since == 0, max(sample.timeStamp for sample in fresh)
        return {} if first else {"duty_cycle": max(sample.sampleValue.uiVal for sample in fresh)}

    def close(self) -> None:
        if self._gpm is not None:
            with suppress(NvmlError):
                self._gpm.close()
            self._gpm = None
