"""The IAM policy that gpuscaler needs for one cluster: to read, and to change what is tagged for the cluster.

Sources: the Service Authorization Reference of AWS for the services named below, 2026. Read actions
of EC2 and EC2 Auto Scaling do not support resources, hence the stars.
"""

from typing import Any

from gpuscaler.clouds.aws.discovery.ownership import CLUSTER_AUTOSCALER

Policy = dict[str, Any]

READ = (
    "autoscaling:DescribeAutoScalingGroups",
    "autoscaling:DescribeLaunchConfigurations",
    "autoscaling:DescribeLifecycleHooks",
    "autoscaling:DescribeScalingActivities",
    "ec2:DescribeCapacityReservations",
    "ec2:DescribeImages",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeInstances",
    "ec2:DescribeLaunchTemplateVersions",
    "ec2:DescribeLaunchTemplates",
    "ec2:DescribeSpotPriceHistory",
    "ec2:GetInstanceTypesFromInstanceRequirements",
)
PRICES = ("pricing:GetProducts",)
#: What only `gpuscaler doctor` reads, beside the others.
DOCTOR = (
    "autoscaling:DescribeInstanceRefreshes",
    "autoscaling:DescribePolicies",
    "autoscaling:DescribeScheduledActions",
    "cloudtrail:LookupEvents",
    "ec2:DescribeSubnets",
    "ec2:GetEbsDefaultKmsKeyId",
    "ec2:GetEbsEncryptionByDefault",
    "eks:DescribePodIdentityAssociation",
    "eks:ListPodIdentityAssociations",
    "events:DescribeRule",
    "events:ListRuleNamesByTarget",
    "iam:GetRole",
    "iam:SimulatePrincipalPolicy",
    "kms:DescribeKey",
    "kms:GetKeyPolicy",
    "kms:ListGrants",
    "servicequotas:GetServiceQuota",
    "servicequotas:ListServiceQuotas",
    "sqs:GetQueueAttributes",
    "sts:GetCallerIdentity",
)
CHANGE = (
    "autoscaling:CompleteLifecycleAction",
    "autoscaling:LaunchInstances",
    "autoscaling:RecordLifecycleActionHeartbeat",
    "autoscaling:SetDesiredCapacity",
    "autoscaling:SetInstanceProtection",
    "autoscaling:TerminateInstanceInAutoScalingGroup",
)
#: The actions with which LaunchInstances creates machines on behalf of the caller.
LAUNCH = ("ec2:CreateFleet", "ec2:CreateTags", "ec2:RunInstances")
QUEUE = ("sqs:DeleteMessage", "sqs:ReceiveMessage")


def policy(cluster: str, *, queue: str = "", node_role: str = "", change: bool = True, partition: str = "aws") -> Policy:
    """The policy as JSON. ``queue`` and ``node_role`` are ARNs, empty if there are none.

    Changes are restricted to groups with the cluster's ownership tag, so those of another cluster are out of reach in any case. EC2
    launches machines only through EC2 Auto Scaling on behalf of the caller (``aws:ViaAWSService``). With ``change`` False the policy is for
    a person: it allows reading only, also what `gpuscaler doctor` reads.
    """
    statements = [
        _allow("Read", (*READ, *PRICES), "*"),
        _allow("ReadNodeGroups", ("eks:DescribeNodegroup",), f"arn:{partition}:eks:*:*:nodegroup/{cluster}/*/*"),
    ]
    if not change:
        statements.append(_allow("ReadForDoctor", DOCTOR, "*"))
        return {"Version": "2012-10-17", "Statement": statements}
    owned = {"StringEquals": {f"aws:ResourceTag/{CLUSTER_AUTOSCALER}{cluster}": "owned"}}
    statements.append(_allow("ChangeGroupsOfTheCluster", CHANGE, "*", owned))
    statements.append(_allow("LaunchThroughGroups", LAUNCH, "*", {"Bool": {"aws:ViaAWSService": "true"}}))
    if node_role:
        machines = "ec2.amazonaws.com.cn" if partition == "aws-cn" else "ec2.amazonaws.com"
        statements.append(_allow("PassTheRoleOfNodes", ("iam:PassRole",), node_role, {"StringEquals": {"iam:PassedToService": machines}}))
    if queue:
        statements.append(_allow("ReadNotices", QUEUE, queue))
    return {"Version": "2012-10-17", "Statement": statements}


def _allow(name: str, actions: tuple[str, ...], resource: str, condition: dict[str, Any] | None = None) -> dict[str, Any]:
    statement: dict[str, Any] = {"Sid": name, "Effect": "Allow", "Action": list(actions), "Resource": resource}
    return statement | ({"Condition": condition} if condition else {})
