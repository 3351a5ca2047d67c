"""Reads a HorizontalPodAutoscaler of autoscaling/v2, and refuses what the API server refuses.

Source: ``pkg/apis/autoscaling/v2/defaults.go`` and ``pkg/apis/autoscaling/validation/validation.go`` of Kubernetes 1.35. Fields that do not
affect scaling are ignored.
"""

import re
from typing import NoReturn

import msgspec

from gpuscaler.model.quantities import QuantityError, format_quantity, parse, parse_milli, shorten_value
from gpuscaler.simulation.horizontal import specs, wires
from gpuscaler.simulation.horizontal.arithmetic import INT64_MAX

#: The longest period of a policy and the longest stabilisation window, in seconds.
LONGEST_PERIOD, LONGEST_WINDOW = 1800, 3600

_SOURCES = ("object", "external", "pods", "resource", "containerResource")

#: The operators of a selector, and whether they take values.
_OPERATORS = {"In": True, "NotIn": True, "Exists": False, "DoesNotExist": False}

#: Syntax of resource names and of container names.
_RESOURCE = re.compile(
    r"cpu|memory|ephemeral-storage|hugepages-[-A-Za-z0-9_.]{0,52}[A-Za-z0-9]"
    r"|(?=.{1,253}/)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
    re.ASCII,
)
_LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", re.ASCII)


class AutoscalerError(ValueError):
    """An object that cannot be used: ``path`` is the field, ``seen`` its value, ``expected`` the valid values."""

    def __init__(self, name: str, path: str, seen: str, expected: str) -> None:
        super().__init__(f"{name}: {path}: saw {seen}, expected {expected}" if path else f"{name}: saw {seen}, expected {expected}")
        self.path = path
        self.seen = seen
        self.expected = expected


def read_autoscaler(content: object) -> specs.Autoscaler:
    """Read a HorizontalPodAutoscaler from JSON text, or from its parsed form. Raises :class:`AutoscalerError`."""
    try:
        tree = msgspec.json.decode(content) if isinstance(content, bytes | str) else content
        wire = msgspec.convert(_without_nulls(tree), wires.Object)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise AutoscalerError("HorizontalPodAutoscaler", "", f"an object that cannot be read ({error})", "one of autoscaling/v2") from error
    return _Reading(wire).autoscaler()


