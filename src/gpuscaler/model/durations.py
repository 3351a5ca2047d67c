"""Go durations: ``90s``, ``1h30m``, ``1.5h``, ``250ms``. Source: Go's ``time.ParseDuration``."""

import re
from functools import lru_cache

from gpuscaler.model.quantities import shorten_value

EXPECTED = "a duration such as 90s, 10m or 1h30m"

_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PART = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)", re.ASCII)
#: Go stores a duration as 64 bits of nanoseconds.
_LONGEST = (2**63 - 1) / 1e9


class DurationError(ValueError):
    """A duration cannot be parsed or used; ``seen`` is the text, ``expected`` describes a valid one."""

    def __init__(self, seen: object, expected: str = EXPECTED) -> None:
        super().__init__(f"saw {shorten_value(seen)}, expected {expected}")
        self.seen = seen
        self.expected = expected


@lru_cache(maxsize=1 << 12)
def parse_duration(text: str) -> float:
    """Parse ``text`` to seconds. A unit is required unless the text is ``0``. Raises :class:`DurationError`."""
    unsigned = text[1:] if text[:1] in ("+", "-") else text
    if unsigned == "0":
        return 0.0
    seconds, position = 0.0, 0
    while position < len(unsigned):
        part = _PART.match(unsigned, position)
        if part is None:
            raise DurationError(text)
        seconds += float(part.group(1)) * _UNITS[part.group(2)]
        position = part.end()
    if not unsigned:
        raise DurationError(text)
    if seconds > _LONGEST:
        raise DurationError(text, "a duration below 292 years")
    return -seconds if text[0] == "-" else seconds


def parse_positive_duration(text: str) -> float:
    """Parse as :func:`parse_duration`; a negative duration is an error as well."""
    seconds = parse_duration(text)
    if seconds < 0:
        raise DurationError(text, "a duration of zero or more")
    return seconds
