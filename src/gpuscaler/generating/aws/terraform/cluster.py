"""The cluster, as Terraform: the one that exists, or a new one with its role, its add-ons and nodes without GPUs.

Sources, 2026-11-26: the EKS user guide, "Amazon EKS cluster IAM role", "Amazon EKS add-ons", "Cluster API server endpoint" and "Grant IAM
users access to Kubernetes with EKS access entries".
"""

from collections.abc import Iterator

from gpuscaler.generating.aws.eksctl import NO_METRICS_SERVER
from gpuscaler.generating.aws.general import NETWORK_POLICIES, WHY_NETWORK_POLICIES, architecture, general_groups
from gpuscaler.generating.aws.nodes import HOP_LIMIT, HTTP_TOKENS, ROOT_DEVICE, VOLUME_TYPE
from gpuscaler.generating.aws.rights import pod_identity_trust
from gpuscaler.generating.aws.terraform.access import assumed_by, attached, node_role, policy_arn
from gpuscaler.generating.aws.terraform.images import general_ami_type
from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.description.settings import GIB, IRSA
from gpuscaler.generating.writing.explained import Explained, Tree, because
from gpuscaler.generating.writing.hcl import Block, Expression, Nested, call

_CLUSTER = Expression("local.cluster.name")


def cluster_blocks(description: Description) -> Iterator[Tree]:
    yield from _new(description) if description.cluster.create else _existing(description)
    yield from _subnets(description)


def disk(size_gib: Tree) -> Nested:
    """Return the root volume of a launch template."""
    ebs = {
        "volume_size": because("In GiB. Images, logs and emptyDir volumes take their space from this disk.", size_gib),
        "volume_type": because("gp3 costs less than gp2, and its speed does not depend on its size.", VOLUME_TYPE),
        "encrypted": because("Disks of nodes hold what pods write to them.", True),
        "kms_key_id": because("Your own key if you named one; null stands for the account's default key.", Expression("var.kms_key_arn")),
        "delete_on_termination": because("Otherwise the disk of every machine that ends stays, and is paid for.", True),
    }
    return Nested({"device_name": because("The root device of Amazon Linux.", ROOT_DEVICE), "ebs": Nested(ebs)})


def metadata_options() -> Explained:
    return because(
        "Every request needs a token of IMDSv2, and tokens do not travel beyond the machine: a pod that has an address of its own "
        "cannot get the "
        "credentials of the node's role.",
        Nested({"http_endpoint": "enabled", "http_tokens": HTTP_TOKENS, "http_put_response_hop_limit": HOP_LIMIT}),
    )


def _facts(source: str) -> Block:
    facts: dict[str, Tree] = {
        "name": Expression(f"{source}.name"),
        "version": Expression(f"{source}.version"),
        "endpoint": Expression(f"{source}.endpoint"),
        "authority": Expression(f"{source}.certificate_authority[0].data"),
        "service_cidr": Expression(f"{source}.kubernetes_network_config[0].service_ipv4_cidr"),
        "security_group": Expression(f"{source}.vpc_config[0].cluster_security_group_id"),
        "issuer": Expression(f"{source}.identity[0].oidc[0].issuer"),
    }
    return Block("locals", (), {"cluster": because("What the other files need of the cluster.", facts)})


def _subnets(description: Description) -> Iterator[Tree]:
    in_zone = Nested(
        {
            "condition": Expression("self.availability_zone == each.key"),
            "error_message": Expression('"The subnet ${each.value} is in ${self.availability_zone}, not in ${each.key}."'),
        }
    )
    checks = [
        because(
            "With two zones mixed up, machines would be bought in a zone in which the volumes of their pods are not.",
            in_zone,
        )
    ]
    if description.cluster.private:
        private = Nested(
            {
                "condition": Expression("!self.map_public_ip_on_launch"),
                "error_message": Expression('"The subnet ${each.value} gives public addresses, and nodes shall have none."'),
            }
        )
        checks.append(because("Nodes have private addresses only.", private))
    body = {"for_each": Expression("var.subnet_ids"), "id": Expression("each.value"), "lifecycle": Nested({"postcondition": checks})}
    yield because("The subnets are looked up and checked before machines are bought in them.", Block("data", ("aws_subnet", "nodes"), body))


