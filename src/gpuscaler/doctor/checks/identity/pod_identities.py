"""EKS Pod Identity, which gives a role to the pods of a ServiceAccount without an annotation on it.

Source: Amazon EKS user guide, "EKS Pod Identities", 2026. An association comes before the annotation of IRSA.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gpuscaler.doctor.checks.aws.account import aws
from gpuscaler.doctor.checks.checking import Check, in_part
from gpuscaler.doctor.checks.programs import account_of
from gpuscaler.doctor.documents import Document, containers_of
from gpuscaler.doctor.evidence import ACCOUNT, Evidence
from gpuscaler.doctor.findings import ABSENCE, CRITICAL, Finding, Fix, Unchecked

ASSOCIATION = "aws/PodIdentityAssociation"
#: The variable that EKS adds to pods with an association, and the agent on their nodes that answers there.
CREDENTIALS_URI = "AWS_CONTAINER_CREDENTIALS_FULL_URI"
_AGENT, _AGENT_HOSTS = "eks-pod-identity-agent", ("169.254.170.23", "fd00:ec2::23")
#: Nodes of EKS Auto Mode have the agent without a DaemonSet.
_AUTO = ("eks.amazonaws.com/compute-type", "auto")
_SERVICE = "pods.eks.amazonaws.com"
_ACTIONS = ("sts:AssumeRole", "sts:TagSession")
_NO_ROLE = "its pods get no role: AWS refuses all requests, or answers them with the rights of the node"


def associated(evidence: Evidence) -> frozenset[tuple[str, str]]:
    """The ServiceAccounts, by namespace and name, that have a role by Pod Identity, as the account or their pods show."""
    pods = ((pod.namespace, account_of(pod)) for pod in evidence.of("Pod") if _has_agent_address(pod))
    listed = ((item.text("namespace"), item.text("serviceAccount")) for item in evidence.of(ASSOCIATION))
    return frozenset((*pods, *listed))


def _has_agent_address(pod: Document) -> bool:
    return any(
        variable.text("name") == CREDENTIALS_URI and any(host in variable.text("value") for host in _AGENT_HOSTS)
        for _, container in containers_of(pod)
        for variable in container.parts("env")
    )


def has_agent(evidence: Evidence) -> bool:
    """Whether something on the nodes gives out the roles of associations."""
    name, value = _AUTO
    return any(_AGENT in daemon.name for daemon in evidence.of("DaemonSet")) or any(
        node.labels.get(name) == value for node in evidence.of("Node")
    )


def find_pod_identities(evidence: Evidence) -> Iterator[Finding | Unchecked]:
    """D28: associations of gpuscaler whose role does not trust EKS, or whose role nothing on the nodes gives out."""
    yield from in_part("D28", "roles by Pod Identity", evidence, ASSOCIATION)
    own = [item for item in evidence.of(ASSOCIATION) if item.has("Unread") or item.has("roleArn")]
    for item in own:
        role, trust = item.text("roleArn"), item.value("Trust")
        if isinstance(trust, Mapping):
            if missing := [action for action in _ACTIONS if not _trusts(trust, action)]:
                yield _untrusting(role, trust, missing)
        elif item.has("Unread"):
            yield Unchecked("D28", f"the role of ServiceAccount {_name(item)} by Pod Identity", item.text("Unread"))
    unread = tuple(in_part("D28", "the agent of Pod Identity", evidence, "DaemonSet", "Node")) if own else ()
    yield from unread
    for item in own if not unread and evidence.of("Node") and not has_agent(evidence) else ():
        options = ("--cluster-name", item.text("clusterName"), "--addon-name", _AGENT)
        yield Finding(
            "D28",
            CRITICAL,
            f"ServiceAccount {_name(item)}",
            "PodIdentityAssociation",
            f"a role by Pod Identity in a cluster without the DaemonSet {_AGENT}",
            "the agent, which gives out roles on each node",
            _NO_ROLE,
            Fix((aws("eks", "create-addon", *options, region=item.text("Region")),)),
            relies_on=ABSENCE,
        )


def _name(association: Document) -> str:
    return f"{association.text('namespace')}/{association.text('serviceAccount')}"


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _trusts(trust: Mapping[str, Any], action: str) -> bool:
    """Whether EKS may ``action`` by the trust policy; its conditions are taken to hold."""
    for statement in _listed(trust.get("Statement")):
        principal = statement.get("Principal") if isinstance(statement, Mapping) else None
        if isinstance(principal, Mapping) and statement.get("Effect") == "Allow" and _SERVICE in _listed(principal.get("Service")):
            actions = [item.lower() for item in _listed(statement.get("Action")) if isinstance(item, str)]
            if {action.lower(), "sts:*", "*"} & set(actions):
                return True
    return False


def _untrusting(role: str, trust: Mapping[str, Any], missing: list[str]) -> Finding:
    statement = {"Effect": "Allow", "Principal": {"Service": _SERVICE}, "Action": list(_ACTIONS)}
    document = {**trust, "Statement": [*_listed(trust.get("Statement")), statement]}
    text = json.dumps(document, separators=(",", ":"), default=str)
    options = ("--role-name", role.rpartition("/")[2], "--policy-document", text)
    return Finding(
        "D28",
        CRITICAL,
        f"IAM {role}",
        "AssumeRolePolicyDocument",
        f"no {' and '.join(missing)} for {_SERVICE}, although the role is given out by Pod Identity",
        f"{' and '.join(_ACTIONS)} allowed for {_SERVICE}",
        _NO_ROLE,
        Fix((aws("iam", "update-assume-role-policy", *options),)),
    )


CHECKS = (Check("D28", "roles by Pod Identity", (ACCOUNT,), find_pod_identities),)
