"""Kinds of values that several settings share: reader, JSON Schema, and name in the reference."""

import re
from collections.abc import Collection
from datetime import date
from typing import Annotated, Any

from gpuscaler.model.quantities import QuantityError, format_quantity, parse
from gpuscaler.model.reading.cursor import Cursor
from gpuscaler.settings.fields.table import Kind, ReadContext, Schema

LABEL_VALUE = {"type": "string", "pattern": "^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"}
GO_DURATION = {
    "anyOf": [{"type": "string", "pattern": "^\\+?(0|(([0-9]+\\.?[0-9]*|\\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$"}, {"const": 0}],
    "description": "A Go duration: 90s, 10m, 1h30m.",
}
#: DNS-1123: syntax of names of namespaces and objects.
_DNS_LABEL = "[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_DATE = "[12][0-9]{3}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])"
_ADDRESS = r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]*):[0-9]{1,5}"
#: Minimum for waits, in seconds: shorter ones would only waste processor time.
_SHORTEST = 0.01


def duration_text(seconds: float) -> str:
    """Format a duration as in a file: ``200ms``, ``2m30s``."""
    if 0 < seconds < 1:
        return f"{seconds * 1000:g}ms"
    minutes, seconds = divmod(seconds, 60)
    hours, minutes = divmod(minutes, 60)
    return "".join(f"{number:g}{unit}" for number, unit in ((hours, "h"), (minutes, "m"), (seconds, "s")) if number) or "0s"


def as_is(value: Any) -> Any:
    """Return the value unchanged, for kinds with the same value in the file."""
    return value


def _wait(at: Cursor, _: ReadContext) -> float | None:
    seconds = at.duration(positive=True)
    if seconds is not None and seconds < _SHORTEST:
        at.wrong(f"at least {_SHORTEST * 1000:.0f}ms")
    return seconds


def _share(at: Cursor, _: ReadContext) -> float | None:
    share = at.number(expected="a share from 0 to 1")
    if share is not None and share > 1:
        at.wrong("a share from 0 to 1")
    return share


def as_whole_number(number: float) -> float:
    """Return whole numbers without a decimal point."""
    return int(number) if number == int(number) else number


FLAG = Kind("true or false", {"type": "boolean"}, lambda at, _: at.boolean(), as_is)
Flag = Annotated[bool, FLAG]
Duration = Annotated[float, Kind("duration", GO_DURATION, lambda at, _: at.duration(), duration_text)]
Wait = Annotated[float, Kind(f"duration ≥ {duration_text(_SHORTEST)}", GO_DURATION, _wait, duration_text)]
Share = Annotated[float, Kind("share from 0 to 1", {"type": "number", "minimum": 0, "maximum": 1}, _share, as_whole_number)]


def label_value(expected: str) -> Kind:
    """Text that is valid as the value of a Kubernetes label."""
    return Kind("text", LABEL_VALUE, lambda at, _: at.label_value(expected), as_is)


def names(expected: str, words: str) -> Kind:
    """A list of at least one name, without duplicates."""
    schema = {"type": "array", "minItems": 1, "uniqueItems": True, "items": LABEL_VALUE}
    return Kind(words, schema, lambda at, _: tuple(item.entry.raw for item in at.names(expected)), list)


