"""Reasons why EC2 does not launch an instance: codes and texts of EC2 and of scaling activities, from ../shared/reference/aws.md."""

from typing import Final

from msgspec import Struct

INSUFFICIENT: Final = "InsufficientInstanceCapacity"
#: EC2's reasons for instances that it first accepted, and that end by themselves while they are pending: a code of its own side,
#: or of the customer's.
CLIENT_ERROR: Final = "Client.InternalError"
#: The instance runs, but shuts itself down before its kubelet starts.
SHUTDOWN: Final = "Client.InstanceInitiatedShutdown"
_LATE: Final = ("Client.", "Server.")

_TEXTS: Final = {
    "UnfulfillableCapacity": "Unable to fulfill capacity due to your request configuration. Please adjust your request and try again.",
    "VcpuLimitExceeded": "You have requested more vCPU capacity than your current vCPU limit of {limit} allows for the instance bucket "
    "that the specified instance type belongs to. Please visit http://aws.amazon.com/contact-us/ec2-request to request an "
    "adjustment to this limit.",
    "MaxSpotInstanceCountExceeded": "Max spot instance count exceeded",
    "SpotMaxPriceTooLow": "Your Spot request price of {bid} is lower than the minimum required Spot request fulfillment price of {price}.",
    "InvalidFleetConfiguration": "Your requested instance type ({type}) is not supported in your requested Availability Zone ({zone}).",
    "Unsupported": "The requested configuration is currently not supported. Please check the documentation for supported configurations.",
    "InsufficientFreeAddressesInSubnet": "There are not enough free addresses in subnet '{subnet}' to satisfy the requested number of "
    "instances.",
    "ReservationCapacityExceeded": "The requested reservation does not have sufficient compatible and available capacity for this request.",
    CLIENT_ERROR: "Client error on launch",
    SHUTDOWN: "Instance initiated shutdown",
    "Client.InvalidKMSKey.InvalidState": "The KMS key provided is in an incorrect state",
    "Client.VolumeLimitExceeded": "Volume limit exceeded",
    "Server.InsufficientInstanceCapacity": "Insufficient capacity to satisfy instance request",
    "Server.InternalError": "Internal error on launch",
}
_SPOT_DRY: Final = "There is no Spot capacity available that matches your request."
_DRY: Final = (
    "We currently do not have sufficient {type} capacity in the Availability Zone you requested ({zone}). Our system will be working on "
    "provisioning additional capacity. You can currently get {type} capacity by not specifying an Availability Zone in your request."
)


class Failure(Struct, frozen=True, gc=False):
    """``missing`` instances were not launched; ``message`` is EC2's own."""

    code: str
    message: str
    market: str
    instance_type: str
    zone: str
    missing: int


def message(code: str, *, market: str, instance_type: str, zone: str, **more: str) -> str:
    """EC2's text for a code; an unknown code is its own text."""
    text = (_SPOT_DRY if market == "spot" else _DRY) if code == INSUFFICIENT else _TEXTS.get(code, code)
    return text.format_map({"type": instance_type, "zone": zone, "limit": "0", "bid": "0", "price": "0", "subnet": "", **more})


def is_late(code: str) -> bool:
    """Whether ``code`` belongs to an instance that was accepted and ended by itself, and not to a refused request."""
    return code.startswith(_LATE)


def ended_text(code: str) -> str:
    """The activity text of an instance that ended by itself before it was in service, as seen in real groups.

    The words of ``Server.InternalError`` are from cloudcaptainsh/cloudcaptain#204; other reasons use the same sentence.
    """
    text = f"{code}: {_TEXTS.get(code, code)}"
    waiting = "Instance became unhealthy while waiting for instance to be in InService state. Termination Reason: "
    return f"{text}." if code == CLIENT_ERROR else f"{waiting}{text}"


def reason_text(code: str) -> str:
    """EC2's text for the code of a state reason."""
    return f"{code}: {_TEXTS[code]}" if code in _TEXTS else code


def activity_text(failure: Failure, *, mixed: bool) -> str:
    """The text of a failed scaling activity, cut to 255 characters as in the API."""
    if failure.code == CLIENT_ERROR:
        text = "Client.InternalError: Client error on launch."
    elif not mixed and failure.market == "on-demand":
        text = f"{failure.message} Launching EC2 instance failed."
    else:
        market = "Spot" if failure.market == "spot" else "On-Demand"
        text = f"Could not launch {market} Instances. {failure.code} - {failure.message} Launching EC2 instance failed."
    return text[:255]
