"""Trees as HCL, laid out as `terraform fmt` does, with the reasons as comments where they are asked for."""

import json
import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from gpuscaler.generating.writing.explained import Explained, Tree, unexplained
from gpuscaler.generating.writing.files import GeneratedFile

_WIDTH = 110
_IDENTIFIER = re.compile("[A-Za-z_][A-Za-z0-9_-]*")
#: Words that an object cannot have as bare keys: `for` begins an expression, and the others are values.
_KEYWORDS = frozenset({"for", "true", "false", "null"})


@dataclass(frozen=True, slots=True)
class Expression:
    """Text that is an expression of HCL itself, such as ``var.region``; as a key of an object, it stands in parentheses."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function whose arguments are trees, such as ``jsonencode`` of an object."""

    function: str
    arguments: tuple[Tree, ...]


@dataclass(frozen=True, slots=True)
class Nested:
    """A block inside a block: a value of a body is one of these or a list of them. ``labels`` are those of ``dynamic`` alone."""

    body: dict[str, Tree]
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Block:
    """A block of the file: resource, data, variable, locals, terraform, provider, output, moved."""

    kind: str
    labels: tuple[str, ...]
    body: dict[str, Tree]


def call(function: str, *arguments: Tree) -> Call:
    return Call(function, arguments)


def hcl_file(path: str, about: str, blocks: Iterable[Tree], *, apply: str = "", edit: str = "") -> GeneratedFile:
    """Return a file of :class:`Block`, each of which may be in :class:`Explained`."""
    trees = tuple(blocks)
    gaps = tuple(gap for tree in trees for gap in _gaps(tree))
    return GeneratedFile(
        path=path, about=about, apply=apply, edit=edit, gaps=gaps, render=lambda explain: render_hcl(trees, explain=explain)
    )


def render_hcl(blocks: Iterable[Tree], *, explain: bool) -> str:
    """Return the blocks as text. With ``explain``, each reason stands as a comment above its block, argument, key or item."""
    return "\n".join("".join(f"{line}\n" for line in _block_lines(block, explain=explain)) for block in blocks)


def _block_lines(tree: Tree, *, explain: bool) -> Iterator[str]:
    block, why = _split(tree)
    yield from _comment(why, "") if explain else ()
    yield from _block(" ".join([block.kind, *map(_quoted, block.labels)]), block.body, "", explain=explain)


def _gaps(tree: Tree) -> Iterator[str]:
    if not isinstance(tree, Explained):
        yield from unexplained(_bare(tree.body), ".".join((tree.kind, *tree.labels)))


def _bare(tree: Tree) -> Tree:
    """Return the tree with the bodies of its blocks and the arguments of its calls as plain mappings and lists."""
    match tree:
        case Explained():
            return Explained(_bare(tree.value), tree.why)
        case Nested():
            return _bare(tree.body)
        case Call():
            return _bare(list(tree.arguments))
        case dict():
            return {key.text if isinstance(key, Expression) else key: _bare(value) for key, value in tree.items()}
        case list() | tuple():
            return [_bare(value) for value in tree]
    return tree


def _split(tree: Tree) -> tuple[Any, str]:
    """Return the value without its own reasons, and these as one text."""
    reasons = []
    while isinstance(tree, Explained):
        reasons.append(tree.why)
        tree = tree.value
    return tree, " ".join(reasons)


def _block(head: str, body: dict[str, Tree], indent: str, *, explain: bool) -> Iterator[str]:
    if not body:
        yield f"{indent}{head} {{}}"
        return
    yield f"{indent}{head} {{"
    inner = f"{indent}  "
    arguments = {key: value for key, value in body.items() if not _blocks(value)}
    yield from _aligned(((_name(key), value) for key, value in arguments.items()), inner, explain=explain)
    first = not arguments
    for key, value in body.items():
        for nested, why in _blocks(value):
            yield from () if first else [""]
            first = False
            yield from _comment(why, inner) if explain else ()
            yield from _block(" ".join([_name(key), *map(_quoted, nested.labels)]), nested.body, inner, explain=explain)
    yield f"{indent}}}"


def _blocks(tree: Tree) -> list[tuple[Nested, str]]:
    """Return the blocks that a value of a body consists of, each with its reason; nothing if the value is an argument."""
    value, why = _split(tree)
    if isinstance(value, Nested):
        return [(value, why)]
    if not isinstance(value, list | tuple):
        return []
    found = [(nested, own) for nested, own in map(_split, value) if isinstance(nested, Nested)]
    if found and len(found) < len(value):
        raise TypeError(f"saw blocks and values in one list, expected one of them: {value!r}")
    return [(nested, " ".join(filter(None, (why if index == 0 else "", own)))) for index, (nested, own) in enumerate(found)]


def _name(key: str) -> str:
    if not _IDENTIFIER.fullmatch(key):
        raise ValueError(f'saw the name "{key}" of an argument or block, expected letters, digits, "_" and "-"')
    return key


def _key(key: str | Expression) -> str:
    """Return a key of an object."""
    if isinstance(key, Expression):
        return f"({key.text})"
    return key if _IDENTIFIER.fullmatch(key) and key not in _KEYWORDS else _quoted(key)


