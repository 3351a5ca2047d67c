"""Names and ids that several files of AWS share, so that what one file creates is what another one names."""

from gpuscaler.generating.description.resolved import Description

#: Stands for the account's id where the description has none; a person replaces it.
ACCOUNT_PLACEHOLDER = "111122223333"


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
    return f"arn:{partition(description)}:iam::{account(description)}:role/{base_name(description)}"
