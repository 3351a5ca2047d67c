"""Pools of the run file that the account does not have.

They are documents of the kind :data:`UNKNOWN_POOL`: ``{Name, Reason, Exists}``, with what reading the pools of the account says.
"""

from collections.abc import Iterator
from typing import Final

from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.evidence import POLICY, Evidence
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding, Fix

UNKNOWN_POOL: Final = "account/UnknownPool"
#: Names that a finding lists.
_NAMED: Final = 10


def find_unknown_pools(evidence: Evidence) -> Iterator[Finding]:
    """D1: entries of ``pools`` in the run file with names that no pool of the account has."""
    names = sorted(pool.name for pool in evidence.policy.pools) if evidence.policy is not None else []
    known = ", ".join(names[:_NAMED]) + (f" and {len(names) - _NAMED} more" if len(names) > _NAMED else "")
    for unknown in evidence.of(UNKNOWN_POOL):
        name, reason = unknown.text("Name"), unknown.text("Reason")
        yield Finding(
            "D1",
            # Why an existing pool is not adopted is mostly a finding of its own.
            WARNING if unknown.flag("Exists") else CRITICAL,
            "run file",
            f"pools[{name}]",
            f"{name}: {reason}" if reason else name,
            f"the name of a pool that is adopted: {known}" if known else "the name of a pool that is adopted, and there is none",
            "the settings of this entry apply to nothing, and nothing is bought under this name",
            Fix(advice="correct the name in the run file; gpuscaler pools lists the pools of the account, and why others are left out"),
        )


CHECKS = (Check("D1", "pools of the run file in the account", (POLICY,), find_unknown_pools),)
