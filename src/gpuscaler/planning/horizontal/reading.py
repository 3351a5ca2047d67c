"""Reads a HorizontalPodAutoscaler of autoscaling/v2, and refuses what the API server refuses.

Source: ``pkg/apis/autoscaling/v2/defaults.go`` and ``pkg/apis/autoscaling/validation/validation.go`` of Kubernetes 1.35. Fields that say
nothing about scaling are not looked at.
"""

from typing import Annotated, Literal, NoReturn

import msgspec
from msgspec import Meta, Struct

from gpuscaler.model.quantities import QuantityError, format_quantity, parse, parse_milli, shortened
from gpuscaler.planning.horizontal import specs
from gpuscaler.planning.horizontal.arithmetic import INT64_MAX

#: The longest period of a policy and the longest stabilisation window, in seconds.
LONGEST_PERIOD, LONGEST_WINDOW = 1800, 3600

_SOURCES = ("object", "external", "pods", "resource", "containerResource")

#: The operators of a selector, and whether they take values.
_OPERATORS = {"In": True, "NotIn": True, "Exists": False, "DoesNotExist": False}

_Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
_Quantity = str | int | float


class AutoscalerError(ValueError):
    """An object that cannot be used: ``path`` leads to the place, ``seen`` is what stands there, ``expected`` what should."""

    def __init__(self, name: str, path: str, seen: str, expected: str) -> None:
        super().__init__(f"{name}: {path}: saw {seen}, expected {expected}" if path else f"{name}: saw {seen}, expected {expected}")
        self.path = path
        self.seen = seen
        self.expected = expected


class _Wire(Struct, rename="camel", frozen=True, gc=False):
    pass


class _Meta(_Wire, frozen=True, gc=False):
    name: str = ""
    namespace: str = ""


class _Reference(_Wire, frozen=True, gc=False):
    kind: str = ""
    name: str = ""
    api_version: str = ""


class _Expression(_Wire, frozen=True, gc=False):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class _Selector(_Wire, frozen=True, gc=False):
    match_labels: dict[str, str] | None = None
    match_expressions: tuple[_Expression, ...] | None = None


class _Identifier(_Wire, frozen=True, gc=False):
    name: str = ""
    selector: _Selector | None = None


class _Target(_Wire, frozen=True, gc=False):
    type: Literal["Utilization", "Value", "AverageValue"]
    value: _Quantity | None = None
    average_value: _Quantity | None = None
    average_utilization: _Int32 | None = None


class _Source(_Wire, frozen=True, gc=False):
    """Any of the five kinds of sources: each uses some of the fields."""

    target: _Target
    name: str = ""
    container: str = ""
    metric: _Identifier = _Identifier()
    described_object: _Reference | None = None


class _Metric(_Wire, frozen=True, gc=False):
    type: Literal["Object", "External", "Pods", "Resource", "ContainerResource"]
    object: _Source | None = None
    external: _Source | None = None
    pods: _Source | None = None
    resource: _Source | None = None
    container_resource: _Source | None = None


class _Policy(_Wire, frozen=True, gc=False):
    type: Literal["Pods", "Percent"]
    value: _Int32
    period_seconds: _Int32


class _Rules(_Wire, frozen=True, gc=False):
    stabilization_window_seconds: _Int32 | None = None
    select_policy: Literal["Max", "Min", "Disabled"] | None = None
    policies: tuple[_Policy, ...] | None = None
    tolerance: _Quantity | None = None


class _Behavior(_Wire, frozen=True, gc=False):
    scale_up: _Rules | None = None
    scale_down: _Rules | None = None


class _Spec(_Wire, frozen=True, gc=False):
    max_replicas: _Int32
    scale_target_ref: _Reference = _Reference()
    min_replicas: _Int32 | None = None
    metrics: tuple[_Metric, ...] | None = None
    behavior: _Behavior | None = None


class _Object(_Wire, frozen=True, gc=False):
    spec: _Spec
    metadata: _Meta = _Meta()
    kind: str = ""
    api_version: str = ""


_decode = msgspec.json.Decoder(_Object).decode


def read_autoscaler(content: object) -> specs.Autoscaler:
    """A HorizontalPodAutoscaler from its JSON as text, or from what that says as Python's own types. Raises :class:`AutoscalerError`."""
    try:
        wire = _decode(content) if isinstance(content, bytes | str) else msgspec.convert(content, _Object)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise AutoscalerError("HorizontalPodAutoscaler", "", f"an object that cannot be read ({error})", "one of autoscaling/v2") from error
    return _Reading(wire).autoscaler()


