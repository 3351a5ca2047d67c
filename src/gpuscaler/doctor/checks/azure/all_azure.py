"""All checks of Azure subscriptions."""

from gpuscaler.doctor.checks.azure import capacity, identities, markets, names, obstacles, policies, rights, rivals, workloads
from gpuscaler.doctor.checks.checking import Check

CHECKS: tuple[Check, ...] = (
    *names.CHECKS,
    *rivals.CHECKS,
    *obstacles.CHECKS,
    *policies.CHECKS,
    *workloads.CHECKS,
    *capacity.CHECKS,
    *markets.CHECKS,
    *rights.CHECKS,
    *identities.CHECKS,
)
