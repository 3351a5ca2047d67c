"""Nodes that take no pods for long: cordoned and forgotten, or not Ready."""

from collections.abc import Iterable
from typing import Final

from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.checks.nodes.gpu_nodes import PASSING_TAINTS
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import WARNING, Finding, Fix
from gpuscaler.model.well_known import UNSCHEDULABLE
from gpuscaler.model.wire import UnreadableError, parse_timestamp

#: How long repairs and upgrades leave a node cordoned, and after how long Cluster Autoscaler takes one that is not Ready for broken
#: (--scale-down-unready-time), in seconds.
CORDONED_FOR: Final = 86_400.0
UNREADY_FOR: Final = 1_200.0
_CONTROL_PLANE: Final = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")
#: Taints that say nothing about who takes the node away; all others of these prefixes belong to a program that does.
_OF_KUBERNETES: Final = ("node.kubernetes.io/", "node.cloudprovider.kubernetes.io/")
_COSTS: Final = "it costs its price, counts for the maximum of its group, and takes no pods"


def find_nodes_out_of_service(evidence: Evidence) -> Iterable[Finding]:
    """D35: nodes that nothing removes and nothing runs on. Machines of the control plane are cordoned in many clusters."""
    for node in evidence.of("Node"):
        if node.has("metadata", "deletionTimestamp") or _is_leaving(node):
            continue
        if (since := _unready_since(node)) and evidence.now - since >= UNREADY_FOR:
            yield _unready(node)
        elif not any(label in node.labels for label in _CONTROL_PLANE):
            since = _cordoned_since(node)
            if since and evidence.now - since >= CORDONED_FOR:
                yield _cordoned(node)


def _is_leaving(node: Document) -> bool:
    """Whether a program is about to remove the node."""
    keys = [taint.text("key") for taint in node.parts("spec", "taints")]
    return any(key.startswith(PASSING_TAINTS) and not key.startswith(_OF_KUBERNETES) for key in keys)


def _unready_since(node: Document) -> float:
    """When the node stopped being Ready, 0 if it is Ready or that is unknown."""
    ready = next((condition for condition in node.parts("status", "conditions") if condition.text("type") == "Ready"), None)
    return _time(ready.text("lastTransitionTime")) if ready is not None and ready.text("status") != "True" else 0.0


def _cordoned_since(node: Document) -> float:
    """When the node was cordoned, as the node controller notes it in the taint; 0 if it is not or that is unknown."""
    if not node.flag("spec", "unschedulable"):
        return 0.0
    return next((_time(taint.text("timeAdded")) for taint in node.parts("spec", "taints") if taint.text("key") == UNSCHEDULABLE), 0.0)


def _time(text: str) -> float:
    try:
        return parse_timestamp(text, "")
    except UnreadableError:
        return 0.0


def _unready(node: Document) -> Finding:
    return Finding(
        "D35",
        WARNING,
        node.title,
        "status.conditions[Ready]",
        "not Ready for more than 20 minutes",
        "Ready, or no such node",
        _COSTS,
        Fix(advice="kubectl describe node says why; if it stays so, end its machine, and delete the node if it remains"),
        node.place,
    )


def _cordoned(node: Document) -> Finding:
    return Finding(
        "D35",
        WARNING,
        node.title,
        "spec.unschedulable",
        "cordoned for more than a day",
        "a node in service, or none",
        f"{_COSTS}; no autoscaler counts on it",
        Fix(advice='if it is in order, "kubectl uncordon" puts it back; else drain it, and end its machine'),
        node.place,
    )


CHECKS = (Check("D35", "nodes that take no pods", ("Node",), find_nodes_out_of_service),)
