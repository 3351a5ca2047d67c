"""Go's arithmetic, where it differs from Python's and affects a HorizontalPodAutoscaler.

Integers wrap around, division truncates towards zero, dividing a float by zero gives an infinity, and a float that does not fit an integer
becomes the smallest integer: so it is on amd64, where kube-controller-manager usually runs (Go leaves that to the machine).
"""

import math

INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1


def wrapped32(value: int) -> int:
    """``value`` wrapped around to an int32."""
    return (value + 2**31) % 2**32 - 2**31


def wrapped64(value: int) -> int:
    """``value`` wrapped around to an int64."""
    return (value + 2**63) % 2**64 - 2**63


def quotient(amount: int, by: int) -> int:
    """Integer division that truncates towards zero. ``by`` is not zero."""
    whole = abs(amount) // abs(by)
    return whole if (amount < 0) == (by < 0) else -whole


def ratio(amount: float, by: float) -> float:
    """Float division that gives an infinity, or not-a-number, if ``by`` is zero."""
    if by:
        return float(amount) / float(by)
    return math.copysign(math.inf, amount) if amount else math.nan


def truncate32(value: float) -> int:
    """``int32(value)``."""
    return int(value) if -(2.0**31) - 1 < value < 2.0**31 else -(2**31)


def ceiling32(value: float) -> int:
    """``int32(math.Ceil(value))``."""
    return truncate32(math.ceil(value)) if math.isfinite(value) else -(2**31)


def ceiling64(value: float) -> int:
    """``int64(math.Ceil(value))``."""
    return math.ceil(value) if -(2.0**63) <= value < 2.0**63 else -(2**63)
