"""Buys in an Auto Scaling group: with LaunchInstances, which answers at once, else by raising the desired capacity and reading activities.

LaunchInstances buys in one zone per call and reports each refusal. Zones are tried one after the other, the preferred one first, so that
never more than the need is outstanding. A group whose desired capacity is raised keeps trying for ever: what it does not fill is withdrawn
before another offering is tried.
"""

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from gpuscaler.clouds.aws.api.asking import AsyncCalls, server_time
from gpuscaler.clouds.aws.api.calls import DeniedError
from gpuscaler.clouds.aws.api.causes import ErrorMeaning, interpret_error, refusals
from gpuscaler.clouds.aws.api.groups import PRESENT_STATES, Group, Machine, Reply
from gpuscaler.clouds.aws.api.spelling import is_same_word
from gpuscaler.clouds.aws.buying.activities import LaunchReport, activity_log, launch_report
from gpuscaler.clouds.aws.buying.withdrawing import (
    CapacityOutcome,
    Protect,
    Read,
    ReadActivities,
    Step,
    Steps,
    Write,
    raising_steps,
    withdrawing_steps,
)
from gpuscaler.clouds.aws.discovery.pools import AwsPool
from gpuscaler.clouds.aws.machines.listing import instance_of, provider_id
from gpuscaler.clouds.protocol import CAPACITY, CONFIGURATION, UNKNOWN, BuyResult, CloudError, LostAnswerError, Order, Refusal
from gpuscaler.model.instances import PENDING, Instance
from gpuscaler.model.offerings import OfferingKey

#: Most machines of a LaunchInstances call, ids of a SetInstanceProtection call, and activities of an answer.
MAX_LAUNCHED, MAX_PROTECTED, MAX_ACTIVITIES = 100, 50, 100
#: How old an answer of Auto Scaling may be, in seconds: AWS documents no figure, and Cluster Autoscaler waits for a minute.
READ_LAG = 10.0
#: The total time for an order and the interval between observations of its group, in seconds.
ORDER_SECONDS, OBSERVE_SECONDS = 7.0, 1.0


@dataclass(slots=True)
class Increment:
    """A raise of a group's desired capacity for an order; ``since`` is by AWS's clock, ``at`` by ours.

    ``before`` are the machines that the group already had. ``resumed`` marks an increment that another process made.
    """

    order: Order
    units: int
    weight: int
    since: float
    before: frozenset[str]
    aws_pool: AwsPool
    machines: dict[str, Machine] = field(default_factory=dict)
    resumed: bool = False
    at: float = 0.0

    @property
    def missing(self) -> int:
        return max(0, self.units - sum(machine.weight for machine in self.machines.values()))


def least_weight(aws_pool: AwsPool, offerings: Iterable[OfferingKey]) -> int:
    """Units to request per machine: those of the smallest of ``offerings``, so that units never yield more machines than ordered."""
    return max(1, min((aws_pool.weights.get(key.instance_type, 1) for key in offerings), default=1))


def client_token(order: Order, zone: str, part: int) -> str:
    """A token that is the same for the same part of the same order in every process, with only characters that AWS accepts."""
    return hashlib.sha256(f"{order.token}/{zone}/{part}".encode()).hexdigest()


# Buying with LaunchInstances


async def launch(calls: AsyncCalls, aws_pool: AwsPool, order: Order) -> BuyResult:
    """Buy with LaunchInstances. Raises the first call's error; if a later call fails, machines that were granted earlier are kept."""
    instances: list[Instance] = []
    refused: list[Refusal] = []
    began = calls.now()
    for zone in dict.fromkeys(key.zone for key in order.offerings):
        keys = tuple(key for key in order.offerings if key.zone == zone)
        for part, first in enumerate(range(0, left := order.count - len(instances), MAX_LAUNCHED)):
            count = min(left - first, MAX_LAUNCHED)
            try:
                granted, refusals_ = await _launch(calls, aws_pool, order, keys, count=count, token=client_token(order, zone, part))
            except CloudError as error:
                if not instances and not refused:
                    raise
                refused += [Refusal(error.cause, key, error.detail, retry_after=error.retry_after) for key in keys]
                break
            instances += granted
            refused += refusals_
            if len(granted) < count:
                break
        # Each further zone takes seconds, and the caller can try other offerings.
        if len(instances) >= order.count or calls.now() - began > ORDER_SECONDS:
            break
    return BuyResult(tuple(instances), 0, tuple(refused))


