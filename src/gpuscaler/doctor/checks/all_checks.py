"""All checks, in the order of their ids."""

from gpuscaler.doctor.checks import api_services, budgets, clocks, pool_names, unreadable
from gpuscaler.doctor.checks.autoscalers import beside, priorities
from gpuscaler.doctor.checks.aws import all_aws
from gpuscaler.doctor.checks.azure import all_azure
from gpuscaler.doctor.checks.checking import Check
from gpuscaler.doctor.checks.identity import accounts, bindings, pod_identities, references, roles, secrets, static_keys
from gpuscaler.doctor.checks.metrics import addresses, autoscalers, certificates, rights, rules, targets, values
from gpuscaler.doctor.checks.nodes import device_plugins, labels, out_of_service
from gpuscaler.doctor.checks.pods import alpha_annotations, claims, fitting, holding, resource_names, runtimes, sharing_nodes

CHECKS: tuple[Check, ...] = (
    *budgets.CHECKS,
    *api_services.CHECKS,
    *device_plugins.CHECKS,
    *labels.CHECKS,
    *out_of_service.CHECKS,
    *fitting.CHECKS,
    *unreadable.CHECKS,
    *claims.CHECKS,
    *resource_names.CHECKS,
    *holding.CHECKS,
    *sharing_nodes.CHECKS,
    *runtimes.CHECKS,
    *alpha_annotations.CHECKS,
    *secrets.CHECKS,
    *references.CHECKS,
    *static_keys.CHECKS,
    *accounts.CHECKS,
    *pod_identities.CHECKS,
    *roles.CHECKS,
    *bindings.CHECKS,
    *priorities.CHECKS,
    *beside.CHECKS,
    *rights.CHECKS,
    *certificates.CHECKS,
    *addresses.CHECKS,
    *rules.CHECKS,
    *values.CHECKS,
    *autoscalers.CHECKS,
    *targets.CHECKS,
    *clocks.CHECKS,
    *all_aws.CHECKS,
    *all_azure.CHECKS,
    *pool_names.CHECKS,
)
