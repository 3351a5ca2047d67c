"""Reads scale sets, agent pools, clusters and machines from Azure's JSON documents. Pure; every field that is used is checked here."""

import hashlib
from collections.abc import Iterable, Mapping
from datetime import datetime

import msgspec

from gpuscaler.clouds.azure.api.errors import clean
from gpuscaler.clouds.azure.api.ids import ResourceId, resource_id
from gpuscaler.clouds.azure.documents.resources import (
    AVAILABILITY_SET,
    FLEXIBLE,
    MACHINES,
    NO_ZONE,
    ON_DEMAND,
    SCALE_SETS,
    SPOT,
    UNIFORM,
    AgentPool,
    Cluster,
    Profile,
    ScaleSet,
    VirtualMachine,
    is_word,
)
from gpuscaler.clouds.azure.documents.wire import (
    AgentPoolDocument,
    AgentPoolProperties,
    ClusterDocument,
    ClusterProperties,
    InstanceView,
    MachineDocument,
    MachineProperties,
    ReadingError,
    Resiliency,
    SetDocument,
    SetProfile,
    SetProperties,
    SkuOfSet,
    SkuProfile,
    StorageProfile,
    Switch,
    decoded,
)
from gpuscaler.model.azure_names import fold_id
from gpuscaler.model.quantities import shorten_value

_POWER, _PROVISIONING = "powerstate/", "provisioningstate/"
#: The maximum size of a text that is kept from a machine's extensions, in characters.
_TEXT_LIMIT = 500


def scale_set_of(document: object) -> ScaleSet:
    """A scale set from its document. Raises :class:`~gpuscaler.clouds.azure.documents.wire.ReadingError`."""
    wire = decoded(document, SetDocument)
    ident = _identity(wire.id, "microsoft.compute/virtualmachinescalesets")
    properties, sku = wire.properties or SetProperties(), wire.sku or SkuOfSet()
    profile, resiliency = properties.virtual_machine_profile or SetProfile(), properties.resiliency_policy or Resiliency()
    skus = properties.sku_profile or SkuProfile()
    sizes = tuple(size.name for size in skus.vm_sizes or () if size.name)
    if not wire.location:
        raise ReadingError("saw no location, expected one such as eastus")
    if sku.capacity is None or sku.capacity < 0:
        raise ReadingError(f"saw sku.capacity {sku.capacity}, expected the number of machines")
    storage = profile.storage_profile or StorageProfile()
    disk = storage.os_disk
    mix = properties.priority_mix_policy
    return ScaleSet(
        id=wire.id or "",
        subscription=ident.subscription,
        group=ident.group,
        name=wire.name or ident.name,
        location=_location(wire.location),
        size="" if sizes else sku.name or "",
        capacity=sku.capacity,
        zones=_zones(wire.zones),
        etag=wire.etag or "",
        mode=FLEXIBLE if is_word(properties.orchestration_mode, FLEXIBLE) else UNIFORM,
        market=SPOT if is_word(profile.priority, "Spot") or is_word(profile.priority, "Low") else ON_DEMAND,
        eviction=profile.eviction_policy or "",
        max_price=_max_price(profile.billing_profile.max_price if profile.billing_profile else None),
        tags=_texts(wire.tags),
        state=properties.provisioning_state or "",
        overprovision=properties.overprovision,
        single_placement=bool(properties.single_placement_group),
        windows=bool(disk and is_word(disk.os_type, "Windows"))
        or bool(profile.os_profile and profile.os_profile.windows_configuration is not None),
        disk_gib=(disk.disk_size or 0) if disk else 0,
        reservation_group=_reference(profile),
        sizes=sizes,
        strategy=skus.allocation_strategy or "",
        mix=None if mix is None else (mix.base_regular_priority_count or 0, mix.regular_priority_percentage_above_base or 0),
        sku_migration=_is_on(skus.automatic_sku_migration_policy),
        zone_rebalancing=_is_on(resiliency.automatic_zone_rebalancing_policy),
        chooses_zones=resiliency.zone_allocation_policy is not None and bool(resiliency.zone_allocation_policy.max_zone_count),
        spot_restore=_is_on(properties.spot_restore_policy),
        replaces_failed=_is_on(resiliency.resilient_vm_creation_policy),
        repairs=_is_on(properties.automatic_repairs_policy),
        upgrades=_upgrades(properties),
        kept=tuple(_kept(profile)),
        revision=_digest(document, "properties", "virtualMachineProfile"),
    )


