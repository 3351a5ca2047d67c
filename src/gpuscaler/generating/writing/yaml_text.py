"""Trees as YAML, with the reasons as comments where they are asked for."""

import re
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

from gpuscaler.generating.writing.explained import Explained, Tree, plain

_WIDTH = 110
_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
#: Texts that PyYAML writes without quotes, and that the parsers of Go programs read as a boolean or a number: YAML 1.2, and go-yaml's own.
_NOT_TEXT_IN_GO = re.compile(r"[yYnN]|[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?|[-+]?0[oObBxX][0-9a-fA-F_]+")


def render_yaml(documents: Iterable[Tree], *, explain: bool) -> str:
    """Return the documents as text. With ``explain``, each reason stands as a comment above its key or item.

    The text is read back: raises :class:`AssertionError` if it does not say what the documents say.
    """
    trees = tuple(documents)
    text = "---\n".join("".join(f"{line}\n" for line in _document(tree, explain=explain)) for tree in trees)
    try:
        same = list(yaml.load_all(text, Loader=_LOADER)) == [plain(tree) for tree in trees]
    except yaml.YAMLError as error:
        raise AssertionError(f"saw YAML that cannot be read: {error}; this is a mistake of gpuscaler's, report it") from error
    if not same:
        raise AssertionError("saw YAML that reads otherwise than what was to be written; this is a mistake of gpuscaler's, report it")
    return text


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
    elif isinstance(value, str) and _as_block(value):
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
    elif isinstance(value, str) and _as_block(value):
        yield from _block("-", value, indent)
    else:
        yield f"{indent}- {_scalar(value)}"


def _as_block(text: str) -> bool:
    """Whether text is written as a literal block.

    A block has no escapes, so nothing may be in it that some parser takes for a line break (U+0085, U+2028, U+2029, a carriage return),
    that YAML forbids, or that an editor shows otherwise than it is. Its indentation must not begin with the text's own.
    """
    lines = text.split("\n")
    return len(lines) > 1 and text[0] not in " \n" and not text.endswith("\n\n") and all(map(str.isprintable, lines))


def _block(head: str, text: str, indent: str) -> Iterator[str]:
    """Yield text of several lines as a literal block."""
    body = text.removesuffix("\n")
    yield f"{indent}{head} |{'' if text.endswith(chr(10)) else '-'}"
    yield from (f"{indent}  {line}" if line else "" for line in body.split("\n"))


def _scalar(value: Any) -> str:
    """Return a scalar, an empty list or an empty mapping as YAML of one line."""
    if isinstance(value, str) and not value.isprintable():
        # Everything that is not printable is escaped.
        quoted: str = yaml.dump(value, Dumper=_DUMPER, default_style='"', width=10**6, allow_unicode=False)
        return quoted.removesuffix("\n")
    text: str = yaml.dump(value, Dumper=_DUMPER, default_flow_style=True, width=10**6, allow_unicode=True)
    text = text.removesuffix("\n").removesuffix("\n...")
    return f"'{text}'" if isinstance(value, str) and text == value and _NOT_TEXT_IN_GO.fullmatch(value) else text


def _comment(why: str, indent: str) -> list[str]:
    # A comment ends at any line break; "\n" becomes a space.
    why = "".join(character if character.isprintable() or character == "\n" else ascii(character)[1:-1] for character in why)
    return textwrap.wrap(why, max(40, _WIDTH - len(indent)), initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
