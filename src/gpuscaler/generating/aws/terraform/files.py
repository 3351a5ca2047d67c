"""The files of Terraform for AWS, and those that hold for all of them: versions, variables and outputs.

Facts about providers, 2026-11-26: hashicorp/aws 6.25.0, of which tests/generating/terraform has every argument; Terraform 1.11. The
Pod Identity association came with the provider's version 5.29, and arguments that version 5 has not are not used.
"""

from collections.abc import Iterable, Iterator

from gpuscaler.generating.aws.eksctl_commands import kubeconfig_command, protection_commands, quota_edits
from gpuscaler.generating.aws.general import control_plane_zones, unused_networks
from gpuscaler.generating.aws.terraform.access import access_blocks
from gpuscaler.generating.aws.terraform.cluster import cluster_blocks
from gpuscaler.generating.aws.terraform.images import image_blocks
from gpuscaler.generating.aws.terraform.nodes import group_blocks, node_blocks
from gpuscaler.generating.aws.terraform.notices import notice_blocks
from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.description.settings import IRSA, TERRAFORM
from gpuscaler.generating.writing.explained import Tree, because
from gpuscaler.generating.writing.files import GeneratedFile
from gpuscaler.generating.writing.hcl import Block, Expression, Nested, hcl_file

_FOLDER = "terraform"
_APPLY = f"terraform -chdir={_FOLDER} init\nterraform -chdir={_FOLDER} plan -out=plan.tfplan\nterraform -chdir={_FOLDER} apply plan.tfplan"


def terraform_files(description: Description) -> Iterator[GeneratedFile]:
    """Yield the files, if the description asks for Terraform on AWS."""
    if description.cloud != "aws" or description.tool != TERRAFORM:
        return
    zones = ", ".join(f'"{zone}" = "subnet-…"' for zone in _zones(description))
    edit = f"write {_FOLDER}/terraform.tfvars with the subnets of the nodes, one for each zone: subnet_ids = {{ {zones} }}"
    created = description.cluster.create
    if created:
        edit += (
            f". The API server is open to {', '.join(description.cluster.api_access)}"
            if description.cluster.api_access
            else '. To reach the API server from outside the VPC, add your addresses: public_access_cidrs = ["…/32"]. Without '
            "them, kubectl and helm work only where the VPC is reached"
        )
    apply = f"{_APPLY}\n{kubeconfig_command(description)}"
    if description.managed:
        why = "# EKS has no field for this: if the size of a group is lowered, AWS must not choose which machines end."
        apply = "\n".join((apply, why, *protection_commands(description)))
    edit = ". ".join((edit, *quota_edits(description)))
    files: tuple[tuple[str, str, Iterable[Tree]], ...] = (
        (
            "versions.tf",
            "the versions of Terraform and of its provider, and the account and region that it may change",
            _versions(description),
        ),
        ("variables.tf", "what only you know: the subnets, and the key of the disks if you have one", _variables(description)),
        (
            "cluster.tf",
            "the EKS cluster, its role, its add-ons and a node group without GPUs; its network must exist"
            if created
            else "the EKS cluster that exists, from which the other files take its name, version and network",
            cluster_blocks(description),
        ),
        ("groups.tf", "the list of the GPU groups: one for each type, market and zone", group_blocks(description)),
        (
            "nodes.tf",
            "launch templates and groups of the GPU nodes, made from that list",
            [*image_blocks(description), *node_blocks(description)],
        ),
        ("notices.tf", "the queue of notices about machines, and the rules that fill it", notice_blocks(description)),
        ("access.tf", "the roles of nodes and of gpuscaler, and the grant for the key of the disks", access_blocks(description)),
    )
    before = {
        "variables.tf": edit,
        "nodes.tf": "; ".join(unused_networks(description)),
        "access.tf": "" if created else _access_edits(description),
    }
    for name, about, blocks in files:
        yield hcl_file(f"{_FOLDER}/{name}", about, blocks, edit=before.get(name, ""))
    yield hcl_file(f"{_FOLDER}/outputs.tf", "the queue and the role, which gpuscaler's settings name", _outputs(), apply=apply)


