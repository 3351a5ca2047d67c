"""Objects of dynamic resource allocation: decoded only to name them and where they are."""

from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.wire import Metadata, Wire, WireObject, require_name
from gpuscaler.model.workloads import DeviceObject


class AllocatedDevice(Wire):
    driver: str | None = None


class AllocatedDevices(Wire):
    results: list[AllocatedDevice] | None = None


class Allocation(Wire):
    devices: AllocatedDevices | None = None


class ClaimStatus(Wire):
    allocation: Allocation | None = None
    driver_name: str | None = None


class WireResourceClaim(WireObject):
    metadata: Metadata | None = None
    status: ClaimStatus | None = None


class SliceSpec(Wire):
    node_name: str | None = None
    driver: str | None = None


class WireResourceSlice(WireObject):
    """A ResourceSlice. Version v1alpha2 has the fields of ``spec`` at the top level."""

    metadata: Metadata | None = None
    spec: SliceSpec | None = None
    node_name: str | None = None
    driver_name: str | None = None


class WireDeviceClass(WireObject):
    metadata: Metadata | None = None


def read_resource_claim(wire: WireResourceClaim, interner: Interner) -> DeviceObject:
    """Decode a claim, with the driver of its first allocated device if it has one; v1alpha2 has it directly in the status."""
    name, metadata = require_name(wire.metadata)
    allocation = wire.status.allocation if wire.status else None
    results = (allocation.devices.results if allocation and allocation.devices else None) or ()
    drivers = [result.driver for result in results if result.driver] or [(wire.status.driver_name if wire.status else None) or ""]
    namespace = interner.text(metadata.namespace or "default")
    return DeviceObject("ResourceClaim", namespace, name, driver=interner.text(drivers[0]))


def read_resource_slice(wire: WireResourceSlice, interner: Interner) -> DeviceObject:
    name, _ = require_name(wire.metadata)
    spec = wire.spec or SliceSpec(wire.node_name, wire.driver_name)
    return DeviceObject("ResourceSlice", "", name, interner.text(spec.node_name or ""), interner.text(spec.driver or ""))


def read_device_class(wire: WireDeviceClass, interner: Interner) -> DeviceObject:
    name, _ = require_name(wire.metadata)
    return DeviceObject("DeviceClass", "", interner.text(name))
