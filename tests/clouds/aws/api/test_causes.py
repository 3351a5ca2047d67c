"""AWS's errors are classified in all their forms."""

import pytest

from gpuscaler.clouds.aws.api.causes import interpret_error, quota_bucket, refusals, widen_quota_refusals
from gpuscaler.clouds.protocol import CAPACITY, CONFIGURATION, PRICE, QUOTA, THROTTLED, UNAUTHORISED, UNKNOWN
from gpuscaler.model.offerings import OfferingKey

QUOTA_TEXT = "You have requested more vCPU capacity than your current vCPU limit of 64 allows for the instance bucket"
ON_DEMAND = (
    "We currently do not have sufficient p5.48xlarge capacity in the Availability Zone you requested (us-east-1a). "
    "You can currently get p5.48xlarge capacity by not specifying an Availability Zone in your request or choosing us-east-1b, us-east-1c."
)
SPOT, HERE = "Could not launch Spot Instances.", "is not supported in your requested Availability Zone (us-east-1d)."
#: How an activity describes a machine that was accepted but ended before it was in service.
ENDED = "Instance became unhealthy while waiting for instance to be in InService state. Termination Reason:"


@pytest.mark.parametrize(
    ("code", "text", "cause"),
    [
        ("InsufficientInstanceCapacity", "", CAPACITY),
        ("UnfulfillableCapacity", "Unable to fulfill capacity due to your request configuration.", CAPACITY),
        ("", f"{SPOT} InsufficientInstanceCapacity - There is no Spot capacity available that matches your request.", CAPACITY),
        ("", f"{SPOT} UnfulfillableCapacity - Unable to fulfill capacity due to your request configuration.", CAPACITY),
        ("", f"{ON_DEMAND} Launching EC2 instance failed.", CAPACITY),
        ("InvalidFleetConfiguration", f"Your requested instance type (p5.48xlarge) {HERE}", CAPACITY),
        ("", f"{SPOT} InvalidFleetConfiguration - Your requested instance type (p5.48xlarge) {HERE}", CAPACITY),
        ("", "The requested configuration is currently not supported. Launching EC2 instance failed.", CAPACITY),
        ("InvalidFleetConfiguration", "The fleet configuration contains duplicate instance pools", CONFIGURATION),
        ("VcpuLimitExceeded", QUOTA_TEXT, QUOTA),
        ("", f"Could not launch On-Demand Instances. VcpuLimitExceeded - {QUOTA_TEXT}", QUOTA),
        ("", QUOTA_TEXT, QUOTA),
        ("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded", QUOTA),
        ("", "Max spot instance count exceeded. Placing Spot instance request failed.", QUOTA),
        ("SpotMaxPriceTooLow", "", PRICE),
        ("", "Your Spot request price of 0.5 is lower than the minimum required Spot request fulfillment price of 0.9.", PRICE),
        ("InsufficientFreeAddressesInSubnet", "There are not enough free addresses in subnet 'subnet-1'.", CAPACITY),
        ("", "Client.InternalError: Client error on launch.", CONFIGURATION),
        ("", f"{ENDED} Server.InsufficientInstanceCapacity: Insufficient capacity to satisfy instance request", CAPACITY),
        ("", f"{ENDED} Client.InvalidKMSKey.InvalidState: The KMS key provided is in an incorrect state", CONFIGURATION),
        ("", f"{ENDED} Client.VolumeLimitExceeded: Volume limit exceeded", CONFIGURATION),
        ("", f"{ENDED} Server.InternalError: Internal error on launch", UNKNOWN),
        ("Client.VolumeLimitExceeded", "Volume limit exceeded", CONFIGURATION),
        ("InvalidAMIID.NotFound", "The image id '[ami-1]' does not exist", CONFIGURATION),
        ("", "The image id '[ami-1]' does not exist. Launching EC2 instance failed.", CONFIGURATION),
        ("InvalidKeyPair.NotFound", "The key pair 'k' does not exist", CONFIGURATION),
        ("ValidationError", "New SetDesiredCapacity value 9 is above max value 8 for the AutoScalingGroup.", UNKNOWN),
        ("ValidationError", "Desired capacity:10 must be between the specified min size:1 and max size:1", UNKNOWN),
        ("ValidationError", "The requested capacity 9 would exceed the maximum size 8 of the Auto Scaling group", UNKNOWN),
        ("ValidationError", "RequestedCapacity plus the current capacity is greater than MaxSize 8 of group gpus.", UNKNOWN),
        ("ValidationError", "Launching 2 instances exceeds the group's max size, which is not valid", UNKNOWN),
        ("ValidationError", "Value (x) for parameter groupId is invalid: exceeds 255 characters", CONFIGURATION),
        ("RequestLimitExceeded", "Request limit exceeded.", THROTTLED),
        ("Throttling", "Rate exceeded", THROTTLED),
        ("ResourceContentionFault", "You already have a pending update to an Auto Scaling resource", THROTTLED),
        ("ScalingActivityInProgress", "", THROTTLED),
        ("UnauthorizedOperation", "You are not authorized to perform this operation.", UNAUTHORISED),
        ("AccessDenied", "User: arn:aws:iam::1:user/u is not authorized to perform: autoscaling:SetDesiredCapacity", UNAUTHORISED),
        ("", "You are not authorized to use launch template: lt-1. Launching EC2 instance failed.", UNAUTHORISED),
        ("InternalFailure", "We encountered an internal error. Please try again.", UNKNOWN),
        ("NeverHeardOf", "", UNKNOWN),
        ("", "", UNKNOWN),
    ],
)  # fmt: skip
def test_every_known_error_is_classified_by_its_code_or_its_text(code: str, text: str, cause: str) -> None:
    assert interpret_error(code, text).cause == cause


