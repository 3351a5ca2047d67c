"""Random queries as in rules, and the series that they read."""

import random

NAMESPACES, PODS, GPUS = ("a", "b"), ("p", "q"), ("0", "1")
#: Both namespaces have pods with the same names. One of them has no samples of one metric.
OBJECTS = tuple((namespace, pod) for namespace in NAMESPACES for pod in PODS)
_BY = "by (<<.GroupBy>>)"
_AGGREGATIONS = ["sum", "avg", "min", "max", "count", "group", "stddev", "topk(1, ", "quantile(0.5, "]
_GROUPINGS = [
    *[_BY] * 3,
    *("by (gpu, <<.GroupBy>>)", "by (pod)", "by (gpu)", "without (gpu)", "without (pod)", "without (namespace, gpu)", ""),
]
_MATCHINGS = ["", "", "on (<<.GroupBy>>)", "on (<<.GroupBy>>, gpu)", "on (pod)", "ignoring (gpu)", "on (<<.GroupBy>>) group_left"]
_OPERATORS = ["+", "-", "*", "/", ">", "== bool", "and", "or", "unless", "<"]


def page(step: int) -> str:
    """The page of the endpoint at its ``step``-th scrape. All values differ, so that the order is never random."""
    lines = []
    for number, (namespace, pod) in enumerate(OBJECTS):
        for place, gpu in enumerate(GPUS):
            labels = f'namespace="{namespace}",pod="{pod}",gpu="{gpu}"'
            at = 7 * number + 3 * place + 1
            lines += [f"x{{{labels}}} {at + step % 3}", f"c_total{{{labels}}} {at * step}"]
            if (namespace, pod) != ("b", "q"):
                lines.append(f"y{{{labels}}} {at / 2}")
            lines += [f'h_bucket{{{labels},le="{bound}"}} {at * (2 + index)}' for index, bound in enumerate(("1", "5", "+Inf"))]
        lines.append(f'wanted{{namespace="{namespace}",pod="{pod}"}} {number + 1.5}')
    lines += [f'info{{pod="{pod}"}} 1' for pod in PODS]
    return "\n".join(lines) + "\n"


def draw(seed: int, number: int) -> str:
    """The same template every time."""
    return _Drawing(random.Random(f"{seed}/{number}")).expression(0)


class _Drawing:
    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def expression(self, depth: int) -> str:
        draw = self._rng.random()
        if depth > 3 or draw < 0.15:
            return self._selector()
        if draw < 0.25:
            function = self._rng.choice(["avg", "max", "min", "sum", "count", "last", "stddev"])
            return f"{function}_over_time({self._selector()}[4s])"
        if draw < 0.3:
            return f"{self._rng.choice(['rate', 'increase', 'delta', 'changes'])}({self._selector('c_total')}[5s])"
        if draw < 0.62:
            return self._aggregation(self.expression(depth + 1))
        if draw < 0.68:
            function = self._rng.choice(["abs", "ceil", "sqrt", "sort", "-", "absent", "sgn"])
            return f"{function}({self.expression(depth + 1)})"
        if draw < 0.73:
            number = self._rng.choice(["2", "0.5", "scalar(sum(x))", "time()"])
            return f"({self.expression(depth + 1)}) {self._rng.choice(['*', '+', '>', '^'])} {number}"
        if draw < 0.88:
            middle = f"{self._rng.choice(_OPERATORS)} {self._rng.choice(_MATCHINGS)}"
            return f"({self.expression(depth + 1)}) {middle} ({self.expression(depth + 1)})"
        return self._other(depth)

    def _other(self, depth: int) -> str:
        inner = self.expression(depth + 1)
        return self._rng.choice(
            [
                f"({inner}) or vector(0)",
                f"vector(0) or ({inner})",
                f"max_over_time(({inner})[3s:1s])",
                f'label_replace({inner}, "pod", "p", "gpu", ".*")',
                f"histogram_quantile(0.5, sum(rate({self._selector('h_bucket')}[5s])) by (le, <<.GroupBy>>))",
                f"histogram_quantile(0.9, {self._selector('h_bucket')})",
                f"({inner}) * scalar({self._selector()})",
                f"({inner}) * on (pod) group_left info",
            ]
        )

    def _aggregation(self, inner: str) -> str:
        operator = self._rng.choice(_AGGREGATIONS)
        opened = operator if operator.endswith(", ") else f"{operator}("
        return f"{opened}{inner}) {self._rng.choice(_GROUPINGS)}"

    def _selector(self, name: str = "") -> str:
        name = name or self._rng.choice(["x", "x", "y", "wanted"])
        more = self._rng.choice(["", "", "", ',gpu="0"', ',pod=~"p|q"'])
        if self._rng.random() < 0.06:
            return f"{name}{{{more.removeprefix(',')}}}"
        return f"{name}{{<<.LabelMatchers>>{more}}}"
