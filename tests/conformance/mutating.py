"""Small changes to Python source, each of which a test should notice: flipped comparisons, dropped conditions, constants off by one."""

import ast
import difflib
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch

#: Functions with a result that is not a verdict on a Kubernetes pod: explanations, bounds for packing, devices shared in thousandths,
#: machines that do not exist yet.
SKIPPED = (
    *("explain*", "_explain*", "_wanted", "_seen", "shown", "_shown", "_without", "_keys", "reason", "__str__", "__repr__", "__len__"),
    *("_devices", "_resources_pass"),
    *("copies*", "capacity", "fits", "alone*", "_alone*", "_room_per_domain", "_counts_at_all"),
    *("used", "device_free", "static_mask", "spread_counts", "matching", "admitting", "_admits_any", "_perhaps"),
)
_SKIPPED_NAMES = ("__slots__", "__all__")
_FLIPPED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
_SWAPPED: dict[type[ast.operator], type[ast.operator]] = {
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
}


@dataclass(frozen=True)
class Mutation:
    """One possible change: its function, its kind, and the changed source. ``index`` numbers the mutations of one module."""

    index: int
    function: str
    kind: str
    source: str


def mutations(source: str) -> list[Mutation]:
    """Every possible change of ``source``, in source order."""
    walk = _Walk(target=-1)
    walk.visit(ast.parse(source))
    return walk.found


def mutated(source: str, index: int) -> str:
    """``source`` with change number ``index`` applied, as written by :func:`ast.unparse`."""
    tree = _Walk(target=index).visit(ast.parse(source))
    return ast.unparse(ast.fix_missing_locations(tree))


def difference(source: str, index: int) -> str:
    """The change as a unified diff with one line of context."""
    before, after = ast.unparse(ast.parse(source)).splitlines(), mutated(source, index).splitlines()
    return "\n".join(list(difflib.unified_diff(before, after, n=1, lineterm=""))[2:])


class _Walk(ast.NodeTransformer):
    """Finds all changes, and applies the one with the number ``target``."""

    def __init__(self, *, target: int) -> None:
        self.found: list[Mutation] = []
        self._target = target
        self._scope: list[str] = []

    def _offer(self, node: ast.AST, *changes: tuple[str, Callable[[], ast.AST]]) -> ast.AST:
        result = node
        for kind, make in changes:
            index = len(self.found)
            self.found.append(Mutation(index, ".".join(self._scope), kind, ast.unparse(node).splitlines()[0]))
            if index == self._target:
                result = ast.copy_location(make(), node)
        return result

    def _visit_body(self, node: ast.FunctionDef | ast.ClassDef) -> ast.AST:
        if isinstance(node, ast.FunctionDef) and any(fnmatch(node.name, pattern) for pattern in SKIPPED):
            return node
        self._scope.append(node.name)
        # Only the body: annotations, decorators and class options do not affect verdicts.
        node.body = [self.visit(statement) for statement in node.body]
        self._scope.pop()
        return node

    visit_FunctionDef = _visit_body  # noqa: N815  # the name that ast requires
    visit_ClassDef = _visit_body  # noqa: N815

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        return node if isinstance(node.value, ast.Constant) else self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        if node.value is not None:
            node.value = self.visit(node.value)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if any(isinstance(target, ast.Name) and target.id in _SKIPPED_NAMES for target in node.targets):
            return node
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        return node if isinstance(node.func, ast.Name) and node.func.id == "TypeVar" else self.generic_visit(node)

    def visit_keyword(self, node: ast.keyword) -> ast.AST:
        # zip(strict=True) only guards against mistakes.
        return node if node.arg == "strict" else self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> ast.AST:
        return node

    def visit_Assert(self, node: ast.Assert) -> ast.AST:
        return node

    def visit_Raise(self, node: ast.Raise) -> ast.AST:
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        flipped = _FLIPPED.get(type(node.ops[0]))
        self.generic_visit(node)
        if flipped is None or len(node.ops) > 1:
            return node
        return self._offer(node, ("flip", lambda: ast.Compare(node.left, [flipped()], node.comparators)))

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        other = ast.Or if isinstance(node.op, ast.And) else ast.And
        changes: list[tuple[str, Callable[[], ast.AST]]] = [
            ("swap", lambda: ast.BoolOp(other(), node.values)),
            ("drop the first condition", lambda: _joined(node.op, node.values[1:])),
        ]
        if not _is_empty(node.values[-1]):
            changes.append(("drop the last condition", lambda: _joined(node.op, node.values[:-1])))
        return self._offer(node, *changes)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        if isinstance(node.op, ast.USub) and not any(isinstance(part, ast.Name) for part in ast.walk(node.operand)):
            # Negative constants are markers and bounds (no code, any length, the smallest integer), not amounts.
            return node
        self.generic_visit(node)
        return self._offer(node, ("drop the negation", lambda: node.operand)) if isinstance(node.op, ast.Not | ast.Invert) else node

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        swapped = _SWAPPED.get(type(node.op))
        self.generic_visit(node)
        return node if swapped is None else self._offer(node, ("swap", lambda: ast.BinOp(node.left, swapped(), node.right)))

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        swapped = _SWAPPED.get(type(node.op))
        self.generic_visit(node)
        if swapped is None:
            return node
        return self._offer(node, ("swap", lambda: ast.AugAssign(node.target, swapped(), node.value)), ("drop", ast.Pass))

    def visit_If(self, node: ast.If) -> ast.AST:
        self.generic_visit(node)
        if _asks_a_cache(node.test):
            return node
        return self._offer(
            node,
            ("always", lambda: ast.If(ast.Constant(value=True), node.body, node.orelse)),
            ("never", lambda: ast.If(ast.Constant(value=False), node.body, node.orelse)),
        )

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        self.generic_visit(node)
        if not node.ifs:
            return node
        return self._offer(node, ("drop the condition", lambda: ast.comprehension(node.target, node.iter, node.ifs[1:], node.is_async)))

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        value = node.value
        if isinstance(value, bool):
            return self._offer(node, ("not", lambda: ast.Constant(value=not value)))
        if isinstance(value, int):
            return self._offer(node, ("one more", lambda: ast.Constant(value=value + 1)))
        if isinstance(value, str) and value and " " not in value:
            return self._offer(node, ("another text", lambda: ast.Constant(value=value + "x")))
        return node


def _joined(operator: ast.boolop, values: list[ast.expr]) -> ast.expr:
    return values[0] if len(values) == 1 else ast.BoolOp(operator, values)


def _is_empty(value: ast.expr) -> bool:
    """Whether ``value`` is an empty string or similar: ``x or ""`` only avoids a None for the type checker."""
    return (isinstance(value, ast.Constant) and not value.value) or (
        isinstance(value, ast.Dict | ast.Tuple) and not ast.unparse(value).strip("{()}")
    )


def _asks_a_cache(test: ast.expr) -> bool:
    """Whether ``test`` is ``x is None``: mostly a cache that may be refilled at any time, and flipping it is another mutation anyway."""
    return isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.Is) and ast.unparse(test.comparators[0]) == "None"
