"""Sizes of virtual machines in a location, from the Resource SKUs API: GPUs, memory, zones, and where they may not be used."""

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Final

from msgspec import Struct

from gpuscaler import catalogue
from gpuscaler.catalogue import InstanceType, aks
from gpuscaler.clouds.azure.documents.resources import is_word
from gpuscaler.clouds.azure.documents.wire import ReadingError, decoded
from gpuscaler.model.azure_names import fold_id
from gpuscaler.model.quantities import shorten_value

_ARCHITECTURES: Final = {"x64": "amd64", "arm64": "arm64"}
#: Models of AMD's GPUs in the names of sizes: the API counts GPUs, but does not say whose they are.
_AMD: Final = re.compile(r"MI\d+X?|V710|V620|^Standard_NV\d+as_v4$", re.IGNORECASE)
#: The model of the GPU in the name of a size: Standard_NC24ads_A100_v4.
_MODEL: Final = re.compile(r"_(?P<model>[A-Z]+\d+[A-Z]*)_(?:v\d+|xl)", re.IGNORECASE)


class Sku(Struct, frozen=True):
    """A size of virtual machines in one location.

    ``family`` is the name of its quota in the usages. ``zones`` are the zones that offer it, numbers as text, empty if the location has
    none. ``restricted`` are zones in which this subscription may not use it; ``restricted_everywhere`` covers machines without a zone,
    too; ``reason`` is Azure's code for the restriction. ``spot`` says whether spot machines exist; ``reservable`` whether capacity can be
    reserved. ``product`` is the GPU model as nodes label it, empty if unknown.
    """

    name: str
    family: str
    vcpus: int
    memory_mib: int
    gpus: int = 0
    zones: tuple[str, ...] = ()
    restricted: frozenset[str] = frozenset()
    restricted_everywhere: bool = False
    reason: str = ""
    arch: str = "amd64"
    spot: bool = True
    reservable: bool = False
    manufacturer: str = ""
    product: str = ""

    @property
    def gpu_resource(self) -> str:
        """The resource name of its GPUs, empty without GPUs."""
        return f"{self.manufacturer}.com/gpu" if self.gpus else ""

    def instance_type(self) -> InstanceType:
        """The size as the catalogue lists sizes, without prices."""
        allocatable = {**aks.allocatable(self.vcpus, self.memory_mib), **({self.gpu_resource: self.gpus} if self.gpus else {})}
        return InstanceType(
            name=self.name,
            cloud="azure",
            arch=self.arch,
            vcpu=self.vcpus,
            memory_mib=self.memory_mib,
            gpus=self.gpus,
            gpu_product=self.product,
            gpu_karpenter_name="",
            gpu_manufacturer=self.manufacturer,
            gpu_memory_mib=0,
            gpu_visible_memory_mib=0,
            efa=0,
            allocatable=allocatable,
            prices={},
            zone_ids={},
            source="Resource SKUs",
            allocatable_source="aks-rule",
        )

    def is_restricted_in(self, zone: str) -> bool:
        """Whether this subscription may not use it in ``zone``, a number as text, or without a zone if that is empty."""
        return self.restricted_everywhere or zone in self.restricted


class _Capability(Struct):
    name: str | None = None
    value: str | None = None


class _LocationInfo(Struct):
    location: str | None = None
    zones: list[str] | None = None


class _RestrictionInfo(Struct):
    locations: list[str] | None = None
    zones: list[str] | None = None


class _Restriction(Struct, rename="camel"):
    type: str | None = None
    values: list[str] | None = None
    reason_code: str | None = None
    restriction_info: _RestrictionInfo | None = None


class _Document(Struct, rename="camel"):
    resource_type: str | None = None
    name: str | None = None
    family: str | None = None
    capabilities: list[_Capability] | None = None
    locations: list[str] | None = None
    location_info: list[_LocationInfo] | None = None
    restrictions: list[_Restriction] | None = None


def skus_of(documents: Iterable[object], location: str, wanted: Iterable[str]) -> tuple[dict[str, Sku], dict[str, str]]:
    """(sizes by folded name, reasons why a size cannot be read) of the ``wanted`` names in ``location``; all others are left out."""
    names = {fold_id(name) for name in wanted}
    skus: dict[str, Sku] = {}
    unreadable: dict[str, str] = {}
    for document in documents:
        name = document.get("name") if isinstance(document, Mapping) else None
        if not isinstance(name, str) or fold_id(name) not in names:
            continue
        try:
            sku = sku_of(document, location)
        except ReadingError as error:
            unreadable[fold_id(name)] = str(error)
            continue
        if sku is not None:
            skus[fold_id(name)] = sku
    return skus, unreadable


