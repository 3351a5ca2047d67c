"""Why EC2 does not launch an instance: its codes, and the texts that it and scaling activities say, by ../shared/reference/aws.md."""

from typing import Final

from msgspec import Struct

INSUFFICIENT: Final = "InsufficientInstanceCapacity"
#: Accepted first; the instance ends by itself while it is pending.
CLIENT_ERROR: Final = "Client.InternalError"

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
    """What EC2 says with a code; an unknown one says itself."""
    text = (_SPOT_DRY if market == "spot" else _DRY) if code == INSUFFICIENT else _TEXTS.get(code, code)
    return text.format_map({"type": instance_type, "zone": zone, "limit": "0", "bid": "0", "price": "0", "subnet": "", **more})


def activity_text(failure: Failure, *, mixed: bool) -> str:
    """What a failed scaling activity says of it, cut to 255 characters as the API does."""
    if failure.code == CLIENT_ERROR:
        text = "Client.InternalError: Client error on launch."
    elif not mixed and failure.market == "on-demand":
        text = f"{failure.message} Launching EC2 instance failed."
    else:
        market = "Spot" if failure.market == "spot" else "On-Demand"
        text = f"Could not launch {market} Instances. {failure.code} - {failure.message} Launching EC2 instance failed."
    return text[:255]
