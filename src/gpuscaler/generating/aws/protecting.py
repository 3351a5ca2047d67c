"""Commands that set for Auto Scaling groups what the tools that create them have no fields for."""

from gpuscaler.clouds.aws.discovery.ownership import CLUSTER_AUTOSCALER
from gpuscaler.clouds.discovery.hints import LABEL
from gpuscaler.generating.description.resolved import Description
from gpuscaler.model.well_known import POOL_LABEL


def protection_commands(description: Description, lacking: str) -> tuple[str, ...]:
    """Return the lines that protect the machines of all GPU groups from scale-in; ``lacking`` says what has no field for that."""
    region = description.cluster.region
    filters = f"'Name=tag:{CLUSTER_AUTOSCALER}{description.cluster.name},Values=owned' 'Name=tag-key,Values={LABEL}{POOL_LABEL}'"
    update = f'aws autoscaling update-auto-scaling-group --region {region} --auto-scaling-group-name "$group"'
    lines = [
        f"# {lacking} no field for this: if the size of a group is lowered, AWS must not choose which machines end.",
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
    if not description.managed:
        lines += [
            "  # A machine that its group ends waits up to ten minutes, in which gpuscaler moves its pods.",
            f'  aws autoscaling put-lifecycle-hook --region {region} --auto-scaling-group-name "$group" \\',
            "      --lifecycle-hook-name gpuscaler --lifecycle-transition autoscaling:EC2_INSTANCE_TERMINATING \\",
            "      --heartbeat-timeout 600 --default-result CONTINUE",
        ]
    return (*lines, "done")
