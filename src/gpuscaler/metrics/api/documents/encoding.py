"""JSON as Go's encoder writes it, so that equal documents have equal bytes."""

import msgspec

#: Characters that Go escapes in every string, although JSON does not require it.
_ESCAPED = (
    (b"&", b"\\u0026"),
    (b"<", b"\\u003c"),
    (b">", b"\\u003e"),
    ("\u2028".encode(), b"\\u2028"),
    ("\u2029".encode(), b"\\u2029"),
)
_encode = msgspec.json.Encoder().encode


def encode(answer: object) -> bytes:
    """``answer`` as JSON, with a final line break."""
    body = _encode(answer)
    for mark, escaped in _ESCAPED:
        body = body.replace(mark, escaped)
    return body + b"\n"
