"""What IAM allows the principal that gpuscaler runs as: asked from IAM's policy simulator, which changes nothing."""

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from gpuscaler.clouds.aws.api.calls import Calls
from gpuscaler.clouds.aws.discovery import iam
from gpuscaler.clouds.aws.discovery.ownership import CLUSTER_AUTOSCALER
from gpuscaler.clouds.aws.inspecting.inspection import Inspection

RIGHT, CALLER, DENIED = "aws/Right", "aws/Caller", "aws/DeniedAction"
#: The name of a cluster that is not ours, for a group that must be out of reach.
_FOREIGN: Final = "gpuscaler-doctor-foreign"
_TYPES: Final = {"aws:ViaAWSService": "boolean"}


def read_rights(calls: Calls, region: str, *, cluster: str, principal: str, group: str, queue: str, inspection: Inspection) -> None:
    """Read what the role ``principal`` may do, or without one, what the caller may do.

    The field ``Role`` of the caller says which of them it was. ``group`` is the ARN of a group of the cluster and ``queue`` that of the
    queue, or "".
    """
    caller = inspection.read(CALLER, "sts", region, "GetCallerIdentity")
    if caller is None:
        inspection.note(RIGHT, inspection.unread[CALLER])
        return
    arn = principal or _policy_source(calls, region, str(caller.get("Arn") or ""))
    inspection.add(CALLER, [{"Arn": caller.get("Arn"), "Account": caller.get("Account"), "Principal": arn, "Role": bool(principal)}])
    account, partition = str(caller.get("Account") or ""), arn.split(":")[1] if arn.count(":") >= 5 else "aws"
    foreign = f"arn:{partition}:autoscaling:{region}:{account}:autoScalingGroup:*:autoScalingGroupName/{_FOREIGN}"
    owned = {f"aws:ResourceTag/{CLUSTER_AUTOSCALER}{cluster}": "owned"}
    asks: list[tuple[str, Iterable[str], str, Mapping[str, str]]] = [("read", (*iam.READ, *iam.PRICES), "*", {})]
    asks += [
        ("change", iam.CHANGE, group or foreign, owned),
        ("launch", iam.LAUNCH, "*", {"aws:ViaAWSService": "true"}),
        ("foreign", iam.CHANGE, foreign, {f"aws:ResourceTag/{CLUSTER_AUTOSCALER}{_FOREIGN}": "owned"}),
    ]
    asks += [("queue", iam.QUEUE, queue, {})] if queue else []
    for purpose, actions, resource, context in asks:
        parameters: dict[str, Any] = {"PolicySourceArn": arn, "ActionNames": list(actions), "ResourceArns": [resource]}
        if context:
            parameters["ContextEntries"] = [
                {"ContextKeyName": key, "ContextKeyValues": [value], "ContextKeyType": _TYPES.get(key, "string")}
                for key, value in context.items()
            ]
        results = inspection.ask(RIGHT, partial(_simulate, calls, region, parameters))
        if results is None:
            return
        inspection.add(RIGHT, results, Purpose=purpose, Principal=arn)


def add_denied(calls: Calls, inspection: Inspection) -> None:
    """The actions that the caller was denied while the account was read, among those that gpuscaler needs."""
    needed = {*iam.READ, "eks:DescribeNodegroup"}
    entries = [{"Action": action, "Region": region} for action, region in sorted(calls.denied) if action in needed]
    inspection.add(DENIED, entries)


def _simulate(calls: Calls, region: str, parameters: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """All results; IAM pages with its own names."""
    results: list[Mapping[str, Any]] = []
    marker: dict[str, Any] = {}
    while True:
        reply = calls.read("iam", region, "SimulatePrincipalPolicy", **parameters, **marker)
        results += reply.get("EvaluationResults") or ()
        if not reply.get("IsTruncated") or not reply.get("Marker"):
            return results
        marker = {"Marker": reply["Marker"]}


def _policy_source(calls: Calls, region: str, arn: str) -> str:
    """The user or role behind a caller: of a session of a role only the role's name is in the ARN, not its path."""
    parts = arn.split(":")
    if len(parts) != 6 or not parts[5].startswith("assumed-role/"):
        return arn
    role = parts[5].split("/")[1]
    quiet = Inspection(calls)
    reply = quiet.read("role", "iam", region, "GetRole", RoleName=role)
    found = ((reply or {}).get("Role") or {}).get("Arn")
    return str(found) if found else f"arn:{parts[1]}:iam::{parts[4]}:role/{role}"
