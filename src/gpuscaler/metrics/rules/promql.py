"""The part of PromQL that is needed to prove that one query serves many objects: the output of the library promql-parser as plain data.

Source: Prometheus' documentation of its query language.
"""

import re
from dataclasses import dataclass
from datetime import timedelta

import promql_parser as library

from gpuscaler.metrics.rules.gotemplate.formatting import quote

#: Each level of an expression contains one of these marks: a parenthesis, a range, a sign or an operator. The library parses 200 levels in
#: 10 ms and 2,000 in a second; at 5,000 it overflows the stack and ends the process. A proof takes three of Python's 1,000 frames a level.
_MARK = re.compile(r"[-+*/%^<>(\[]|==|!=|\b(?:and|or|unless|atan2)\b", re.IGNORECASE)
_MOST_MARKS = 200
_TEXT = re.compile(r""""(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'|`[^`]*`|\#[^\r\n]*""", re.DOTALL)
_BRACES = re.compile(r"\{[^{}]*\}")
_LABEL = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_OPERATORS = {"MatchOp.Equal": "=", "MatchOp.NotEqual": "!=", "MatchOp.Re": "=~", "MatchOp.NotRe": "!~"}
_MANY = (library.VectorMatchCardinality.ManyToOne, library.VectorMatchCardinality.OneToMany)

# The name of double_exponential_smoothing in Prometheus 2.
_SMOOTHED = [library.ValueType.Matrix, library.ValueType.Scalar, library.ValueType.Scalar]
library.register_extra_functions([library.Function("holt_winters", _SMOOTHED, library.ValueType.Vector)])


class PromqlError(ValueError):
    """A query that is not PromQL, or not in the supported part of it."""


@dataclass(frozen=True, slots=True)
class Literal:
    """A number or text."""


@dataclass(frozen=True, slots=True)
class Matcher:
    label: str
    operator: str
    value: str


@dataclass(frozen=True, slots=True)
class Selector:
    """``name{matchers}``, as ``text``; the name may be empty. The duration of a range is not part of it.

    ``reach`` is how far all ranges, subqueries and offsets around it look back together, in seconds; 0 without any.
    """

    name: str
    matchers: tuple[Matcher, ...]
    text: str
    reach: float = 0.0


@dataclass(frozen=True, slots=True)
class Call:
    function: str
    arguments: tuple["Expression", ...]


@dataclass(frozen=True, slots=True)
class Aggregation:
    """An aggregation. ``clause`` is ``by``, ``without`` or empty. The last argument is the aggregated expression."""

    operator: str
    arguments: tuple["Expression", ...]
    clause: str
    labels: frozenset[str]


@dataclass(frozen=True, slots=True)
class Operation:
    """A binary operation. ``clause`` is ``on``, ``ignoring`` or empty; ``many`` is whether it has ``group_left`` or ``group_right``."""

    operator: str
    left: "Expression"
    right: "Expression"
    clause: str = ""
    labels: frozenset[str] = frozenset()
    many: bool = False


#: The nodes of a query. ``@`` is left out: it affects all series in the same way.
Expression = Literal | Selector | Call | Aggregation | Operation


def parse(query: str) -> Expression:
    """Parse ``query``. Raises :class:`PromqlError`."""
    try:
        return _expression(library.parse(_readable(query)), 0.0)
    except BaseException as error:
        # The library panics on some numbers; a panic is no Exception and has no class to import. A timedelta ends at three million years.
        if not isinstance(error, ValueError | OverflowError) and type(error).__name__ != "PanicException":
            raise
        raise PromqlError(f"saw {query[:200]!r}, expected PromQL: {str(error)[:200]}") from error


def _readable(query: str) -> str:
    """``query`` without comments and with raw strings quoted: the library treats a backslash in a raw string as an escape.

    Afterwards the library sees the same strings as this module, and only marks that were counted. Raises :class:`ValueError`.
    """
    bare = _TEXT.sub(" ", query)
    if any(mark in bare for mark in "\"'`"):
        raise ValueError("a string does not end")
    if len(_MARK.findall(_BRACES.sub(" ", bare))) > _MOST_MARKS:
        raise ValueError(f"more than {_MOST_MARKS} parentheses, ranges, signs and operators")
    return _TEXT.sub(_quoted, query)


def _quoted(text: re.Match[str]) -> str:
    match text[0][0]:
        case "`":
            return quote(text[0][1:-1])
        case "#":
            return " "
        case _:
            return text[0]


def _expression(node: library.Expr, reach: float) -> Expression:
    """``node`` as plain data; ``reach`` is that of the expressions around it."""
    match node:
        case library.NumberLiteral() | library.StringLiteral():
            return Literal()
        case library.VectorSelector():
            return _selector(node, reach + _lookback(node.offset))
        case library.MatrixSelector():
            return _expression(node.vector_selector, reach + node.range.total_seconds())
        case library.SubqueryExpr():
            return _expression(node.expr, reach + _lookback(node.range) + _lookback(node.offset))
        case library.ParenExpr():
            return _expression(node.expr, reach)
        case library.UnaryExpr():
            # A sign changes values, never labels.
            return Call("-", (_expression(node.expr, reach),))
        case library.Call():
            return Call(node.func.name, tuple(_expression(arg, reach) for arg in node.args))
        case library.AggregateExpr():
            return _aggregation(node, reach)
        case library.BinaryExpr():
            return _operation(node, reach)
    raise ValueError(f"{type(node).__name__} is not supported")


def _lookback(offset: timedelta | None) -> float:
    """How far an offset looks back, in seconds; 0 for an offset into the future."""
    return max(offset.total_seconds(), 0.0) if offset else 0.0


def _selector(node: library.VectorSelector, reach: float) -> Selector:
    if node.matchers.or_matchers:
        raise ValueError("or between matchers is not supported")
    matchers = tuple(Matcher(matcher.name, _OPERATORS[str(matcher.op)], matcher.value) for matcher in node.matchers.matchers)
    texts = [
        f"{matcher.label if _LABEL.fullmatch(matcher.label) else quote(matcher.label)}{matcher.operator}{quote(matcher.value)}"
        for matcher in matchers
    ]
    text = (node.name or "") + (f"{{{','.join(texts)}}}" if texts else "")
    named = [matcher.value for matcher in matchers if matcher.label == "__name__" and matcher.operator == "="]
    return Selector(node.name or "".join(named[:1]), matchers, text, reach)


def _aggregation(node: library.AggregateExpr, reach: float) -> Aggregation:
    arguments = tuple(_expression(argument, reach) for argument in (node.param, node.expr) if argument is not None)
    if node.modifier is None:
        return Aggregation(str(node.op), arguments, "", frozenset())
    clause = "by" if node.modifier.type == library.AggModifierType.By else "without"
    return Aggregation(str(node.op), arguments, clause, frozenset(node.modifier.labels))


def _operation(node: library.BinaryExpr, reach: float) -> Operation:
    left, right, modifier = _expression(node.lhs, reach), _expression(node.rhs, reach), node.modifier
    if modifier is None:
        return Operation(str(node.op), left, right)
    if (modifier.fill_values.lhs, modifier.fill_values.rhs) != (None, None):
        raise ValueError("fill is not supported")
    many = modifier.card in _MANY
    if modifier.matching is None:
        return Operation(str(node.op), left, right, many=many)
    clause = "on" if modifier.matching.type == library.LabelModifierType.Include else "ignoring"
    return Operation(str(node.op), left, right, clause, frozenset(modifier.matching.labels), many)
