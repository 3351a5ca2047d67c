"""Trees as YAML, with the reasons as comments where they are asked for."""

import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from gpuscaler.generating.writing.explained import Explained, Tree

_WIDTH = 110
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
#: Texts that PyYAML writes without quotes, and that the parsers of Go programs read as a boolean or a number: YAML 1.2, and go-yaml's own.
_NOT_TEXT_IN_GO = re.compile(r"[yYnN]|[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?|[-+]?0[oObBxX][0-9a-fA-F_]+")


def render_yaml(documents: Iterable[Tree], *, explain: bool) -> str:
    """Return the documents as text. With ``explain``, each reason stands as a comment above its key or item."""
    return "---\n".join("".join(f"{line}\n" for line in _document(document, explain=explain)) for document in documents)


def _document(tree: Tree, *, explain: bool) -> Iterator[str]:
    if isinstance(tree, Explained):
        if explain:
            yield from _comment(tree.why, "")
        tree = tree.value
    yield from _lines(tree, "", explain=explain)


def _lines(tree: Tree, indent: str, *, explain: bool) -> Iterator[str]:
    """Yield the lines of a mapping or list that is not empty."""
    if isinstance(tree, dict):
        for key, value in tree.items():
            yield from _entry(f"{_scalar(key)}:", value, indent, explain=explain)
    else:
        for value in tree:
            yield from _item(value, indent, explain=explain)


def _entry(head: str, value: Tree, indent: str, *, explain: bool) -> Iterator[str]:
    if isinstance(value, Explained):
        if explain:
            yield from _comment(value.why, indent)
        value = value.value
    if isinstance(value, dict | list | tuple) and value:
        yield f"{indent}{head}"
        # Lists stand at the column of their key, as kubectl prints them.
        yield from _lines(value, indent if not isinstance(value, dict) else f"{indent}  ", explain=explain)
    elif isinstance(value, str) and "\n" in value:
        yield from _block(head, value, indent)
    else:
        yield f"{indent}{head} {_scalar(value)}"


def _item(value: Tree, indent: str, *, explain: bool) -> Iterator[str]:
    if isinstance(value, Explained):
        if explain:
            yield from _comment(value.why, indent)
        value = value.value
    if isinstance(value, dict | list | tuple) and value:
        lines = list(_lines(value, f"{indent}  ", explain=explain))
        # The dash goes to the first line that is no comment.
        first = next(index for index, line in enumerate(lines) if not line.lstrip().startswith("#"))
        yield from (line[: len(indent)] + line[len(indent) + 2 :] for line in lines[:first])
        yield f"{indent}- {lines[first][len(indent) + 2 :]}"
        yield from lines[first + 1 :]
    elif isinstance(value, str) and "\n" in value:
        yield from _block("-", value, indent)
    else:
        yield f"{indent}- {_scalar(value)}"


def _block(head: str, text: str, indent: str) -> Iterator[str]:
    """Yield text of several lines as a literal block."""
    body = text.removesuffix("\n")
    yield f"{indent}{head} |{'' if text.endswith(chr(10)) else '-'}"
    yield from (f"{indent}  {line}" if line else "" for line in body.split("\n"))


def _scalar(value: Any) -> str:
    """Return a scalar, an empty list or an empty mapping as YAML of one line."""
    text: str = yaml.dump(value, Dumper=_DUMPER, default_flow_style=True, width=10**6, allow_unicode=True)
    text = text.removesuffix("\n").removesuffix("\n...")
    return f"'{text}'" if isinstance(value, str) and text == value and _NOT_TEXT_IN_GO.fullmatch(value) else text


def _comment(why: str, indent: str) -> list[str]:
    return textwrap.wrap(why, max(40, _WIDTH - len(indent)), initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
