"""Language features to avoid because of bugs in the oldest supported interpreter, CPython 3.11.2."""

import ast
import gc
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def raises_in_except_star(source: str) -> list[int]:
    """Return the lines that raise inside ``except*``. Up to CPython 3.11.3, any error raised there becomes an ExceptionGroup."""
    if re.search(r"except\s*\*", source) is None:
        return []
    handlers = [handler for node in ast.walk(ast.parse(source)) if isinstance(node, ast.TryStar) for handler in node.handlers]
    return [inner.lineno for handler in handlers for inner in ast.walk(handler) if isinstance(inner, ast.Raise)]


def sources() -> Iterator[Path]:
    for folder in ("src", "tests", "tools", "benchmarks"):
        yield from (ROOT / folder).rglob("*.py")


def test_no_source_file_raises_inside_except_star() -> None:
    places = [f"{path.relative_to(ROOT)}:{line}" for path in sources() for line in raises_in_except_star(path.read_text())]

    assert places == []


@pytest.mark.parametrize(
    ("body", "lines"), [("raise ValueError from None", [4]), ("raise", [4]), ("if error:\n        raise error", [5]), ("print(error)", [])]
)
def test_a_raise_inside_except_star_is_detected(body: str, lines: list[int]) -> None:
    assert raises_in_except_star(f"try:\n    work()\nexcept* OSError as error:\n    {body}\n") == lines


class ParsesWhenCollected:
    """An object that parses source when it is collected, as the traceback of a warning about it does."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        _deeper(20)


def _deeper(depth: int) -> ast.AST:
    return ast.parse("1 + 1") if depth == 0 else _deeper(depth - 1)


def test_source_can_be_parsed_while_garbage_collection_parses_source_too() -> None:
    source = Path(ast.__file__).read_text()
    for _ in range(10):
        for _ in range(50):
            ParsesWhenCollected()
        assert ast.parse(source).body
    gc.collect()