def agent_pool_of(document: object, cluster: Cluster) -> AgentPool:
    """An agent pool of ``cluster`` from its document. Raises :class:`~gpuscaler.clouds.azure.documents.wire.ReadingError`."""
    wire = decoded(document, AgentPoolDocument)
    properties = wire.properties or AgentPoolProperties()
    if not wire.name:
        raise ReadingError("saw no name, expected that of an agent pool")
    scale = properties.virtual_machines_profile.scale if properties.virtual_machines_profile else None
    profiles = _profiles(scale.manual or () if scale else ())
    kind = next((known for known in (SCALE_SETS, MACHINES, AVAILABILITY_SET) if is_word(properties.type, known)), properties.type or "")
    count = sum(profile.count for profile in profiles) if kind == MACHINES else properties.count
    if count is None or count < 0:
        raise ReadingError(f"saw count {count}, expected the number of machines")
    gpus = properties.gpu_profile
    return AgentPool(
        id=wire.id or "",
        subscription=cluster.subscription,
        group=cluster.group,
        cluster=cluster.name,
        name=wire.name,
        kind=kind or SCALE_SETS,
        size="" if kind == MACHINES else properties.vm_size or "",
        count=count,
        mode=properties.mode or "User",
        market=SPOT if is_word(properties.scale_set_priority, "Spot") else ON_DEMAND,
        zones=_zones(properties.availability_zones),
        labels=_texts(properties.node_labels),
        taints=tuple(properties.node_taints or ()),
        initialization_taints=tuple(properties.node_initialization_taints or ()),
        tags=_texts(properties.tags),
        autoscaling=bool(properties.enable_auto_scaling) or bool(scale and scale.autoscale),
        scale_down_mode=properties.scale_down_mode or "Delete",
        eviction=properties.scale_set_eviction_policy or "",
        max_price=_max_price(properties.spot_max_price),
        state=properties.provisioning_state or "",
        power=(properties.power_state.code or "") if properties.power_state else "",
        profiles=profiles,
        present=_profiles(properties.virtual_machine_nodes_status or ()),
        etag=properties.e_tag or "",
        reservation_group=properties.capacity_reservation_group or "",
        host_group=properties.host_group or "",
        gpu_instance_profile=properties.gpu_instance_profile or "",
        gpu_driver=(gpus.driver or "") if gpus else "",
        windows=is_word(properties.os_type, "Windows"),
        max_pods=properties.max_pods or 0,
        disk_gib=properties.os_disk_size or 0,
        node_resource_group=cluster.node_resource_group,
        location=cluster.location,
        revision=_hash(properties.node_image_version, properties.current_orchestrator_version or properties.orchestrator_version),
    )


def cluster_of(document: object) -> Cluster:
    """An AKS cluster from its document. Raises :class:`~gpuscaler.clouds.azure.documents.wire.ReadingError`."""
    wire = decoded(document, ClusterDocument)
    ident = _identity(wire.id, "microsoft.containerservice/managedclusters")
    properties = wire.properties or ClusterProperties()
    if not wire.location or not properties.node_resource_group:
        raise ReadingError("saw no location or no properties.nodeResourceGroup, expected both")
    profile, provisioning = properties.node_resource_group_profile, properties.node_provisioning_profile
    return Cluster(
        id=wire.id or "",
        subscription=ident.subscription,
        group=ident.group,
        name=wire.name or ident.name,
        location=_location(wire.location),
        node_resource_group=properties.node_resource_group,
        locked=profile is not None and is_word(profile.restriction_level, "ReadOnly"),
        provisions_nodes=provisioning is not None and is_word(provisioning.mode, "Auto"),
        state=properties.provisioning_state or "",
        power=(properties.power_state.code or "") if properties.power_state else "",
    )


def machine_of(document: object) -> VirtualMachine:
    """A machine from its document, of either mode. Raises :class:`~gpuscaler.clouds.azure.documents.wire.ReadingError`."""
    wire = decoded(document, MachineDocument)
    if not wire.id or not (wire.instance_id or wire.name):
        raise ReadingError("saw no id or no name, expected both")
    properties, sku = wire.properties or MachineProperties(), wire.sku or SkuOfSet()
    view = properties.instance_view or InstanceView()
    codes = [status.code or "" for status in view.statuses or ()]
    fault_code, fault = _fault(view)
    hardware, system = properties.hardware_profile, properties.os_profile
    return VirtualMachine(
        id=wire.id,
        instance_id=wire.instance_id or wire.name or "",
        name=wire.name or wire.instance_id or "",
        size=(hardware.vm_size if hardware else None) or sku.name or "",
        zone=next(iter(_zones(wire.zones)), ""),
        state=properties.provisioning_state or "",
        power=next((code[len(_POWER) :].lower() for code in codes if code.lower().startswith(_POWER)), ""),
        market="" if properties.priority is None else ON_DEMAND if is_word(properties.priority, "Regular") else SPOT,
        created=seconds_of(properties.time_created),
        extensions_text=_extensions_text(view),
        fault_code=fault_code,
        fault=fault,
        computer_name=(system.computer_name or "") if system else "",
        protected=bool(properties.protection_policy and properties.protection_policy.protect_from_scale_in),
        scale_set_id=(properties.virtual_machine_scale_set.id or "") if properties.virtual_machine_scale_set else "",
        availability_set_id=(properties.availability_set.id or "") if properties.availability_set else "",
        tags=_texts(wire.tags),
    )


