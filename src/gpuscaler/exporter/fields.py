"""The fields that are measured: each one's metric, its meaning, the NVML call it comes from and when it is absent.

A backend reports values by the keys of :data:`FIELDS`, in the unit of the metric's name. The first six metrics have the names and meanings
of the exporter in Alibaba Cloud's write-up on HPA with GPU metrics (2018), which dashboards and HPA rules still use. The others follow
Prometheus' conventions.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Field(NamedTuple):
    """One measured field. ``labels`` are those in addition to the device's and the pod's; a counter's metric ends in ``_total``.

    A field with a ``windowed`` name is also served as maximum and mean over trailing windows, under that name and in Prometheus' base
    unit; ``scale`` is the factor from the field's unit to that unit.
    """

    metric: str
    help: str
    call: str
    absent: str = ""
    labels: tuple[str, ...] = ()
    kind: str = "gauge"
    windowed: str = ""
    scale: float = 1


_PASSIVE = "on boards without a fan of their own"
_GPM = "nvmlGpmMetricsGet"
_HOPPER = "before Hopper"
_AMPERE = "from Ampere on"
_ECC = "where ECC is off or not there"

#: Fields by their keys, in the order of the page.
FIELDS: Mapping[str, Field] = {
    "duty_cycle": Field(
        "nvidia_gpu_duty_cycle",
        "Share of the driver's last sample (1/6 to 1 s) in which a kernel ran, in percent",
        "nvmlDeviceGetUtilizationRates; of a MIG device nvmlGpmMetricsGet",
        "on a GPU divided by MIG, and on its MIG devices before Hopper",
        windowed="gpuscaler_gpu_duty_cycle_ratio",
        scale=0.01,
    ),
    "memory_used_bytes": Field(
        "nvidia_gpu_memory_used_bytes", "Memory in use", "nvmlDeviceGetMemoryInfo", windowed="gpuscaler_gpu_memory_used_bytes"
    ),
    "memory_total_bytes": Field("nvidia_gpu_memory_total_bytes", "Total memory", "nvmlDeviceGetMemoryInfo"),
    "power_usage_milliwatts": Field(
        "nvidia_gpu_power_usage_milliwatts",
        "Power drawn by the board",
        "nvmlDeviceGetPowerUsage",
        "on MIG devices",
        windowed="gpuscaler_gpu_power_watts",
        scale=0.001,
    ),
    "temperature_celsius": Field("nvidia_gpu_temperature_celsius", "Temperature of the GPU", "nvmlDeviceGetTemperature", "on MIG devices"),
    "fanspeed_percent": Field(
        "nvidia_gpu_fanspeed_percent", "Speed of the fan, in percent of its maximum", "nvmlDeviceGetFanSpeed", _PASSIVE
    ),
    "memory_reserved_bytes": Field(
        "gpuscaler_gpu_memory_reserved_bytes", "Memory that the driver keeps for itself", "nvmlDeviceGetMemoryInfo_v2", "before driver 510"
    ),
    "memory_busy_ratio": Field(
        "gpuscaler_gpu_memory_busy_ratio",
        "Share of the driver's last sample in which memory was read or written",
        "nvmlDeviceGetUtilizationRates",
        "with MIG",
        windowed="gpuscaler_gpu_memory_busy_ratio",
    ),
    "encoder_busy_ratio": Field(
        "gpuscaler_gpu_encoder_busy_ratio", "Use of the video encoder", "nvmlDeviceGetEncoderUtilization", "with MIG, without encoder"
    ),
    "decoder_busy_ratio": Field(
        "gpuscaler_gpu_decoder_busy_ratio", "Use of the video decoder", "nvmlDeviceGetDecoderUtilization", "with MIG, without decoder"
    ),
    "sm_clock_hertz": Field("gpuscaler_gpu_sm_clock_hertz", "Clock of the SMs", "nvmlDeviceGetClockInfo"),
    "memory_clock_hertz": Field("gpuscaler_gpu_memory_clock_hertz", "Clock of the memory", "nvmlDeviceGetClockInfo"),
    "memory_temperature_celsius": Field(
        "gpuscaler_gpu_memory_temperature_celsius", "Temperature of the memory", "nvmlDeviceGetFieldValues", "without HBM"
    ),
    "power_limit_watts": Field("gpuscaler_gpu_power_limit_watts", "Power limit in force", "nvmlDeviceGetEnforcedPowerLimit"),
    "energy_joules": Field(
        "gpuscaler_gpu_energy_joules_total",
        "Energy used since the driver was loaded",
        "nvmlDeviceGetTotalEnergyConsumption",
        "before Volta",
        kind="counter",
    ),
    "clock_limited": Field(
        "gpuscaler_gpu_clock_limited",
        "1 while this reason keeps the clocks lower than they could be",
        "nvmlDeviceGetCurrentClocksEventReasons",
        labels=("reason",),
    ),
    "graphics_active_ratio": Field(
        "gpuscaler_gpu_graphics_active_ratio", "Share of time in which compute or graphics was active", _GPM, _HOPPER
    ),
    "sm_active_ratio": Field(
        "gpuscaler_gpu_sm_active_ratio", "Share of the SMs that were busy", _GPM, _HOPPER, windowed="gpuscaler_gpu_sm_active_ratio"
    ),
    "sm_occupancy_ratio": Field("gpuscaler_gpu_sm_occupancy_ratio", "Active warps, as a share of the maximum", _GPM, _HOPPER),
    "pipe_active_ratio": Field(
        "gpuscaler_gpu_pipe_active_ratio", "Share of time in which the SMs used this pipe", _GPM, _HOPPER, labels=("pipe",)
    ),
    "memory_bandwidth_ratio": Field(
        "gpuscaler_gpu_memory_bandwidth_ratio",
        "Used share of the memory bandwidth",
        _GPM,
        _HOPPER,
        windowed="gpuscaler_gpu_memory_bandwidth_ratio",
    ),
    "pcie_sent_bytes": Field(
        "gpuscaler_gpu_pcie_sent_bytes_total",
        "Bytes sent over PCIe",
        "nvmlDeviceGetFieldValues",
        "where the driver does not count",
        kind="counter",
    ),
    "pcie_received_bytes": Field(
        "gpuscaler_gpu_pcie_received_bytes_total",
        "Bytes received over PCIe",
        "nvmlDeviceGetFieldValues",
        "where the driver does not count",
        kind="counter",
    ),
    "pcie_sent_bytes_per_second": Field(
        "gpuscaler_gpu_pcie_sent_bytes_per_second", "Rate at which bytes are sent over PCIe", _GPM, _HOPPER
    ),
    "pcie_received_bytes_per_second": Field(
        "gpuscaler_gpu_pcie_received_bytes_per_second", "Rate at which bytes are received over PCIe", _GPM, _HOPPER
    ),
    "pcie_replays": Field(
        "gpuscaler_gpu_pcie_replays_total",
        "PCIe packets that were sent again",
        "nvmlDeviceGetPcieReplayCounter",
        "in most virtual machines",
        kind="counter",
    ),
    "pcie_generation": Field("gpuscaler_gpu_pcie_generation", "PCIe generation in use", "nvmlDeviceGetCurrPcieLinkGeneration"),
    "pcie_lanes": Field("gpuscaler_gpu_pcie_lanes", "PCIe lanes in use", "nvmlDeviceGetCurrPcieLinkWidth"),
    "nvlink_sent_bytes": Field(
        "gpuscaler_gpu_nvlink_sent_bytes_total", "Bytes sent over all NVLinks", "nvmlDeviceGetFieldValues", "without NVLink", kind="counter"
    ),
    "nvlink_received_bytes": Field(
        "gpuscaler_gpu_nvlink_received_bytes_total",
        "Bytes received over all NVLinks",
        "nvmlDeviceGetFieldValues",
        "without NVLink",
        kind="counter",
    ),
    "nvlink_sent_bytes_per_second": Field(
        "gpuscaler_gpu_nvlink_sent_bytes_per_second", "Rate at which bytes are sent over all NVLinks", _GPM, _HOPPER
    ),
    "nvlink_received_bytes_per_second": Field(
        "gpuscaler_gpu_nvlink_received_bytes_per_second", "Rate at which bytes are received over all NVLinks", _GPM, _HOPPER
    ),
    "ecc_errors": Field(
        "gpuscaler_gpu_ecc_errors_total",
        "Memory errors; volatile: since the driver was loaded, aggregate: over the life of the board",
        "nvmlDeviceGetTotalEccErrors",
        _ECC,
        labels=("kind", "scope"),
        kind="counter",
    ),
    "remapped_rows": Field(
        "gpuscaler_gpu_remapped_rows",
        "Rows of memory replaced by spare ones",
        "nvmlDeviceGetRemappedRows",
        "before Ampere",
        labels=("kind",),
    ),
    "row_remap_pending": Field(
        "gpuscaler_gpu_row_remap_pending", "1 if a row will be replaced at the next reset", "nvmlDeviceGetRemappedRows", "before Ampere"
    ),
    "row_remap_failed": Field(
        "gpuscaler_gpu_row_remap_failed", "1 if no spare row was left: replace the board", "nvmlDeviceGetRemappedRows", "before Ampere"
    ),
    "retired_pages": Field(
        "gpuscaler_gpu_retired_pages",
        "Pages of memory that are no longer used because of errors in them",
        "nvmlDeviceGetFieldValues",
        _AMPERE,
        labels=("kind",),
    ),
    "page_retirement_pending": Field(
        "gpuscaler_gpu_page_retirement_pending",
        "1 if a page will be retired the next time the driver is loaded",
        "nvmlDeviceGetFieldValues",
        _AMPERE,
    ),
    "recovery_action": Field(
        "gpuscaler_gpu_recovery_action",
        "1 for the action that the driver asks for before the GPU can be used again",
        "nvmlDeviceGetFieldValues",
        "on MIG devices, and where the driver does not say",
        labels=("action",),
    ),
    "lost": Field("gpuscaler_gpu_lost", "1 if the GPU fell off the bus", "any", "on MIG devices"),
}
#: Trailing windows, in seconds.
WINDOWS = (15, 60)
