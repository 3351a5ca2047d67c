"""Probes: each makes one call to NVML and returns the fields that its answer fills.

NVML has percentages, MHz, mW, mJ and KiB; fields have ratios, hertz, watts, joules and bytes, except for the six names that this
project adopted with their units.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import NamedTuple

from gpuscaler.exporter.backends.nvml.library import Handle, nvml
from gpuscaler.exporter.xids import RECOVERY_ACTIONS, UNKNOWN, recovery_name

Values = Mapping[str, float]

_MHZ = 1e6
_KIB = 1024
#: Stands for all links of a GPU together, where a call takes the number of a link.
_ALL_LINKS = 0xFFFFFFFF
#: Reasons for reduced clocks, with NVML's bits.
_LIMITS: Mapping[str, int] = {
    "idle": 0x1,
    "applications_clocks": 0x2,
    "power_cap": 0x4,
    "hardware_slowdown": 0x8,
    "sync_boost": 0x10,
    "software_thermal": 0x20,
    "hardware_thermal": 0x40,
    "power_brake": 0x80,
    "display_clocks": 0x100,
}


class Probe(NamedTuple):
    """One call to NVML. ``ask`` raises NVML's errors. If a device does not support it, ``otherwise`` replaces it from then on.

    A ``slow`` probe runs only every few seconds: its figures seldom change, or the call takes long.
    """

    ask: Callable[[Handle], Values]
    otherwise: "Probe | None" = None
    slow: bool = False


def utilization(handle: Handle) -> Values:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"duty_cycle": rates.gpu, "memory_busy_ratio": rates.memory / 100}


def memory(handle: Handle) -> Values:
    """Memory, with the driver's own reserved memory listed separately, as ``nvidia-smi`` shows it."""
    info = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return {"memory_used_bytes": info.used, "memory_total_bytes": info.total, "memory_reserved_bytes": info.reserved}


def memory_before_v2(handle: Handle) -> Values:
    """Memory with drivers before 510: the driver's own reserved memory counts as used."""
    info = nvml.nvmlDeviceGetMemoryInfo(handle)
    return {"memory_used_bytes": info.used, "memory_total_bytes": info.total}


def power(handle: Handle) -> Values:
    return {"power_usage_milliwatts": nvml.nvmlDeviceGetPowerUsage(handle)}


def power_limit(handle: Handle) -> Values:
    return {"power_limit_watts": nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000}


def energy(handle: Handle) -> Values:
    return {"energy_joules": nvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1000}


def temperature(handle: Handle) -> Values:
    return {"temperature_celsius": nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)}


def temperature_by_version(handle: Handle) -> Values:
    return {"temperature_celsius": nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU)}


def fan(handle: Handle) -> Values:
    return {"fanspeed_percent": nvml.nvmlDeviceGetFanSpeed(handle)}


def encoder(handle: Handle) -> Values:
    return {"encoder_busy_ratio": nvml.nvmlDeviceGetEncoderUtilization(handle)[0] / 100}


def decoder(handle: Handle) -> Values:
    return {"decoder_busy_ratio": nvml.nvmlDeviceGetDecoderUtilization(handle)[0] / 100}


def sm_clock(handle: Handle) -> Values:
    return {"sm_clock_hertz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * _MHZ}


def memory_clock(handle: Handle) -> Values:
    return {"memory_clock_hertz": nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM) * _MHZ}


def limits(handle: Handle) -> Values:
    return _limits(nvml.nvmlDeviceGetCurrentClocksEventReasons(handle))


