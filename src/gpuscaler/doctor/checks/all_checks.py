"""All checks, in the order of their ids."""

from gpuscaler.doctor.checks import api_services, budgets
from gpuscaler.doctor.checks.aws import all_aws
from gpuscaler.doctor.checks.azure import all_azure
from gpuscaler.doctor.checks.checking import Check

CHECKS: tuple[Check, ...] = (*budgets.CHECKS, *api_services.CHECKS, *all_aws.CHECKS, *all_azure.CHECKS)
