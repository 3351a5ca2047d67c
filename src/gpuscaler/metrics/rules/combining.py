"""How to combine several samples of one object if the rule's query does not: a pod with four GPUs has four temperatures.

prometheus-adapter takes the last sample in the answer.
"""

import re

#: Names of metrics that are summed: bytes and power, in their various units.
_ADDS_UP = re.compile(
    r"(^|_)(bytes|bits|kilobytes|megabytes|gigabytes|kib|mib|gib|watts|milliwatts|kilowatts|joules|power|fb_used|fb_free|fb_total"
    r"|framebuffer|requests_running|requests_waiting|requests_swapped|queue_length|queue_size)(_|$)|_total$|_count$|_sum$",
    re.IGNORECASE,
)
#: Names of ratios and averages, which are never summed.
_SHARE = re.compile(
    r"(^|_)(ratio|percent|percentage|perc|utilization|util|usage_perc|share|average|avg|mean|max|min|limit_ratio)(_|$)", re.IGNORECASE
)


def is_summed(name: str) -> bool:
    """Whether samples of a metric or series of this name are summed for an object (bytes, power, counts) instead of averaged."""
    return _ADDS_UP.search(name) is not None and _SHARE.search(name) is None
