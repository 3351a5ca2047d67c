"""A HorizontalPodAutoscaler and its inputs, as plain data.

Metric values are in thousandths (``MilliValue``), times in seconds since 1970. Source: ``k8s.io/api/autoscaling/v2``.
"""

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

MetricType = Literal["Resource", "ContainerResource", "Pods", "Object", "External"]
Status = Literal["True", "False", "Unknown"]


class Target(Struct, frozen=True, gc=False):
    """The target of a metric: a total, an average per pod, or percent of the requests. ``type`` matters for Object metrics only."""

    type: str
    value: int | None = None
    average_value: int | None = None
    average_utilization: int | None = None


class ObjectReference(Struct, frozen=True, gc=False):
    kind: str
    name: str
    api_version: str = ""


class SelectorRequirement(Struct, frozen=True, gc=False):
    key: str
    operator: str
    values: tuple[str, ...] = ()


class MetricSelector(Struct, frozen=True, gc=False):
    """Which series of a metric count. Labels are in order of their keys."""

    labels: tuple[tuple[str, str], ...] = ()
    expressions: tuple[SelectorRequirement, ...] = ()


class Metric(Struct, frozen=True, gc=False):
    """One entry of ``spec.metrics``. ``name`` is the resource's for resource metrics; ``described`` is set for Object metrics only."""

    type: MetricType
    name: str
    target: Target
    container: str = ""
    described: ObjectReference | None = None
    selector: MetricSelector | None = None


class ScalingPolicy(Struct, frozen=True, gc=False):
    """At most ``value`` pods, or percent of the pods, per ``period`` seconds."""

    type: Literal["Pods", "Percent"]
    value: int
    period: int


class ScalingRules(Struct, frozen=True, gc=False):
    """Limits in one direction. ``window`` is the stabilisation window in seconds, None for that of the controller."""

    policies: tuple[ScalingPolicy, ...]
    select: Literal["Max", "Min", "Disabled"] = "Max"
    window: int | None = None
    tolerance: float | None = None


#: Defaults for a direction that a behaviour does not mention.
SCALE_UP = ScalingRules((ScalingPolicy("Pods", 4, 15), ScalingPolicy("Percent", 100, 15)), window=0)
SCALE_DOWN = ScalingRules((ScalingPolicy("Percent", 100, 15),))


class Behavior(Struct, frozen=True, gc=False):
    up: ScalingRules = SCALE_UP
    down: ScalingRules = SCALE_DOWN


class Autoscaler(Struct, frozen=True, gc=False):
    """A HorizontalPodAutoscaler with the defaults filled in; ``behavior`` is None where the object has none."""

    namespace: str
    name: str
    target: ObjectReference
    max_replicas: int
    metrics: tuple[Metric, ...]
    min_replicas: int = 1
    behavior: Behavior | None = None


class ControllerSettings(Struct, frozen=True, gc=False):
    """kube-controller-manager's ``--horizontal-pod-autoscaler-…`` options and their defaults, in seconds."""

    tolerance: float = 0.1
    downscale_stabilization: float = 300.0
    cpu_initialization_period: float = 300.0
    initial_readiness_delay: float = 30.0


class Scale(Struct, frozen=True, gc=False):
    """The scale of the target: ``replicas`` as its specification says, ``observed`` as its status says."""

    replicas: int
    observed: int


class Container(Struct, frozen=True, gc=False):
    name: str
    requests: Mapping[str, int] = {}


class ReplicaPod(Struct, frozen=True, gc=False):
    """A pod that the target's selector selects.

    ``ready`` is the status of its Ready condition, None if it has none, and ``ready_since`` when that last changed. ``containers`` are the
    containers and then the init containers that restart always. ``pod_requests`` is set if the pod has requests of its own; they then hold
    for the pod as a whole.
    """

    name: str
    phase: str = "Running"
    deleting: bool = False
    ready: Status | None = "True"
    ready_since: float = 0.0
    started: float | None = None
    containers: tuple[Container, ...] = ()
    pod_requests: Mapping[str, int] | None = None


class Sample(Struct, frozen=True, gc=False):
    """A metric of one pod, measured over the ``window`` before ``at``."""

    value: int
    at: float = 0.0
    window: float = 60.0


class PodSamples(Struct, frozen=True, gc=False):
    """The answer for a Resource, ContainerResource or Pods metric: samples by the pod's name."""

    of: Mapping[str, Sample]


class ObjectSample(Struct, frozen=True, gc=False):
    """The answer for an Object metric."""

    value: int


class SeriesSamples(Struct, frozen=True, gc=False):
    """The answer for an External metric: the value of each series."""

    values: tuple[int, ...]


class Unavailable(Struct, frozen=True, gc=False):
    """No answer, with the error text of the metrics client."""

    message: str


MetricAnswer = PodSamples | ObjectSample | SeriesSamples | Unavailable


class Current(Struct, frozen=True, gc=False):
    """The entry of ``status.currentMetrics`` for one metric."""

    value: int | None = None
    average_value: int | None = None
    average_utilization: int | None = None


class Condition(Struct, frozen=True, gc=False):
    """A condition of the object in Kubernetes' words; ``since`` is when its status last changed."""

    type: Literal["AbleToScale", "ScalingActive", "ScalingLimited"]
    status: Status
    reason: str
    message: str
    since: float