def sku_of(document: object, location: str) -> Sku | None:
    """A size in ``location``; None for other resources, such as disks, and other locations. Raises ReadingError."""
    wire = decoded(document, _Document)
    if not is_word(wire.resource_type, "virtualMachines") or not wire.name:
        return None
    infos = [info for info in wire.location_info or () if is_word(info.location, location)]
    if not infos and not any(is_word(name, location) for name in wire.locations or ()):
        return None
    capabilities = {fold_id(entry.name): entry.value for entry in wire.capabilities or () if entry.name and entry.value is not None}
    arch = _ARCHITECTURES.get(fold_id(capabilities.get("cpuarchitecturetype", "x64")), "")
    if not arch:
        raise ReadingError(f"saw CpuArchitectureType {shorten_value(capabilities['cpuarchitecturetype'])}, expected x64 or Arm64")
    vcpus, memory = _number(capabilities, "vCPUs"), _number(capabilities, "MemoryGB")
    if vcpus < 1 or memory <= 0:
        raise ReadingError(f"saw {vcpus:g} vCPUs and {memory:g} GiB, expected at least one vCPU and some memory")
    gpus = _number(capabilities, "GPUs", 0.0)
    # A size with a part of a GPU shows it to the driver as one device.
    count = max(int(gpus), 1) if gpus > 0 else 0
    restricted, everywhere, reason = _restrictions(wire.restrictions or (), location)
    manufacturer, product = _device(wire.name) if count else ("", "")
    return Sku(
        name=wire.name,
        family=wire.family or "",
        vcpus=int(vcpus),
        memory_mib=int(memory * 1024),
        gpus=count,
        zones=tuple(sorted({zone for info in infos for zone in info.zones or ()})),
        restricted=restricted,
        restricted_everywhere=everywhere,
        reason=reason,
        arch=arch,
        spot=is_word(capabilities.get("lowprioritycapable", "true"), "true"),
        reservable=is_word(capabilities.get("capacityreservationsupported"), "true"),
        manufacturer=manufacturer,
        product=product,
    )


def sku_in_catalogue(name: str) -> Sku | None:
    """A size as the catalogue lists it, for machines of a size that their location no longer offers; None if it is not listed."""
    listed = catalogue.lookup(name)
    if listed is None or listed.cloud != "azure":
        return None
    return Sku(
        name=name,
        family="",
        vcpus=listed.vcpu,
        memory_mib=listed.memory_mib,
        gpus=listed.gpus,
        arch=listed.arch,
        manufacturer=listed.gpu_manufacturer,
        product=listed.gpu_product,
    )


def _number(capabilities: Mapping[str, str], name: str, default: float | None = None) -> float:
    text = capabilities.get(fold_id(name))
    if text is None and default is not None:
        return default
    try:
        number = float(text or "")
    except ValueError:
        number = -1.0
    if not 0 <= number < 1e9:
        raise ReadingError(f"saw the capability {name} {shorten_value(text)}, expected a number")
    return number


def _restrictions(entries: Iterable[_Restriction], location: str) -> tuple[frozenset[str], bool, str]:
    """(restricted zones, whether the whole location is restricted, Azure's reason)."""
    zones: set[str] = set()
    everywhere, reason = False, ""
    for entry in entries:
        info = entry.restriction_info or _RestrictionInfo()
        if not any(is_word(name, location) for name in (*(entry.values or ()), *(info.locations or ()))):
            continue
        reason = reason or entry.reason_code or ""
        if is_word(entry.type, "Zone"):
            zones.update(info.zones or ())
        else:
            everywhere = True
    return frozenset(zones), everywhere, reason


def _device(name: str) -> tuple[str, str]:
    """(manufacturer, product label) of the GPUs of a size: the catalogue's for the size, else for another size with the same model."""
    listed = catalogue.lookup(name)
    if listed is not None and listed.gpus:
        return listed.gpu_manufacturer, listed.gpu_product
    match = _MODEL.search(name)
    manufacturer = "amd" if _AMD.search(name) else "nvidia"
    return manufacturer, _products().get(fold_id(match["model"]), "") if match else ""


@cache
def _products() -> Mapping[str, str]:
    """The product by model, for models that are one product in all sizes of the catalogue."""
    products: dict[str, set[str]] = {}
    for instance_type in catalogue.types("azure"):
        if match := _MODEL.search(instance_type.name):
            products.setdefault(fold_id(match["model"]), set()).add(instance_type.gpu_product)
    return {model: next(iter(names)) for model, names in products.items() if len(names) == 1}
