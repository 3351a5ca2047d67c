"""EC2's descriptions: types, zones, subnets, prices; and its defaults for disks."""

from typing import Any, Final

from gpuscaler.embedded.aws.hardware import instance_types
from gpuscaler.embedded.aws.hardware.zones import subnet, subnet_id, zone_id
from gpuscaler.embedded.aws.launch import volumes
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.wire.errors import AwsError
from gpuscaler.embedded.aws.wire.filters import matches
from gpuscaler.embedded.aws.wire.pages import page


def _types(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    if names := params.get("InstanceTypes"):
        available = {instance_type.name for instance_type in instance_types.in_region(region.name)}
        if unknown := [name for name in names if name not in available]:
            text = f"The following supplied instance types do not exist: [{', '.join(unknown)}]"
            raise AwsError("InvalidInstanceType", text)
        chosen = [instance_types.get_type(name) for name in names]
    else:
        chosen = list(instance_types.in_region(region.name))
    kept = [
        instance_type
        for instance_type in chosen
        if matches(params.get("Filters", ()), {"instance-type": lambda name=instance_type.name: (name,)})  # type: ignore[misc]
    ]
    shown, more = page(kept, params, size="MaxResults", default=100, most=100)
    return {"InstanceTypes": [instance_types.info(instance_type) for instance_type in shown], **more}


def _type_offerings(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    kind = params.get("LocationType", "region")
    places = {"region": (region.name,), "availability-zone": region.zones, "availability-zone-id": tuple(map(zone_id, region.zones))}
    offerings = [
        {"InstanceType": instance_type.name, "LocationType": kind, "Location": place}
        for instance_type in instance_types.in_region(region.name)
        for place in places[kind]
    ]

    def passes(offering: dict[str, str]) -> bool:
        fields = {"instance-type": lambda: (offering["InstanceType"],), "location": lambda: (offering["Location"],)}
        return matches(params.get("Filters", ()), fields)

    shown, more = page([offering for offering in offerings if passes(offering)], params, size="MaxResults", default=1000, most=1000)
    return {"InstanceTypeOfferings": shown, **more}


def _satisfying(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    names = instance_types.satisfying(params["InstanceRequirements"], region.name, params["ArchitectureTypes"])
    shown, more = page(names, params, size="MaxResults", default=1000, most=1000)
    return {"InstanceTypes": [{"InstanceType": name} for name in shown], **more}


def _subnets(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    wanted = params.get("SubnetIds")
    subnets = {subnet_id(zone): subnet(zone, region.account) for zone in region.zones}
    if unknown := [ident for ident in wanted or () if ident not in subnets]:
        raise AwsError("InvalidSubnetID.NotFound", f"The subnet ID '{unknown[0]}' does not exist")
    kept = [
        subnets[ident]
        for ident in wanted or subnets
        if matches(params.get("Filters", ()), {"subnet-id": lambda ident=ident: (ident,)})  # type: ignore[misc]
    ]
    shown, more = page(kept, params, size="MaxResults", default=1000, most=1000)
    return {"Subnets": shown, **more}


def _zones(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    wanted = params.get("ZoneNames") or region.zones
    rows = [
        {"ZoneName": zone, "ZoneId": zone_id(zone), "RegionName": region.name, "State": "available", "ZoneType": "availability-zone"}
        for zone in region.zones
        if zone in wanted
    ]
    return {"AvailabilityZones": rows}


def _images(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    """Any image exists, except those that were deregistered."""
    filtered = (value for item in params.get("Filters", ()) if item["Name"] == "image-id" for value in item["Values"])
    rows = [
        {
            "ImageId": ident,
            "State": "available",
            "Architecture": "x86_64",
            "OwnerId": region.account,
            "Name": region.image_names.get(ident, f"image {ident}"),
            "RootDeviceType": "ebs",
            "RootDeviceName": volumes.ROOT,
            "BlockDeviceMappings": [{"DeviceName": volumes.ROOT, "Ebs": volumes.IMAGE}],
        }
        for ident in (*params.get("ImageIds", ()), *filtered)
        if ident not in region.deregistered
    ]
    return {"Images": rows}


def _deregister(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    region.deregistered.add(params["ImageId"])
    return {}


def _encrypt(region: Region, _params: dict[str, Any]) -> dict[str, Any]:
    region.encrypts_disks = True
    return _encryption(region, {})


def _encryption(region: Region, _params: dict[str, Any]) -> dict[str, Any]:
    return {"EbsEncryptionByDefault": region.encrypts_disks}


def _set_disk_key(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    region.disk_key = params["KmsKeyId"]
    return _disk_key(region, {})


def _disk_key(region: Region, _params: dict[str, Any]) -> dict[str, Any]:
    return {"KmsKeyId": region.disk_key}


OPERATIONS: Final = {
    "EnableEbsEncryptionByDefault": _encrypt,
    "GetEbsEncryptionByDefault": _encryption,
    "GetEbsDefaultKmsKeyId": _disk_key,
    "ModifyEbsDefaultKmsKeyId": _set_disk_key,
    "DescribeInstanceTypes": _types,
    "DescribeInstanceTypeOfferings": _type_offerings,
    "GetInstanceTypesFromInstanceRequirements": _satisfying,
    "DescribeSubnets": _subnets,
    "DescribeAvailabilityZones": _zones,
    "DeregisterImage": _deregister,
    "DescribeImages": _images,
}
