"""JSON that is nested more deeply than the decoder follows: API servers store ten times as much, in fields that nothing here reads.

The decoder also follows values that it skips, such as ``metadata.managedFields``, and fails for the whole text. Without their deepest
parts, objects have names at least: no field that is read is as deep.
"""

import re

import msgspec

#: The depth up to which values are kept. The decoder follows several hundred levels, fewer the more calls are under way.
DEEPEST_KEPT = 100
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},]', re.DOTALL)


def without_depths(data: bytes | bytearray | memoryview | msgspec.Raw) -> bytes:
    """``data`` with null for all arrays and objects that are nested too deeply. Takes one pass, and no recursion."""
    text, kept, level, start = bytes(data), list[bytes](), 0, 0
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark in (b"{", b"["):
            level += 1
            if level == DEEPEST_KEPT:
                kept += [text[start : token.start()], b"null"]
        elif mark in (b"}", b"]"):
            if level == DEEPEST_KEPT:
                start = token.end()
            level -= 1
    return b"".join((*kept, text[start:])) if level == 0 else text


def split_list(data: bytes) -> tuple[bytes, list[bytes]]:
    """A List as JSON without its items, and the items."""
    level, first, last, start, items = 0, -1, -1, 0, list[bytes]()
    key = b""
    for token in _TOKEN.finditer(data):
        mark = token[0]
        if mark[:1] == b'"':
            key = mark if level == 1 else key
            continue
        if level == 2 and first >= 0 and last < 0 and mark in (b",", b"]"):
            item = data[start : token.start()].strip()
            items += [item] if item else []
            start = token.end()
            last = token.start() if mark == b"]" else last
        if mark in (b"{", b"["):
            level += 1
            if level == 2 and mark == b"[" and key == b'"items"' and first < 0:
                first = start = token.end()
        elif mark in (b"}", b"]"):
            level -= 1
    return (data[:first] + data[last:], items) if last >= 0 else (data, [])
