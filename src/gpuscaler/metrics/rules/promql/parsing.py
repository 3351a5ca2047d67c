"""From a query's tokens to nodes."""

import ast
import re
from dataclasses import dataclass, replace

from gpuscaler.metrics.rules.promql.nodes import Aggregation, Call, Expression, Literal, Matcher, Operation, Selector
from gpuscaler.metrics.rules.promql.tokens import PromqlError, Token, tokens

AGGREGATIONS = frozenset("sum avg min max count stddev stdvar group quantile topk bottomk count_values limitk limit_ratio".split())
#: Binary operators by how tightly they bind; ``^`` binds to the right, and tighter than a sign.
_PRECEDENCE = {"or": 1, "and": 2, "unless": 2, "atan2": 5, "*": 5, "/": 5, "%": 5, "+": 4, "-": 4, "^": 6} | dict.fromkeys(
    ("==", "!=", "<=", "<", ">=", ">"), 3
)
_POWER = 6
_MOST_DEEP = 60
#: A chain of operators is as deep as it is long.
_MOST_OPERATORS = 100
_NUMBERS = frozenset({"inf", "nan"})
_PART = re.compile("([0-9]+)(ms|[smhdwy])")
_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800, "y": 31_536_000}


def parse(query: str) -> Expression:
    """The expression that ``query`` is. Raises :class:`~.tokens.PromqlError`."""
    parser = _Parser(query, tokens(query))
    expression = parser.expression(1, 0)
    parser.expect("")
    return expression


