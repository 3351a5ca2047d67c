"""The parts of Azure's JSON documents that are used, as the REST specification names them; all other fields are ignored.

Azure leaves fields out or sets them to null, so every field is optional here; :mod:`~gpuscaler.clouds.azure.documents.reading` says which
ones are needed. Sources: azure-rest-api-specs, ``Microsoft.Compute`` and ``Microsoft.ContainerService``.
"""

from typing import Any, TypeVar

import msgspec
from msgspec import Struct

T = TypeVar("T")


class ReadingError(ValueError):
    """A document of Azure cannot be read; the text says what was seen and expected."""


def decoded(document: object, kind: type[T]) -> T:
    """``document`` as ``kind``. Raises :class:`ReadingError`."""
    try:
        return msgspec.convert(document, kind)
    except msgspec.ValidationError as error:
        raise ReadingError(f"{_lower_first(str(error))}; expected a document as Azure's REST specification describes it") from error


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]


class Reference(Struct):
    id: str | None = None


class Switch(Struct):
    """A policy that is on or off."""

    enabled: bool | None = None


class SkuOfSet(Struct):
    name: str | None = None
    capacity: int | None = None


class SkuProfileSize(Struct):
    name: str | None = None


class SkuProfile(Struct, rename="camel"):
    vm_sizes: list[SkuProfileSize] | None = None
    allocation_strategy: str | None = None
    automatic_sku_migration_policy: Switch | None = None


class PriorityMix(Struct, rename="camel"):
    base_regular_priority_count: int | None = None
    regular_priority_percentage_above_base: int | None = None


class ZoneAllocation(Struct, rename="camel"):
    max_zone_count: int | None = None


class Resiliency(Struct, rename="camel"):
    resilient_vm_creation_policy: Switch | None = msgspec.field(default=None, name="resilientVMCreationPolicy")
    automatic_zone_rebalancing_policy: Switch | None = None
    zone_allocation_policy: ZoneAllocation | None = None


class BillingProfile(Struct, rename="camel"):
    max_price: float | None = None


class OsDisk(Struct, rename="camel"):
    os_type: str | None = None
    disk_size: int | None = msgspec.field(default=None, name="diskSizeGB")
    delete_option: str | None = None


class DataDisk(Struct, rename="camel"):
    lun: int | None = None
    delete_option: str | None = None


class StorageProfile(Struct, rename="camel"):
    os_disk: OsDisk | None = None
    data_disks: list[DataDisk] | None = None


class NetworkPart(Struct, rename="camel"):
    delete_option: str | None = None


class PublicAddress(Struct, rename="camel"):
    properties: NetworkPart | None = None


class IpConfigurationProperties(Struct, rename="camel"):
    public_ip_address_configuration: PublicAddress | None = msgspec.field(default=None, name="publicIPAddressConfiguration")


class IpConfiguration(Struct, rename="camel"):
    properties: IpConfigurationProperties | None = None


class NetworkInterfaceProperties(Struct, rename="camel"):
    delete_option: str | None = None
    ip_configurations: list[IpConfiguration] | None = None


class NetworkInterface(Struct, rename="camel"):
    name: str | None = None
    properties: NetworkInterfaceProperties | None = None


class NetworkProfile(Struct, rename="camel"):
    network_interface_configurations: list[NetworkInterface] | None = None


class WindowsHolder(Struct, rename="camel"):
    windows_configuration: dict[str, Any] | None = None


class ReservationProfile(Struct, rename="camel"):
    capacity_reservation_group: Reference | None = None


class SetProfile(Struct, rename="camel"):
    priority: str | None = None
    eviction_policy: str | None = None
    billing_profile: BillingProfile | None = None
    storage_profile: StorageProfile | None = None
    network_profile: NetworkProfile | None = None
    os_profile: WindowsHolder | None = None
    capacity_reservation: ReservationProfile | None = None


class ScaleInPolicy(Struct, rename="camel"):
    force_deletion: bool | None = None


class AutomaticOsUpgrade(Struct, rename="camel"):
    enable_automatic_os_upgrade: bool | None = msgspec.field(default=None, name="enableAutomaticOSUpgrade")


class UpgradePolicy(Struct, rename="camel"):
    mode: str | None = None
    automatic_os_upgrade_policy: AutomaticOsUpgrade | None = msgspec.field(default=None, name="automaticOSUpgradePolicy")


class SetProperties(Struct, rename="camel"):
    provisioning_state: str | None = None
    orchestration_mode: str | None = None
    overprovision: bool | None = None
    single_placement_group: bool | None = None
    zone_balance: bool | None = None
    constrained_maximum_capacity: bool | None = None
    virtual_machine_profile: SetProfile | None = None
    upgrade_policy: UpgradePolicy | None = None
    automatic_repairs_policy: Switch | None = None
    spot_restore_policy: Switch | None = None
    priority_mix_policy: PriorityMix | None = None
    sku_profile: SkuProfile | None = None
    resiliency_policy: Resiliency | None = None
    unique_id: str | None = None


