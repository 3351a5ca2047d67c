"""The script played in an account and against our endpoint, and the two compared."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from botocore.config import Config
from botocore.exceptions import ClientError
from botocore.parsers import ResponseParserError
from tests.embedded.aws.contract.comparing import Alike, differences
from tests.embedded.aws.contract.sides import Side
from tests.embedded.aws.contract.steps import FREE, MOST_HOURS, MOST_MACHINES, PAID, Step
from tests.embedded.aws.memory import Session

from gpuscaler.catalogue import lookup
from gpuscaler.embedded.aws.account import Account
from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.hardware.zones import subnet_id
from gpuscaler.embedded.aws.serving.endpoint import Endpoint

#: The moment at which our own account begins; which it is says nothing.
BEGAN: Final = 1_790_000_000.0


@dataclass(slots=True)
class Report:
    """Differences by step, what was ``left`` in the account, and how many steps were played."""

    differences: dict[str, list[str]] = field(default_factory=dict)
    left: list[str] = field(default_factory=list)
    steps: int = 0


def cost(kind: str, region: str) -> float:
    """US dollars that the paid part may cost at most; infinite where the catalogue does not know the type there."""
    known = lookup(kind)
    if known is None or region not in known.prices:
        return float("inf")
    return MOST_MACHINES * MOST_HOURS * known.prices[region].on_demand


def account_side(session: Any, region: str, *, run: str, kind: str, image: str, subnet: str, wait: Callable[[float], None]) -> Side:
    """A user's account, as ``session`` knows it. Raises ClientError where it cannot be read, ValueError where it has no subnet."""

    @cache
    def client(service: str) -> Any:
        # As in production: nothing is repeated behind our back.
        return session.client(service, region_name=region, config=Config(retries={"total_max_attempts": 1}))

    if not subnet:
        found = client("ec2").describe_subnets(Filters=[{"Name": "default-for-az", "Values": ["true"]}])["Subnets"]
        if not found:
            raise ValueError(f"saw no default subnet in {region}, expected one; name a subnet with SUBNET=subnet-…")
        subnet = min(one["SubnetId"] for one in found)
    account = client("sts").get_caller_identity()["Account"]
    return Side(account=account, region=region, client=client, wait=wait, run=run, kind=kind, image=image, subnet=subnet)


def our_side(region: str, *, run: str, kind: str, image: str) -> Side:
    """Our endpoint, in this process, with a clock that only waiting moves."""
    time = [BEGAN]
    there = Account(now=lambda: time[0], regions=(region,), conditions=Conditions(activity=5.0))
    session = Session(Endpoint(there))

    def wait(seconds: float) -> None:
        time[0] += seconds
        there.advance()

    client = cache(lambda service: session.client(service, region_name=region))
    return Side(account=there.id, region=region, client=client, wait=wait, run=run, kind=kind, image=image, subnet=subnet_id(f"{region}a"))


def compare(theirs: Side, ours: Side, *, paid: bool, tell: Callable[[str], None]) -> Report:
    """Play the script on both sides, tell of each step, and take everything away again, whatever happens."""
    report = Report()
    sides = [(side, Alike(side.account, side.region)) for side in (theirs, ours)]
    try:
        for step in (*FREE, *(PAID if paid else ())):
            found = [alike.value(played(step, side)) for side, alike in sides]
            report.steps += 1
            told = list(differences(*found))
            tell(f"{'as ours  ' if not told else 'DIFFERENT'} {step.name}")
            for one in told:
                tell(f"    {one}")
            if told:
                report.differences[step.name] = told
    finally:
        report.left = [*theirs.clean(), *remaining(theirs)]
        ours.clean()
        for one in report.left:
            tell(f"STILL THERE: {one}")
    return report


def played(step: Step, side: Side) -> Any:
    """What a step came to, or how it was refused."""
    try:
        return step.play(side)
    except ClientError as error:
        said: Mapping[str, Any] = error.response["Error"]
        return {"refused": said["Code"], "message": said["Message"]}
    except (KeyError, IndexError, ResponseParserError) as error:
        # A reply that lacks what the next call needs, or is none.
        return {"odd": f"{type(error).__name__}: {error}"}


def remaining(side: Side) -> Iterable[str]:
    """What of the run is still there a while after it was taken away."""
    side.until(lambda: not side.left(), 120.0)
    return side.left()