def _aligned(entries: Iterable[tuple[str, Tree]], indent: str, *, explain: bool) -> Iterator[str]:
    """Yield arguments or keys with their values: the `=` of neighbours that take one line each are in one column."""
    run = list[tuple[str, list[str]]]()
    for name, tree in entries:
        value, why = _split(tree)
        comment = _comment(why, indent) if explain else []
        lines = _value(value, indent, explain=explain)
        # A heredoc counts as one line; what opens a bracket has no neighbours.
        opens = len(lines) > 1 and not lines[0].startswith("<<")
        if comment or opens:
            yield from _flush(run, indent)
            run = []
        yield from comment
        run.append((name, lines))
        if opens:
            yield from _flush(run, indent)
            run = []
    yield from _flush(run, indent)


def _flush(run: list[tuple[str, list[str]]], indent: str) -> Iterator[str]:
    width = max((len(name) for name, _ in run), default=0)
    for name, (first, *rest) in run:
        yield f"{indent}{name.ljust(width)} = {first}"
        yield from rest


def _value(tree: Tree, indent: str, *, explain: bool) -> list[str]:
    """Return the lines of a value. The first has no indentation: it continues the line of the argument or stands after its own."""
    value, _ = _split(tree)
    inner = f"{indent}  "
    match value:
        case Expression():
            first, *rest = value.text.split("\n")
            return [first, *(f"{indent}{line}" if line else "" for line in rest)]
        case Call():
            return _call(value, indent, explain=explain)
        case dict() if value:
            entries = ((_key(key), item) for key, item in value.items())
            return ["{", *_aligned(entries, inner, explain=explain), f"{indent}}}"]
        case list() | tuple() if value:
            return _list("[", value, "]", indent, explain=explain)
        case str() if _as_heredoc(value):
            return ["<<EOT", *_without_templates(value).removesuffix("\n").split("\n"), "EOT"]
    return [_scalar(value)]


def _call(value: Call, indent: str, *, explain: bool) -> list[str]:
    if len(value.arguments) == 1 and not (explain and isinstance(value.arguments[0], Explained)):
        first, *rest = _value(value.arguments[0], indent, explain=explain)
        lines = [f"{value.function}({first}", *rest]
        return [*lines[:-1], f"{lines[-1]})"] if not lines[-1].startswith("EOT") else [*lines, f"{indent})"]
    return _list(f"{value.function}(", value.arguments, ")", indent, explain=explain)


def _list(start: str, items: Iterable[Tree], end: str, indent: str, *, explain: bool) -> list[str]:
    """Return a list, or the arguments of a call, on one line if they are short and have no reasons of their own."""
    inner, parts, lines = f"{indent}  ", list[str](), list[str]()
    for item in items:
        value, why = _split(item)
        comment = _comment(why, inner) if explain else []
        first, *rest = _one_line(value) or _value(value, inner, explain=explain)
        lines += [*comment, f"{inner}{first}", *rest]
        # A heredoc's end stands alone on its line.
        lines += [f"{inner},"] if rest and rest[-1] == "EOT" else []
        lines[-1] += "" if lines[-1] == f"{inner}," else ","
        parts += [first] if not comment and not rest else ["\n"]
    short = f"{start}{', '.join(parts)}{end}"
    return [short] if "\n" not in short and len(indent) + len(short) <= _WIDTH - 30 else [start, *lines, f"{indent}{end}"]


def _one_line(value: Any) -> list[str]:
    """Return a small mapping that is an item of a list as one line; nothing if it is none."""
    if not isinstance(value, dict) or not value or any(isinstance(item, dict | list | tuple | Explained | Call) for item in value.values()):
        return []
    entries = ", ".join(f"{_key(key)} = {_value(item, '', explain=False)[0]}" for key, item in value.items())
    line = f"{{ {entries} }}"
    return [line] if len(line) <= _WIDTH - 30 and not any(isinstance(item, str) and _as_heredoc(item) for item in value.values()) else []


def _as_heredoc(text: str) -> bool:
    """Whether text is written over several lines: a heredoc ends with a line break, and has nothing that HCL or an editor would change."""
    lines = text.split("\n")
    return (
        len(lines) > 2
        and not lines[-1]
        and all(line.isprintable() and line == line.rstrip() and line.strip() != "EOT" for line in lines)
        and not re.search(r"[$%]$|[$%]{2,}\{", text, re.MULTILINE)
    )


def _scalar(value: Any) -> str:
    """Return a scalar, an empty list or an empty mapping."""
    if isinstance(value, str):
        return _quoted(value)
    if value is None or isinstance(value, bool | int | float):
        return json.dumps(value, allow_nan=False)
    if isinstance(value, dict | list | tuple):
        return "{}" if isinstance(value, dict) else "[]"
    raise TypeError(f"saw {value!r}, expected a value that HCL has")


def _quoted(text: str) -> str:
    escapes = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    plain = "".join(escapes.get(char) or (char if char.isprintable() else _code_point(char)) for char in text)
    # Of several signs in front of a brace, only the last is doubled: what more than two mean is not said anywhere.
    plain = re.sub(r"[$%]+(?=[$%]\{)", lambda signs: "".join(map(_code_point, signs[0])), plain)
    return f'"{_without_templates(plain)}"'


def _code_point(char: str) -> str:
    return f"\\u{ord(char):04x}" if ord(char) < 0x10000 else f"\\U{ord(char):08x}"


def _without_templates(text: str) -> str:
    """Return text in which ``${`` and ``%{`` stand for themselves."""
    return text.replace("${", "$${").replace("%{", "%%{")


def _comment(why: str, indent: str) -> list[str]:
    head, width = f"{indent}# ", max(40, _WIDTH - len(indent))
    # Names of labels and commands are not broken.
    return textwrap.wrap(why, width, initial_indent=head, subsequent_indent=head, break_on_hyphens=False, break_long_words=False)
