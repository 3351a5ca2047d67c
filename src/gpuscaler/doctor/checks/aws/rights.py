"""Rights in IAM: actions that gpuscaler needs and may not take, and those that it may take in groups of others."""

import json
from collections.abc import Iterator
from typing import Any

from gpuscaler.doctor.checks.aws.account import CA, aws, aws_check, settings_of
from gpuscaler.doctor.checks.trusting import may_help
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding, Fix, Unchecked

RIGHT, ASSOCIATION = "aws/Right", "aws/PodIdentityAssociation"
_ALLOWED = "allowed"
#: Actions without which gpuscaler goes on with less: built-in prices, another way to buy, no hooks.
_OPTIONAL = frozenset(
    {
        "autoscaling:CompleteLifecycleAction",
        "autoscaling:DescribeLaunchConfigurations",
        "autoscaling:DescribeLifecycleHooks",
        "autoscaling:LaunchInstances",
        "autoscaling:RecordLifecycleActionHeartbeat",
        "ec2:CreateFleet",
        "ec2:CreateTags",
        "ec2:DescribeCapacityReservations",
        "ec2:DescribeImages",
        "ec2:DescribeInstanceTypeOfferings",
        "ec2:DescribeInstanceTypes",
        "ec2:DescribeSpotPriceHistory",
        "ec2:GetInstanceTypesFromInstanceRequirements",
        "ec2:RunInstances",
        "eks:DescribeNodegroup",
        "pricing:GetProducts",
    }
)
#: What the caller may do says nothing about the role, and the other way round.
_UNKNOWN = (
    "neither EKS Pod Identity nor the cluster's objects name a role for gpuscaler's ServiceAccount (eks.amazonaws.com/role-arn); without "
    "one, only the caller's own rights can be asked for"
)
_EFFECTS = {
    CRITICAL: "the account cannot be read, or no machine can be bought or ended",
    WARNING: "gpuscaler goes on with less: built-in prices and sizes, or another way to buy",
}


def find_missing(evidence: Evidence) -> Iterator[Finding | Unchecked]:
    """D29: actions that IAM does not allow."""
    known = _knows_role(evidence)
    if not known and RIGHT not in evidence.unread and evidence.of(RIGHT):
        yield Unchecked("D29", "the rights of gpuscaler's role", _UNKNOWN)
    missing: dict[tuple[str, str], dict[str, None]] = {}
    for right in evidence.of(RIGHT):
        if right.text("Purpose") != "foreign" and right.text("EvalDecision") != _ALLOWED:
            missing.setdefault((right.text("Principal"), right.text("Purpose")), {})[right.text("EvalActionName")] = None
    if RIGHT in evidence.unread:
        known = False
        # What the caller was denied is known without the simulator.
        caller = next((item.text("Arn") for item in evidence.of("aws/Caller")), "")
        for denied in evidence.of("aws/DeniedAction"):
            missing.setdefault((caller, "read"), {})[denied.text("Action")] = None
    for (principal, purpose), actions in missing.items():
        if purpose != "read" and not known:
            # A person who may only read is no mistake.
            continue
        for severity in (CRITICAL, WARNING):
            names = [name for name in actions if (name in _OPTIONAL) == (severity == WARNING)]
            if names:
                yield Finding(
                    "D29",
                    severity if known else WARNING,
                    f"IAM {principal or 'caller'}",
                    "policy",
                    f"no permission for {', '.join(names)}",
                    "allowed" if known else "allowed, if gpuscaler runs with the caller's credentials",
                    _EFFECTS[severity],
                    _allow(evidence, principal, purpose, names),
                )


def _allow(evidence: Evidence, principal: str, purpose: str, actions: list[str]) -> Fix:
    """The part of the policy that is missing, as `gpuscaler generate iam` words it."""
    cluster = settings_of(evidence).text("Cluster")
    statement: dict[str, Any] = {"Effect": "Allow", "Action": actions, "Resource": "*"}
    if purpose == "change":
        statement["Condition"] = {"StringEquals": {f"aws:ResourceTag/{CA}{cluster}": "owned"}}
    elif purpose == "launch":
        statement["Condition"] = {"Bool": {"aws:ViaAWSService": "true"}}
    elif purpose == "queue":
        statement["Resource"] = next((queue.text("QueueArn") for queue in evidence.of("aws/Queue")), "*")
    document = json.dumps({"Version": "2012-10-17", "Statement": [statement]}, separators=(",", ":"))
    resource = principal.rpartition(":")[2]
    kind, _, name = resource.partition("/")
    if kind not in ("role", "user") or not name or not _is_ours(evidence, principal):
        return Fix(advice=f"add to the policy of gpuscaler's role, once you have verified which one that is: {document}")
    options = (f"--{kind}-name", name.rpartition("/")[2], "--policy-name", f"gpuscaler-{purpose}", "--policy-document", document)
    return Fix((aws("iam", f"put-{kind}-policy", *options),))


def _is_ours(evidence: Evidence, principal: str) -> bool:
    """Whether more than names says that the role is gpuscaler's: it is the caller's own, or that of an account that no tenant can make."""
    accounts = [(item.namespace, item.annotations.get("eks.amazonaws.com/role-arn")) for item in evidence.of("ServiceAccount")]
    accounts += [(item.text("namespace"), item.text("roleArn")) for item in evidence.of(ASSOCIATION)]
    if not _knows_role(evidence) or any(caller.text("Arn") == principal for caller in evidence.of("aws/Caller")):
        return True
    return any(role == principal and may_help(evidence, namespace) for namespace, role in accounts)


def _knows_role(evidence: Evidence) -> bool:
    """Whether the rights that were asked for are those of gpuscaler's own role."""
    return any(caller.flag("Role") for caller in evidence.of("aws/Caller"))


def find_foreign(evidence: Evidence) -> Iterator[Finding | Unchecked]:
    """D30: changes that are allowed in groups of another cluster."""
    if not _knows_role(evidence) and evidence.of(RIGHT):
        yield Unchecked("D30", "the rights of gpuscaler's role", _UNKNOWN)
        return
    allowed: dict[str, list[str]] = {}
    for right in evidence.of(RIGHT):
        if right.text("Purpose") == "foreign" and right.text("EvalDecision") == _ALLOWED:
            allowed.setdefault(right.text("Principal"), []).append(right.text("EvalActionName"))
    cluster = settings_of(evidence).text("Cluster")
    for principal, actions in allowed.items():
        yield Finding(
            "D30",
            WARNING,
            f"IAM {principal}",
            "policy",
            f"{', '.join(actions)} allowed in groups of another cluster",
            f"allowed only with the tag {CA}{cluster}=owned",
            "with these credentials any group of the account can be changed or emptied",
            Fix(advice=f"replace the policy by the one that gpuscaler generate iam --cluster {cluster} prints"),
        )


CHECKS = (
    aws_check("D29", "actions that IAM allows", (RIGHT, ASSOCIATION), find_missing),
    aws_check("D30", "rights in groups of others", (RIGHT, ASSOCIATION), find_foreign),
)
