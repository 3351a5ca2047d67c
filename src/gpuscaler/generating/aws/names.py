"""Names and ids that several files of AWS share, so that what one file creates is what another one names."""

import base64
from typing import Final

from gpuscaler.generating.description.resolved import SERVICE_ACCOUNT, Description
from gpuscaler.generating.description.settings import KOPS

#: Stands for the account's id where the description has none; a person replaces it.
ACCOUNT_PLACEHOLDER = "111122223333"
#: Characters of a role's name in IAM.
_ROLE_NAME: Final = 64


def base_name(description: Description) -> str:
    """Return the name of the queue, the role and the stack: of a kOps cluster without the dots, which a queue's name cannot have."""
    return f"gpuscaler-{description.cluster.name.replace('.', '-')}"[:64]


def account(description: Description) -> str:
    return description.cluster.account or ACCOUNT_PLACEHOLDER


def partition(description: Description) -> str:
    region = description.cluster.region
    return "aws-cn" if region.startswith("cn-") else "aws-us-gov" if region.startswith("us-gov-") else "aws"


def queue_url(description: Description) -> str:
    region = description.cluster.region
    domain = "amazonaws.com.cn" if partition(description) == "aws-cn" else "amazonaws.com"
    return f"https://sqs.{region}.{domain}/{account(description)}/{base_name(description)}"


def queue_arn(description: Description) -> str:
    return f"arn:{partition(description)}:sqs:{description.cluster.region}:{account(description)}:{base_name(description)}"


def controller_role_arn(description: Description) -> str:
    """Return the controller's role: on kOps the one that kOps makes for the ServiceAccount."""
    name = base_name(description)
    if description.tool == KOPS:
        name = kops_role_name(f"{SERVICE_ACCOUNT}.{description.controller.namespace}.sa.{description.cluster.name}")
    return f"{_iam(description)}:role/{name}"


def controller_policy_arn(description: Description) -> str:
    """Return the policy that the stack makes where kOps makes the role."""
    return f"{_iam(description)}:policy/{base_name(description)}"


def kops_role_name(name: str) -> str:
    """Return the name that kOps gives to a role: with a hash in place of the end if it is too long.

    Source: kOps 1.35, ``pkg/truncate/truncate.go``.
    """
    if len(name) <= _ROLE_NAME:
        return name
    value = 0x811C9DC5
    for byte in name.encode():
        value = (value ^ byte) * 0x01000193 % 2**32
    suffix = base64.b32hexencode(value.to_bytes(4)).decode().lower()[:6]
    return f"{name[: _ROLE_NAME - 7]}-{suffix}"


def _iam(description: Description) -> str:
    return f"arn:{partition(description)}:iam::{account(description)}"
