"""Commands that apply files of eksctl, with what eksctl has no fields for, and what a person does before."""

from gpuscaler.generating.aws.general import general_groups
from gpuscaler.generating.aws.names import ACCOUNT_PLACEHOLDER
from gpuscaler.generating.aws.protecting import protection_commands
from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.description.settings import IRSA

#: EKS allows 30 managed node groups in a cluster, unless its owner asked for more (EKS user guide, "service quotas", 2026-11-26).
_MANAGED_GROUPS = 30


def create_commands(description: Description, path: str) -> str:
    """Return the commands that create the cluster or its groups, and then set what eksctl cannot."""
    region, name = description.cluster.region, description.cluster.name
    what = "cluster" if description.cluster.create else "nodegroup"
    lines = [
        "# Without eksctl's own device plugin: kubernetes/ has one that tolerates the taints of the GPU nodes.",
        f"eksctl create {what} --config-file={path} --install-nvidia-plugin=false",
    ]
    if not description.cluster.create and description.controller.identity == IRSA:
        lines.append(f"eksctl utils associate-iam-oidc-provider --region={region} --cluster={name} --approve")
    return "\n".join((*lines, *protection_commands(description, "eksctl has")))


def identity_commands(description: Description, path: str) -> str:
    """Return the commands that associate the controller with its role."""
    region, name = description.cluster.region, description.cluster.name
    agent = f"eksctl create addon --region={region} --cluster={name} --name=eks-pod-identity-agent"
    lines = [] if description.cluster.create else [agent]
    return "\n".join((*lines, f"eksctl create podidentityassociation --config-file={path}"))


def cluster_edits(description: Description) -> str:
    """Return what must be done before eksctl runs."""
    edits = ["use the newest eksctl: for types that it does not know, it takes an image without NVIDIA's driver"]
    if not description.cluster.create:
        edits.append("if eksctl did not create the cluster, add its network (`vpc` with `id`, `securityGroup` and `subnets`)")
    groups = len(description.groups) + (len(list(general_groups(description))) if description.cluster.create else 0)
    if description.managed and groups > _MANAGED_GROUPS:
        edits.append(
            f"ask AWS for {groups} managed node groups in a cluster (Service Quotas of EKS), which has {_MANAGED_GROUPS} by default"
        )
    return "; ".join(edits)


def identity_edits(description: Description) -> str:
    """Return what must be filled in before the association is made."""
    return "" if description.cluster.account else f"replace {ACCOUNT_PLACEHOLDER} by the id of your AWS account"