@dataclass
class _Parser:
    query: str
    found: list[Token]
    place: int = 0
    operators: int = 0

    @property
    def token(self) -> Token:
        return self.found[self.place]

    def expect(self, text: str) -> Token:
        token = self.token
        if token.text != text or token.kind == "string":
            raise PromqlError(f"saw {token.text or 'the end'!r}, expected {text or 'the end'!r}")
        self.place += token.kind != "end"
        return token

    def sees(self, *texts: str) -> bool:
        return self.token.text.lower() in texts and self.token.kind in ("mark", "word")

    def takes(self, *texts: str) -> bool:
        seen = self.sees(*texts)
        self.place += seen
        return seen

    def expression(self, least: int, depth: int) -> Expression:
        """An expression whose operators bind at least as tightly as ``least``."""
        if depth > _MOST_DEEP:
            raise PromqlError(f"saw more than {_MOST_DEEP} levels, expected fewer")
        left = self._signed(depth)
        while (binds := self._binds()) >= least:
            operator = self.token.text.lower()
            self.place += 1
            self.operators += 1
            if self.operators > _MOST_OPERATORS:
                raise PromqlError(f"saw more than {_MOST_OPERATORS} operators, expected fewer")
            self.takes("bool")
            clause, labels, many = self._matching()
            right = self.expression(binds + (binds != _POWER), depth + 1)
            left = Operation(operator, left, right, clause, labels, many)
        return left

    def _binds(self) -> int:
        return _PRECEDENCE.get(self.token.text.lower(), 0) if self.token.kind in ("mark", "word") else 0

    def _matching(self) -> tuple[str, frozenset[str], bool]:
        if not self.sees("on", "ignoring"):
            return "", frozenset(), False
        clause = self.token.text.lower()
        self.place += 1
        labels = self._labels()
        many = self.takes("group_left", "group_right")
        if many and self.sees("("):
            self._labels()
        return clause, labels, many

    def _signed(self, depth: int) -> Expression:
        if self.takes("-", "+"):
            # A sign changes values, never labels; it binds less than a power.
            return Call("-", (self.expression(_POWER, depth + 1),))
        return self._suffixed(self._primary(depth), depth)

    def _suffixed(self, expression: Expression, depth: int) -> Expression:
        """Ranges, subqueries, offsets and ``@`` after an expression."""
        while True:
            if self.takes("["):
                expression = _reaching(expression, self._duration())
                if self.takes(":"):
                    if not self.sees("]"):
                        self._duration()
                elif not isinstance(expression, Selector):
                    raise PromqlError("saw a range of an expression, expected a subquery such as [5m:1m]")
                self.expect("]")
            elif self.takes("offset"):
                # One into the future moves nothing further back.
                ahead = self.takes("-")
                seconds = self._duration()
                expression = expression if ahead else _reaching(expression, seconds)
            elif self.takes("@"):
                if self.takes("start", "end"):
                    self.expect("(")
                    self.expect(")")
                else:
                    self.expression(_POWER, depth + 1)
            else:
                return expression

    def _duration(self) -> float:
        """In seconds, as numbers are, too."""
        token = self.token
        if token.kind not in ("duration", "number"):
            raise PromqlError(f"saw {token.text!r}, expected a duration such as 5m")
        self.place += 1
        if token.kind == "duration":
            return sum(int(count) * _UNITS[unit] for count, unit in _PART.findall(token.text))
        try:
            return float(token.text)
        except ValueError:
            raise PromqlError(f"saw {token.text!r}, expected a duration such as 5m") from None

    def _primary(self, depth: int) -> Expression:
        token = self.token
        if token.kind in ("number", "string", "duration"):
            self.place += 1
            return Literal(token.text)
        if self.takes("("):
            inside = self.expression(1, depth + 1)
            self.expect(")")
            return inside
        if self.sees("{"):
            return self._selector("", token.start)
        if token.kind != "word":
            raise PromqlError(f"saw {token.text or 'the end'!r}, expected an expression")
        self.place += 1
        return self._named(token, depth)

    def _named(self, token: Token, depth: int) -> Expression:
        if token.text.lower() in AGGREGATIONS and self.sees("(", "by", "without"):
            return self._aggregation(token.text.lower(), depth)
        if self.sees("("):
            return Call(token.text, self._arguments(depth))
        if token.text.lower() in _NUMBERS:
            return Literal(token.text)
        return self._selector(token.text, token.start)

    def _aggregation(self, operator: str, depth: int) -> Expression:
        clause, labels = self._grouping()
        arguments = self._arguments(depth)
        if not clause:
            clause, labels = self._grouping()
        return Aggregation(operator, arguments, clause, labels)

    def _grouping(self) -> tuple[str, frozenset[str]]:
        if not self.sees("by", "without"):
            return "", frozenset()
        clause = self.token.text.lower()
        self.place += 1
        return clause, self._labels()

    def _labels(self) -> frozenset[str]:
        self.expect("(")
        labels: set[str] = set()
        while not self.sees(")"):
            labels.add(self._label())
            if not self.takes(","):
                break
        self.expect(")")
        return frozenset(labels)

    def _label(self) -> str:
        token = self.token
        self.place += 1
        if token.kind == "word":
            return token.text
        if token.kind == "string":
            return unquote(token.text)
        raise PromqlError(f"saw {token.text!r}, expected a label")

    def _arguments(self, depth: int) -> tuple[Expression, ...]:
        self.expect("(")
        arguments: list[Expression] = []
        while not self.sees(")"):
            arguments.append(self.expression(1, depth + 1))
            if not self.takes(","):
                break
        self.expect(")")
        return tuple(arguments)

    def _selector(self, name: str, start: int) -> Selector:
        matchers: list[Matcher] = []
        if self.takes("{"):
            while not self.sees("}"):
                matchers.append(self._matcher())
                if not self.takes(","):
                    break
            self.expect("}")
        last = self.found[self.place - 1]
        named = [one.value for one in matchers if one.label == "__name__" and one.operator == "="]
        return Selector(name or "".join(named[:1]), tuple(matchers), self.query[start : last.start + len(last.text)])

    def _matcher(self) -> Matcher:
        quoted = self.token.kind == "string"
        label = self._label()
        if quoted and self.sees(",", "}"):
            # {"a metric's name"}
            return Matcher("__name__", "=", label)
        operator = self.token
        self.place += 1
        value = self.token
        self.place += 1
        if operator.text not in ("=", "!=", "=~", "!~") or value.kind != "string":
            raise PromqlError(f"saw {label}{operator.text}{value.text}, expected a matcher")
        return Matcher(label, operator.text, unquote(value.text))


def _reaching(expression: Expression, seconds: float) -> Expression:
    """``expression`` with every selector in it looking back so much further."""
    match expression:
        case Selector():
            return replace(expression, reach=expression.reach + seconds)
        case Call() | Aggregation():
            return replace(expression, arguments=tuple(_reaching(one, seconds) for one in expression.arguments))
        case Operation():
            return replace(expression, left=_reaching(expression.left, seconds), right=_reaching(expression.right, seconds))
        case _:
            return expression


def unquote(text: str) -> str:
    r"""The text that a string of PromQL is; escapes are Go's."""
    if text[0] == "`":
        return text[1:-1]
    if re.search(r"(?<!\\)(\\\\)*\\[^abfnrtv\\'\"0-7xuU]", text):
        raise PromqlError(f"saw {text}, expected text with escapes as Go has them")
    try:
        return str(ast.literal_eval(text))
    except (ValueError, SyntaxError):
        raise PromqlError(f"saw {text}, expected quoted text") from None