class _Reading:
    """Parses one object and knows its name for messages."""

    def __init__(self, wire: wires.Object) -> None:
        self._wire = wire
        self._name = f"HorizontalPodAutoscaler {_escape(wire.metadata.namespace or 'default')}/{_escape(wire.metadata.name)}"

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
            self._refuse(
                "spec.metrics", "no Object or External metric", "at least one: minReplicas is 0, and only these can scale up from zero"
            )
        return specs.Autoscaler(
            namespace=wire.metadata.namespace or "default",
            name=wire.metadata.name,
            target=self._reference(spec.scale_target_ref, "spec.scaleTargetRef", grouped=True),
            min_replicas=least,
            max_replicas=spec.max_replicas,
            metrics=metrics or (specs.Metric("Resource", "cpu", specs.Target("Utilization", average_utilization=80)),),
            behavior=self._behavior(spec.behavior),
        )

    def _metric(self, wire: wires.Metric, path: str) -> specs.Metric:
        field = wire.type[0].lower() + wire.type[1:]
        sources = [name for name in _SOURCES if getattr(wire, _snake(name)) is not None]
        if sources != [field]:
            self._refuse(path, f"{' and '.join(sources) or 'nothing'} beside type {wire.type}", f"{field} and nothing else")
        source: wires.Source = getattr(wire, _snake(field))
        path = f"{path}.{field}"
        target = self._target(source.target, f"{path}.target")
        resource = wire.type in ("Resource", "ContainerResource")
        name = source.name if resource else source.metric.name
        self._check_name(name, f"{path}.name" if resource else f"{path}.metric.name", segment=not resource)
        self._check_fields(wire.type, target, f"{path}.target")
        if wire.type == "ContainerResource":
            self._check_container(source, path)
        described = None
        if wire.type == "Object":
            described = self._reference(source.described_object or wires.Reference(), f"{path}.describedObject")
        return specs.Metric(
            wire.type,
            name,
            target,
            container=source.container if wire.type == "ContainerResource" else "",
            described=described,
            selector=None if resource else self._selector(source.metric.selector, f"{path}.metric.selector"),
        )

    def _check_container(self, source: wires.Source, path: str) -> None:
        if not _RESOURCE.fullmatch(source.name):
            self._refuse(f"{path}.name", source.name, "cpu, memory, ephemeral-storage, hugepages-… or a name such as example.com/gpu")
        if not _LABEL.fullmatch(source.container):
            self._refuse(f"{path}.container", source.container or "nothing", "a container's name, in lower case")

    def _check_fields(self, kind: str, target: specs.Target, path: str) -> None:
        """Check that a target has exactly the fields that metrics of its kind need."""
        ways = {
            "value": target.value,
            "averageValue": target.average_value,
            "averageUtilization": target.average_utilization,
        }
        names = {"Object": ("value", "averageValue"), "External": ("value", "averageValue"), "Pods": ("averageValue",)}.get(
            kind, ("averageUtilization", "averageValue")
        )
        present = [name for name in names if ways[name] is not None]
        if not present:
            self._refuse(path, "nothing", " or ".join(names))
        if len(present) > 1 and kind != "Object":
            self._refuse(path, " and ".join(present), "only one of them")

    def _target(self, wire: wires.Target, path: str) -> specs.Target:
        if wire.average_utilization is not None and wire.average_utilization < 1:
            self._refuse(f"{path}.averageUtilization", wire.average_utilization, "1 or more")
        return specs.Target(
            wire.type,
            value=self._positive(wire.value, f"{path}.value"),
            average_value=self._positive(wire.average_value, f"{path}.averageValue"),
            average_utilization=wire.average_utilization,
        )

    def _positive(self, quantity: wires.Quantity | None, path: str) -> int | None:
        """Return a quantity in thousandths."""
        if quantity is None:
            return None
        try:
            amount = parse_milli(quantity)
        except QuantityError as error:
            raise AutoscalerError(self._name, path, shorten_value(error.seen), error.expected) from error
        if not 0 < amount <= INT64_MAX:
            self._refuse(path, quantity, f"a quantity above 0 and up to {INT64_MAX // 1000}")
        return amount

    def _behavior(self, wire: wires.Behavior | None) -> specs.Behavior | None:
        if wire is None:
            return None
        return specs.Behavior(
            up=self._rules(wire.scale_up, specs.SCALE_UP, "spec.behavior.scaleUp"),
            down=self._rules(wire.scale_down, specs.SCALE_DOWN, "spec.behavior.scaleDown"),
        )

    def _rules(self, wire: wires.Rules | None, usual: specs.ScalingRules, path: str) -> specs.ScalingRules:
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
        policies = tuple(specs.ScalingPolicy(policy.type, policy.value, policy.period_seconds) for policy in wire.policies or ())
        return specs.ScalingRules(
            policies=policies or usual.policies,
            select=wire.select_policy or "Max",
            window=usual.window if window is None else window,
            tolerance=self._tolerance(wire.tolerance, f"{path}.tolerance"),
        )

    def _tolerance(self, quantity: wires.Quantity | None, path: str) -> float | None:
        if quantity is None:
            return None
        try:
            exact = parse(quantity)
        except QuantityError as error:
            raise AutoscalerError(self._name, path, shorten_value(error.seen), error.expected) from error
        if exact < 0:
            self._refuse(path, quantity, "0 or more")
        return _approximately(format_quantity(exact))

    def _reference(self, wire: wires.Reference, path: str, *, grouped: bool = False) -> specs.ObjectReference:
        """``grouped``: in core v1 only ReplicationController is accepted, the only kind there that can be scaled."""
        self._check_name(wire.kind, f"{path}.kind")
        self._check_name(wire.name, f"{path}.name")
        group, slash, version = wire.api_version.partition("/")
        if "/" in version or (grouped and wire.kind != "ReplicationController" and not (group and slash)):
            self._refuse(f"{path}.apiVersion", wire.api_version or "nothing", "a group and a version such as apps/v1")
        return specs.ObjectReference(wire.kind, wire.name, wire.api_version)

    def _selector(self, wire: wires.Selector | None, path: str) -> specs.MetricSelector | None:
        """The API server takes any selector; the controller fails to read an invalid one at every step and finds no metric."""
        if wire is None:
            return None
        expressions = []
        for number, expression in enumerate(wire.match_expressions or ()):
            requirement = specs.SelectorRequirement(expression.key, expression.operator, expression.values or ())
            if (
                requirement.operator not in _OPERATORS
                or bool(requirement.values) != _OPERATORS[requirement.operator]
                or not requirement.key
            ):
                requirement_text = (
                    f"{requirement.key or 'no key'} {requirement.operator or 'no operator'} with {len(requirement.values)} values"
                )
                expected = "a key, and either In or NotIn with at least one value, or Exists or DoesNotExist with no values"
                self._refuse(f"{path}.matchExpressions[{number}]", requirement_text, expected)
            expressions.append(requirement)
        return specs.MetricSelector(tuple(sorted((wire.match_labels or {}).items())), tuple(expressions))

    def _check_name(self, text: str, path: str, *, segment: bool = True) -> None:
        if not text or (segment and (text in (".", "..") or "/" in text or "%" in text)):
            self._refuse(path, text or "nothing", "a name without '/' and '%'" if segment else "a name")

    def _refuse(self, path: str, seen: object, expected: str) -> NoReturn:
        raise AutoscalerError(self._name, path, _escape(seen) if isinstance(seen, str) else shorten_value(seen), expected)


def _escape(text: str) -> str:
    """Escape a text for a message on a terminal."""
    return text[:80] if text[:80].isprintable() else repr(text[:80])


def _without_nulls(tree: object) -> object:
    """Return the tree without null fields, which Go treats as absent."""
    if isinstance(tree, dict):
        return {name: _without_nulls(value) for name, value in tree.items() if value is not None}
    return [_without_nulls(value) for value in tree] if isinstance(tree, list | tuple) else tree


def _approximately(canonical: str) -> float:
    """``AsApproximateFloat64`` of a quantity as the API server keeps it: digits times a power of ten, each rounded."""
    digits = canonical.rstrip("numkMGTPE")
    exponent = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}[canonical[len(digits) :]]
    return float(int(digits)) * float(f"1e{exponent}") if exponent else float(int(digits))


def _snake(name: str) -> str:
    return "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name)
