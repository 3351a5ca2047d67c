"""Values as text: what a template writes, and Go's ``fmt.Sprintf``.

Source: the documentation of Go's package ``fmt``.
"""

import re

from gpuscaler.metrics.rules.gotemplate.errors import TemplateError
from gpuscaler.metrics.rules.gotemplate.nodes import Value

_VERB = re.compile(r"%(?P<flags>[-+# 0]*)(?P<width>\d+)?(?:\.(?P<precision>\d*))?(?P<verb>.)?", re.DOTALL)
_ESCAPES = {"\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v", '"': r"\"", "\\": r"\\"}
#: A width or precision beyond this is refused: the text of a query is some hundred characters.
_WIDEST = 1000
_TYPES = {"str": "string", "int": "int", "float": "float64", "bool": "bool", "list": "[]string", "dict": "map[string]string"}


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
        case str():
            return value
        case float():
            return _shortest(value)
        case list():
            return f"[{' '.join(map(plain, value))}]"
        case dict():
            return f"map[{' '.join(f'{key}:{value[key]}' for key in sorted(value))}]"
    return str(value)


def _shortest(value: float) -> str:
    """As ``%v`` does: the fewest digits that read back the same; an exponent below -4 and from 21 on."""
    exponent = int(f"{value:e}".partition("e")[2])
    if value and not -4 <= exponent < 21:
        digits, _, power = repr(float(value)).partition("e")
        if not power:
            return _scientific(value)
        return f"{digits.removesuffix('.0')}e{power[0]}{power[1:].zfill(2)}"
    return format(value, "f").rstrip("0").rstrip(".") if value == int(value) else _positional(repr(value))


def _scientific(value: float) -> str:
    for precision in range(18):
        text = f"{value:.{precision}e}"
        if float(text) == value:
            return text
    return f"{value:.17e}"


def _positional(text: str) -> str:
    if "e" not in text:
        return text
    digits, _, power = text.partition("e")
    return f"{float(text):.{len(digits.replace('.', '').lstrip('-')) - 1 - int(power)}f}"


def sprintf(template: str, values: list[Value]) -> str:
    """``template`` filled in as Go does it, with its words for what does not fit, such as ``%!d(string=x)``."""
    parts: list[str] = []
    place = used = 0
    while (found := _VERB.search(template, place)) is not None:
        parts.append(template[place : found.start()])
        place = found.end()
        verb = found["verb"]
        if verb is None:
            parts.append("%!(NOVERB)")
        elif verb == "%":
            parts.append("%")
        elif verb in "[*":
            raise TemplateError(f"saw {found[0]!r} in printf, expected a verb without a numbered or starred argument")
        elif used == len(values):
            parts.append(f"%!{verb}(MISSING)")
        else:
            parts.append(_formatted(found, verb, values[used]))
            used += 1
    parts.append(template[place:])
    if used < len(values):
        extra = ", ".join("<nil>" if one is None else f"{_type(one)}={plain(one)}" for one in values[used:])
        parts.append(f"%!(EXTRA {extra})")
    return "".join(parts)


def _formatted(found: re.Match[str], verb: str, value: Value) -> str:
    flags, width = found["flags"], int(found["width"] or 0)
    precision = None if found["precision"] is None else int(found["precision"] or 0)
    if max(width, precision or 0) > _WIDEST:
        raise TemplateError(f"saw {found[0]!r} in printf, expected a width up to {_WIDEST}")
    if isinstance(value, list) and verb != "T":
        return f"[{' '.join(_formatted(found, verb, one) for one in value)}]"
    text = _body(verb, flags, precision, value)
    if "-" in flags:
        return text.ljust(width)
    if "0" in flags and isinstance(value, int | float | str) and not isinstance(value, bool) and verb != "T":
        sign = text[:1] if text[:1] in ("+", "-") and not isinstance(value, str) else ""
        return sign + text[len(sign) :].rjust(width - len(sign), "0")
    return text.rjust(width)


def _body(verb: str, flags: str, precision: int | None, value: Value) -> str:
    if verb == "T":
        return "<nil>" if value is None else _type(value)
    text: str | None = None
    if value is None:
        return "<nil>" if verb == "v" else f"%!{verb}(<nil>)"
    if isinstance(value, bool):
        text = plain(value) if verb in "tv" else None
    elif isinstance(value, str):
        text = _of_text(verb, flags, value if precision is None else value[:precision])
    elif isinstance(value, int):
        text = _of_integer(verb, flags, value)
    elif isinstance(value, float):
        text = _of_float(verb, flags, precision, value)
    elif isinstance(value, dict):
        text = plain(value) if verb in "vs" else None
    return f"%!{verb}({_type(value)}={plain(value)})" if text is None else text


def _of_text(verb: str, flags: str, value: str) -> str | None:
    match verb:
        case "v" if "#" in flags:
            return quote(value)
        case "s" | "v":
            return value
        case "q":
            return f"`{value}`" if "#" in flags and "`" not in value and value.isprintable() else quote(value)
        case "x" | "X":
            digits = value.encode().hex()
            return digits.upper() if verb == "X" else digits
    return None


def _of_integer(verb: str, flags: str, value: int) -> str | None:
    sign = "+" if "+" in flags else " " if " " in flags else "-"
    match verb:
        case "d" | "v":
            return format(value, f"{sign}d")
        case "x" | "X" | "o" | "b":
            return format(value, f"{sign}{'#' if '#' in flags and verb != 'b' else ''}{verb}")
        case "c":
            return chr(value) if 0 <= value < 0x110000 else "\ufffd"
        case "q":
            return "'" + (chr(value) if chr(value).isprintable() else _escaped(chr(value))) + "'"
    return None


def _of_float(verb: str, flags: str, precision: int | None, value: float) -> str | None:
    sign = "+" if "+" in flags else " " if " " in flags else "-"
    if verb in "feFE":
        return format(value, f"{sign}.{6 if precision is None else precision}{verb}")
    if verb in "gGv":
        if precision is None:
            text = _shortest(value)
            return text if sign == "-" or text.startswith("-") else sign + text
        return format(value, f"{sign}.{precision or 1}g")
    return None


def _type(value: Value) -> str:
    return _TYPES.get(type(value).__name__, type(value).__name__)
