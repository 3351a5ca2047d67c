"""Launches that fail or soon will: images, keys of disks."""

from collections.abc import Iterable, Iterator

from gpuscaler.doctor.checks.aws.account import AwsGroup, aws, aws_check, scaled_groups
from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding, Fix

#: How names of images of Amazon Linux 2 begin. EKS and Amazon Linux publish none since 26 November 2025 and 30 June 2026.
_AL2 = ("amazon-eks-node-1.", "amazon-eks-gpu-node-", "amazon-eks-arm64-node-1.", "amzn2-ami-")
_OLD = "there are no further versions and no patches of it; drivers and Kubernetes versions of today do not support it"
_NEW_IMAGE = "use an image of Amazon Linux 2023 or Bottlerocket, in a new version of the launch template"
#: What EC2 Auto Scaling does with a key. Source: EC2 Auto Scaling user guide, "Required AWS KMS key policy for encrypted volumes".
_OPERATIONS = (
    "Encrypt",
    "Decrypt",
    "ReEncryptFrom",
    "ReEncryptTo",
    "GenerateDataKey",
    "GenerateDataKeyWithoutPlaintext",
    "DescribeKey",
    "CreateGrant",
)
_CLIENT_ERROR = "Client.InternalError"


def find_images(evidence: Evidence) -> Iterator[Finding]:
    """D22: images that are gone, or whose family has ended."""
    images = {(image.text("Region"), image.text("ImageId")): image for image in evidence.of("aws/Image")}
    for group in scaled_groups(evidence):
        for ident in dict.fromkeys(option.document.text("Image") for option in group.options):
            image = images.get((group.region, ident))
            if image is None:
                continue
            state, name = image.text("State"), image.text("Name")
            if state != "available":
                yield Finding(
                    "D22",
                    CRITICAL,
                    group.title,
                    "ImageId",
                    f"{ident}, which {'does not exist or is not shared with the account' if state == 'missing' else f'is {state}'}",
                    "an image that can be launched",
                    "no machine can be launched in the group",
                    Fix(advice="name another image in a new version of the launch template, or have its owner share it"),
                )
            elif name.startswith(_AL2):
                yield Finding("D22", WARNING, group.title, "ImageId", name, "an image that is maintained", _OLD, Fix(advice=_NEW_IMAGE))


def find_old_nodes(evidence: Evidence) -> Iterable[Finding]:
    """D22: nodes of an operating system that has ended."""
    for node in evidence.of("Node"):
        image = node.text("status", "nodeInfo", "osImage")
        if image == "Amazon Linux 2" or image.startswith("Amazon Linux 2 "):
            yield Finding(
                "D22",
                WARNING,
                node.title,
                "status.nodeInfo.osImage",
                image,
                "an operating system that is maintained",
                _OLD,
                Fix(advice=_NEW_IMAGE),
            )


def find_key_errors(evidence: Evidence) -> Iterator[Finding]:
    """D23: launches that fail because EC2 Auto Scaling may not use the key of a disk."""
    newest: dict[tuple[str, str], Document] = {}
    for activity in evidence.of("aws/ScalingActivity"):
        key = (activity.text("Region"), activity.text("AutoScalingGroupName"))
        if activity.text("Description").startswith("Launching") and activity.has("EndTime"):
            newest[key] = max(newest.get(key, activity), activity, key=lambda item: item.number("StartTime") or 0.0)
    for group in scaled_groups(evidence):
        message = newest[group.key].text("StatusMessage") if group.key in newest else ""
        if _CLIENT_ERROR in message and newest[group.key].text("StatusCode") in ("Failed", "Cancelled"):
            yield Finding(
                "D23",
                CRITICAL,
                group.title,
                "KmsKeyId",
                message,
                "a grant of the key for the service-linked role of EC2 Auto Scaling",
                "every machine ends while it starts, since its encrypted disk cannot be made",
                _grants(group),
            )


def _grants(group: AwsGroup) -> Fix:
    role = group.document.text("ServiceLinkedRoleARN") or _service_role(group.document.text("AutoScalingGroupARN"))
    keys = dict.fromkeys(key for option in group.options for key in option.document.texts("DiskKeys"))
    commands = tuple(
        aws("kms", "create-grant", "--key-id", key, "--grantee-principal", role, "--operations", *_OPERATIONS, region=group.region)
        for key in keys
    )
    return Fix(commands, "" if keys else f"allow {role} to use the key of the image's disks (`aws kms create-grant`)")


def _service_role(arn: str) -> str:
    """The role that EC2 Auto Scaling uses by default in the account of a group's ARN."""
    parts = [*arn.split(":"), *[""] * 5]
    name = "aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
    return f"arn:{parts[1] or 'aws'}:iam::{parts[4] or 'ACCOUNT'}:role/{name}"


CHECKS = (
    aws_check("D22", "images of groups", ("aws/Image",), find_images, types=True),
    Check("D22", "operating systems of nodes", ("Node",), find_old_nodes),
    aws_check("D23", "launches with encrypted disks", ("aws/ScalingActivity",), find_key_errors),
)
