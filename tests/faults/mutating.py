"""Mutants: each names a definition and a pattern of tokens in it, so that moves and line breaks do not matter."""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

SOURCES = Path(__file__).parents[2] / "src" / "gpuscaler"
#: tokenize is no use: from Python 3.12 on it rejects text that begins or ends within brackets.
TOKEN = re.compile(
    r"""
    (?P<skipped> \s+ | \#[^\n]* | \\\n )
    | [rRbBuUfF]{0,2} (?: '''(?:\\.|[^\\])*?''' | \"""(?:\\.|[^\\])*?\""" | '(?:\\.|[^\\'\n])*' | "(?:\\.|[^\\"\n])*" )
    | \d [\w.]* (?: (?<=[eE]) [+-]\d+ )?
    | \w+
    | \.\.\. | -> | := | (?: \*\* | // | << | >> | [-+*/%@&|^=<>!] ) =? | .
    """,
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class Definition:
    """A function, a class, or a constant of a module or class, with its ``name`` in the module and its first and last line."""

    module: str
    name: str
    path: Path
    start: int
    stop: int

    def __str__(self) -> str:
        return f"{self.dotted} (line {self.start + 1})"

    @property
    def dotted(self) -> str:
        return f"{self.module}.{self.name}"

    @property
    def source(self) -> str:
        return "\n".join(text_of(self.path).split("\n")[self.start : self.stop])

    def spans(self, pattern: str) -> list[tuple[int, int]]:
        """Return where in ``source`` the tokens of ``pattern`` follow each other."""
        have, want = tokens(self.source), [token[0] for token in tokens(pattern)]
        runs = (have[at : at + len(want)] for at in range(len(have) - len(want) + 1))
        return [(run[0].start(), run[-1].end()) for run in runs if run and [token[0] for token in run] == want]


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """Replaces the tokens ``old``, which occur once in the definition ``at``, by ``new``; ``removes`` describes the effect.

    ``at`` is the name of a function, class or constant, prefixed with its class or function (`Cloud._buy`), and with as many names of its
    module as make it unique (`breakers.step`). Whitespace, comments and commas before a closing bracket are not tokens.
    """

    case: int
    at: str
    old: str
    new: str
    removes: str

    def applied(self, sources: Path = SOURCES) -> tuple[str, str]:
        """Return the name of the changed module, and its source. Raises ValueError unless there is exactly one place for the change."""
        where = self.definition(sources)
        spans, source, lines = where.spans(self.old), where.source, text_of(where.path).split("\n")
        if len(spans) != 1:
            hint = "make it longer" if spans else elsewhere(self.old, sources)
            raise ValueError(f"{self}: saw {self.old!r} {len(spans)} times in {where}, expected it once; {hint}")
        start, stop = spans[0]
        changed = source[:start] + self.new + source[stop:]
        return where.module, "\n".join((*lines[: where.start], changed, *lines[where.stop :]))

    def definition(self, sources: Path = SOURCES) -> Definition:
        """Return the definition that ``at`` names. Raises ValueError unless there is exactly one."""
        matches = [definition for definition in definitions(sources, self.at.rpartition(".")[2]) if is_called(definition, self.at)]
        if len(matches) != 1:
            hint = f"name one of {listed(matches)}" if matches else elsewhere(self.old, sources)
            raise ValueError(f"{self}: saw {len(matches)} functions, classes and constants called {self.at}, expected one; {hint}")
        return matches[0]

    def __str__(self) -> str:
        return f"the mutant of F{self.case} at {self.at}"


def is_called(definition: Definition, name: str) -> bool:
    return f".{definition.dotted}".endswith(f".{name}") and len(name) >= len(definition.name)


def elsewhere(pattern: str, sources: Path) -> str:
    """Return where the package has ``pattern``, to help to find a definition that was renamed or split."""
    matches = [definition for definition in definitions(sources) if definition.spans(pattern)]
    inner = [definition for definition in matches if not any(other.dotted.startswith(f"{definition.dotted}.") for other in matches)]
    return f"saw {pattern!r} in {listed(inner)}" if inner else f"{pattern!r} is nowhere in {sources.name}"


def listed(definitions: list[Definition]) -> str:
    return ", ".join(map(str, definitions))


def tokens(text: str) -> list[re.Match[str]]:
    """Return the tokens of ``text`` without whitespace, comments, and commas before a closing bracket."""
    matches = [token for token in TOKEN.finditer(text) if token.lastgroup != "skipped"]
    trailing = {token for token, after in pairwise(matches) if token[0] == "," and after[0] in (")", "]", "}")}
    return [token for token in matches if token not in trailing]


def definitions(sources: Path, word: str = "") -> Iterator[Definition]:
    """Yield the definitions in files that contain ``word``."""
    for path in files_of(sources):
        if word in text_of(path):
            yield from defined_in(path, sources)


@cache
def files_of(sources: Path) -> tuple[Path, ...]:
    return tuple(sorted(sources.rglob("*.py")))


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def defined_in(path: Path, sources: Path) -> tuple[Definition, ...]:
    parts = path.relative_to(sources.parent).with_suffix("").parts
    module = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
    definitions = named(ast.parse(text_of(path)))
    return tuple(Definition(module, name, path, first_line(node) - 1, node.end_lineno or node.lineno) for name, node in definitions)


def named(tree: ast.AST, within: str = "", *, local: bool = False) -> Iterator[tuple[str, ast.stmt]]:
    """Yield the statements that define something, with their names; local variables of functions are left out."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.expr):
            continue
        inner, function = within, isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield within + node.name, node
            inner = f"{within}{node.name}."
        elif isinstance(node, ast.Assign | ast.AnnAssign) and not local:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [name for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]
            yield from ((within + name.id, node) for name in names if isinstance(name.ctx, ast.Store))
        yield from named(node, inner, local=local or function)


def first_line(node: ast.stmt) -> int:
    """Return the line of the first decorator if there is one, else of the statement."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and node.decorator_list:
        return node.decorator_list[0].lineno
    return node.lineno
