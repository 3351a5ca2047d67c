"""Formats values as text: the output of templates, and the supported part of Go's ``fmt.Sprintf``.

Source: the documentation of Go's package ``fmt``.
"""

import re

from gpuscaler.metrics.rules.gotemplate.errors import TemplateError
from gpuscaler.metrics.rules.gotemplate.syntax import Value

_VERB = re.compile(r"%[-+# 0-9.]*(.?)", re.DOTALL)
_VERBS = frozenset({"%s", "%q", "%d", "%v", "%%"})
_ESCAPES = {"\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v", '"': r"\"", "\\": r"\\"}


def quote(text: str) -> str:
    """``text`` in double quotes with Go's escapes, which are PromQL's."""
    return f'"{"".join(map(_escaped, text))}"'


def _escaped(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    if char == " " or char.isprintable():
        return char
    code = ord(char)
    return f"\\x{code:02x}" if code < 0x80 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def plain(value: Value) -> str:
    """``value`` as ``%v`` writes it."""
    match value:
        case None:
            return "<nil>"
        case bool():
            return "true" if value else "false"
        case list():
            return f"[{' '.join(value)}]"
        case dict():
            return f"map[{' '.join(f'{key}:{value[key]}' for key in sorted(value))}]"
    return str(value)


def check_verbs(template: str, count: int) -> None:
    """Raise :class:`~.errors.TemplateError` unless :func:`sprintf` can format ``template`` with ``count`` values."""
    verbs = [match[0] for match in _VERB.finditer(template)]
    for verb in verbs:
        if verb not in _VERBS:
            raise TemplateError(f"saw {verb} in printf, which is not supported here; expected %s, %q, %d, %v or %%")
    expected = len(verbs) - verbs.count("%%")
    if expected != count:
        raise TemplateError(f"saw printf {quote(template)} with {count} values, expected {expected}")


def sprintf(template: str, *values: Value) -> str:
    """``template``, which passed :func:`check_verbs`, with each verb replaced by the next of ``values``.

    Raises :class:`~.errors.TemplateError` for a value of the wrong type for its verb, which Go would describe in the text.
    """
    following = iter(values)
    return _VERB.sub(lambda match: "%" if match[0] == "%%" else _formatted(match[0], next(following)), template)


def _formatted(verb: str, value: Value) -> str:
    if verb in ("%s", "%q") and not isinstance(value, str):
        raise TemplateError(f"saw {verb} of {plain(value)} in printf, expected text; %v writes any value")
    if verb == "%d" and (isinstance(value, bool) or not isinstance(value, int)):
        raise TemplateError(f"saw %d of {plain(value)} in printf, expected a whole number; %v writes any value")
    return quote(value) if verb == "%q" and isinstance(value, str) else plain(value)
