"""JSON as Go's encoder writes it, so that what is the same has the same bytes."""

import msgspec

#: What Go escapes in every string, though JSON need not.
_ESCAPED = (
    (b"&", b"\\u0026"),
    (b"<", b"\\u003c"),
    (b">", b"\\u003e"),
    ("\u2028".encode(), b"\\u2028"),
    ("\u2029".encode(), b"\\u2029"),
)
_encode = msgspec.json.Encoder().encode


def encoded(answer: object) -> bytes:
    """``answer`` and a line break."""
    found = _encode(answer)
    for mark, escaped in _ESCAPED:
        found = found.replace(mark, escaped)
    return found + b"\n"
