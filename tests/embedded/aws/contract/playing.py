"""Runs the script in an account and against our endpoint, and compares the two."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Final

from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError
from tests.embedded.aws.contract.comparing import Normalizer
from tests.embedded.aws.contract.sides import Side
from tests.embedded.aws.contract.steps import FREE, MOST_HOURS, MOST_MACHINES, PAID, Step
from tests.embedded.aws.memory import Session
from tests.embedded.contract.comparing import Report

from gpuscaler.catalogue import lookup
from gpuscaler.embedded.aws.account import Account
from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.hardware.zones import subnet_id
from gpuscaler.embedded.aws.serving.endpoint import Endpoint

#: The time at which our own account begins; its value does not matter.
BEGAN: Final = 1_790_000_000.0


def cost(kind: str, region: str) -> float:
    """The maximum cost of the paid part in US dollars; infinite if the catalogue does not have the type there."""
    instance_type = lookup(kind)
    if instance_type is None or region not in instance_type.prices:
        return float("inf")
    return MOST_MACHINES * MOST_HOURS * instance_type.prices[region].on_demand


def account_side(session: Any, region: str, *, run: str, kind: str, image: str, subnet: str, wait: Callable[[float], None]) -> Side:
    """A user's account, through ``session``. Raises ClientError if it cannot be read, ValueError if it has no subnet."""

    @cache
    def client(service: str) -> Any:
        # As in production: boto3 repeats no calls by itself.
        return session.client(service, region_name=region, config=Config(retries={"total_max_attempts": 1}))

    if not subnet:
        subnets = client("ec2").describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])["Subnets"]
        if not subnets:
            raise ValueError(f"saw no default subnet in {region}, expected one; name a subnet with SUBNET=subnet-…")
        subnet = min(subnet["SubnetId"] for subnet in subnets)
    account = client("sts").get_caller_identity()["Account"]
    return Side(account=account, region=region, client=client, wait=wait, run=run, kind=kind, image=image, subnet=subnet)


def our_side(region: str, *, run: str, kind: str, image: str) -> Side:
    """Our endpoint, in this process, with a clock that moves only by waiting."""
    time = [BEGAN]
    there = Account(now=lambda: time[0], regions=(region,), conditions=Conditions(activity=5.0))
    session = Session(Endpoint(there))

    def wait(seconds: float) -> None:
        time[0] += seconds
        there.advance()

    client = cache(lambda service: session.client(service, region_name=region))
    return Side(account=there.id, region=region, client=client, wait=wait, run=run, kind=kind, image=image, subnet=subnet_id(f"{region}a"))


def compare(theirs: Side, ours: Side, *, paid: bool, tell: Callable[[str], None]) -> Report:
    """Run the script on both sides, report each step, and delete everything at the end, whatever happens."""
    report = Report()
    sides = [(side, Normalizer(side.account, side.region)) for side in (theirs, ours)]
    try:
        for step in (*FREE, *(PAID if paid else ())):
            answers = [alike.value(play_step(step, side)) for side, alike in sides]
            report.add(step.name, answers[0], answers[1], tell)
    finally:
        left = [*theirs.clean(), *remaining(theirs)]
        ours.clean()
        report.add_left(left, tell)
    return report


def play_step(step: Step, side: Side) -> Any:
    """The result of a step, or its refusal."""
    try:
        return step.play(side)
    except ClientError as error:
        details: Mapping[str, Any] = error.response["Error"]
        return {"refused": details["Code"], "message": details["Message"]}
    except (KeyError, IndexError, ResponseParserError) as error:
        # The reply lacks a field that the next call needs, or cannot be parsed.
        return {"odd": f"{type(error).__name__}: {error}"}


def remaining(side: Side) -> Iterable[str]:
    """Resources of the run that still exist a while after their deletion."""
    side.until(lambda: not side.left(), 120.0)
    return side.left()