def _existing(description: Description) -> Iterator[Tree]:
    yield Block(
        "data",
        ("aws_eks_cluster", "this"),
        {"name": because("The cluster exists and is only read. Nothing in these files changes it.", description.cluster.name)},
    )
    yield _facts("data.aws_eks_cluster.this")
    if description.controller.identity != IRSA:
        agent = {
            "count": Expression("var.install_pod_identity_agent ? 1 : 0"),
            "cluster_name": _CLUSTER,
            "addon_name": "eks-pod-identity-agent",
        }
        yield because(
            "The agent gives pods the roles of their associations.", Block("resource", ("aws_eks_addon", "pod_identity_agent"), agent)
        )


def _new(description: Description) -> Iterator[Tree]:
    name = description.cluster.name
    trust = call("jsonencode", assumed_by("eks.amazonaws.com", "sts:AssumeRole"))
    yield because(
        "EKS itself works with this role in your account: it creates load balancers and network interfaces.",
        Block("resource", ("aws_iam_role", "cluster"), {"name": f"{name[:56]}-cluster", "assume_role_policy": trust}),
    )
    yield because("The rights that EKS needs.", attached("cluster", "AmazonEKSClusterPolicy"))
    access = {"authentication_mode": "API", "bootstrap_cluster_creator_admin_permissions": True}
    network = {
        "subnet_ids": because("EKS asks for subnets in at least two zones.", call("values", Expression("var.subnet_ids"))),
        "endpoint_private_access": because("Nodes reach the API server inside the VPC.", True),
        "endpoint_public_access": because(
            "Only if you named addresses that may use it.", Expression("length(var.public_access_cidrs) > 0")
        ),
        "public_access_cidrs": because(
            "EKS takes an empty list for the whole internet, so null stands for none here.",
            Expression("length(var.public_access_cidrs) > 0 ? var.public_access_cidrs : null"),
        ),
    }
    yield Block(
        "resource",
        ("aws_eks_cluster", "this"),
        {
            "name": because("Tags of groups, roles and rules contain the cluster's name, so it cannot be changed later.", name),
            "version": because("The version of Kubernetes. EKS upgrades by one minor version at a time.", description.cluster.version),
            "role_arn": because("With this role, EKS works in your account.", Expression("aws_iam_role.cluster.arn")),
            "bootstrap_self_managed_addons": because("The add-ons below are installed instead, so that EKS can upgrade them.", False),
            "access_config": because(
                "IAM roles get access by access entries, and the role that applies these files is an administrator: otherwise nothing "
                "could install gpuscaler.",
                Nested(access),
            ),
            "vpc_config": Nested(network),
            "depends_on": because(
                "Without the policy, EKS cannot remove its network interfaces when the cluster is deleted.",
                [Expression("aws_iam_role_policy_attachment.cluster")],
            ),
        },
    )
    yield _facts("aws_eks_cluster.this")
    yield from _addons(name)
    yield from _general(description)
    later = ["coredns", "aws-ebs-csi-driver"] + ([] if description.cluster.region.startswith(NO_METRICS_SERVER) else ["metrics-server"])
    yield because(
        "DNS, volumes of pods (PersistentVolumeClaims), and `kubectl top`. They need nodes to run on: before there are any, EKS "
        "reports them as "
        "degraded.",
        Block("resource", ("aws_eks_addon", "workloads"), _addon(later, "aws_eks_node_group.general")),
    )


