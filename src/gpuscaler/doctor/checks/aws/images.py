"""Images of groups, and operating systems of nodes."""

from collections.abc import Iterable, Iterator

from gpuscaler.doctor.checks.aws.account import aws_check, scaled_groups
from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding, Fix

#: How names of images of Amazon Linux 2 begin. EKS and Amazon Linux publish none since 26 November 2025 and 30 June 2026.
_AL2 = ("amazon-eks-node-1.", "amazon-eks-gpu-node-", "amazon-eks-arm64-node-1.", "amzn2-ami-")
_OLD = "there are no further versions and no patches of it; drivers and Kubernetes versions of today do not support it"
_NEW_IMAGE = "use an image of Amazon Linux 2023 or Bottlerocket, in a new version of the launch template"


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


CHECKS = (
    aws_check("D22", "images of groups", ("aws/Image",), find_images, types=True),
    Check("D22", "operating systems of nodes", ("Node",), find_old_nodes),
)
