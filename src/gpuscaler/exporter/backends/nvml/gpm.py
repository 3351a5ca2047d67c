"""GPU performance monitoring: counters of Hopper and later GPUs and of their MIG devices, without a profiler.

A figure covers the time between two samples of the driver, so the first call returns none.
"""

import math
from collections.abc import Mapping

from gpuscaler.exporter.backends.nvml.library import Handle, nvml
from gpuscaler.exporter.backends.nvml.probes import Values

_PERCENT = 0.01
_MIB = 1024.0 * 1024.0
#: NVML's metric numbers, each with the field that it fills and the factor from NVML's unit to the field's unit.
_METRICS: Mapping[int, tuple[str, float]] = {
    nvml.NVML_GPM_METRIC_GRAPHICS_UTIL: ("graphics_active_ratio", _PERCENT),
    nvml.NVML_GPM_METRIC_SM_UTIL: ("sm_active_ratio", _PERCENT),
    nvml.NVML_GPM_METRIC_SM_OCCUPANCY: ("sm_occupancy_ratio", _PERCENT),
    nvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL: ("pipe_active_ratio:tensor", _PERCENT),
    nvml.NVML_GPM_METRIC_FP64_UTIL: ("pipe_active_ratio:fp64", _PERCENT),
    nvml.NVML_GPM_METRIC_FP32_UTIL: ("pipe_active_ratio:fp32", _PERCENT),
    nvml.NVML_GPM_METRIC_FP16_UTIL: ("pipe_active_ratio:fp16", _PERCENT),
    nvml.NVML_GPM_METRIC_DRAM_BW_UTIL: ("memory_bandwidth_ratio", _PERCENT),
    nvml.NVML_GPM_METRIC_PCIE_TX_PER_SEC: ("pcie_sent_bytes_per_second", _MIB),
    nvml.NVML_GPM_METRIC_PCIE_RX_PER_SEC: ("pcie_received_bytes_per_second", _MIB),
    nvml.NVML_GPM_METRIC_NVLINK_TOTAL_TX_PER_SEC: ("nvlink_sent_bytes_per_second", _MIB),
    nvml.NVML_GPM_METRIC_NVLINK_TOTAL_RX_PER_SEC: ("nvlink_received_bytes_per_second", _MIB),
}


def is_supported(gpu: Handle) -> bool:
    """Whether the GPU has these counters; may raise NVML's errors, as may everything below."""
    return bool(nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice)


class Gpm:
    """The counters of a GPU, or of one of its GPU instances. Must be closed: the driver library owns the memory of the samples."""

    def __init__(self, gpu: Handle, gpu_instance: int | None = None) -> None:
        self._gpu, self._gpu_instance = gpu, gpu_instance
        self._new, self._old = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
        self._sampled = False
        self._question = nvml.c_nvmlGpmMetricsGet_t()
        self._question.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._question.numMetrics = len(_METRICS)
        for place, number in enumerate(_METRICS):
            self._question.metrics[place].metricId = number

    def ask(self) -> Values:
        """The values since the last call."""
        self._new, self._old = self._old, self._new
        if self._gpu_instance is None:
            nvml.nvmlGpmSampleGet(self._gpu, self._new)
        else:
            nvml.nvmlGpmMigSampleGet(self._gpu, self._gpu_instance, self._new)
        before, self._sampled = self._sampled, True
        if not before:
            return {}
        self._question.sample1, self._question.sample2 = self._old, self._new
        nvml.nvmlGpmMetricsGet(self._question)
        values = {}
        for (name, scale), answer in zip(_METRICS.values(), self._question.metrics, strict=False):
            if answer.nvmlReturn == nvml.NVML_SUCCESS and math.isfinite(answer.value):
                values[name] = answer.value * scale
        return values

    def close(self) -> None:
        nvml.nvmlGpmSampleFree(self._new)
        nvml.nvmlGpmSampleFree(self._old)
