"""Controllers, budgets and other objects that planning reads besides pods, nodes and storage."""

from collections.abc import Mapping

from msgspec import Struct

from gpuscaler.model.labels import NO_LABELS, LabelSet
from gpuscaler.model.pods import NO_OWNER, Owner, PodSpec
from gpuscaler.model.selectors import LabelSelector


class Workload(Struct, frozen=True, gc=False):
    """A Deployment, ReplicaSet, StatefulSet, Job or DaemonSet.

    ``replicas`` is the desired number (a Job's ``parallelism``); ``template`` the specification of its pods, with ``template_labels``.
    ``completions`` is only set for Jobs. ``suspended`` is a Job's ``spec.suspend``. ``disruption`` is its annotation about moving its pods
    to save money: "allow", "never" or empty; ``warnings`` are about unreadable annotations, ``ignored_findings`` the checks whose
    findings about it are not reported.
    """

    kind: str
    namespace: str
    name: str
    uid: str = ""
    owner: Owner = NO_OWNER
    replicas: int = 1
    observed: int = 0
    completions: int | None = None
    suspended: bool = False
    selector: LabelSelector | None = None
    template: PodSpec | None = None
    template_labels: LabelSet = NO_LABELS
    disruption: str = ""
    warnings: tuple[str, ...] = ()
    ignored_findings: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"


class PodDisruptionBudget(Struct, frozen=True, gc=False):
    """A PodDisruptionBudget. ``disruptions_allowed`` is the API server's count. ``selector`` None selects nothing.

    ``always_evict_unhealthy``: running pods that are not Ready are evicted regardless of the count (``AlwaysAllow``). ``min_available`` and
    ``max_unavailable`` are the rule, a number or a percentage. ``expected``, ``healthy`` and ``desired`` are numbers of pods in the status,
    None if it lacks them. ``ignored_findings`` is as in :class:`Workload`.
    """

    namespace: str
    name: str
    selector: LabelSelector | None = None
    disruptions_allowed: int = 0
    always_evict_unhealthy: bool = False
    uid: str = ""
    min_available: int | str | None = None
    max_unavailable: int | str | None = None
    expected: int | None = None
    healthy: int | None = None
    desired: int | None = None
    ignored_findings: frozenset[str] = frozenset()

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"


class PriorityClass(Struct, frozen=True, gc=False):
    name: str
    value: int = 0
    default: bool = False


class Namespace(Struct, frozen=True, gc=False):
    """A Namespace. ``disruption`` and ``warnings`` are as in :class:`Workload`, for all pods of the namespace; so is ``ignored_findings``.

    ``steering`` is how they get to the machines promised to them, empty if not set.
    """

    name: str
    labels: Mapping[str, str] = {}
    disruption: str = ""
    warnings: tuple[str, ...] = ()
    steering: str = ""
    ignored_findings: frozenset[str] = frozenset()


class RuntimeClass(Struct, frozen=True, gc=False):
    name: str
    handler: str = ""
    overhead: Mapping[str, int] = {}
    node_selector: tuple[tuple[str, str], ...] = ()


class PodGroup(Struct, frozen=True, gc=False):
    """A gang declared by an object: a PodGroup of coscheduling or Volcano, a native Workload's pod group, a JobSet."""

    source: str
    namespace: str
    name: str
    min_member: int = 0

    @property
    def key(self) -> str:
        return f"{self.source}/{self.namespace}/{self.name}"


class DeviceObject(Struct, frozen=True, gc=False):
    """A ResourceClaim, ResourceSlice or DeviceClass: read so that DRA pods can be reported; allocation is not supported yet."""

    kind: str
    namespace: str
    name: str
    node_name: str = ""
    driver: str = ""

    @property
    def key(self) -> str:
        return f"{self.kind}/{self.namespace}/{self.name}"
