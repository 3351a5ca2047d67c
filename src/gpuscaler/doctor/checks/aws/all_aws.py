"""All checks of an AWS account."""

from gpuscaler.doctor.checks.aws import capacity, images, interruptions, keys, markets, ownership, processes, rights, rivals, tags
from gpuscaler.doctor.checks.checking import Check

CHECKS: tuple[Check, ...] = (
    *ownership.CHECKS,
    *rivals.CHECKS,
    *processes.CHECKS,
    *tags.CHECKS,
    *markets.CHECKS,
    *capacity.CHECKS,
    *images.CHECKS,
    *keys.CHECKS,
    *rights.CHECKS,
    *interruptions.CHECKS,
)
