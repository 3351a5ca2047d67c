"""Runs the script in a subscription and against our endpoint, and compares the two."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from tests.embedded.azure.contract.agent_pools import CLUSTER_FREE, CLUSTER_PAID
from tests.embedded.azure.contract.bodies import prepare
from tests.embedded.azure.contract.comparing import Normalizer
from tests.embedded.azure.contract.failing import FAILING
from tests.embedded.azure.contract.paid import MOST_HOURS, MOST_MACHINES, PAID
from tests.embedded.azure.contract.sides import Side, Skipped, StoppedError
from tests.embedded.azure.contract.steps import FREE, Step, skus
from tests.embedded.azure.memory import URL, MemoryHttp
from tests.embedded.contract.comparing import Report

from gpuscaler.catalogue import lookup
from gpuscaler.clouds.azure.api.arm import USAGES
from gpuscaler.clouds.azure.api.credentials import FixedToken
from gpuscaler.clouds.protocol import CloudError
from gpuscaler.embedded.azure import Account, Conditions, Endpoint, making
from gpuscaler.embedded.azure.hardware.sizes import family

#: The time at which our own account begins; its value does not matter.
BEGAN: Final = 1_790_000_000.0
#: The part of the hours that machines may take for which steps are played; the rest is for deleting them.
_PLAYED: Final = 0.85
_SUBSCRIPTION: Final = "22222222-2222-4222-8222-222222222222"


@dataclass(slots=True)
class AzureReport(Report):
    """``answers`` are what each side answered to a question; ``stopped`` is why the script ended early, "" if it did not."""

    answers: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    stopped: str = ""


def cost(size: str, location: str) -> float:
    """The maximum cost of machines in US dollars, at on-demand prices; infinite if the catalogue does not have the size there."""
    found = lookup(size)
    if found is None or location not in found.prices:
        return float("inf")
    return MOST_MACHINES * MOST_HOURS * found.prices[location].on_demand


async def size_without_quota(side: Side) -> str:
    """A GPU size that the location offers and whose quota has no room for one machine, the cheapest; "" if there is none."""
    path = f"/subscriptions/{side.subscription}/providers/Microsoft.Compute/locations/{side.location}/usages"
    rows = {row["name"]["value"].lower(): row for row in (await side.get(path, version=USAGES)).values}
    found: list[tuple[float, str]] = []
    for item in await skus(side):
        size, row = lookup(str(item.get("name"))), rows.get(str(item.get("family")).lower())
        if size is None or row is None or not size.gpus or item.get("restrictions"):
            continue
        # Nothing in use and nothing allowed: no machine can come, and both sides name the same numbers.
        if row["limit"] == 0 and row["currentValue"] == 0:
            price = size.prices[side.location].on_demand if side.location in size.prices else float("inf")
            found.append((price, size.name))
    return min(found)[1] if found else ""


def our_side(theirs: Side) -> Side:
    """Our endpoint, in this process, with a clock that moves only by waiting; it has what ``theirs`` was found to have."""
    time = [BEGAN]
    account = Account(now=lambda: time[0], locations=(theirs.location,), subscriptions=(_SUBSCRIPTION,), conditions=Conditions())
    cluster = ""
    if theirs.cluster:
        # With the same names, since Azure makes other names of them.
        name, group = theirs.cluster.split("/")[-1], theirs.cluster.split("/")[4]
        cluster = making.create_cluster(account, name, group).id
    if theirs.refused_size:
        making.set_quota(account, family(theirs.refused_size), 0)

    async def wait(seconds: float) -> None:
        time[0] += seconds
        account.advance()
        await asyncio.sleep(0)

    def break_machines() -> None:
        making.add_trouble(account, "VMExtensionProvisioningError", market="on-demand", size=theirs.size, times=1)

    side = Side(
        http=MemoryHttp(Endpoint(account)),
        credentials=FixedToken("simulated"),
        endpoint=URL,
        subscription=_SUBSCRIPTION,
        location=theirs.location,
        run=theirs.run,
        group=theirs.group,
        own_group=True,
        size=theirs.size,
        refused_size=theirs.refused_size,
        cluster=cluster,
        password=theirs.password,
        now=lambda: time[0],
        wait=wait,
        break_machines=break_machines,
    )
    making.create_group(account, theirs.group, tags={})
    # Our endpoint has no networks; it takes the name as it is.
    side.subnet = side.path("Microsoft.Network/virtualNetworks", f"{theirs.run}/subnets/machines")
    return side


async def compare(theirs: Side, ours: Side, *, paid: bool, tell: Callable[[str], None]) -> AzureReport:
    """Play the script on both sides, report each step, and delete everything at the end, whatever happens."""
    report = AzureReport()
    try:
        await prepare(theirs)
        await _play_all(report, theirs, ours, paid=paid, tell=tell)
    except StoppedError as error:
        report.stopped = str(error)
        tell(f"STOPPED   {error}")
    except asyncio.CancelledError:
        report.stopped = "interrupted"
        tell("STOPPED   what was created is now deleted, which takes minutes; another Ctrl-C leaves it there")
    finally:
        left = await theirs.clean()
        report.add_left(left or await _remaining(theirs), tell)
    _tell_answers(report, tell)
    return report


async def _play_all(report: AzureReport, theirs: Side, ours: Side, *, paid: bool, tell: Callable[[str], None]) -> None:
    sides = [(side, Normalizer(side.known)) for side in (theirs, ours)]
    steps: tuple[Step, ...] = (*FREE, *FAILING, *(CLUSTER_FREE if theirs.cluster else ()))
    costly: tuple[Step, ...] = (*PAID, *(CLUSTER_PAID if theirs.cluster else ())) if paid else ()
    for number, step in enumerate((*steps, *costly)):
        if number == len(steps):
            theirs.deadline = min(theirs.deadline, theirs.now() + MOST_HOURS * _PLAYED * 3600)
        try:
            results = [alike.step(await play_step(step, side)) for side, alike in sides]
        except Skipped as why:
            tell(f"skipped   {step.name}: {why}")
            continue
        answers = [result.pop("answers", {}) for result in results]
        shown = [{**result, **answered} for result, answered in zip(results, answers, strict=True)]
        report.add(step.name, shown[0], shown[1], tell)
        for side, name in ((theirs, "the account"), (ours, "ours")):
            for note in side.notes:
                tell(f"    {name}: {note}")
            side.notes.clear()
        for question in {**answers[0], **answers[1]}:
            report.answers[question] = (answers[0].get(question, "-"), answers[1].get(question, "-"))


async def play_step(step: Step, side: Side) -> dict[str, Any]:
    """The result of a step; what it could not read is part of it."""
    try:
        result: Mapping[str, Any] = await step.play(side)
        return dict(result)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        # The reply lacks a field that the next call needs.
        return {"odd": f"{type(error).__name__}: {error}"}


async def _remaining(side: Side) -> list[str]:
    try:
        # ARM's own list of resources follows deletions a little later.
        if await side.until(lambda: _is_empty(side), 300.0):
            return []
        return await side.remaining()
    except (StoppedError, CloudError) as error:
        return [f"what remains cannot be read: {error}"]


async def _is_empty(side: Side) -> bool:
    return not await side.remaining()


def _tell_answers(report: AzureReport, tell: Callable[[str], None]) -> None:
    if report.answers:
        tell("What the documentation leaves open:")
    for question, (theirs, ours) in report.answers.items():
        tell(f"    {question}: {_text(theirs)}" + (f" (ours: {_text(ours)})" if theirs != ours else ""))


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "; ".join(map(_text, value)) or "nothing"
    return str(value)
