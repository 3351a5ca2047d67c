"""Pods, with the properties that planning uses.

A pod is split in two. :class:`PodSpec` holds everything that scheduling reads from the specification; it is interned, so that thousands of
pods of a controller share one object. :class:`Pod` holds the properties that differ from pod to pod. Labels are interned too.
"""

from collections.abc import Mapping

from msgspec import Struct

from gpuscaler.model.labels import LabelSet
from gpuscaler.model.selectors import LabelSelector, NodeSelector, NodeSelectorTerm
from gpuscaler.model.taints import Toleration

#: Requests in base units: cpu in millicores, memory and ephemeral-storage in bytes, everything else as a count.
Resources = Mapping[str, int]


class PodAffinityTerm(Struct, frozen=True, gc=False):
    """A required or preferred pod (anti-)affinity term, with ``matchLabelKeys`` already merged into the selector.

    ``namespaces`` are those named in the term, or the pod's own when neither names nor a selector are given.
    ``selector`` None matches no pod.
    """

    topology_key: str
    selector: LabelSelector | None = None
    namespaces: tuple[str, ...] = ()
    namespace_selector: LabelSelector | None = None
    weight: int = 0


class SpreadConstraint(Struct, frozen=True, gc=False):
    """A topology spread constraint. ``selector`` has ``matchLabelKeys`` of the pod merged in; None matches no pod."""

    topology_key: str
    max_skew: int = 1
    hard: bool = True
    selector: LabelSelector | None = None
    min_domains: int = 1
    honor_affinity: bool = True
    honor_taints: bool = False


class HostPort(Struct, frozen=True, gc=False):
    port: int
    protocol: str = "TCP"
    ip: str = "0.0.0.0"


class VolumeUse(Struct, frozen=True, gc=False):
    """A volume that scheduling considers.

    ``claim`` names a PersistentVolumeClaim in the pod's namespace (an ephemeral volume's claim is ``<pod>-<volume>`` and has
    ``ephemeral`` set). Otherwise ``driver`` is the CSI driver or the in-tree kind (gcePersistentDisk, awsElasticBlockStore, iscsi, rbd,
    azureDisk, cinder, …) and ``handle`` identifies the disk for conflicts and attach limits.
    """

    claim: str = ""
    ephemeral: bool = False
    driver: str = ""
    handle: str = ""
    read_only: bool = False


class PodSpec(Struct, frozen=True, gc=False):
    """The part of a specification that scheduling reads. Equal specs of a namespace are one object (see ``decoding``).

    ``digest`` is a stable hash of the content: it orders specs the same way in every process.
    """

    digest: str
    namespace: str
    requests: Resources
    node_selector: tuple[tuple[str, str], ...] = ()
    node_affinity: NodeSelector | None = None
    preferred_nodes: tuple[tuple[int, NodeSelectorTerm], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    host_ports: tuple[HostPort, ...] = ()
    affinity: tuple[PodAffinityTerm, ...] = ()
    anti_affinity: tuple[PodAffinityTerm, ...] = ()
    preferred_affinity: tuple[PodAffinityTerm, ...] = ()
    preferred_anti_affinity: tuple[PodAffinityTerm, ...] = ()
    spread: tuple[SpreadConstraint, ...] = ()
    volumes: tuple[VolumeUse, ...] = ()
    resource_claims: tuple[str, ...] = ()
    scheduler_name: str = "default-scheduler"
    priority: int = 0
    gates: tuple[str, ...] = ()
    local_storage: tuple[str, ...] = ()
    grace_seconds: int = 30
    restart_policy: str = "Always"


class PodOptions(Struct, frozen=True, gc=False):
    """Annotations and labels of a pod that planning uses, typed when decoded; interned. See DESIGN, "Annotations"."""

    market: tuple[str, ...] = ()
    spot_wait: float | None = None
    deadline: float | None = None
    expected_duration: float | None = None
    restart_cost: float | None = None
    grace: float | None = None
    run_for: float | None = None
    scale_up_delay: float | None = None
    safe_to_evict: bool | None = None
    safe_to_evict_local_volumes: tuple[str, ...] = ()
    do_not_disrupt: bool | float = False
    disruption: str = ""
    steering: str = ""
    do_not_drain: bool = False
    mirror: bool = False
    gang: str = ""
    gang_size: int = 0
    gang_topology: str = "zone"
    gang_source: str = ""


class Owner(Struct, frozen=True, gc=False):
    """The controller that owns an object: kind, name and uid of the owner reference with ``controller: true``."""

    kind: str = ""
    name: str = ""
    uid: str = ""


NO_OPTIONS = PodOptions()
NO_OWNER = Owner()


class Pod(Struct, frozen=True, gc=False):
    """A pod. Times are seconds since the epoch, 0 if unknown.

    ``unschedulable`` is True if the condition PodScheduled is False with reason Unschedulable, None if there is no such condition.
    ``ready`` is the status of the condition Ready, None if there is none.
    ``checkpoint_requested`` is the time of the request to save its work, ``checkpointed`` the time of the request that it has answered.
    ``warnings`` list annotations that could not be parsed. ``reason`` is the kubelet's reason (one word) for a failed pod.
    ``unready_since`` is when a pod stopped being Ready, 0 while it is. ``ignored_findings`` are the checks whose findings are not reported.
    """

    namespace: str
    name: str
    spec: PodSpec
    labels: LabelSet
    uid: str = ""
    node_name: str = ""
    nominated_node: str = ""
    phase: str = "Pending"
    created: float = 0.0
    deleted: float = 0.0
    started: float = 0.0
    unschedulable: bool | None = None
    unschedulable_since: float = 0.0
    owner: Owner = NO_OWNER
    options: PodOptions = NO_OPTIONS
    warnings: tuple[str, ...] = ()
    checkpoint_requested: float = 0.0
    checkpointed: float = 0.0
    ready: bool | None = None
    reason: str = ""
    unready_since: float = 0.0
    ignored_findings: frozenset[str] = frozenset()

    @property
    def gang(self) -> str:
        """``namespace/name`` of its gang, empty if it is in none."""
        return f"{self.namespace}/{self.options.gang}" if self.options.gang else ""

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def finished(self) -> bool:
        return self.phase in ("Succeeded", "Failed")

    @property
    def is_pending(self) -> bool:
        """Whether it is pending: on no node, and not finished."""
        return not (self.node_name or self.finished or self.deleted)