def integer(expected: str) -> Kind:
    """A signed 32-bit whole number."""
    schema = {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
    return Kind("whole number (32 bits)", schema, lambda at, _: at.integer(minimum=-(2**31), expected=expected), as_is)


def amount(words: str, expected: str) -> Kind:
    """A number of at least 0."""
    return Kind(words, {"type": "number", "minimum": 0}, lambda at, _: at.number(expected=expected), as_whole_number)


def positive(expected: str) -> Kind:
    """A number above 0."""
    schema = {"type": "number", "exclusiveMinimum": 0}
    return Kind("number above 0", schema, lambda at, _: at.number(expected=expected, positive=True), as_whole_number)


def count(minimum: int, expected: str) -> Kind:
    """A whole number of at least ``minimum``."""
    schema = {"type": "integer", "minimum": minimum, "maximum": 2**31 - 1}
    return Kind(f"whole number, ≥ {minimum}", schema, lambda at, _: at.integer(minimum=minimum, expected=expected), as_is)


def format_options(words: Collection[str]) -> str:
    """Format options as ``a``, ``b`` or ``c``, for the reference."""
    *others, last = (f"`{word}`" for word in words)
    return f"{', '.join(others)} or {last}"


def choice(options: Collection[str]) -> Kind:
    # YAML reads a bare off as a boolean.
    schema = {"enum": [*options, *([False] if "off" in options else [])]}
    return Kind(format_options(options), schema, lambda at, _: at.choice(options), as_is)


def text(expected: str, *, words: str = "text", pattern: str = "", otherwise: str = "") -> Kind:
    """A text that matches ``pattern`` completely; ``otherwise`` is added to the message if it does not."""
    schema: Schema = {"type": "string", **({"pattern": f"^{pattern}$"} if pattern else {"minLength": 1})}

    def read(at: Cursor, _: ReadContext) -> str | None:
        text = at.text(expected)
        if text is not None and pattern and not re.fullmatch(pattern, text):
            at.wrong(f"{expected}{otherwise}")
        return text

    return Kind(words, schema, read, as_is)


def dns_label(expected: str, *, words: str = "name") -> Kind:
    otherwise = ": up to 63 lower-case letters, digits and '-', with a letter or digit at both ends"
    return text(expected, words=words, pattern=_DNS_LABEL, otherwise=otherwise)


def path(expected: str) -> Kind:
    """A path, relative to the file's folder."""

    def read(at: Cursor, context: ReadContext) -> str | None:
        text = at.text(expected)
        return None if text is None else str(context.folder / text)

    return Kind("path", {"type": "string", "minLength": 1, "description": "A path, relative to the file's folder."}, read, as_is)


def list_of(kind: Kind, words: str, *, distinct: bool = False, **more: Any) -> Kind:
    """A list of values, without duplicates if ``distinct``; ``more`` is added to its schema."""

    def read(at: Cursor, context: ReadContext) -> tuple[Any, ...]:
        values = [value for item in at.items() if (value := kind.read(item, context)) is not None]
        return tuple(dict.fromkeys(values) if distinct else values)

    return Kind(words, {"type": "array", **more, "items": kind.schema}, read)


def _address(at: Cursor, _: ReadContext) -> tuple[str, int] | None:
    expected = "HOST:PORT, such as 127.0.0.1:8080 or :8080"
    text = at.text(expected)
    if text is None:
        return None
    host, port = text.rpartition(":")[::2]
    if re.fullmatch(_ADDRESS, text) and int(port) <= 65535:
        return host.strip("[]"), int(port)
    at.wrong(expected)
    return None


def _memory(at: Cursor, _: ReadContext) -> int | None:
    try:
        amount = parse(at.entry.raw) if isinstance(at.entry.value, str | int) and not isinstance(at.entry.value, bool) else None
    except QuantityError:
        amount = None
    if amount is None or not 1 <= amount < 2**63:
        at.wrong("an amount of memory such as 64Mi")
        return None
    return int(amount)


def _date(at: Cursor, _: ReadContext) -> str | None:
    expected = "a date such as 2027-01-31"
    if not re.fullmatch(_DATE, at.entry.raw):
        at.wrong(expected)
        return None
    try:
        date.fromisoformat(at.entry.raw)
    except ValueError:
        at.wrong(expected)
        return None
    return at.entry.raw


#: A day of the years 1000 to 2999, as text.
DATE = Kind("date, `2027-01-31`", {"type": "string", "pattern": f"^{_DATE}$"}, _date, as_is)
#: Read as a pair of host and port.
ADDRESS = Kind(
    "`HOST:PORT`", {"type": "string", "pattern": f"^{_ADDRESS}$"}, _address, lambda host_and_port: "{}:{}".format(*host_and_port)
)
MEMORY = Kind("quantity of memory", {"type": ["string", "integer"]}, _memory, lambda number: format_quantity(number, "binary"))
