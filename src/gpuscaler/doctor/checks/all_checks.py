"""All checks, in the order of their ids."""

from gpuscaler.doctor.checks import api_services, budgets
from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.checks.nodes import device_plugins, labels

CHECKS: tuple[Check, ...] = (*budgets.CHECKS, *api_services.CHECKS, *device_plugins.CHECKS, *labels.CHECKS)
