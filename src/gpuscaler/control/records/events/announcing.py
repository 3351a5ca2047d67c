"""Writes Kubernetes Events: on pods, what was ordered for them or why nothing can be; on nodes, why they open, stay or are removed."""

from dataclasses import dataclass

from gpuscaler.control.records.events.happening import EVENTS, HistoryEvent
from gpuscaler.control.records.events.latest import Latest
from gpuscaler.control.records.events.records import Sink
from gpuscaler.kube.events import EventRecorder, Reference
from gpuscaler.kube.resources import DAEMON_SETS, DEPLOYMENTS, JOBS, REPLICA_SETS, STATEFUL_SETS

#: How many pods get a Kubernetes Event for one event; for an order for thousands of pods, more would add no information.
MOST_PODS = 500
#: The API versions of watched owners; Events on other owners have only kind and name.
API_VERSIONS = {resource.kind: resource.api_version for resource in (DEPLOYMENTS, REPLICA_SETS, STATEFUL_SETS, DAEMON_SETS, JOBS)}


@dataclass(frozen=True, slots=True)
class Announcer(Sink):
    """A sink that writes through ``events``, which must be running, about objects of the latest cluster."""

    events: EventRecorder
    latest: Latest
    #: The pod of this process, None outside a cluster.
    own: Reference | None = None

    def happened(self, what: HistoryEvent, /) -> None:
        template = EVENTS.get(what.kind)
        if template is None:
            return
        if template.on == "controller":
            about = [self.own] if self.own is not None else []
        else:
            about = self._pods(what) if template.on == "pod" else self._node(what.node)
        if what.owner.kind:
            about.append(self._owner(what))
        related = next(iter(self._node(what.node)), None) if template.on == "pod" else None
        for reference in about:
            self.events.record(reference, template.reason, what.text, action=template.action, warning=template.warning, related=related)

    def _pods(self, what: HistoryEvent) -> list[Reference]:
        if what.uid:
            namespace, _, name = what.pods[0].partition("/")
            return [Reference("Pod", name, namespace, what.uid)]
        references = []
        for key in what.pods[:MOST_PODS]:
            pod = self.latest.cluster.pods.get(key)
            if pod is not None and not (pod.finished or pod.deleted):
                references.append(Reference("Pod", pod.name, pod.namespace, pod.uid))
        return references

    def _owner(self, what: HistoryEvent) -> Reference:
        owner, namespace = what.owner, what.pods[0].partition("/")[0]
        return Reference(owner.kind, owner.name, namespace, owner.uid, API_VERSIONS.get(owner.kind, ""))

    def _node(self, name: str) -> list[Reference]:
        # A machine that never became a node has its id here, and no object has that as its name.
        if not name or "://" in name:
            return []
        # The kubelet's Events about a node have the node's name as uid, and `kubectl describe node` looks for that as well.
        return [Reference("Node", name, uid=name)]
