"""Machine sizes as Resource SKUs describe them, from our catalogue: families, capabilities, prices."""

import re
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

from gpuscaler.catalogue import InstanceType, types
from gpuscaler.catalogue.nearby import nearest_price

#: Quota families whose names do not follow from the size's name, as Resource SKUs and usages spell them.
_FAMILIES: Final = {
    "NCas_T4_v3": "Standard NCASv3_T4 Family",
    "NCads_A100_v4": "StandardNCADSA100v4Family",
    "NCads_H100_v5": "StandardNCadsH100v5Family",
    "NCadis_H100_v5": "StandardNCadsH100v5Family",
    "NCCads_H100_v5": "StandardNCCads2023Family",
    "NDamsr_A100_v4": "StandardNDAMSv4_A100Family",
    "NDasr_v4": "standardNDASv4_A100Family",
    "NDisr_H100_v5": "standardNDSH100v5Family",
    "NDisr_H200_v5": "standardNDISRH200V5Family",
    "NDrs_v2": "standardNDSv2Family",
    "NCrs_v3": "standardNCSv3Family",
    "NVads_A10_v5": "StandardNVADSA10v5Family",
    "NVadms_A10_v5": "StandardNVADSA10v5Family",
}
#: The share of the on-demand price that spot machines cost whose price is unknown: an assumption.
_SPOT_SHARE: Final = 0.4
_NAME: Final = re.compile(r"Standard_(?P<series>[A-Z]+)(?P<vcpu>[0-9]+)(?:-[0-9]+)?(?P<features>[a-z]*)(?P<rest>(?:_[A-Za-z0-9]+)*)")


@cache
def sizes() -> Mapping[str, InstanceType]:
    """All sizes, by name in lower case: Azure compares names of sizes without case."""
    return {size.name.lower(): size for size in types("azure")}


def size_of(name: str) -> InstanceType | None:
    """The size of that name, in any case."""
    return sizes().get(name.lower())


@cache
def family(name: str) -> str:
    """The quota family of a size, such as ``standardDSv5Family``."""
    match = _NAME.fullmatch(name)
    if match is None:
        return "standardOtherFamily"
    series = f"{match['series']}{match['features']}{match['rest']}"
    return _FAMILIES.get(series, f"standard{match['series']}{match['features'].upper()}{match['rest'].replace('_', '')}Family")


def price(size: InstanceType, location: str, market: str) -> float:
    """US dollars per hour; in locations without prices those of the nearest one."""
    nearby = nearest_price(size.name, location)
    if nearby is None:
        return 1.0
    if market == "spot":
        return nearby.price.spot or round(nearby.price.on_demand * _SPOT_SHARE, 6)
    return nearby.price.on_demand


@cache
def capabilities(name: str) -> tuple[dict[str, str], ...]:
    """``capabilities`` of the Resource SKU of a size, as far as our catalogue has the data; all values are text."""
    size = sizes()[name.lower()]
    values: dict[str, Any] = {
        "MaxResourceVolumeMB": "0",
        "OSVhdSizeMB": "1047552",
        "vCPUs": size.vcpu,
        "MemoryPreservingMaintenanceSupported": not size.gpus,
        "HyperVGenerations": "V1,V2",
        "CpuArchitectureType": "Arm64" if size.arch == "arm64" else "x64",
        "MemoryGB": f"{size.memory_mib / 1024:g}",
        "MaxDataDiskCount": min(64, size.vcpu * 2),
        "LowPriorityCapable": True,
        "PremiumIO": "s" in size.name.rpartition("_")[0].lower() or "s_" in size.name,
        "vCPUsAvailable": size.vcpu,
        "vCPUsPerCore": 2,
        "EphemeralOSDiskSupported": True,
        "EncryptionAtHostSupported": True,
        "AcceleratedNetworkingEnabled": True,
        "RdmaEnabled": "r_" in size.name,
        "MaxNetworkInterfaces": 4,
    }
    if size.gpus:
        values["GPUs"] = size.gpus
    return tuple({"name": key, "value": str(value)} for key, value in values.items())
