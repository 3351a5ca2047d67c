"""Values as text: what a template writes, and Go's ``fmt.Sprintf``.

Source: the documentation of Go's package ``fmt``.
"""

import re
from typing import NamedTuple

from gpuscaler.metrics.rules.gotemplate.errors import TemplateError
from gpuscaler.metrics.rules.gotemplate.nodes import Value

_VERB = re.compile(r"%(?P<flags>[-+# 0]*)(?P<width>\d+)?(?:\.(?P<precision>\d*))?(?P<verb>.)?", re.DOTALL)
_ESCAPES = {"\a": r"\a", "\b": r"\b", "\f": r"\f", "\n": r"\n", "\r": r"\r", "\t": r"\t", "\v": r"\v", '"': r"\"", "\\": r"\\"}
#: A width or precision beyond this is refused: the text of a query is some hundred characters.
_WIDEST = 1000
_TYPES = {
    "str": "string",
    "int": "int",
    "float": "float64",
    "bool": "bool",
    "Byte": "uint8",
    "list": "[]string",
    "dict": "map[string]string",
}


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
            parts.append(_formatted(_verb(found, verb), values[used]))
            used += 1
    parts.append(template[place:])
    if used < len(values):
        extra = ", ".join("<nil>" if one is None else f"{_type(one)}={plain(one)}" for one in values[used:])
        parts.append(f"%!(EXTRA {extra})")
    return "".join(parts)


def _verb(found: re.Match[str], verb: str) -> "_Verb":
    precision = None if found["precision"] is None else int(found["precision"] or 0)
    width = int(found["width"] or 0)
    if max(width, precision or 0) > _WIDEST:
        raise TemplateError(f"saw {found[0]!r} in printf, expected a width up to {_WIDEST}")
    return _Verb(verb, found["flags"], width, precision)


class _Verb(NamedTuple):
    verb: str
    flags: str
    width: int
    precision: int | None


def _formatted(how: _Verb, value: Value) -> str:
    if how.verb == "v" and "#" in how.flags and isinstance(value, list | dict):
        return _in_go(how, value)
    if isinstance(value, list) and how.verb != "T":
        return f"[{' '.join(_formatted(how, one) for one in value)}]"
    if isinstance(value, dict) and how.verb != "T":
        return f"map[{' '.join(f'{_formatted(how, key)}:{_formatted(how, value[key])}' for key in sorted(value))}]"
    text = _body(how, value)
    if text is None:
        return f"%!{how.verb}({_type(value)}={_formatted(how._replace(verb='v'), value)})"
    if "-" in how.flags:
        return text.ljust(how.width)
    padded = isinstance(value, int | float | str) and not isinstance(value, bool) and how.verb != "T"
    if "0" in how.flags and padded and not (isinstance(value, int) and how.precision is not None):
        sign = text[:1] if text[:1] in ("+", "-") and not isinstance(value, str) else ""
        return sign + text[len(sign) :].rjust(how.width - len(sign), "0")
    return text.rjust(how.width)


def _in_go(how: _Verb, value: list[str] | dict[str, str]) -> str:
    """As Go's source has it."""
    if isinstance(value, list):
        return f"[]string{{{', '.join(_formatted(how, one) for one in value)}}}"
    return f"map[string]string{{{', '.join(f'{_formatted(how, key)}:{_formatted(how, value[key])}' for key in sorted(value))}}}"


def _body(how: _Verb, value: Value) -> str | None:
    """``value`` without its padding; None where the verb is not for values of its kind."""
    verb, flags, precision = how.verb, how.flags, how.precision
    if verb == "T":
        return "<nil>" if value is None else _type(value)
    if value is None:
        return "<nil>" if verb == "v" else f"%!{verb}(<nil>)"
    if isinstance(value, bool):
        return plain(value) if verb in "tv" else None
    if isinstance(value, str):
        return _of_text(verb, flags, value if precision is None else value[:precision])
    if isinstance(value, int):
        return _of_integer(verb, flags, precision, value)
    if isinstance(value, float):
        return _of_float(verb, flags, precision, value)
    if verb in "vs":
        return plain(value)
    raise TemplateError(f"saw printf of {plain(value)} by %{verb}, expected %v or %s")


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


def _of_integer(verb: str, flags: str, precision: int | None, value: int) -> str | None:
    sign = "+" if "+" in flags else " " if " " in flags else "-"
    match verb:
        case "d" | "v" if precision is not None:
            digits = str(abs(value)).rjust(precision, "0") if value or precision else ""
            return ("-" if value < 0 else sign.replace("-", "") if digits else "") + digits
        case "d" | "v":
            return format(value, f"{sign}d")
        case "x" | "X" | "o" | "b":
            return format(value, f"{sign}{'#' if '#' in flags and verb != 'b' else ''}{verb}")
        case "c":
            return chr(value) if 0 <= value < 0x110000 else "\ufffd"
        case "q":
            char = chr(value) if 0 <= value < 0x110000 else "\ufffd"
            return "'" + (r"\'" if char == "'" else char if char == '"' else _escaped(char)) + "'"
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
