"""The rights of gpuscaler's controller in an AWS account, and who may take them, with the reasons; the same for all tools.

Source of the trust policies: the EKS user guide, "Create IAM role with trust policy required by EKS Pod Identity" (with the tags that it
adds, for conditions) and "Assign IAM roles to Kubernetes service accounts", 2026-11-26.
"""

from collections.abc import Mapping
from typing import Final

from gpuscaler.clouds.aws.discovery.iam import policy
from gpuscaler.generating.aws.names import partition, queue_arn
from gpuscaler.generating.description.resolved import SERVICE_ACCOUNT, Description
from gpuscaler.generating.description.settings import KOPS
from gpuscaler.generating.writing.explained import Explained, Tree, because

_NODE_GROUPS: Final = "ReadNodeGroups"
_WHY: Final[Mapping[str, str]] = {
    "Read": "gpuscaler finds groups, machines, types and prices in the account. These actions cannot be limited to resources.",
    _NODE_GROUPS: "EKS knows labels and taints of its node groups while they have no machine.",
    "ChangeGroupsOfTheCluster": "It buys and ends machines only in groups with the cluster's tag, so other groups in the account are "
    "out of its reach.",
    "LaunchThroughGroups": "Where gpuscaler tells a group to launch machines at once, EC2 Auto Scaling launches them with gpuscaler's "
    "rights. The condition refuses the same calls if gpuscaler makes them itself.",
    "PassTheRoleOfNodes": "The launch templates give machines a role, and gpuscaler must be allowed to pass it to them.",
    "ReadNotices": "It takes the notices out of the queue.",
}


def controller_policy(description: Description, *, queue: Tree, node_role: Tree = "") -> Explained:
    """Return the policy as a tree; ``queue`` and ``node_role`` are ARNs, as text or as what a tool writes for a reference."""
    arn = queue_arn(description)
    names = policy(description.cluster.name, queue=arn, node_role="*" if node_role else "", partition=partition(description))
    statements = []
    for statement in names["Statement"]:
        ident = statement["Sid"]
        if ident == _NODE_GROUPS and description.tool == KOPS:
            continue
        resource = {"PassTheRoleOfNodes": node_role, "ReadNotices": queue}.get(ident, statement["Resource"])
        statements.append(because(_WHY[ident], statement | {"Resource": resource}))
    return because(
        "These are the rights that `gpuscaler generate iam` prints. Each statement can be left out: gpuscaler then reports what it lacks.",
        {"Version": names["Version"], "Statement": statements},
    )


def pod_identity_trust(cluster: str, namespace: str, service_account: Tree) -> Explained:
    """Return the trust policy of a role that EKS Pod Identity gives to pods of a ServiceAccount, which may be an expression of a tool."""
    tags = {"eks-cluster-name": cluster, "kubernetes-namespace": namespace, "kubernetes-service-account": service_account}
    statement = {
        "Effect": "Allow",
        "Principal": {"Service": "pods.eks.amazonaws.com"},
        "Action": ["sts:AssumeRole", "sts:TagSession"],
        "Condition": {"StringEquals": {f"aws:RequestTag/{key}": value for key, value in tags.items()}},
    }
    return because(
        "EKS Pod Identity takes the role for the pods that an association names, and tags its session with cluster, namespace and "
        "ServiceAccount. The condition refuses associations with others, which other people in the account may make. Without "
        "sts:TagSession, EKS gets no credentials.",
        {"Version": "2012-10-17", "Statement": [statement]},
    )


def irsa_trust(description: Description, *, provider: str, provider_arn: str) -> Mapping[str, Tree]:
    """Return the trust policy for IAM roles for service accounts.

    ``provider`` is the URL of the cluster's issuer of tokens without its scheme; it and the ARN may be expressions of a tool.
    """
    subject = f"system:serviceaccount:{description.controller.namespace}:{SERVICE_ACCOUNT}"
    statement = {
        "Effect": "Allow",
        "Principal": {"Federated": provider_arn},
        "Action": "sts:AssumeRoleWithWebIdentity",
        "Condition": {"StringEquals": {f"{provider}:sub": subject, f"{provider}:aud": "sts.amazonaws.com"}},
    }
    return {"Version": "2012-10-17", "Statement": [statement]}
