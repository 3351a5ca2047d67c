"""The JSON form of a HorizontalPodAutoscaler of autoscaling/v2. Status and fields that do not affect scaling are not read."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
Quantity = str | int | float


class Wire(Struct, rename="camel", frozen=True, gc=False):
    pass


class Metadata(Wire, frozen=True, gc=False):
    name: str = ""
    namespace: str = ""


class Reference(Wire, frozen=True, gc=False):
    kind: str = ""
    name: str = ""
    api_version: str = ""


class Expression(Wire, frozen=True, gc=False):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class Selector(Wire, frozen=True, gc=False):
    match_labels: dict[str, str] | None = None
    match_expressions: tuple[Expression, ...] | None = None


class Identifier(Wire, frozen=True, gc=False):
    name: str = ""
    selector: Selector | None = None


class Target(Wire, frozen=True, gc=False):
    type: Literal["Utilization", "Value", "AverageValue"]
    value: Quantity | None = None
    average_value: Quantity | None = None
    average_utilization: Int32 | None = None


class Source(Wire, frozen=True, gc=False):
    """Any of the five kinds of sources: each uses some of the fields."""

    target: Target
    name: str = ""
    container: str = ""
    metric: Identifier = Identifier()
    described_object: Reference | None = None


class Metric(Wire, frozen=True, gc=False):
    type: Literal["Object", "External", "Pods", "Resource", "ContainerResource"]
    object: Source | None = None
    external: Source | None = None
    pods: Source | None = None
    resource: Source | None = None
    container_resource: Source | None = None


class Policy(Wire, frozen=True, gc=False):
    type: Literal["Pods", "Percent"]
    value: Int32
    period_seconds: Int32


class Rules(Wire, frozen=True, gc=False):
    stabilization_window_seconds: Int32 | None = None
    select_policy: Literal["Max", "Min", "Disabled"] | None = None
    policies: tuple[Policy, ...] | None = None
    tolerance: Quantity | None = None


class Behavior(Wire, frozen=True, gc=False):
    scale_up: Rules | None = None
    scale_down: Rules | None = None


class Spec(Wire, frozen=True, gc=False):
    max_replicas: Int32
    scale_target_ref: Reference = Reference()
    min_replicas: Int32 | None = None
    metrics: tuple[Metric, ...] | None = None
    behavior: Behavior | None = None


class Object(Wire, frozen=True, gc=False):
    spec: Spec
    metadata: Metadata = Metadata()
    kind: str = ""
    api_version: str = ""