def _addons(cluster: str) -> Iterator[Tree]:
    roles = {
        "vpc-cni": {"service_account": "aws-node", "policy": "AmazonEKS_CNI_Policy"},
        "aws-ebs-csi-driver": {"service_account": "ebs-csi-controller-sa", "policy": "service-role/AmazonEBSCSIDriverPolicy"},
    }
    why = "Add-ons that call AWS have roles of their own. Without them, the nodes' role would need these rights, and pods could use them."
    yield Block("locals", (), {"addon_roles": because(why, roles)})
    trust = pod_identity_trust(cluster, "kube-system", Expression("each.value.service_account"))
    each = Expression("local.addon_roles")
    role = {"for_each": each, "name": Expression(f'"{cluster[:40]}-${{each.key}}"'), "assume_role_policy": call("jsonencode", trust.value)}
    yield because(trust.why, Block("resource", ("aws_iam_role", "addons"), role))
    attachment = {"for_each": each, "role": Expression("aws_iam_role.addons[each.key].name"), "policy_arn": policy_arn("each.value.policy")}
    yield because("The rights of each add-on.", Block("resource", ("aws_iam_role_policy_attachment", "addons"), attachment))
    settings = ", ".join(f'{key} = "{value}"' for key, value in NETWORK_POLICIES.items())
    yield because(
        "What a node needs before it is Ready: addresses for pods and rules for Services. The agent gives pods the roles of their "
        "associations.",
        Block(
            "resource",
            ("aws_eks_addon", "nodes"),
            {
                **_addon(["vpc-cni", "kube-proxy", "eks-pod-identity-agent"]),
                "configuration_values": because(
                    WHY_NETWORK_POLICIES, Expression(f'each.key == "vpc-cni" ? jsonencode({{ {settings} }}) : null')
                ),
            },
        ),
    )


def _addon(names: list[str], *after: str) -> dict[str, Tree]:
    """Return add-ons that are installed after what ``after`` names, and after their roles have their rights."""
    association = {
        "role_arn": Expression("aws_iam_role.addons[each.key].arn"),
        "service_account": Expression("pod_identity_association.value"),
    }
    accounts = Expression("[for name, role in local.addon_roles : role.service_account if name == each.key]")
    return {
        "for_each": call("toset", list(names)),
        "cluster_name": _CLUSTER,
        "addon_name": Expression("each.key"),
        "depends_on": [Expression(name) for name in (*after, "aws_iam_role_policy_attachment.addons")],
        "dynamic": Nested({"for_each": accounts, "content": Nested(association)}, labels=("pod_identity_association",)),
    }


def _general(description: Description) -> Iterator[Tree]:
    general, name = description.general, description.cluster.name
    yield from node_role(
        description, "general", f"{name[:56]}-general", "The role of the nodes without GPUs. gpuscaler may pass on that of GPU nodes only."
    )
    groups = {
        group.name: {"types": list(group.types), "ami_type": general_ami_type(architecture(group))} for group in general_groups(description)
    }
    why = "One group for each size of machine. Within a group, EKS may choose the type and the zone."
    yield Block("locals", (), {"general_groups": because(why, groups)})
    yield because(
        "The disks and the metadata of the nodes without GPUs.",
        Block(
            "resource",
            ("aws_launch_template", "general"),
            {"name": f"{name}-general", "block_device_mappings": disk(-(-general.disk // GIB)), "metadata_options": metadata_options()},
        ),
    )
    sizes = {
        "min_size": because("CoreDNS and gpuscaler run here, and must always have a node.", general.min),
        "max_size": because("Nothing here grows the group: gpuscaler leaves groups without GPUs alone.", general.max),
        "desired_size": because("The number at the start.", general.min),
    }
    template = {"id": Expression("aws_launch_template.general.id"), "version": Expression("aws_launch_template.general.latest_version")}
    needs = ("aws_iam_role_policy_attachment.general", "aws_eks_addon.nodes", "aws_kms_grant.autoscaling")
    body: dict[str, Tree] = {
        "for_each": Expression("local.general_groups"),
        "cluster_name": _CLUSTER,
        "node_group_name": Expression("each.key"),
        "node_role_arn": Expression("aws_iam_role.general.arn"),
        "subnet_ids": call("values", Expression("var.subnet_ids")),
        "instance_types": Expression("each.value.types"),
        "ami_type": Expression("each.value.ami_type"),
        "version": Expression("local.cluster.version"),
        "scaling_config": Nested(sizes),
        "launch_template": Nested(template),
        "lifecycle": because(
            "If you, or an autoscaler of yours, change the number of machines, `terraform apply` does not change it back.",
            Nested({"ignore_changes": [Expression("scaling_config[0].desired_size")]}),
        ),
        "depends_on": because(
            "A node without the rights of its role, the network plugin or the key of its disk does not become Ready, and EKS "
            "would give up the group.",
            [Expression(kind) for kind in needs],
        ),
    }
    yield because(
        "Nodes for everything that uses no GPU, above all gpuscaler itself, which must not run on machines that it may remove.",
        Block("resource", ("aws_eks_node_group", "general"), body),
    )
