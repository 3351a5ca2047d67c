"""One number of several samples of one object, where the rule's query does not say how: a pod with four GPUs has four temperatures.

prometheus-adapter takes whichever comes last.
"""

import re

#: Names of what adds up: bytes and power, with the units that they come in.
_ADDS_UP = re.compile(
    r"(^|_)(bytes|bits|kilobytes|megabytes|gigabytes|kib|mib|gib|watts|milliwatts|kilowatts|joules|power|fb_used|fb_free|fb_total"
    r"|framebuffer|requests_running|requests_waiting|requests_swapped|queue_length|queue_size)(_|$)|_total$|_count$|_sum$",
    re.IGNORECASE,
)
#: What is per something, or a share of something, does not, whatever it is of.
_SHARE = re.compile(
    r"(^|_)(ratio|percent|percentage|perc|utilization|util|usage_perc|share|average|avg|mean|max|min|limit_ratio)(_|$)", re.IGNORECASE
)


def adds_up(name: str) -> bool:
    """Whether samples of a metric or series of this name are summed for an object: bytes, power and counts; else their mean is taken."""
    return _ADDS_UP.search(name) is not None and _SHARE.search(name) is None
