"""Which pods a kubelet admits: it decides by the state of its own node, whatever bound the pods.

A pod that is not admitted fails permanently (``pkg/kubelet/lifecycle/predicate.go``; for missing devices the device manager reports
``UnexpectedAdmissionError``).
"""

from collections.abc import Mapping
from typing import NamedTuple

from gpuscaler.model.accelerators import is_device
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.planning.feasibility.resources import PODS, counted_requests


class Refusal(NamedTuple):
    """Why a pod is rejected: a CamelCase reason, and a sentence."""

    reason: str
    message: str


class Admission:
    """The resources that the admitted pods of each node use."""

    def __init__(self) -> None:
        self._allocatable: dict[str, Mapping[str, int]] = {}
        #: By the node's name and the pod's uid.
        self._taken: dict[str, dict[str, Mapping[str, int]]] = {}
        self._nodes: dict[str, str] = {}

    def node_changed(self, name: str, node: Node | None) -> None:
        if node is not None:
            self._allocatable[name] = node.allocatable
        else:
            self._allocatable.pop(name, None)

    def left(self, uid: str) -> None:
        """A pod is deleted or has ended."""
        self._taken.get(self._nodes.pop(uid, ""), {}).pop(uid, None)

    def admit(self, pod: Pod) -> Refusal | None:
        """Admit ``pod`` to its node, or return why not; an admitted pod stays admitted."""
        requests = {**counted_requests(pod.spec), PODS: 1}
        if pod.uid not in self._nodes:
            # A running pod was admitted before this process began to simulate its kubelet.
            if pod.phase == "Pending" and (refusal := self._refusal(pod.node_name, requests)) is not None:
                return refusal
            self._nodes[pod.uid] = pod.node_name
            self._taken.setdefault(pod.node_name, {})[pod.uid] = requests
        return None

    def _refusal(self, node: str, requests: Mapping[str, int]) -> Refusal | None:
        allocatable = self._allocatable.get(node, {})
        for resource, amount in requests.items() if allocatable else ():
            used = sum(taken.get(resource, 0) for taken in self._taken.get(node, {}).values())
            free = allocatable.get(resource, 0) - used
            if amount <= free:
                continue
            if is_device(resource):
                what = f"requested number of devices unavailable for {resource}. Requested: {amount}, Available: {max(0, free)}"
                return Refusal("UnexpectedAdmissionError", f"Allocate failed due to {what}, which is unexpected")
            what = (
                f"Node didn't have enough resource: {resource}, requested: {amount}, used: {used}, capacity: {allocatable.get(resource, 0)}"
            )
            return Refusal(f"OutOf{resource}", what)
        return None
