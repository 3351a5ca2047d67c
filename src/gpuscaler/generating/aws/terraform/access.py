"""Roles and rights, as Terraform: the nodes' role, gpuscaler's role with Pod Identity or IRSA, and the grant for the key of disks.

Sources, 2026-11-26: the EKS user guide, "Amazon EKS node IAM role", "How EKS Pod Identity works", "IAM roles for service accounts" and
"Create access entries"; the EC2 Auto Scaling user guide, "Required AWS KMS key policy for use with encrypted volumes".
"""

from collections.abc import Iterator
from typing import Any

from gpuscaler.clouds.aws.discovery.iam import policy
from gpuscaler.doctor.checks.aws.keys import GRANTED
from gpuscaler.generating.aws.names import base_name, partition
from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.description.settings import IRSA
from gpuscaler.generating.writing.explained import Explained, Tree, because
from gpuscaler.generating.writing.hcl import Block, Expression, call

#: The controller's ServiceAccount of a release of the chart that is called gpuscaler.
SERVICE_ACCOUNT = "gpuscaler-controller"
#: Policies of AWS that nodes need.
_NODE_POLICIES = ("AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly", "AmazonEKS_CNI_Policy")
#: Why each statement of gpuscaler's policy is there, by its Sid.
_STATEMENTS = {
    "Read": "gpuscaler reads groups, machines, types and prices. AWS has no narrower resource than * for these actions, and they "
    "change nothing.",
    "ReadNodeGroups": "Labels and taints of a managed node group are known to EKS only. gpuscaler needs them while the group is empty.",
    "ChangeGroupsOfTheCluster": "gpuscaler buys and removes machines, but only in groups that have this cluster's tag.",
    "LaunchThroughGroups": "EC2 Auto Scaling launches machines with the rights of its caller. By itself, gpuscaler cannot launch any.",
    "PassTheRoleOfNodes": "A machine gets its role from its launch template. gpuscaler may give this role only, and to machines only.",
    "ReadNotices": "gpuscaler reads and deletes the notices of one queue.",
}
_NODE_ROLE, _QUEUE = "aws_iam_role.nodes.arn", "aws_sqs_queue.notices.arn"


def access_blocks(description: Description) -> Iterator[Tree]:
    yield because(
        "The account and partition that the credentials belong to; ARNs below contain them.",
        Block("data", ("aws_caller_identity", "current"), {}),
    )
    yield because("Regions of China and GovCloud have other ARNs.", Block("data", ("aws_partition", "current"), {}))
    yield from _nodes(description)
    yield from _gpuscaler(description)
    yield from _key()


def assumed_by(service: str, *actions: str) -> dict[str, Tree]:
    """Return the trust policy of a role for a service of AWS."""
    return {
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Principal": {"Service": service}, "Action": list(actions) if len(actions) > 1 else actions[0]}],
    }


def attached(role: str, *policies: str) -> Block:
    """Return the block that gives a role policies of AWS."""
    body: dict[str, Tree] = {
        "for_each": call("toset", list(policies)),
        "role": Expression(f"aws_iam_role.{role}.name"),
        "policy_arn": Expression('"arn:${data.aws_partition.current.partition}:iam::aws:policy/${each.key}"'),
    }
    return Block("resource", ("aws_iam_role_policy_attachment", role), body)


def _ec2(description: Description) -> str:
    return "ec2.amazonaws.com.cn" if partition(description) == "aws-cn" else "ec2.amazonaws.com"


def _nodes(description: Description) -> Iterator[Tree]:
    name = f"{base_name(description)}-nodes"[:64]
    yield from node_role(
        description, "nodes", name, "The role of GPU nodes. It has no right to change groups: what runs on a node can get at its role."
    )
    if description.managed:
        return
    yield because(
        "A machine gets its role by way of an instance profile.",
        Block("resource", ("aws_iam_instance_profile", "nodes"), {"name": name, "role": Expression("aws_iam_role.nodes.name")}),
    )
    yield because(
        "The cluster admits nodes with this role. EKS does that by itself for managed groups only; without it, machines start and "
        "never become "
        "nodes. A cluster with the authentication mode CONFIG_MAP has no access entries: there, add the role to the ConfigMap aws-auth.",
        Block(
            "resource",
            ("aws_eks_access_entry", "nodes"),
            {"cluster_name": Expression("local.cluster.name"), "principal_arn": Expression(_NODE_ROLE), "type": "EC2_LINUX"},
        ),
    )


def node_role(description: Description, label: str, name: str, why: str) -> Iterator[Tree]:
    """Yield a role of nodes with what nodes need."""
    trust = call("jsonencode", assumed_by(_ec2(description), "sts:AssumeRole"))
    yield because(why, Block("resource", ("aws_iam_role", label), {"name": name, "assume_role_policy": trust}))
    yield because(
        "What a node needs: to read about its machine and cluster, to pull images from ECR, and to give pods addresses of the VPC.",
        attached(label, *_NODE_POLICIES),
    )


