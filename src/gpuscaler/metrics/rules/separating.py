"""Proves from their PromQL which queries can be sent once for all objects.

A query is separable if its answer for all objects, reduced to the samples with one object's labels, equals its answer for that object
alone. Separable are selectors that all have the matchers of the object, functions of one series, and aggregations that keep the object's
labels. Not separable are joins with series of others, ``absent``, ``topk`` over all, and rewritten labels.

Each expression has a shape: a number, a vector that does not depend on any object, a vector without labels, or one that is split by object.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Literal as Choice

from msgspec import Struct

from gpuscaler.metrics.rules.gotemplate.syntax import Action, Branch, Chain, Node, Operand, Pipeline
from gpuscaler.metrics.rules.matchers import QueryError
from gpuscaler.metrics.rules.promql import Aggregation, Call, Expression, Literal, Matcher, Operation, PromqlError, Selector, parse
from gpuscaler.metrics.rules.resources import Resource
from gpuscaler.metrics.rules.rule import NAMESPACES, Rule

Breadth = Choice["cluster", "namespace", "names"]

#: Functions of a range of one series, or of one sample: their result for a series does not depend on other series.
_OF_SERIES = frozenset(
    """- rate irate increase delta idelta deriv predict_linear changes resets holt_winters double_exponential_smoothing
    avg_over_time min_over_time max_over_time sum_over_time count_over_time quantile_over_time stddev_over_time stdvar_over_time
    last_over_time first_over_time present_over_time mad_over_time
    abs ceil floor round clamp clamp_min clamp_max exp ln log2 log10 sqrt sgn timestamp sort sort_desc
    sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh deg rad
    histogram_avg histogram_count histogram_sum histogram_stddev histogram_stdvar histogram_quantile histogram_fraction
    minute hour day_of_month day_of_week day_of_year days_in_month month year""".split()
)
_SET_OPERATORS = frozenset({"and", "or", "unless"})
#: Values that no object can have, since names contain no spaces.
_ANY, _NAMESPACE = "any object", "one namespace"


class Proof(Struct, frozen=True):
    """How many objects one query may cover: all of the ``cluster``, those of one ``namespace``, or only given ``names``.

    ``why`` is empty for ``cluster``; otherwise it is the part of the query that prevents a wider one.
    """

    breadth: Breadth
    why: str = ""


class _Inseparable(Exception):  # noqa: N818  # a result, not an error
    pass


class _Shape(Enum):
    NUMBER = "a number"
    CONSTANT = "series that are not the object's own"
    BARE = "a vector without labels"
    #: Split by object; label sets are distinct even without the metric's name.
    SPLIT = "split"
    #: Split by object, over several metrics.
    MIXED = "several metrics at once"


@lru_cache(maxsize=4096)
def prove(rule: Rule, series: str, resource: Resource) -> Proof:
    """How many objects :meth:`Rule.wide_query` of ``rule`` may cover with the same answer for each object."""
    try:
        _check_template(rule.template.nodes)
        name_label = rule.label(resource)
        namespace = rule.label(NAMESPACES) if resource.namespaced else ""
    except (_Inseparable, QueryError) as no:
        return Proof("names", str(no))
    try:
        wide = rule.wide_query(series, resource=resource, anything=_ANY)
        _check(wide, _Split.of(Matcher(label, "!=", _ANY) for label in (name_label, namespace) if label))
        return Proof("cluster")
    except (_Inseparable, QueryError, PromqlError) as no:
        why = str(no)
    if not namespace:
        return Proof("names", why)
    try:
        within = rule.wide_query(series, resource=resource, namespace=_NAMESPACE, anything=_ANY)
        _check(within, _Split.of((Matcher(name_label, "!=", _ANY),), also=(Matcher(namespace, "=", _NAMESPACE),)))
    except (_Inseparable, QueryError, PromqlError) as no:
        return Proof("names", str(no))
    return Proof("namespace", why)


def selectors(query: str) -> Mapping[str, float]:
    """The series that ``query`` reads: each selector, without ranges, and how far it looks back, in seconds.

    Raises :class:`~.promql.PromqlError`.
    """
    reaches: dict[str, float] = {}
    for selector in _selectors(parse(query)):
        reaches[selector.text] = max(selector.reach, reaches.get(selector.text, 0.0))
    return reaches


def is_scalar(query: str) -> bool:
    """Whether the answer to ``query`` is one number rather than a vector. Raises :class:`~.promql.PromqlError`."""
    return _is_scalar(parse(query))


def _is_scalar(expression: Expression) -> bool:
    match expression:
        case Literal():
            return True
        case Call():
            return expression.function in ("scalar", "time", "pi") or (
                expression.function == "-" and all(map(_is_scalar, expression.arguments))
            )
        case Operation():
            return _is_scalar(expression.left) and _is_scalar(expression.right)
        case _:
            return False


def _selectors(expression: Expression) -> Iterator[Selector]:
    match expression:
        case Selector():
            yield expression
        case Call() | Aggregation():
            for argument in expression.arguments:
                yield from _selectors(argument)
        case Operation():
            yield from _selectors(expression.left)
            yield from _selectors(expression.right)


def _check_template(nodes: tuple[Node, ...]) -> None:
    """Check that the template only writes the values about the object, and does not branch on them."""
    for node in nodes:
        if isinstance(node, Action):
            only = node.pipeline.commands[0] if len(node.pipeline.commands) == 1 and not node.pipeline.variables else ()
            if len(only) != 1 or _field(only[0]) not in ("LabelMatchers", "GroupBy"):
                _check_pipeline(node.pipeline)
        elif isinstance(node, Branch):
            if node.keyword != "range" or [_field(operand) for command in node.pipeline.commands for operand in command] != [
                "GroupBySlice"
            ]:
                _check_pipeline(node.pipeline)
            _check_template(node.body)
            _check_template(node.otherwise)


def _check_pipeline(pipeline: Pipeline) -> None:
    for command in pipeline.commands:
        for operand in command:
            if isinstance(operand, Pipeline):
                _check_pipeline(operand)
            elif _field(operand) not in ("", "Series"):
                raise _Inseparable(f"the template uses .{_field(operand)}, which may differ between objects")


def _field(operand: Operand) -> str:
    return operand.fields[0] if isinstance(operand, Chain) and not isinstance(operand.base, Pipeline) else ""


def _check(query: str, split: "_Split") -> None:
    shape = split.shape(parse(query))
    if shape not in (_Shape.SPLIT, _Shape.MIXED):
        raise _Inseparable(f"the query is {shape.value}, not split by object")


@dataclass(frozen=True)
class _Split:
    """How objects are distinguished: the ``matchers`` that each selector must have; ``labels`` identify the object."""

    matchers: frozenset[Matcher]
    labels: frozenset[str]

    @classmethod
    def of(cls, identifying: "Iterator[Matcher] | tuple[Matcher, ...]", also: tuple[Matcher, ...] = ()) -> "_Split":
        matchers = tuple(identifying)
        return cls(frozenset((*matchers, *also)), frozenset(matcher.label for matcher in matchers))

    def shape(self, expression: Expression) -> _Shape:
        match expression:
            case Literal():
                return _Shape.NUMBER
            case Selector():
                return self._of_selector(expression)
            case Aggregation():
                return self._of_aggregation(expression)
            case Operation():
                return self._of_operation(expression)
            case Call():
                return self._of_call(expression)

    def _of_selector(self, selector: Selector) -> _Shape:
        present = self.matchers & set(selector.matchers)
        if not present:
            return _Shape.CONSTANT
        if present != self.matchers:
            raise _Inseparable(f"{selector.text} does not have all matchers of the object")
        return _Shape.SPLIT if selector.name else _Shape.MIXED

    def _of_aggregation(self, aggregation: Aggregation) -> _Shape:
        *parameters, inner = [self.shape(argument) for argument in aggregation.arguments] or [_Shape.NUMBER]
        if inner not in (_Shape.SPLIT, _Shape.MIXED):
            return inner
        by = aggregation.clause != "without"
        lost = self.labels - aggregation.labels if by else self.labels & aggregation.labels
        if lost:
            raise _Inseparable(f"{aggregation.operator} does not keep {', '.join(sorted(lost))}")
        if any(shape is not _Shape.NUMBER for shape in parameters):
            raise _Inseparable(f"{aggregation.operator} has a parameter that is not a number")
        if aggregation.operator in ("limitk", "limit_ratio", "count_values"):
            raise _Inseparable(f"{aggregation.operator} is not supported")
        return inner if aggregation.operator in ("topk", "bottomk") else _Shape.SPLIT

    def _of_operation(self, operation: Operation) -> _Shape:
        left, right = self.shape(operation.left), self.shape(operation.right)
        if operation.operator == "or" and _Shape.BARE in (left, right) and {left, right} <= {_Shape.SPLIT, _Shape.BARE}:
            # A vector without labels belongs to no object. It must be second, so that an object's own samples never depend on it.
            if left is _Shape.BARE:
                raise _Inseparable("a vector without labels comes before or")
            return left
        if _Shape.NUMBER in (left, right):
            vector = right if left is _Shape.NUMBER else left
            if vector is _Shape.MIXED:
                raise _Inseparable(f"{operation.operator} of {vector.value}")
            return vector
        if left is right is _Shape.CONSTANT:
            return left
        if not left is right is _Shape.SPLIT:
            raise _Inseparable(f"{operation.operator} with {(right if left is _Shape.SPLIT else left).value}")
        self._check_matching(operation)
        return _Shape.SPLIT

    def _check_matching(self, operation: Operation) -> None:
        if operation.many:
            raise _Inseparable("group_left and group_right may fail for all where they fail for one")
        if operation.clause == "on":
            if not self.labels <= operation.labels:
                raise _Inseparable(f"on does not keep {', '.join(sorted(self.labels - operation.labels))}")
            if operation.operator not in _SET_OPERATORS and not all(
                _groups(side, within=operation.labels) for side in (operation.left, operation.right)
            ):
                raise _Inseparable("on may fail for all where it fails for one, since a side is not grouped by its labels")
        if operation.clause == "ignoring" and (operation.operator not in _SET_OPERATORS or self.labels & operation.labels):
            raise _Inseparable("ignoring may fail for all where it fails for one")

    def _of_call(self, call: Call) -> _Shape:
        shapes = [self.shape(argument) for argument in call.arguments]
        vectors = [shape for shape in shapes if shape is not _Shape.NUMBER]
        name = call.function
        if name == "vector":
            return _Shape.BARE if not vectors else _refuse(name)
        if name == "scalar":
            return _Shape.NUMBER if all(shape in (_Shape.CONSTANT, _Shape.BARE) for shape in vectors) else _refuse(name)
        if not vectors:
            return _Shape.NUMBER if name in ("time", "pi", "-") else _Shape.BARE
        if all(shape is _Shape.CONSTANT for shape in vectors):
            return _Shape.CONSTANT
        if name not in _OF_SERIES or len(vectors) > 1:
            return _refuse(name)
        if vectors[0] is _Shape.MIXED and name not in ("sort", "sort_desc"):
            raise _Inseparable(f"{name} of {vectors[0].value}")
        return vectors[0]


def _refuse(function: str) -> _Shape:
    raise _Inseparable(f"{function}() is not a function of one series at a time")


def _groups(expression: Expression, *, within: frozenset[str]) -> bool:
    """Whether ``expression`` is grouped by some of the labels, so that each combination of them occurs once."""
    if not isinstance(expression, Aggregation) or expression.operator in ("topk", "bottomk"):
        return False
    return expression.clause == "by" and expression.labels <= within