def _access_edits(description: Description) -> str:
    """Return what a cluster that exists must have so that nodes and gpuscaler get access."""
    name, region = description.cluster.name, description.cluster.region
    edits = []
    if description.controller.identity == IRSA:
        associate = f"eksctl utils associate-iam-oidc-provider --region {region} --cluster {name} --approve"
        edits.append(f"if IAM does not know the cluster's issuer of tokens (`aws iam list-open-id-connect-providers`), `{associate}`")
    else:
        agent = "kubectl --namespace kube-system get daemonset eks-pod-identity-agent"
        edits.append(f"if `{agent}` finds none, write install_pod_identity_agent = true into terraform.tfvars")
    if not description.managed:
        mode = f"aws eks describe-cluster --region {region} --name {name} --query cluster.accessConfig.authenticationMode"
        edits.append(
            f"if `{mode}` says CONFIG_MAP, the cluster knows no access entries: allow them, which cannot be undone (`aws eks "
            f"update-cluster-config --region {region} --name {name} --access-config authenticationMode=API_AND_CONFIG_MAP`), or leave the "
            "entry out and add the role of the nodes to the ConfigMap aws-auth"
        )
    return "; ".join(edits)


def _zones(description: Description) -> list[str]:
    """Return the zones that need a subnet."""
    if description.cluster.create:
        return control_plane_zones(description)
    return list(dict.fromkeys(group.zone for group in description.groups))


def _versions(description: Description) -> Iterator[Tree]:
    aws = {
        "source": because("Terraform downloads the provider of AWS, which HashiCorp publishes.", "hashicorp/aws"),
        "version": because("Version 7 may drop arguments that these files use.", ">= 6.0, < 7.0"),
    }
    versions = {
        "required_version": because("Tried with 1.11. Nothing newer than 1.5 is used, so OpenTofu reads the files, too.", ">= 1.5"),
        "required_providers": Nested({"aws": aws}),
    }
    yield Block("terraform", (), versions)
    where = "Queue, rules and groups must be in the cluster's region, or notices about machines do not arrive."
    provider: dict[str, Tree] = {"region": because(where, description.cluster.region)}
    if description.cluster.account:
        why = "With credentials of another account, Terraform stops before it changes anything there."
        provider["allowed_account_ids"] = because(why, [description.cluster.account])
    yield Block("provider", ("aws",), provider)


def _variables(description: Description) -> Iterator[Tree]:
    zones = _zones(description)
    has_all = {
        "condition": Expression(f"length(setsubtract({_texts(zones)}, keys(var.subnet_ids))) == 0"),
        "error_message": f"A subnet for each of {', '.join(zones)} is needed.",
    }
    private = " They reach AWS and the internet, but give no public addresses."
    text = f"The subnet of the nodes in each zone.{private if description.cluster.private else ''}"
    subnets = _variable(
        "subnet_ids",
        text,
        "map(string)",
        validation=because("A zone that lacks a subnet is reported before anything is created.", Nested(has_all)),
    )
    yield because("Which network the nodes are in is your decision: these files create none.", subnets)
    yield because(
        "Without it, EBS encrypts with the default key of the account: aws/ebs, which EC2 Auto Scaling may use without a grant, "
        "unless someone "
        "chose another one. Then name that one here.",
        _variable("kms_key_arn", "The ARN of your own key for the nodes' disks, if you have one.", "string", default=None),
    )
    if description.cluster.create:
        yield because(
            "EKS by itself opens the public endpoint to the whole internet. Here it is open to the addresses of cluster.api_access of the "
            "description, and closed if there are none. While it is closed, kubectl and helm must run where they reach the VPC.",
            _variable(
                "public_access_cidrs",
                "Addresses from which the API server may be reached over the internet.",
                "list(string)",
                default=list(description.cluster.api_access),
            ),
        )
    elif description.controller.identity != IRSA:
        yield because(
            "An agent on the nodes gives gpuscaler its role. EKS refuses to install an add-on twice, so this is false. Set it to true if "
            "`kubectl --namespace kube-system get daemonset eks-pod-identity-agent` finds none.",
            _variable(
                "install_pod_identity_agent", "Whether the cluster still lacks the agent of EKS Pod Identity.", "bool", default=False
            ),
        )


def _variable(name: str, text: str, kind: str, **more: Tree) -> Block:
    return Block("variable", (name,), {"type": Expression(kind), "description": text, **more})


def _outputs() -> Iterator[Tree]:
    outputs = (
        (
            "queue_url",
            "aws_sqs_queue.notices.url",
            "aws.queue_url of gpuscaler's settings",
            "From this queue, gpuscaler learns that a machine will end.",
        ),
        (
            "role_arn",
            "aws_iam_role.gpuscaler.arn",
            "The role of gpuscaler",
            "With IRSA, the ServiceAccount names the role in the annotation eks.amazonaws.com/role-arn. Pod Identity needs no annotation.",
        ),
    )
    for name, value, text, why in outputs:
        yield because(why, Block("output", (name,), {"value": Expression(value), "description": text}))


def _texts(values: list[str]) -> str:
    return f"[{', '.join(f'{chr(34)}{value}{chr(34)}' for value in values)}]"