@pytest.mark.parametrize(("code", "text"), [("Client.InternalError", ""), ("", "Client.InternalError: Client error on launch.")])
def test_a_client_error_on_launch_suggests_a_grant_for_the_kms_key(code: str, text: str) -> None:
    assert "usually the KMS key of its disks: give the service-linked role of Auto Scaling a grant" in interpret_error(code, text).detail


def test_an_error_about_one_type_in_one_zone_does_not_affect_others() -> None:
    requested = [
        OfferingKey("p", "on-demand", kind, zone) for kind in ("p5.48xlarge", "p4d.24xlarge") for zone in ("us-east-1a", "us-east-1b")
    ]
    (refusal,) = refusals([interpret_error("InsufficientInstanceCapacity", ON_DEMAND)], requested)
    assert refusal.offering == OfferingKey("p", "on-demand", "p5.48xlarge", "us-east-1a")


def test_an_error_without_type_and_zone_concerns_the_whole_order() -> None:
    requested = [OfferingKey("p", "spot", "p5.48xlarge", zone) for zone in ("us-east-1a", "us-east-1b")]
    refused = refusals([interpret_error("UnfulfillableCapacity", "Unable to fulfill capacity.")] * 3, requested)
    assert [refusal.offering for refusal in refused] == requested


def test_a_quota_error_concerns_every_type_of_the_quota_in_every_zone() -> None:
    requested = [OfferingKey("p", "on-demand", kind, "us-east-1a") for kind in ("p5.48xlarge", "p4d.24xlarge", "g6.48xlarge")]
    refused = refusals([interpret_error("VcpuLimitExceeded", QUOTA_TEXT)], requested)
    assert [(refusal.bucket, refusal.every_zone) for refusal in refused] == [
        (("p5.48xlarge", "p4d.24xlarge"), True),
        (("p5.48xlarge", "p4d.24xlarge"), True),
        (("g6.48xlarge",), True),
    ]


def test_a_quota_error_also_concerns_types_that_were_not_requested() -> None:
    requested = [OfferingKey("p", "on-demand", "p5.48xlarge", "us-east-1a")]
    offered = [*requested, OfferingKey("q", "spot", "p4d.24xlarge", "us-east-1b"), OfferingKey("q", "spot", "g6.48xlarge", "us-east-1b")]
    (quota,) = widen_quota_refusals(refusals([interpret_error("VcpuLimitExceeded", QUOTA_TEXT)], requested), offered)
    (dry,) = widen_quota_refusals(refusals([interpret_error("InsufficientInstanceCapacity", "")], requested), offered)
    assert (quota.bucket, dry.bucket) == (("p4d.24xlarge", "p5.48xlarge"), ())


def test_an_error_about_a_full_subnet_concerns_every_type_in_its_zone() -> None:
    requested = [OfferingKey("p", "spot", kind, zone) for kind in ("p5.48xlarge", "g6.48xlarge") for zone in ("us-east-1a", "us-east-1b")]
    text = "There are not enough free addresses in subnet subnet-1 (us-east-1a)"
    refused = refusals([interpret_error("InsufficientFreeAddressesInSubnet", text)], requested)
    assert {refusal.bucket for refusal in refused} == {("p5.48xlarge", "g6.48xlarge")}
    assert {refusal.offering[3] for refusal in refused} == {"us-east-1a"}


def test_instance_types_are_assigned_to_the_quotas_of_ec2() -> None:
    types = ("g6e.xlarge", "vt1.3xlarge", "p5en.48xlarge", "trn1.32xlarge", "inf2.48xlarge", "dl1.24xlarge", "m7i.large", "hpc7a.96xlarge")
    assert [quota_bucket(instance_type) for instance_type in types] == ["G and VT", "G and VT", "P", "Trn", "Inf", "DL", "Standard", "HPC"]
