"""Reasons why there is no machine: codes and texts of Microsoft.Compute, as in karpenter-provider-azure's tests and users' reports."""

from typing import Final

from msgspec import Struct

from gpuscaler.embedded.azure.wire.errors import AzureError, Failure
from gpuscaler.embedded.serving.conditions import check_market

_GUIDANCE: Final = "Read more about improving likelihood of allocation success at http://aka.ms/allocation-guidance"
_CONSTRAINTS: Final = (
    "Allocation failed. VM(s) with the following constraints cannot be allocated, because the condition is too restrictive. "
    "Please remove some constraints and try again. Constraints applied are:\n  - {constraints}\n"
    "  - Networking Constraints (such as Accelerated Networking or IPv6)\n  - VM Size\n"
)
_QUOTA: Final = (
    "Operation could not be completed as it results in exceeding approved {name} quota. Additional details - Deployment Model: Resource "
    "Manager, Location: {location}, Current Limit: {limit}, Current Usage: {usage}, Additional Required: {required}, (Minimum) New Limit "
    "Required: {new}. Setup Alerts when Quota reaches threshold. Learn more at https://aka.ms/quotamonitoringalerting ."
)
TEXTS: Final = {
    "AllocationFailed": "Allocation failed. We do not have sufficient capacity for the requested VM size in this region. " + _GUIDANCE,
    "ZonalAllocationFailed": "Allocation failed. We do not have sufficient capacity for the requested VM size {size} in zone {zone}. "
    + _GUIDANCE,
    "OverconstrainedAllocationRequest": _CONSTRAINTS,
    "OverconstrainedZonalAllocationRequest": _CONSTRAINTS,
    "SkuNotAvailable": "The requested VM size for resource 'Following SKUs have failed for Capacity Restrictions: {size}' is currently not "
    "available in location '{location}'. Please try another size or deploy to a different location or different zone. See "
    "https://aka.ms/azureskunotavailable for details.",
    "SpotPriceGreaterThanMaxPrice": "The current spot price of {size} is greater than the provided max price.",
    "SubnetIsFull": "Subnet aks-subnet with address prefix 10.224.0.0/16 does not have enough capacity for {count} IP addresses.",
    "RequestDisallowedByPolicy": "Resource '{name}' was disallowed by policy. Policy identifiers: '[]'.",
    "AuthorizationFailed": "The client 'gpuscaler' with object id '00000000-0000-0000-0000-0000000000aa' does not have authorization to "
    "perform action 'Microsoft.Compute/virtualMachineScaleSets/write' over scope '{scope}' or the scope is invalid.",
    "ReadOnlyDisabledSubscription": "The subscription '{subscription}' is disabled and therefore marked as read only.",
    "SubscriptionNotRegistered": "The subscription '{subscription}' is not registered to use namespace 'Microsoft.Compute'.",
    "CapacityReservationGroupCapacityExceeded": "The capacity reservation group has no capacity left for VM size {size}.",
    "VMExtensionProvisioningError": "VM has reported a failure when processing extension 'vmssCSE'. Error message: \"Enable failed: failed "
    'to execute command: command terminated with exit status=50\n[stdout]\n{{ "ExitCode": "50", "Output": "curl: (28) Failed to connect '
    'to mcr.microsoft.com port 443: Connection timed out" }}\n[stderr]\n".',
    "VMExtensionProvisioningTimeout": "Provisioning of VM extension vmssCSE has timed out. Extension provisioning has taken too long to "
    "complete. The extension did not report a message.",
    "OSProvisioningTimedOut": "OS Provisioning for VM '{name}' did not finish in the allotted time. The VM may still finish provisioning "
    "successfully. Please check provisioning state later.",
    "VMStartTimedOut": "VM '{name}' did not start in the allotted time. The VM may still start successfully.",
}
#: The markets that limits and troubles apply to; capacity reservations always hold what they reserve.
LIMITED: Final = ("spot", "on-demand")
#: These come with the answer to a write, with this status; all others come with its operation.
SYNCHRONOUS: Final = {
    "SkuNotAvailable": 409,
    "QuotaExceeded": 409,
    "OperationNotAllowed": 409,
    "SubnetIsFull": 400,
    "RequestDisallowedByPolicy": 403,
    "AuthorizationFailed": 403,
    "LinkedAuthorizationFailed": 403,
    "ScopeLocked": 409,
    "ReadOnlyDisabledSubscription": 409,
    "SubscriptionNotRegistered": 409,
}
#: Machines with these errors were placed, run and cost.
BOOTSTRAP: Final = frozenset(
    {
        "VMExtensionProvisioningError",
        "VMExtensionHandlerNonTransientError",
        "VMExtensionProvisioningTimeout",
        "VMExtensionProvisioningTimedOut",
        "OSProvisioningTimedOut",
        "VMStartTimedOut",
    }
)


class Trouble(Struct, frozen=True, gc=False):
    """Machines that match (an empty field matches all) fail with ``code``: the next ``times`` of them, or all if None.

    ``zone`` is a zone such as ``eastus-1``, or a location. ``message`` replaces the usual text. ``status`` makes the write itself fail with
    that HTTP status; 0: as the code usually does (see :data:`SYNCHRONOUS`). -1: in the operation.
    """

    code: str
    market: str = ""
    size: str = ""
    zone: str = ""
    times: int | None = None
    message: str = ""
    status: int = 0

    def __post_init__(self) -> None:
        check_market(self.market, LIMITED)

    def hits(self, market: str, size: str, zone: str) -> bool:
        return self.market in ("", market) and self.size.lower() in ("", size.lower()) and in_zone(self.zone, zone)

    @property
    def answered(self) -> int:
        """The HTTP status with which writes fail at once, 0 if they are accepted."""
        if self.status:
            return max(0, self.status)
        return SYNCHRONOUS.get(self.code, 0)


def in_zone(pattern: str, zone: str) -> bool:
    """Whether a zone such as ``eastus-1`` is ``pattern``: the same, or its location, or all ("")."""
    return pattern in ("", zone, zone.rpartition("-")[0])


def failure(code: str, *, market: str, size: str, zone: str, message: str = "", **more: str) -> Failure:
    """A failure with Azure's text for a code; an unknown code has a plain text."""
    location, _, number = zone.rpartition("-")
    constraints = [*(["Availability Zone"] if number != "0" else []), *(["Low Priority VMs"] if market == "spot" else []), "VM Size"]
    values = {
        "size": size,
        "zone": number,
        "location": location,
        "constraints": "\n  - ".join(constraints),
        "name": "",
        "scope": "",
        "subscription": "",
        "count": "1",
        **more,
    }
    text = message or (TEXTS[code].format_map(values) if code in TEXTS else f"The operation failed with {code}.")
    return Failure(code, text)


def quota_failure(name: str, *, location: str, limit: int, usage: int, required: int) -> Failure:
    """``name`` is a quota family, ``cores`` or ``lowPriorityCores``."""
    shown = {"cores": "Total Regional Cores", "lowPriorityCores": "LowPriorityCores"}.get(name, f"{name} Cores")
    text = _QUOTA.format(name=shown, location=location, limit=limit, usage=usage, required=required, new=usage + required)
    return Failure("OperationNotAllowed", text)


def raised(cause: Failure, status: int = 409) -> AzureError:
    """A failure as the answer to a write."""
    return AzureError(cause, status=status)