async def _launch(
    calls: AsyncCalls, aws_pool: AwsPool, order: Order, keys: tuple[OfferingKey, ...], *, count: int, token: str
) -> tuple[list[Instance], tuple[Refusal, ...]]:
    weight = least_weight(aws_pool, keys)
    reply = await calls.write(
        "autoscaling",
        aws_pool.group.region,
        "LaunchInstances",
        AutoScalingGroupName=aws_pool.group.name,
        RequestedCapacity=count * weight,
        ClientToken=token,
        AvailabilityZones=[keys[0].zone],
        RetryStrategy="none",
    )
    now = calls.now()
    instances = [
        Instance(provider_id(keys[0].zone, ident), *launched_offering(entry, keys), state=PENDING, launched=now, token=order.token)
        for entry in reply.get("Instances") or ()
        for ident in entry.get("InstanceIds") or ()
    ]
    meanings = [_entry_meaning(entry) for entry in reply.get("Errors") or ()]
    if len(instances) * weight < count * weight and not meanings:
        meanings = [ErrorMeaning(UNKNOWN, f"{len(instances)} of {count} machines were launched, and AWS gave no reason for the others")]
    return instances, refusals(meanings, keys)


def launched_offering(entry: Reply, keys: tuple[OfferingKey, ...]) -> OfferingKey:
    """The offering that was launched: one that was requested, else as AWS reports it."""
    kinds, markets = ({key[place] for key in keys} for place in (2, 1))
    # If the order leaves no choice, the spelling in the reply does not matter.
    kind = str(entry.get("InstanceType") or (keys[0].instance_type if len(kinds) == 1 else "")).lower()
    is_spot = (
        keys[0].market == "spot" if len({market == "spot" for market in markets}) == 1 else is_same_word(entry.get("MarketType"), "spot")
    )
    matching = [key for key in keys if key.instance_type == kind and (key.market == "spot") == is_spot]
    return matching[0] if matching else OfferingKey(keys[0].pool, "spot" if is_spot else "on-demand", kind, keys[0].zone)


def _entry_meaning(entry: Reply) -> ErrorMeaning:
    meaning = interpret_error(str(entry.get("ErrorCode") or ""), str(entry.get("ErrorMessage") or ""))
    return ErrorMeaning(
        meaning.cause,
        meaning.detail,
        meaning.scope,
        entry.get("InstanceType") or meaning.instance_type,
        entry.get("AvailabilityZone") or meaning.zone,
    )


# Buying by raising the desired capacity


