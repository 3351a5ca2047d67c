"""Instance types that clouds take out of service."""

import datetime as dt
import re
from typing import Final, NamedTuple

#: Cloud, names of types (those of Azure without Standard_), and the day; none where AWS told only its customers.
#: Sources: https://learn.microsoft.com/azure/virtual-machines/retirement-notices and Azure updates 500573 and 500578; AWS's notices to
#: customers as in github.com/SummitRoute/aws_breaking_changes/issues/114 (G3), zalando-incubator/kubernetes-on-aws/pull/8685 and
#: dstackai/gpuhunt/pull/233 (P3), eksctl-io/eksctl/pull/7826 (P2). Read on 2026-11-26.
_RETIRED: Final = tuple(
    (cloud, re.compile(pattern, re.IGNORECASE), day, dt.datetime.fromisoformat(f"{day}T00:00:00+00:00").timestamp() if day else 0.0)
    for cloud, pattern, day in (
        ("AWS", r"(cg1|g2|p2)\.\w+", ""),
        ("AWS", r"g3s?\.\w+", "2025-10-31"),
        ("AWS", r"p3\.\w+", "2025-12-20"),
        ("Azure", r"NC(6|12|24r?)(_Promo)?", "2023-09-06"),
        ("Azure", r"NC\d+r?s_v2", "2023-09-06"),
        ("Azure", r"ND\d+r?s", "2023-09-06"),
        ("Azure", r"NV(6|12|24)(_Promo)?", "2023-09-06"),
        ("Azure", r"NC24rs_v3", "2025-03-31"),
        ("Azure", r"NC\d+s_v3", "2025-09-30"),
        ("Azure", r"ND40rs_v2", "2025-09-30"),
        ("Azure", r"NV\d+[hm]?s_v3", "2026-09-30"),
        ("Azure", r"NV\d+ah?s_v4", "2026-09-30"),
    )
)


class Retirement(NamedTuple):
    """That a type is out of service (``over``), or will be; ``text`` says when, as a clause: "Azure retired on 2023-09-06"."""

    over: bool
    text: str


def retirement_of(instance_type: str, now: float) -> Retirement | None:
    """Whether a type is taken out of service; None if nothing is known. ``now`` is in seconds since the epoch."""
    name = re.sub("^standard_", "", instance_type, flags=re.IGNORECASE)
    for cloud, pattern, day, at in _RETIRED:
        if pattern.fullmatch(name):
            over = now >= at
            return Retirement(over, f"{cloud} {'retired' if over else 'retires'}{f' on {day}' if day else ''}")
    return None