def _gpuscaler(description: Description) -> Iterator[Tree]:
    irsa = description.controller.identity == IRSA
    yield from _provider(description) if irsa else ()
    trust = (
        because(
            "Only pods with gpuscaler's ServiceAccount take the role: the cluster's issuer signs the name of the ServiceAccount.",
            _irsa_trust(description),
        )
        if irsa
        else because(
            "EKS gives the role to pods with an association. TagSession lets it add the names of cluster, namespace and "
            "ServiceAccount; without it, EKS refuses.",
            assumed_by("pods.eks.amazonaws.com", "sts:AssumeRole", "sts:TagSession"),
        )
    )
    yield Block(
        "resource",
        ("aws_iam_role", "gpuscaler"),
        {
            "name": because(
                "gpuscaler has a role of its own instead of the nodes' one, which every pod without a role could use.",
                base_name(description),
            ),
            "assume_role_policy": because(trust.why, call("jsonencode", trust.value)),
        },
    )
    rights = policy(description.cluster.name, queue=_QUEUE, node_role=_NODE_ROLE, partition=partition(description))
    body = {"name": "gpuscaler", "role": Expression("aws_iam_role.gpuscaler.name"), "policy": call("jsonencode", _rights(rights))}
    yield because(
        "What `gpuscaler generate iam` prints for this cluster, with its queue and the role of its GPU nodes.",
        Block("resource", ("aws_iam_role_policy", "gpuscaler"), body),
    )
    if not irsa:
        yield because(
            "Pods of this ServiceAccount get the role. Namespace and name must be those of the Helm release, or gpuscaler works "
            "with the nodes' rights.",
            Block(
                "resource",
                ("aws_eks_pod_identity_association", "gpuscaler"),
                {
                    "cluster_name": Expression("local.cluster.name"),
                    "namespace": description.controller.namespace,
                    "service_account": SERVICE_ACCOUNT,
                    "role_arn": Expression("aws_iam_role.gpuscaler.arn"),
                },
            ),
        )


def _rights(rights: dict[str, Any]) -> dict[str, Tree]:
    """Return the policy with references instead of the placeholders, and the reason for each statement."""
    references = {_QUEUE: Expression(_QUEUE), _NODE_ROLE: Expression(_NODE_ROLE)}
    statements = [
        because(_STATEMENTS[entry["Sid"]], entry | {"Resource": references.get(entry["Resource"], entry["Resource"])})
        for entry in rights["Statement"]
    ]
    return rights | {"Statement": statements}


def _provider(description: Description) -> Iterator[Tree]:
    """Yield what IRSA needs of IAM: the cluster's issuer as a provider of identities."""
    url = Expression("local.cluster.issuer")
    if description.cluster.create:
        yield because(
            "IAM accepts the cluster's tokens, which ServiceAccounts are signed with.",
            Block("resource", ("aws_iam_openid_connect_provider", "cluster"), {"url": url, "client_id_list": ["sts.amazonaws.com"]}),
        )
    else:
        yield because(
            "IAM must already accept the cluster's tokens. If this is not found, create the provider with `eksctl utils "
            "associate-iam-oidc-provider`.",
            Block("data", ("aws_iam_openid_connect_provider", "cluster"), {"url": url}),
        )


def _irsa_trust(description: Description) -> dict[str, Tree]:
    issuer = '"${trimprefix(local.cluster.issuer, "https://")}'
    provider = f"{'' if description.cluster.create else 'data.'}aws_iam_openid_connect_provider.cluster.arn"
    account = f"system:serviceaccount:{description.controller.namespace}:{SERVICE_ACCOUNT}"
    statement = {
        "Effect": "Allow",
        "Principal": {"Federated": Expression(provider)},
        "Action": "sts:AssumeRoleWithWebIdentity",
        "Condition": {"StringEquals": {Expression(f'{issuer}:aud"'): "sts.amazonaws.com", Expression(f'{issuer}:sub"'): account}},
    }
    return {"Version": "2012-10-17", "Statement": [statement]}


def _key() -> Iterator[Explained]:
    role = "role/aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
    principal = f'"arn:${{data.aws_partition.current.partition}}:iam::${{data.aws_caller_identity.current.account_id}}:{role}"'
    yield because(
        "EC2 Auto Scaling starts the machines, and may not use your key by itself: each machine would end while it starts, with "
        "Client.InternalError. The grant is not needed for the account's key aws/ebs. The role exists as soon as the account has "
        "had its first group.",
        Block(
            "resource",
            ("aws_kms_grant", "autoscaling"),
            {
                "count": Expression("var.kms_key_arn == null ? 0 : 1"),
                "name": "autoscaling",
                "key_id": Expression("var.kms_key_arn"),
                "grantee_principal": Expression(principal),
                "operations": list(GRANTED),
            },
        ),
    )
