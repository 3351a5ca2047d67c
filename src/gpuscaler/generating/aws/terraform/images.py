"""Which images the nodes of EKS have.

Sources, 2026-11-26: the EKS user guide, "Retrieve recommended Amazon Linux AMI IDs", and the API reference of EKS, ``amiType``.
"""

from collections.abc import Iterator

from gpuscaler.catalogue import InstanceType
from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.writing.explained import Tree, because
from gpuscaler.generating.writing.hcl import Block, Expression

#: By the catalogue's architecture, what EKS calls it in types of images and in the names of its parameters.
_ARCHITECTURES = {"amd64": ("x86_64", "x86_64"), "arm64": ("ARM_64", "arm64")}


def ami_type(type_: InstanceType) -> str:
    """Return the type of image of a managed node group."""
    return f"AL2023_{_ARCHITECTURES[type_.arch][0]}_{_variant(type_).upper()}"


def general_ami_type(architecture: str) -> str:
    """Return the type of image of a managed node group without GPUs."""
    return f"AL2023_{_ARCHITECTURES[architecture][0]}_STANDARD"


def image_path(type_: InstanceType) -> str:
    """Return the part of a parameter's name that chooses among the images of EKS."""
    return f"amazon-linux-2023/{_ARCHITECTURES[type_.arch][1]}/{_variant(type_)}"


def why_image(type_: InstanceType) -> str:
    if _variant(type_) == "nvidia":
        return "The image of EKS with NVIDIA's driver. On another image, the device plugin finds no GPUs."
    return "EKS has no image with a driver for these GPUs. Install it on the nodes, or build an image."


def _variant(type_: InstanceType) -> str:
    return "nvidia" if type_.gpu_manufacturer == "nvidia" else "standard"


def image_blocks(description: Description) -> Iterator[Tree]:
    """Yield the lookup of images for self-managed groups; EKS chooses those of managed ones itself."""
    if not description.managed:
        yield because(
            "The newest image of EKS at the time of `terraform apply`. A newer one makes a new version of the launch template, "
            "and only machines "
            "that are bought afterwards have it.",
            Block(
                "data",
                ("aws_ssm_parameter", "image"),
                {
                    "for_each": Expression("toset([for group in local.groups : group.image])"),
                    "name": Expression('"/aws/service/eks/optimized-ami/${local.cluster.version}/${each.key}/recommended/image_id"'),
                },
            ),
        )
