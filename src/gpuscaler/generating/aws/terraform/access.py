"""Roles and rights, as Terraform: the nodes' role, gpuscaler's role with Pod Identity or IRSA, and the grant for the key of disks.

Sources, 2026-11-26: the EKS user guide, "Amazon EKS node IAM role", "How EKS Pod Identity works", "IAM roles for service accounts" and
"Create access entries"; the EC2 Auto Scaling user guide, "Required AWS KMS key policy for use with encrypted volumes".
"""

from collections.abc import Iterator

from gpuscaler.doctor.checks.aws.keys import GRANTED
from gpuscaler.generating.aws.names import base_name, partition
from gpuscaler.generating.aws.rights import controller_policy, irsa_trust, pod_identity_trust
from gpuscaler.generating.description.resolved import SERVICE_ACCOUNT, Description
from gpuscaler.generating.description.settings import IRSA
from gpuscaler.generating.writing.explained import Explained, Tree, because
from gpuscaler.generating.writing.hcl import Block, Expression, call

#: Policies of AWS that nodes need.
_NODE_POLICIES = ("AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly")
_NETWORK_POLICY = "AmazonEKS_CNI_Policy"
_NODE_ROLE = Expression("aws_iam_role.nodes.arn")


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
        "policy_arn": policy_arn("each.key"),
    }
    return Block("resource", ("aws_iam_role_policy_attachment", role), body)


def policy_arn(name: str) -> Expression:
    """Return the ARN of a policy of AWS; ``name`` is an expression. ARNs differ between partitions."""
    return Expression(f'"arn:${{data.aws_partition.current.partition}}:iam::aws:policy/${{{name}}}"')


def _ec2(description: Description) -> str:
    return "ec2.amazonaws.com.cn" if partition(description) == "aws-cn" else "ec2.amazonaws.com"


def _nodes(description: Description) -> Iterator[Tree]:
    name = f"{base_name(description)[:58]}-nodes"
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
            {"cluster_name": Expression("local.cluster.name"), "principal_arn": _NODE_ROLE, "type": "EC2_LINUX"},
        ),
    )


def node_role(description: Description, label: str, name: str, why: str) -> Iterator[Tree]:
    """Yield a role of nodes with what nodes need."""
    trust = call("jsonencode", assumed_by(_ec2(description), "sts:AssumeRole"))
    yield because(why, Block("resource", ("aws_iam_role", label), {"name": name, "assume_role_policy": trust}))
    if description.cluster.create:
        yield because("A node reads about its machine and cluster, and pulls images from ECR.", attached(label, *_NODE_POLICIES))
        return
    yield because(
        "A node reads about its machine and cluster, and pulls images from ECR. The network plugin gives pods addresses with the "
        "rights of its "
        "node; leave out the last policy if the plugin has a role of its own in your cluster.",
        attached(label, *_NODE_POLICIES, _NETWORK_POLICY),
    )


def _gpuscaler(description: Description) -> Iterator[Tree]:
    irsa = description.controller.identity == IRSA
    yield from _provider(description) if irsa else ()
    account = (description.cluster.name, description.controller.namespace, SERVICE_ACCOUNT)
    trust = _irsa_trust(description) if irsa else pod_identity_trust(*account)
    rights = controller_policy(description, queue=Expression("aws_sqs_queue.notices.arn"), node_role=_NODE_ROLE)
    yield Block(
        "resource",
        ("aws_iam_role", "gpuscaler"),
        {
            "name": because(
                "The values of the chart name the role by its ARN, so the name must be known beforehand.", base_name(description)
            ),
            "assume_role_policy": because(trust.why, call("jsonencode", trust.value)),
        },
    )
    body = {"name": "gpuscaler", "role": Expression("aws_iam_role.gpuscaler.name"), "policy": call("jsonencode", rights.value)}
    yield because(rights.why, Block("resource", ("aws_iam_role_policy", "gpuscaler"), body))
    if not irsa:
        association = {
            "cluster_name": Expression("local.cluster.name"),
            "namespace": description.controller.namespace,
            "service_account": SERVICE_ACCOUNT,
            "role_arn": Expression("aws_iam_role.gpuscaler.arn"),
        }
        yield because(
            "EKS gives the role to pods of this ServiceAccount only, which the chart makes if the release is called gpuscaler. "
            "Pods with another "
            "namespace or name get no role.",
            Block("resource", ("aws_eks_pod_identity_association", "gpuscaler"), association),
        )


def _provider(description: Description) -> Iterator[Tree]:
    """Yield what IRSA needs of IAM: the cluster's issuer as a provider of identities."""
    url = Expression("local.cluster.issuer")
    if description.cluster.create:
        yield because(
            "IAM must know the issuer that signs the tokens of the cluster's ServiceAccounts.",
            Block("resource", ("aws_iam_openid_connect_provider", "cluster"), {"url": url, "client_id_list": ["sts.amazonaws.com"]}),
        )
    else:
        yield because(
            "IAM must know the cluster's issuer of tokens already. If it does not, `eksctl utils associate-iam-oidc-provider` tells IAM.",
            Block("data", ("aws_iam_openid_connect_provider", "cluster"), {"url": url}),
        )


def _irsa_trust(description: Description) -> Explained:
    provider, issuer = f"{'' if description.cluster.create else 'data.'}aws_iam_openid_connect_provider.cluster.arn", "ISSUER"
    trust = dict(irsa_trust(description, provider=issuer, provider_arn=provider))
    statement = dict(trust["Statement"][0])
    host = '${trimprefix(local.cluster.issuer, "https://")}'
    equals = {Expression(f'"{key.replace(issuer, host)}"'): value for key, value in statement["Condition"]["StringEquals"].items()}
    statement |= {"Principal": {"Federated": Expression(provider)}, "Condition": {"StringEquals": equals}}
    return because(
        "Only tokens of gpuscaler's ServiceAccount may take the role: `sub` is the account, `aud` is who the token is for.",
        trust | {"Statement": [statement]},
    )


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
