"""Kubernetes quantities, exact.

Source: ``k8s.io/apimachinery/pkg/api/resource/quantity.go`` and ``suffix.go``. A quantity is a decimal number with a binary suffix
(Ki to Ei), a decimal suffix (n to E) or an exponent (``e3``, ``E-3``). Anything finer than a nano-unit is rounded up, away from zero.
Kubernetes silently caps a binary quantity at 2**63-1 and lets a decimal one overflow. Both are rejected here: no machine has that much,
and sums of such numbers would wrap around.
"""

import re
from fractions import Fraction
from functools import lru_cache
from typing import Literal

Style = Literal["decimal", "binary", "exponent"]

INT64_MAX = 2**63 - 1
#: Longer texts are rejected before they are parsed.
MAX_LENGTH = 256
EXPECTED = "a quantity such as 500m, 2, 1.5Gi or 1e3"

_SHAPE = re.compile(r"([+-]?)([0-9]*)(?:\.([0-9]*))?([eEinumkKMGTP]*[+-]?[0-9]*)", re.ASCII)
_EXPONENT = re.compile(r"[eE]([+-]?[0-9]+)", re.ASCII)
_DECIMAL = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_DECIMAL_SUFFIX = {exponent: suffix for suffix, exponent in _DECIMAL.items()}
_BINARY_SUFFIXES = ("", *_BINARY)


class QuantityError(ValueError):
    """A quantity cannot be parsed or used; ``seen`` is the value, ``expected`` describes a valid one."""

    def __init__(self, seen: object, expected: str = EXPECTED) -> None:
        super().__init__(f"saw {shorten_value(seen)}, expected {expected}")
        self.seen = seen
        self.expected = expected


def shorten_value(value: object, limit: int = 60) -> str:
    """Format ``value`` for a message, shortened if necessary."""
    text = repr(value if not isinstance(value, str) else value[: limit + 1])
    return text if len(text) <= limit + 2 else f"{text[:limit]}…"


def describe_unreadable(text: str) -> str:
    """Describe an unreadable text of a user without repeating it: it may be private, and others can read logs and pages."""
    return f"a value of {len(text)} {'character' if len(text) == 1 else 'characters'}"


def parse(text: str | int | float) -> Fraction:
    """Return the exact value of ``text``. A JSON number is read in its shortest decimal form, so 0.1 is one tenth.

    Raises :class:`QuantityError` for values that Kubernetes rejects, and for values beyond the range of int64.
    """
    if isinstance(text, bool) or not isinstance(text, str | int | float):
        raise QuantityError(text)
    if isinstance(text, int) and abs(text) > INT64_MAX:
        raise QuantityError(f"{text:.3e}" if abs(text) < 10**300 else "an integer of more than 300 digits", "a number within int64")
    return _parse(text if isinstance(text, str) else repr(text))


@lru_cache(maxsize=1 << 16)
def _parse(text: str) -> Fraction:
    stripped = text.strip()
    shape = _SHAPE.fullmatch(stripped) if len(stripped) <= MAX_LENGTH else None
    if shape is None or not stripped:
        raise QuantityError(text)
    sign, digits, suffix = shape.group(1), shape.group(2), shape.group(4)
    decimals = shape.group(3) or ""
    mantissa = int(digits + decimals or "0")
    exponent = -len(decimals)
    factor = 1
    if suffix in _DECIMAL:
        exponent += _DECIMAL[suffix]
    elif suffix in _BINARY:
        factor = 1 << _BINARY[suffix]
    elif (scientific := _EXPONENT.fullmatch(suffix)) is not None:
        exponent += int(scientific.group(1))
    else:
        raise QuantityError(text)
    if not digits and not decimals and (suffix in ("Pi", "Ei") or exponent < -9):
        # Kubernetes reads a number without digits as zero, but not on the slow path that is used for these.
        raise QuantityError(text)
    value = _nano(mantissa * factor, exponent, text)
    return -value if sign == "-" else value


def _nano(mantissa: int, exponent: int, text: str) -> Fraction:
    """Return ``mantissa * 10**exponent``, rounded up to nano-units, without computing huge exponents."""
    if not mantissa:
        return Fraction(0)
    if exponent > 18 or (value := Fraction(mantissa) * Fraction(10) ** max(exponent, -2 * MAX_LENGTH)) > INT64_MAX:
        raise QuantityError(text, f"at most {INT64_MAX} (int64)")
    nanos = value * 10**9
    return value if nanos.denominator == 1 else Fraction(-(-nanos.numerator // nanos.denominator), 10**9)


def milli(quantity: Fraction | int) -> int:
    """Return ``quantity`` in thousandths, rounded up (``MilliValue``)."""
    return _round_up(Fraction(quantity) * 1000)


def whole(quantity: Fraction | int) -> int:
    """Return ``quantity`` in units, rounded up (``Value``), or away from zero if it is negative."""
    return _round_up(Fraction(quantity))


def _round_up(amount: Fraction) -> int:
    up = -(-abs(amount.numerator) // amount.denominator)
    return up if amount >= 0 else -up


@lru_cache(maxsize=1 << 16)
def parse_milli(text: str | int | float) -> int:
    """Return ``milli(parse(text))``, cached: a cluster repeats a few hundred texts a million times."""
    return milli(parse(text))


def format_quantity(quantity: Fraction | int, style: Style = "decimal") -> str:
    """Return the canonical text of ``quantity``: no fraction, the largest suffix without loss.

    Binary style falls back to decimal for fractions and for magnitudes below 1024, as Kubernetes does.
    """
    amount = Fraction(quantity)
    if not amount:
        return "0"
    if style == "binary" and amount.denominator == 1 and abs(amount) >= 1024:
        number, step = int(amount), 0
        while number % 1024 == 0 and step < len(_BINARY):
            number, step = number // 1024, step + 1
        return f"{number}{_BINARY_SUFFIXES[step]}"
    nanos = amount * 10**9
    if nanos.denominator != 1:
        raise QuantityError(str(quantity), "a multiple of one nano-unit")
    number, exponent = int(nanos), -9
    while number % 1000 == 0 and (exponent < 18 or style == "exponent"):
        number, exponent = number // 1000, exponent + 3
    if style == "exponent":
        return f"{number}e{exponent}" if exponent else str(number)
    return f"{number}{_DECIMAL_SUFFIX[exponent]}"


def format_count(number: int, noun: str) -> str:
    """Return ``1 machine`` or ``2,000 machines``."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