def seconds_of(text: str | None) -> float:
    """A date of Azure in seconds since the epoch; 0 if there is none or it cannot be read. Azure gives seven decimals of a second."""
    try:
        moment = msgspec.convert(text, datetime, strict=False) if text else None
    except msgspec.ValidationError:
        return 0.0
    return moment.timestamp() if moment is not None and moment.tzinfo is not None else 0.0


def _identity(text: str | None, kind: str) -> ResourceId:
    ident = resource_id(text or "")
    if ident is None or ident.kind != kind:
        raise ReadingError(f"saw the id {shorten_value(text)}, expected one of {kind}")
    return ident


def _location(text: str) -> str:
    """``East US`` and ``eastus`` are one location."""
    return text.replace(" ", "").lower()


def _zones(zones: Iterable[str] | None) -> tuple[str, ...]:
    return tuple(dict.fromkeys(zone for zone in zones or () if zone and zone != NO_ZONE))


def _texts(values: Mapping[str, object] | None) -> dict[str, str]:
    """The values that are texts, as all tags and labels should be."""
    return {key: value for key, value in (values or {}).items() if isinstance(value, str)}


def _max_price(price: float | None) -> float | None:
    """A limit on the spot price; -1 means that there is none but the on-demand price."""
    return price if price is not None and price > 0 else None


def _is_on(switch: Switch | None) -> bool:
    return switch is not None and bool(switch.enabled)


def _reference(profile: SetProfile) -> str:
    reservation = profile.capacity_reservation
    group = reservation.capacity_reservation_group if reservation else None
    return (group.id or "") if group else ""


def _profiles(entries: Iterable[object]) -> tuple[Profile, ...]:
    """Sizes with their counts; two entries of one size count together."""
    counts: dict[str, Profile] = {}
    for entry in entries:
        size, count = getattr(entry, "size", None), getattr(entry, "count", None)
        if not size or count is None or count < 0:
            raise ReadingError(f"saw size {size} with count {count}, expected a size and its number of machines")
        before = counts.get(fold_id(size), Profile(size, 0))
        counts[fold_id(size)] = Profile(before.size, before.count + count)
    return tuple(counts.values())


def _upgrades(properties: SetProperties) -> str:
    """The field that lets Azure replace or restart running machines on its own, empty if none does."""
    policy = properties.upgrade_policy
    if policy is None:
        return ""
    if policy.automatic_os_upgrade_policy is not None and policy.automatic_os_upgrade_policy.enable_automatic_os_upgrade:
        return "upgradePolicy.automaticOSUpgradePolicy"
    return f"upgradePolicy.mode {policy.mode}" if policy.mode and not is_word(policy.mode, "Manual") else ""


def _kept(profile: SetProfile) -> Iterable[str]:
    """Fields of disks, network interfaces and addresses that outlive their machine."""
    storage = profile.storage_profile or StorageProfile()
    if storage.os_disk is not None and is_word(storage.os_disk.delete_option, "Detach"):
        yield "osDisk.deleteOption"
    for disk in storage.data_disks or ():
        if is_word(disk.delete_option, "Detach"):
            yield f"dataDisks[lun {disk.lun}].deleteOption"
    network = profile.network_profile
    for interface in network.network_interface_configurations or () if network else ():
        part = interface.properties
        if part is None:
            continue
        if is_word(part.delete_option, "Detach"):
            yield f"networkInterfaceConfigurations[{interface.name}].deleteOption"
        for configuration in part.ip_configurations or ():
            address = configuration.properties.public_ip_address_configuration if configuration.properties else None
            if address is not None and address.properties is not None and is_word(address.properties.delete_option, "Detach"):
                yield f"networkInterfaceConfigurations[{interface.name}].publicIPAddressConfiguration.deleteOption"


def _fault(view: InstanceView) -> tuple[str, str]:
    """(code, text) of the error in an instance view; the code follows ``ProvisioningState/failed/``."""
    for status in view.statuses or ():
        code = status.code or ""
        if code.lower().startswith(f"{_PROVISIONING}failed"):
            text = status.message or status.display_status or ""
            return code.split("/", 2)[2] if code.count("/") > 1 else "", clean(text, _TEXT_LIMIT)
    return "", ""


def _extensions_text(view: InstanceView) -> str:
    """What failed extensions report, such as the script that makes a machine a node (vmssCSE)."""
    texts = [
        f"{extension.name}: {status.message or status.display_status or status.code}"
        for extension in view.extensions or ()
        for status in (*(extension.statuses or ()), *(extension.substatuses or ()))
        if is_word(status.level, "Error") or f"{_PROVISIONING}failed" in (status.code or "").lower()
    ]
    return clean("; ".join(dict.fromkeys(texts)), _TEXT_LIMIT)


def _digest(document: object, *path: str) -> str:
    """A hash of a part of a document, empty if there is no such part."""
    for key in path:
        document = document.get(key) if isinstance(document, Mapping) else None
    return _hash(msgspec.json.encode(document, order="deterministic")) if document else ""


def _hash(*parts: object) -> str:
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