class _Reading:
    """One object being read; it knows its name for messages."""

    def __init__(self, wire: _Object) -> None:
        self._wire = wire
        self._name = f"HorizontalPodAutoscaler {wire.metadata.namespace or 'default'}/{wire.metadata.name}"

    def autoscaler(self) -> specs.Autoscaler:
        wire, spec = self._wire, self._wire.spec
        if wire.kind not in ("", "HorizontalPodAutoscaler"):
            self._refuse("kind", wire.kind, "HorizontalPodAutoscaler")
        if wire.api_version not in ("", "autoscaling/v2"):
            self._refuse("apiVersion", wire.api_version, "autoscaling/v2; `kubectl get -o yaml` shows the object in it")
        least = 1 if spec.min_replicas is None else spec.min_replicas
        if least < 0:
            self._refuse("spec.minReplicas", least, "0 or more")
        if spec.max_replicas < 1:
            self._refuse("spec.maxReplicas", spec.max_replicas, "1 or more")
        if spec.max_replicas < least:
            self._refuse("spec.maxReplicas", spec.max_replicas, f"at least minReplicas, which is {least}")
        metrics = tuple(self._metric(metric, f"spec.metrics[{number}]") for number, metric in enumerate(spec.metrics or ()))
        if least == 0 and not any(metric.type in ("Object", "External") for metric in metrics):
            self._refuse("spec.metrics", "no Object or External metric", "one: minReplicas is 0, and nothing else can wake it")
        return specs.Autoscaler(
            namespace=wire.metadata.namespace or "default",
            name=wire.metadata.name,
            target=self._reference(spec.scale_target_ref, "spec.scaleTargetRef"),
            min_replicas=least,
            max_replicas=spec.max_replicas,
            metrics=metrics or (specs.Metric("Resource", "cpu", specs.Target("Utilization", average_utilization=80)),),
            behavior=self._behavior(spec.behavior),
        )

    def _metric(self, wire: _Metric, path: str) -> specs.Metric:
        field = wire.type[0].lower() + wire.type[1:]
        given = [name for name in _SOURCES if getattr(wire, _snake(name)) is not None]
        if given != [field]:
            self._refuse(path, f"{' and '.join(given) or 'nothing'} beside type {wire.type}", f"{field} and nothing else")
        source: _Source = getattr(wire, _snake(field))
        path = f"{path}.{field}"
        target = self._target(source.target, f"{path}.target")
        resource = wire.type in ("Resource", "ContainerResource")
        name = source.name if resource else source.metric.name
        self._named(name, f"{path}.name" if resource else f"{path}.metric.name", segment=not resource)
        self._complete(wire.type, target, f"{path}.target")
        if wire.type == "ContainerResource":
            self._named(source.container, f"{path}.container")
        described = None
        if wire.type == "Object":
            described = self._reference(source.described_object or _Reference(), f"{path}.describedObject")
        return specs.Metric(
            wire.type,
            name,
            target,
            container=source.container if wire.type == "ContainerResource" else "",
            described=described,
            selector=None if resource else self._selector(source.metric.selector, f"{path}.metric.selector"),
        )

    def _complete(self, kind: str, target: specs.Target, path: str) -> None:
        """Whether a target has what metrics of its kind need, and no more."""
        ways = {
            "value": target.value,
            "averageValue": target.average_value,
            "averageUtilization": target.average_utilization,
        }
        wanted = {"Object": ("value", "averageValue"), "External": ("value", "averageValue"), "Pods": ("averageValue",)}.get(
            kind, ("averageUtilization", "averageValue")
        )
        given = [name for name in wanted if ways[name] is not None]
        if not given:
            self._refuse(path, "nothing", " or ".join(wanted))
        if len(given) > 1 and kind != "Object":
            self._refuse(path, " and ".join(given), "only one of them")

    def _target(self, wire: _Target, path: str) -> specs.Target:
        if wire.average_utilization is not None and wire.average_utilization < 1:
            self._refuse(f"{path}.averageUtilization", wire.average_utilization, "1 or more")
        return specs.Target(
            wire.type,
            value=self._positive(wire.value, f"{path}.value"),
            average_value=self._positive(wire.average_value, f"{path}.averageValue"),
            average_utilization=wire.average_utilization,
        )

    def _positive(self, quantity: _Quantity | None, path: str) -> int | None:
        """A quantity in thousandths."""
        if quantity is None:
            return None
        try:
            amount = parse_milli(quantity)
        except QuantityError as error:
            raise AutoscalerError(self._name, path, shortened(error.seen), error.expected) from error
        if not 0 < amount <= INT64_MAX:
            self._refuse(path, quantity, f"a quantity above 0 and up to {INT64_MAX // 1000}")
        return amount

    def _behavior(self, wire: _Behavior | None) -> specs.Behavior | None:
        if wire is None:
            return None
        return specs.Behavior(
            up=self._rules(wire.scale_up, specs.SCALE_UP, "spec.behavior.scaleUp"),
            down=self._rules(wire.scale_down, specs.SCALE_DOWN, "spec.behavior.scaleDown"),
        )

    def _rules(self, wire: _Rules | None, usual: specs.ScalingRules, path: str) -> specs.ScalingRules:
        if wire is None:
            return usual
        window = wire.stabilization_window_seconds
        if window is not None and not 0 <= window <= LONGEST_WINDOW:
            self._refuse(f"{path}.stabilizationWindowSeconds", window, f"0 to {LONGEST_WINDOW}")
        if wire.policies is not None and not wire.policies:
            self._refuse(f"{path}.policies", "none", "at least one, or no such field")
        for number, policy in enumerate(wire.policies or ()):
            if policy.value <= 0:
                self._refuse(f"{path}.policies[{number}].value", policy.value, "1 or more")
            if not 0 < policy.period_seconds <= LONGEST_PERIOD:
                self._refuse(f"{path}.policies[{number}].periodSeconds", policy.period_seconds, f"1 to {LONGEST_PERIOD}")
        own = tuple(specs.ScalingPolicy(policy.type, policy.value, policy.period_seconds) for policy in wire.policies or ())
        return specs.ScalingRules(
            policies=own or usual.policies,
            select=wire.select_policy or "Max",
            window=usual.window if window is None else window,
            tolerance=self._tolerance(wire.tolerance, f"{path}.tolerance"),
        )

    def _tolerance(self, quantity: _Quantity | None, path: str) -> float | None:
        if quantity is None:
            return None
        try:
            exact = parse(quantity)
        except QuantityError as error:
            raise AutoscalerError(self._name, path, shortened(error.seen), error.expected) from error
        if exact < 0:
            self._refuse(path, quantity, "0 or more")
        return _approximately(format_quantity(exact))

    def _reference(self, wire: _Reference, path: str) -> specs.ObjectReference:
        self._named(wire.kind, f"{path}.kind")
        self._named(wire.name, f"{path}.name")
        return specs.ObjectReference(wire.kind, wire.name, wire.api_version)

    def _selector(self, wire: _Selector | None, path: str) -> specs.MetricSelector | None:
        """The API server takes any selector; the controller then finds no metric by one that it cannot read, each time."""
        if wire is None:
            return None
        expressions = []
        for number, one in enumerate(wire.match_expressions or ()):
            taken = specs.SelectorRequirement(one.key, one.operator, one.values or ())
            if taken.operator not in _OPERATORS or bool(taken.values) != _OPERATORS[taken.operator] or not taken.key:
                seen = f"{taken.key or 'no key'} {taken.operator or 'no operator'} with {len(taken.values)} values"
                expected = "a key with In or NotIn and values, or with Exists or DoesNotExist and none"
                self._refuse(f"{path}.matchExpressions[{number}]", seen, expected)
            expressions.append(taken)
        return specs.MetricSelector(tuple(sorted((wire.match_labels or {}).items())), tuple(expressions))

    def _named(self, text: str, path: str, *, segment: bool = True) -> None:
        if not text or (segment and (text in (".", "..") or "/" in text or "%" in text)):
            self._refuse(path, text or "nothing", "a name without '/' and '%'" if segment else "a name")

    def _refuse(self, path: str, seen: object, expected: str) -> NoReturn:
        raise AutoscalerError(self._name, path, shortened(seen) if not isinstance(seen, str) else seen[:80], expected)


def _approximately(canonical: str) -> float:
    """``AsApproximateFloat64`` of a quantity as the API server keeps it: digits times a power of ten, each rounded."""
    digits = canonical.rstrip("numkMGTPE")
    exponent = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}[canonical[len(digits) :]]
    return float(int(digits)) * float(f"1e{exponent}") if exponent else float(int(digits))


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