async def raise_capacity(calls: AsyncCalls, aws_pool: AwsPool, order: Order) -> tuple[Increment | None, BuyResult]:
    """Raise the desired capacity for ``order``; returns the outstanding increment, None if the group is at its maximum.

    Raises CloudError, and LostAnswerError if it is unknown whether the capacity was raised.
    """
    region, name = aws_pool.group.region, aws_pool.group.name
    group = await calls.group(region, name)
    if "Launch" in group.suspended:
        raise CloudError(CONFIGURATION, f"group {name} in {region} has its process Launch suspended; resume it, or set the pool's max to 0")
    weight = least_weight(aws_pool, order.offerings)
    driver = _Driver(calls, group)
    outcome = await driver.drive(raising_steps(order.count * weight))
    if not outcome.units:
        detail = f"group {name} in {region} is at its maximum of {group.max}"
        return None, BuyResult(refusals=tuple(Refusal(UNKNOWN, key, detail) for key in order.offerings))
    before = frozenset(machine.id for machine in group.machines)
    increment = Increment(order, outcome.units, weight, driver.since, before, aws_pool, at=calls.now())
    return increment, BuyResult(pending=outcome.units // weight)


async def was_raised(calls: AsyncCalls, aws_pool: AwsPool, order: Order, *, since: float) -> bool:
    """Whether activities show that the group was raised for ``order`` after ``since``: by the full number, or up to the group's maximum."""
    group = await calls.group(aws_pool.group.region, aws_pool.group.name)
    units = order.count * least_weight(aws_pool, order.offerings)
    log = activity_log(await _activities(calls, group), since=since)
    return any(change.after - change.before == units or (change.before < change.after == group.max) for change in log.changes)


async def read_results(calls: AsyncCalls, increment: Increment, claimed: Callable[[str], bool]) -> LaunchReport:
    """Read the results of an increment: new machines that no other order has ``claimed`` are added to ``machines``."""
    group = await calls.group(increment.aws_pool.group.region, increment.aws_pool.group.name)
    assign_machines(increment, group, claimed)
    return launch_report(await _activities(calls, group), since=increment.since)


def assign_machines(increment: Increment, group: Group, claimed: Callable[[str], bool]) -> None:
    """Assign new machines of ``group`` to the increment, as long as it lacks any."""
    for machine in group.machines:
        if machine.id in increment.machines or (
            increment.missing and machine.state in PRESENT_STATES and machine.id not in increment.before and not claimed(machine.id)
        ):
            increment.machines[machine.id] = machine


async def withdraw_missing(calls: AsyncCalls, increment: Increment) -> CapacityOutcome:
    """Withdraw what an increment still lacks. Machines that exist stay."""
    group = await calls.group(increment.aws_pool.group.region, increment.aws_pool.group.name)
    return await _Driver(calls, group).drive(withdrawing_steps(increment.missing))


def answer_so_far(increment: Increment, report: LaunchReport, *, pending: int) -> BuyResult:
    """The answer to an increment as known so far."""
    instances = tuple(
        instance_of(machine, increment.aws_pool, None, token=increment.order.token) for machine in increment.machines.values()
    )
    refused = refusals(report.failures, increment.order.offerings)
    if not refused and len(instances) + pending < increment.order.count and not pending:
        detail = (
            f"group {increment.aws_pool.group.name} launched {len(instances)} of {increment.order.count} machines and "
            "gave no reason for the others"
        )
        refused = tuple(Refusal(CAPACITY, key, detail) for key in increment.order.offerings)
    return BuyResult(instances, pending, refused)


async def _activities(calls: AsyncCalls, group: Group) -> list[Any]:
    """The newest activities of a group: one page covers more than a group does within the time limit of an order."""
    reply = await calls.read(
        "autoscaling", group.region, "DescribeScalingActivities", AutoScalingGroupName=group.name, MaxRecords=MAX_ACTIVITIES
    )
    return list(reply.get("Activities") or ())


class _Driver:
    """Makes the calls that the steps of :mod:`~gpuscaler.clouds.aws.buying.withdrawing` request."""

    def __init__(self, calls: AsyncCalls, group: Group) -> None:
        self._calls, self._region, self._name = calls, group.region, group.name
        #: The time of the first answer, by AWS's clock.
        self.since = 0.0
        self._read = group
        self._changed: tuple[int, int] | None = None

    async def drive(self, steps: Steps) -> CapacityOutcome:
        """Run ``steps`` to their end. Raises CloudError and LostAnswerError only if the group was not changed, as far as is known."""
        await self._await_last_write()
        reply: object = None
        while True:
            try:
                step = steps.send(reply)
                reply = await self._perform(step)
            except StopIteration as stop:
                outcome: CapacityOutcome = stop.value
                return outcome
            except (CloudError, LostAnswerError) as error:
                if self._changed is None:
                    raise
                # The write took effect, even if the group could not be read again.
                before, after = self._changed
                return CapacityOutcome(abs(after - before), after, 0, str(error))

    async def _await_last_write(self) -> None:
        """Wait until the group shows the last write: starting from an older number would repeat or undo it."""
        at, before, after = self._calls.last_writes.get((self._region, self._name), (0.0, 0, 0))
        while before != after and self._read.desired == before and self._calls.now() < at + READ_LAG:
            await self._calls.sleep(OBSERVE_SECONDS)
            self._read = await self._calls.group(self._region, self._name)

    async def _perform(self, step: Step) -> object:
        match step:
            case Read():
                self._read = await self._calls.group(self._region, self._name)
                return self._read
            case ReadActivities():
                return await self._read_log()
            case Write(desired=desired):
                await self._set_desired(desired)
                self._calls.last_writes[self._region, self._name] = (self._calls.now(), self._read.desired, desired)
                self._changed = self._changed or (self._read.desired, desired)
            case Protect(instances=names):
                await self._protect(names)
        return None

    async def _set_desired(self, desired: int) -> None:
        try:
            await self._write("SetDesiredCapacity", DesiredCapacity=desired, HonorCooldown=False)
        except LostAnswerError:
            # The group itself shows whether the write took effect.
            if (await self._calls.group(self._region, self._name)).desired != desired:
                raise

    async def _read_log(self) -> object:
        reply = await self._calls.read(
            "autoscaling", self._region, "DescribeScalingActivities", AutoScalingGroupName=self._name, MaxRecords=MAX_ACTIVITIES
        )
        self.since = self.since or server_time(reply, self._calls.now())
        return activity_log(reply.get("Activities") or (), since=self.since)

    async def _protect(self, names: tuple[str, ...]) -> None:
        for first in range(0, len(names), MAX_PROTECTED):
            batch = list(names[first : first + MAX_PROTECTED])
            await self._write("SetInstanceProtection", InstanceIds=batch, ProtectedFromScaleIn=True)
            self._calls.protected.update(batch)

    async def _write(self, operation: str, **parameters: Any) -> None:
        await self._calls.write("autoscaling", self._region, operation, AutoScalingGroupName=self._name, **parameters)


def is_launch_unavailable(error: CloudError) -> bool:
    """Whether LaunchInstances is unavailable for a group, so that machines are bought by raising its desired capacity."""
    if isinstance(error, DeniedError):
        return True
    code, text = getattr(error, "code", ""), str(getattr(error, "text", ""))
    return code in ("InvalidAction", "UnknownOperationException", "NotImplemented") or "LaunchInstances is not supported" in text
