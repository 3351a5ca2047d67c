"""Objects that planning cannot read, such as a node with a quantity that is none: what checks of the cluster say is without them."""

from collections.abc import Iterator

from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import Unchecked

#: The most objects that are named; the rest is counted.
_NAMED = 100


def find_unreadable(evidence: Evidence) -> Iterator[Unchecked]:
    """Each object that was set aside, with what was seen and expected."""
    aside = evidence.cluster.set_aside
    for skipped in aside[:_NAMED]:
        yield Unchecked("D39", skipped.object, skipped.reason)
    if len(aside) > _NAMED:
        yield Unchecked("D39", f"{len(aside) - _NAMED:,} more objects", "they cannot be read either")


CHECKS = (Check("D39", "objects that cannot be read", (), find_unreadable),)
