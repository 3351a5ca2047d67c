"""Commands that apply files of eksctl, with what eksctl has no fields for, and what a person does before."""

from gpuscaler.clouds.aws.discovery.ownership import CLUSTER_AUTOSCALER
from gpuscaler.clouds.discovery.hints import LABEL
from gpuscaler.generating.aws.general import general_groups, unused_networks
from gpuscaler.generating.aws.names import ACCOUNT_PLACEHOLDER
from gpuscaler.generating.description.addresses import before_creation
from gpuscaler.generating.description.limits import MANAGED_GROUPS
from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.description.settings import IRSA
from gpuscaler.model.well_known import POOL_LABEL

#: The lifecycle hook of groups that EKS does not manage, and the seconds for which it holds a machine that its group ends.
HOOK, HEARTBEAT = "gpuscaler", 600


def create_commands(description: Description, path: str) -> str:
    """Return the commands that create the cluster or its groups, and then set what eksctl cannot."""
    region, name = description.cluster.region, description.cluster.name
    what = "cluster" if description.cluster.create else "nodegroup"
    lines = [
        "# Without eksctl's own device plugin: kubernetes/ has one that tolerates the taints of the GPU nodes.",
        f"eksctl create {what} --config-file={path} --install-nvidia-plugin=false",
    ]
    if not description.cluster.create:
        lines.append(kubeconfig_command(description))
    if not description.cluster.create and description.controller.identity == IRSA:
        lines.append(f"eksctl utils associate-iam-oidc-provider --region={region} --cluster={name} --approve")
    return "\n".join((*lines, *_group_commands(description)))


def kubeconfig_command(description: Description) -> str:
    """Return the command that makes kubectl and helm speak to this cluster, and not to the one that they spoke to before."""
    return f"aws eks update-kubeconfig --region {description.cluster.region} --name {description.cluster.name}"


def _group_commands(description: Description) -> tuple[str, ...]:
    region = description.cluster.region
    hook = (
        "  # A machine that its group ends waits up to ten minutes, in which gpuscaler moves its pods.",
        f'  aws autoscaling put-lifecycle-hook --region {region} --auto-scaling-group-name "$group" \\',
        f"      --lifecycle-hook-name {HOOK} --lifecycle-transition autoscaling:EC2_INSTANCE_TERMINATING \\",
        f"      --heartbeat-timeout {HEARTBEAT} --default-result CONTINUE",
    )
    why = "# eksctl has no field for this: if the size of a group is lowered, AWS must not choose which machines end."
    return (why, *protection_commands(description, *(() if description.managed else hook)))


def protection_commands(description: Description, *more: str) -> tuple[str, ...]:
    """Return the loop that protects machines of the GPU groups from scale-in; ``more`` are further commands for each "$group"."""
    region = description.cluster.region
    filters = f"'Name=tag:{CLUSTER_AUTOSCALER}{description.cluster.name},Values=owned' 'Name=tag-key,Values={LABEL}{POOL_LABEL}'"
    update = f'aws autoscaling update-auto-scaling-group --region {region} --auto-scaling-group-name "$group"'
    lines = [
        f"for group in $(aws autoscaling describe-auto-scaling-groups --region {region} --filters {filters} \\",
        "    --query 'AutoScalingGroups[].AutoScalingGroupName' --output text); do",
        f"  {update} --new-instances-protected-from-scale-in",
    ]
    if any(group.min for group in description.groups):
        lines += [
            f'  aws autoscaling describe-auto-scaling-groups --region {region} --auto-scaling-group-names "$group" \\',
            "      --query 'AutoScalingGroups[0].Instances[].InstanceId' --output text |",
            f'    xargs -r -n 50 aws autoscaling set-instance-protection --region {region} --auto-scaling-group-name "$group" \\',
            "      --protected-from-scale-in --instance-ids",
        ]
    return (*lines, *more, "done")


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
    else:
        edits.append(before_creation(description.cluster.api_access))
    return "; ".join((*edits, *quota_edits(description), *unused_networks(description)))


def quota_edits(description: Description) -> tuple[str, ...]:
    """Return what must be asked of AWS, if EKS allows fewer node groups than there are."""
    groups = len(description.groups) + (len(list(general_groups(description))) if description.cluster.create else 0)
    if not description.managed or groups <= MANAGED_GROUPS:
        return ()
    return (f"ask AWS for {groups} managed node groups in a cluster (Service Quotas of EKS), which has {MANAGED_GROUPS} by default",)


def identity_edits(description: Description) -> str:
    """Return what must be filled in before the association is made."""
    return "" if description.cluster.account else f"replace {ACCOUNT_PLACEHOLDER} by the id of your AWS account"