def limits_before_r535(handle: Handle) -> Values:
    return _limits(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


def _limits(bits: int) -> Values:
    return {f"clock_limited:{name}": float(bits & bit != 0) for name, bit in _LIMITS.items()}


Fields = Mapping[int | tuple[int, int], tuple[str, float]]

#: NVML field numbers that are read in one call, each with its field and the factor from NVML's unit to the field's unit.
_BATCH: Fields = {
    nvml.NVML_FI_DEV_MEMORY_TEMP: ("memory_temperature_celsius", 1),
    (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS): ("nvlink_sent_bytes", _KIB),
    (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, _ALL_LINKS): ("nvlink_received_bytes", _KIB),
    nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES: ("pcie_sent_bytes", 1),
    nvml.NVML_FI_DEV_PCIE_COUNT_RX_BYTES: ("pcie_received_bytes", 1),
}
#: The same for GPUs before Ampere, which retire pages where later GPUs have spare rows.
_RETIRED: Fields = {
    nvml.NVML_FI_DEV_RETIRED_SBE: ("retired_pages:corrected", 1),
    nvml.NVML_FI_DEV_RETIRED_DBE: ("retired_pages:uncorrected", 1),
    nvml.NVML_FI_DEV_RETIRED_PENDING: ("page_retirement_pending", 1),
}
#: The member of NVML's union that holds a value, by value type.
_MEMBERS: Mapping[int, str] = {
    nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
    nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
    nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
    nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
    nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
    nvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
    nvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
}


def read_fields(handle: Handle, *, fields: Fields) -> Values:
    """Read several fields in one call; each answer has its own status, so unsupported fields are left out."""
    answers = nvml.nvmlDeviceGetFieldValues(handle, list(fields))
    values = {}
    for answer, (name, scale) in zip(answers, fields.values(), strict=True):
        member = _MEMBERS.get(answer.valueType)
        if answer.nvmlReturn == nvml.NVML_SUCCESS and member:
            values[name] = getattr(answer.value, member) * scale
    return values


def recovery_action(handle: Handle) -> Values:
    """The recovery action that the driver asks for: 1 for that action and 0 for all others; empty if the driver reports none."""
    (answer,) = nvml.nvmlDeviceGetFieldValues(handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    member = _MEMBERS.get(answer.valueType)
    if answer.nvmlReturn != nvml.NVML_SUCCESS or member is None:
        return {}
    required = recovery_name(int(getattr(answer.value, member)))
    return {f"recovery_action:{name}": float(name == required) for name in (*RECOVERY_ACTIONS, UNKNOWN)}


def pcie_replays(handle: Handle) -> Values:
    return {"pcie_replays": nvml.nvmlDeviceGetPcieReplayCounter(handle)}


def pcie_link(handle: Handle) -> Values:
    return {
        "pcie_generation": nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle),
        "pcie_lanes": nvml.nvmlDeviceGetCurrPcieLinkWidth(handle),
    }


def ecc(handle: Handle, *, kind: str, scope: str) -> Values:
    error = {"corrected": nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, "uncorrected": nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED}[kind]
    counter = {"volatile": nvml.NVML_VOLATILE_ECC, "aggregate": nvml.NVML_AGGREGATE_ECC}[scope]
    return {f"ecc_errors:{kind}:{scope}": nvml.nvmlDeviceGetTotalEccErrors(handle, error, counter)}


def remapped_rows(handle: Handle) -> Values:
    corrected, uncorrected, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    return {
        "remapped_rows:corrected": corrected,
        "remapped_rows:uncorrected": uncorrected,
        "row_remap_pending": float(bool(pending)),
        "row_remap_failed": float(bool(failed)),
    }


#: Probes of a whole GPU. PCIe throughput of old drivers (``nvmlDeviceGetPcieThroughput``) is left out: each call measures for 20 ms.
GPU: tuple[Probe, ...] = (
    Probe(utilization),
    Probe(memory, Probe(memory_before_v2)),
    Probe(power),
    Probe(energy),
    Probe(temperature, Probe(temperature_by_version)),
    Probe(encoder),
    Probe(decoder),
    Probe(sm_clock),
    Probe(memory_clock),
    Probe(limits, Probe(limits_before_r535)),
    Probe(partial(read_fields, fields=_BATCH)),
    Probe(fan, slow=True),
    Probe(power_limit, slow=True),
    Probe(pcie_replays, slow=True),
    Probe(pcie_link, slow=True),
    *(
        Probe(partial(ecc, kind=kind, scope=scope), slow=True)
        for kind in ("corrected", "uncorrected")
        for scope in ("volatile", "aggregate")
    ),
    Probe(remapped_rows, slow=True),
    Probe(partial(read_fields, fields=_RETIRED), slow=True),
    Probe(recovery_action, slow=True),
)
#: Probes of a MIG device. NVML reports power, temperature and clocks only for the whole GPU.
MIG: tuple[Probe, ...] = (Probe(memory, Probe(memory_before_v2)),)