class SetDocument(Struct, rename="camel"):
    """Microsoft.Compute/virtualMachineScaleSets."""

    id: str | None = None
    name: str | None = None
    location: str | None = None
    zones: list[str] | None = None
    tags: dict[str, Any] | None = None
    etag: str | None = None
    sku: SkuOfSet | None = None
    properties: SetProperties | None = None


class Status(Struct, rename="camel"):
    code: str | None = None
    level: str | None = None
    display_status: str | None = None
    message: str | None = None


class ExtensionView(Struct):
    name: str | None = None
    statuses: list[Status] | None = None
    substatuses: list[Status] | None = None


class InstanceView(Struct, rename="camel"):
    statuses: list[Status] | None = None
    extensions: list[ExtensionView] | None = None


class HardwareProfile(Struct, rename="camel"):
    vm_size: str | None = None


class OsProfile(Struct, rename="camel"):
    computer_name: str | None = None


class Protection(Struct, rename="camel"):
    protect_from_scale_in: bool | None = None


class MachineProperties(Struct, rename="camel"):
    provisioning_state: str | None = None
    instance_view: InstanceView | None = None
    hardware_profile: HardwareProfile | None = None
    os_profile: OsProfile | None = None
    protection_policy: Protection | None = None
    priority: str | None = None
    eviction_policy: str | None = None
    time_created: str | None = None
    virtual_machine_scale_set: Reference | None = None
    availability_set: Reference | None = None
    capacity_reservation: ReservationProfile | None = None


class MachineDocument(Struct, rename="camel"):
    """Microsoft.Compute/virtualMachines, and the virtual machines of Uniform scale sets."""

    id: str | None = None
    name: str | None = None
    instance_id: str | None = None
    location: str | None = None
    zones: list[str] | None = None
    tags: dict[str, Any] | None = None
    etag: str | None = None
    sku: SkuOfSet | None = None
    properties: MachineProperties | None = None


class PowerState(Struct):
    code: str | None = None


class ManualScale(Struct):
    size: str | None = None
    count: int | None = None


class Scale(Struct):
    manual: list[ManualScale] | None = None
    autoscale: list[dict[str, Any]] | dict[str, Any] | None = None


class MachinesProfile(Struct):
    scale: Scale | None = None


class NvidiaProfile(Struct, rename="camel"):
    management_mode: str | None = None


class GpuProfile(Struct):
    driver: str | None = None
    nvidia: NvidiaProfile | None = None


class AgentPoolProperties(Struct, rename="camel"):
    e_tag: str | None = None
    count: int | None = None
    vm_size: str | None = None
    os_disk_size: int | None = msgspec.field(default=None, name="osDiskSizeGB")
    os_type: str | None = None
    max_pods: int | None = None
    type: str | None = None
    mode: str | None = None
    enable_auto_scaling: bool | None = None
    scale_down_mode: str | None = None
    scale_set_priority: str | None = None
    scale_set_eviction_policy: str | None = None
    spot_max_price: float | None = None
    availability_zones: list[str] | None = None
    node_labels: dict[str, Any] | None = None
    node_taints: list[str] | None = None
    node_initialization_taints: list[str] | None = None
    tags: dict[str, Any] | None = None
    provisioning_state: str | None = None
    power_state: PowerState | None = None
    gpu_instance_profile: str | None = None
    gpu_profile: GpuProfile | None = None
    capacity_reservation_group: str | None = msgspec.field(default=None, name="capacityReservationGroupID")
    host_group: str | None = msgspec.field(default=None, name="hostGroupID")
    node_image_version: str | None = None
    orchestrator_version: str | None = None
    current_orchestrator_version: str | None = None
    virtual_machines_profile: MachinesProfile | None = None
    virtual_machine_nodes_status: list[ManualScale] | None = None


class AgentPoolDocument(Struct, rename="camel"):
    """Microsoft.ContainerService/managedClusters/agentPools."""

    id: str | None = None
    name: str | None = None
    properties: AgentPoolProperties | None = None


class NodeGroupProfile(Struct, rename="camel"):
    restriction_level: str | None = None


class Provisioning(Struct):
    mode: str | None = None


class ClusterProperties(Struct, rename="camel"):
    provisioning_state: str | None = None
    power_state: PowerState | None = None
    node_resource_group: str | None = None
    node_resource_group_profile: NodeGroupProfile | None = None
    node_provisioning_profile: Provisioning | None = None


class ClusterDocument(Struct, rename="camel"):
    """Microsoft.ContainerService/managedClusters."""

    id: str | None = None
    name: str | None = None
    location: str | None = None
    tags: dict[str, Any] | None = None
    properties: ClusterProperties | None = None
