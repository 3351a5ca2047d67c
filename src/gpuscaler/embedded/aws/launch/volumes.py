"""EBS volumes of instances: those of image and launch template. Some are deleted with the instance, the others remain, and cost money.

Which are deleted: EC2's user guide, "Block device mappings for volumes on Amazon EC2 instances": without DeleteOnTermination, the root
volume is, and others are not. Its page "Preserve data when an instance is terminated" says that volumes attached by API at launch
are deleted too; but volumes of launch templates were seen to remain (terraform-provider-aws, issue 6434), and so they do here. For launch
configurations EC2 Auto Scaling's API documents that all are deleted. Both pages as of November 2026.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from gpuscaler.embedded.aws.hardware.zones import zone_id
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.state import Instance, Volume
from gpuscaler.embedded.aws.wire.errors import AwsError
from gpuscaler.embedded.aws.wire.filters import matches
from gpuscaler.embedded.aws.wire.pages import page
from gpuscaler.embedded.aws.wire.writing import to_datetime

#: The root device of every image here, and its name in other images.
ROOT: Final = "/dev/xvda"
_ROOTS: Final = (ROOT, "/dev/sda1")
#: The root volume in the image: sizes are in GiB, as in EKS's images of Amazon Linux.
IMAGE: Final[Mapping[str, Any]] = {"DeleteOnTermination": True, "VolumeSize": 20, "VolumeType": "gp3", "Encrypted": False}


def attach(region: Region, instance: Instance, data: Mapping[str, Any]) -> None:
    """Create the volumes of an instance that is launched by ``data``, of a launch template or configuration."""
    tags = [
        tag
        for specification in data.get("TagSpecifications", ())
        if specification.get("ResourceType") == "volume"
        for tag in specification.get("Tags", ())
    ]
    for device, ebs in _volume_mappings(data, deleted=not instance.template):
        volume = Volume(
            id=region.identifier("vol"),
            zone=instance.machine.offering.zone,
            created_at=region.now,
            device=device,
            settings=ebs,
            tags={tag["Key"]: tag["Value"] for tag in tags},
            instance=instance.id,
        )
        region.volumes[volume.id] = volume
        instance.volumes.append(volume)


def _volume_mappings(data: Mapping[str, Any], *, deleted: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """Devices with the settings of their volumes, the root first; ``deleted`` is the default of DeleteOnTermination for the others."""
    mappings = {
        mapping.get("DeviceName", ROOT): mapping["Ebs"]
        for mapping in data.get("BlockDeviceMappings", ())
        if "Ebs" in mapping and "NoDevice" not in mapping
    }
    root = next((name for name in _ROOTS if name in mappings), ROOT)
    yield root, {**IMAGE, **mappings.pop(root, {})}
    for device, ebs in mappings.items():
        yield device, {"VolumeSize": 8, "VolumeType": "gp2", "Encrypted": False, "DeleteOnTermination": deleted, **ebs}


def release(region: Region, instance: Instance) -> None:
    """Delete the volumes of a terminated instance, except for those that are to remain."""
    for volume in instance.volumes:
        volume.instance = ""
        if volume.deleted:
            del region.volumes[volume.id]
    instance.volumes.clear()


def block_device_mappings(instance: Instance) -> dict[str, Any]:
    """An instance's volumes as in DescribeInstances."""
    mappings = [
        {
            "DeviceName": volume.device,
            "Ebs": {
                "AttachTime": to_datetime(volume.created_at),
                "DeleteOnTermination": volume.deleted,
                "Status": "attached",
                "VolumeId": volume.id,
            },
        }
        for volume in instance.volumes
    ]
    root = {"RootDeviceName": mappings[0]["DeviceName"]} if mappings else {}
    return {"RootDeviceType": "ebs", **root, "BlockDeviceMappings": mappings}


def _describe_volume(volume: Volume) -> dict[str, Any]:
    attached = {
        "VolumeId": volume.id,
        "InstanceId": volume.instance,
        "Device": volume.device,
        "State": "attached",
        "AttachTime": to_datetime(volume.created_at),
        "DeleteOnTermination": volume.deleted,
    }
    optional = ("VolumeType", "Encrypted", "Iops", "Throughput", "SnapshotId", "KmsKeyId")
    return {
        "VolumeId": volume.id,
        "Size": volume.settings["VolumeSize"],
        "State": volume.state,
        "AvailabilityZone": volume.zone,
        "AvailabilityZoneId": zone_id(volume.zone),
        "CreateTime": to_datetime(volume.created_at),
        "Attachments": [attached] if volume.instance else [],
        "MultiAttachEnabled": False,
        "Tags": [{"Key": key, "Value": value} for key, value in volume.tags.items()],
        **{key: volume.settings[key] for key in optional if key in volume.settings},
    }


def _describe(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    wanted = params.get("VolumeIds")
    if unknown := [ident for ident in wanted or () if ident not in region.volumes]:
        raise AwsError("InvalidVolume.NotFound", f"The volume '{unknown[0]}' does not exist.")

    def passes(volume: Volume) -> bool:
        fields = {
            "volume-id": lambda: (volume.id,),
            "status": lambda: (volume.state,),
            "availability-zone": lambda: (volume.zone,),
            "attachment.instance-id": lambda: (volume.instance,) if volume.instance else (),
            "attachment.device": lambda: (volume.device,) if volume.instance else (),
            "attachment.delete-on-termination": lambda: (str(volume.deleted).lower(),) if volume.instance else (),
            "tag": lambda: [f"{key}={value}" for key, value in volume.tags.items()],
            "tag-key": lambda: list(volume.tags),
        }
        return matches(params.get("Filters", ()), fields)

    volumes = [region.volumes[ident] for ident in wanted or region.volumes]
    shown, more = page([volume for volume in volumes if passes(volume)], params, size="MaxResults", default=1000, most=1000)
    return {"Volumes": [_describe_volume(volume) for volume in shown], **more}


OPERATIONS: Final = {"DescribeVolumes": _describe}
