"""Auto Scaling groups as a :class:`~gpuscaler.clouds.protocol.Provider`: discovery, inventory, buying, ending and announcements."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from gpuscaler.clouds.aws.api.asking import AsyncCalls, Sleep
from gpuscaler.clouds.aws.api.calls import Calls
from gpuscaler.clouds.aws.api.causes import widen_quota_refusals
from gpuscaler.clouds.aws.api.groups import Group, GroupError, Machine, group_of
from gpuscaler.clouds.aws.buying.buying import is_launch_unavailable, launch
from gpuscaler.clouds.aws.buying.delivering import DeliveryTracker
from gpuscaler.clouds.aws.buying.ending import complete_hook, end_machine, send_heartbeat, set_protection
from gpuscaler.clouds.aws.buying.hooks import HeldEnds, HeldStarts, Hooks
from gpuscaler.clouds.aws.buying.increments import Increments
from gpuscaler.clouds.aws.buying.terminations import EKS_HOOK, Terminations
from gpuscaler.clouds.aws.discovery.discovery import Discovery, DiscoveryResult
from gpuscaler.clouds.aws.discovery.findings import TAINT_ADVICE
from gpuscaler.clouds.aws.discovery.pools import DESIRED, FLEET, LAUNCH, NO_FLEETS, AwsPool
from gpuscaler.clouds.aws.discovery.regions import MAX_NAMES, chunks
from gpuscaler.clouds.aws.machines.departed import DepartedMachines
from gpuscaler.clouds.aws.machines.inbox import Inbox
from gpuscaler.clouds.aws.machines.listing import Detail, details_of, instance_id, instance_of, machines_by_id
from gpuscaler.clouds.aws.machines.notices import HELD, STATE, Announcement
from gpuscaler.clouds.discovery.describing import pools_by_warning, shortened_names, unread_parts
from gpuscaler.clouds.protocol import (
    CONFIGURATION,
    INTERRUPTION,
    REBALANCE,
    TERMINATION,
    TEST,
    THROTTLED,
    UNAUTHORISED,
    UNKNOWN,
    AccountReport,
    BuyResult,
    CloudError,
    LostAnswerError,
    Notice,
    Order,
    Refusal,
    UnfilledOrder,
    UnreadPart,
)
from gpuscaler.model.instances import Instance, Inventory
from gpuscaler.model.pools import Pool

#: Threads for calls, and ids per DescribeInstances call.
THREADS, DESCRIBED = 16, 100
#: How long the end of a machine waits for other changes of its group's capacity, and then until it is tried again, in seconds.
TURN_SECONDS: Final = 4.0
#: Machines per SetInstanceProtection call.
PROTECTED_AT_ONCE = 50
#: Why an on-demand machine goes that neither we nor its group ended.
ENDED_OUTSIDE = "EC2 ends the machine, and neither gpuscaler nor the machine's group requested the end"


@dataclass(slots=True)
class _Listing:
    """The last inventory: machines by EC2 id, and the pool of each."""

    machines: Mapping[str, tuple[Group, Machine]] = field(default_factory=dict)
    pools: Mapping[tuple[str, str], AwsPool] = field(default_factory=dict)


class AwsProvider:
    """Buys in the groups that ``discovery`` finds. ``fence`` is called in the event loop right before each write, and raises to stop it.

    ``now`` is the wall clock and ``sleep`` waits by it; ``queue_url`` is the SQS queue of announcements, empty if there is none.
    ``executor`` runs the calls; by default the provider creates its own.
    """

    name = "aws"
    #: AWS does not document how far Auto Scaling's answers may be behind; Cluster Autoscaler waits for a minute.
    read_lag = 10.0

    def __init__(
        self,
        calls: Calls,
        discovery: Discovery,
        *,
        fence: Callable[[float], None],
        now: Callable[[], float],
        sleep: Sleep = asyncio.sleep,
        queue_url: str = "",
        queue_region: str = "",
        executor: Executor | None = None,
    ) -> None:
        self._executor = executor or ThreadPoolExecutor(max_workers=THREADS, thread_name_prefix="aws")
        self._calls = AsyncCalls(calls, self._executor, fence=fence, now=now, sleep=sleep)
        self._discovery = discovery
        self._inbox = Inbox(self._calls, queue_url, region=queue_region) if queue_url else None
        self._listing = _Listing()
        #: Groups that are pools, and those that were released, where nothing new is started.
        self._aws_pools: dict[str, AwsPool] = {}
        self._released_names: tuple[str, ...] = ()
        #: Regions that are still unknown (None before the first pass), the failures of the latest pass, and whether permissions were the
        #: cause.
        self._unknown: tuple[str, ...] | None = None
        self._failed: tuple[UnreadPart, ...] = ()
        self._forbidden = False
        self._discovering: asyncio.Future[DiscoveryResult] | None = None
        self._fallback_reasons: dict[str, str] = {}
        self._details: dict[str, Detail] = {}
        self._increments = Increments(self._calls)
        self._departed = DepartedMachines(self._calls)
        self._delivery_tracker = DeliveryTracker(self._calls)
        hooks = Hooks(self._calls)
        self._terminations, self._starts, self._ends = Terminations(self._calls, hooks), HeldStarts(hooks), HeldEnds(self._calls)
        #: Regions in which LaunchInstances has answered.
        self._launching: set[str] = set()
        self._ended: set[str] = set()
        #: Machines whose end was announced, or became likely.
        self._announced: set[str] = set()

    @property
    def keeps_tokens(self) -> bool:
        """Whether machines of all groups are bought with LaunchInstances, which answers a repeated token as it did before.

        Whether LaunchInstances is available is only known after it succeeded: sending an order again in another way would buy twice.
        """
        return all(
            self.way_to_buy(name)[0] == LAUNCH and aws_pool.group.region in self._launching for name, aws_pool in self._aws_pools.items()
        )

    @property
    def inbox(self) -> Inbox | None:
        return self._inbox

    def way_to_buy(self, pool: str) -> tuple[str, str]:
        """How machines of ``pool`` are bought; and if this is not the way that the group allows, the reason, else an empty text."""
        if pool in self._fallback_reasons:
            return DESIRED, self._fallback_reasons[pool]
        aws_pool = self._aws_pools[pool]
        return aws_pool.bought_by, NO_FLEETS if aws_pool.launch == FLEET else ""

    # Reading

    async def pools(self) -> Sequence[Pool]:
        """The current pools of the account."""
        return (await self.read_account()).pools

    async def read_account(self) -> AccountReport:
        """Read the account. Never raises for an answer of AWS: failures are reported, and what was known before stays valid."""
        if self._discovering is None or self._discovering.done():
            self._discovering = asyncio.get_running_loop().run_in_executor(self._executor, self._discovery.discover)
        # The pass continues even if the caller is cancelled, and two must not run at once.
        discovered = await asyncio.shield(self._discovering)
        self._aws_pools = {aws_pool.pool.name: aws_pool for aws_pool in (*discovered.pools, *discovered.released)}
        self._released_names = tuple(aws_pool.pool.name for aws_pool in discovered.released)
        self._unknown, self._forbidden = discovered.unknown, discovered.forbidden
        self._failed = unread_parts(discovered.set_aside, discovered.causes)
        return AccountReport(
            pools=tuple(map(self._as_bought, discovered.pools)),
            set_aside=tuple(skipped for skipped in discovered.set_aside if skipped.object not in discovered.causes),
            warnings=(
                *self._queue_warnings(),
                *self._terminations.warnings(),
                *self._ends.warnings(),
                *(
                    f"{'pool' if len(names) == 1 else 'pools'} {shortened_names(names)}: {warning}"
                    for warning, names in pools_by_warning(discovered.pools).items()
                ),
            ),
            ways={name: ": ".join(filter(None, self.way_to_buy(name))) for name in self._aws_pools},
            taint_advice=dict.fromkeys(self._aws_pools, TAINT_ADVICE),
            failed=self._failed,
            complete=not discovered.unknown,
        )

    def _as_bought(self, aws_pool: AwsPool) -> Pool:
        """The pool; if machines are bought by raising the desired capacity, the group chooses among the offerings."""
        chooses = len(aws_pool.pool.offerings) > 1 and self.way_to_buy(aws_pool.pool.name)[0] == DESIRED
        return replace(aws_pool.pool, chooser="cloud", names_zone=False) if chooses else aws_pool.pool

    def _queue_warnings(self) -> tuple[str, ...]:
        if self._inbox is None:
            return ()
        counts, warnings = self._inbox.counts, []
        if counts.malformed:
            warnings.append(
                f"the queue: {counts.malformed} of {counts.messages} messages could not be read and were dropped, last: "
                f"{self._inbox.last_malformed}"
            )
        if self._inbox.delete_error:
            warnings.append(f"the queue: processed messages could not be deleted and will be delivered again: {self._inbox.delete_error}")
        return tuple(warnings)

    async def inventory(self) -> Inventory:
        """All machines of the groups that are pools, and ended ones for as long as EC2 reports them.

        A partial list would be wrong: one region that does not answer fails the call.
        """
        if self._unknown is None or self._unknown:
            await self.read_account()
        if self._unknown:
            problem = f"nothing is known yet about {', '.join(self._unknown)}, and a list without the machines there would be incomplete"
            raise CloudError(UNAUTHORISED if self._forbidden else UNKNOWN, "; ".join((*(part.text for part in self._failed), problem)))
        at = self._calls.now()
        pools = {(aws_pool.group.region, aws_pool.group.name): aws_pool for aws_pool in self._aws_pools.values()}
        groups = await self._read_groups(pools)
        machines = machines_by_id(groups)
        await self._read_details(machines)
        await self._starts.follow(machines)
        self._ends.follow(machines)
        await self._terminations.follow(machines, self._ended)
        self._listing = _Listing(machines, pools)
        self._drop_gone(machines)
        listed_instances = [(group.region, self._instance(group, machine)) for group, machine in machines.values()]
        ended = await self._departed.list_ended(listed_instances, pools)
        deliveries = await self._delivery_tracker.deliveries(groups, pools)
        return Inventory(at, (*(instance for _, instance in listed_instances), *ended), deliveries, self._released_names)

    async def _read_groups(self, pools: Iterable[tuple[str, str]]) -> list[Group]:
        by_region: dict[str, list[str]] = {}
        for region, name in pools:
            by_region.setdefault(region, []).append(name)
        batches = [(region, batch) for region, names in by_region.items() for batch in chunks(names, MAX_NAMES)]
        answers = await asyncio.gather(*(self._describe_groups(region, batch) for region, batch in batches))
        return [group for groups in answers for group in groups]

    async def _describe_groups(self, region: str, names: list[str]) -> list[Group]:
        entries = await self._calls.pages(
            "autoscaling", region, "DescribeAutoScalingGroups", "AutoScalingGroups", AutoScalingGroupNames=names, MaxRecords=100
        )
        try:
            return [group_of(entry, region) for entry in entries]
        except GroupError as error:
            raise CloudError(CONFIGURATION, f"autoscaling in {region}: {error}") from error

    async def _read_details(self, machines: Mapping[str, tuple[Group, Machine]]) -> None:
        """Read details of new machines that their groups do not list. A machine that EC2 does not know yet is read again next time."""
        unknown: dict[str, list[str]] = {}
        for name, (group, _) in machines.items():
            if name not in self._details:
                unknown.setdefault(group.region, []).append(name)
        batches = [(region, batch) for region, names in unknown.items() for batch in chunks(names, DESCRIBED)]
        for details in await asyncio.gather(*(self._details_of(region, batch) for region, batch in batches)):
            self._details |= details

    async def _details_of(self, region: str, names: list[str]) -> dict[str, Detail]:
        # By filter: in a call by id, one that EC2 does not know yet would fail the whole call.
        filters = [{"Name": "instance-id", "Values": names}]
        return details_of(await self._calls.pages("ec2", region, "DescribeInstances", "Reservations", Filters=filters))

    def _instance(self, group: Group, machine: Machine) -> Instance:
        aws_pool = self._listing.pools[group.region, group.name]
        instance = instance_of(machine, aws_pool, self._details.get(machine.id), token=self._increments.tokens.get(machine.id, ""))
        instance = replace(instance, guarded=machine.id in self._calls.protected, doubt=self._starts.doubt(machine.id))
        termination = self._terminations.termination_of(machine.id)
        return (
            instance if termination is None else replace(instance, cause=termination.why, until=termination.until, held=termination.seconds)
        )

    def _drop_gone(self, machines: Mapping[str, object]) -> None:
        """Drop what is known about machines that are gone; tokens stay, since machines that were just bought may not be listed yet."""
        self._details = {name: detail for name, detail in self._details.items() if name in machines}
        self._ended &= machines.keys()
        self._calls.protected &= machines.keys()
        self._announced &= machines.keys()
        tokens = self._increments.tokens
        if len(tokens) > 2 * len(machines) + 1000:
            self._increments.tokens = {name: token for name, token in tokens.items() if name in machines}

    # Buying

    async def buy(self, order: Order) -> BuyResult:
        """Buy in the way that suits the pool's group. :meth:`follow` returns the results of what is ``pending`` afterwards."""
        aws_pool = self._aws_pools.get(order.pool)
        if aws_pool is None:
            raise CloudError(CONFIGURATION, f"saw no group for pool {order.pool}, expected one; was it deleted, or its tags changed?")
        if self.way_to_buy(order.pool)[0] == LAUNCH:
            try:
                bought = await launch(self._calls, aws_pool, order)
            except CloudError as error:
                if not is_launch_unavailable(error):
                    raise
                self._fallback_reasons[order.pool] = f"LaunchInstances is not available: {error.detail}"
            else:
                self._launching.add(aws_pool.group.region)
                return self._with_widened_refusals(self._increments.remember_tokens(order, bought))
        return self._with_widened_refusals(await self._increments.buy(aws_pool, order))

    def _with_widened_refusals(self, bought: BuyResult) -> BuyResult:
        """The answer, with quota refusals widened to all types of their bucket."""
        if not bought.refusals:
            return bought
        offered = (offering.key for aws_pool in self._aws_pools.values() for offering in aws_pool.pool.offerings)
        return replace(bought, refusals=widen_quota_refusals(bought.refusals, offered))

    async def follow(self, orders: Sequence[UnfilledOrder] = (), /) -> Sequence[tuple[str, BuyResult]]:
        """Final answers, by token, of orders that were ``pending`` and are settled now.

        What a group could not launch is withdrawn before it is reported as refused. ``orders`` of another process are continued.
        """
        self._increments.drop_resumed_except([unfilled.order.token for unfilled in orders])
        for unfilled in orders:
            await self._resume(unfilled)
        return [(token, self._with_widened_refusals(bought)) for token, bought in await self._increments.follow()]

    async def withdraw(self, rest: UnfilledOrder, /) -> None:
        """Cancel what an order still lacks. An order that was bought with LaunchInstances has nothing to withdraw.

        If it is unknown whether the order's group was raised, the group's activities are read, which appear late.
        """
        if self._unknown and rest.order.pool not in self._aws_pools:
            raise CloudError(UNKNOWN, f"nothing is known yet about {', '.join(self._unknown)}, where pool {rest.order.pool} may be")
        if await self._resume(rest):
            await self._increments.withdraw(rest)

    async def _resume(self, rest: UnfilledOrder) -> bool:
        """Continue an order if it may have raised a group; returns whether it may."""
        aws_pool = self._aws_pools.get(rest.order.pool)
        # LaunchInstances leaves nothing pending: what was accepted and has not come was ordered through the desired capacity.
        by_number = rest.accepted or (aws_pool is not None and self.way_to_buy(rest.order.pool)[0] != LAUNCH)
        if aws_pool is None or not rest.missing or not by_number or self._increments.was_settled(rest.order.token):
            return False
        if not self._listing.machines:
            await self.inventory()
        key = (aws_pool.group.region, aws_pool.group.name)
        listed = [name for name, (group, _) in self._listing.machines.items() if (group.region, group.name) == key]
        await self._increments.resume(rest, aws_pool, listed)
        return True

    # Ending

    async def remove(self, ids: Sequence[str]) -> Mapping[str, Refusal | None]:
        """End machines by id. A machine that none of our groups lists is never touched."""
        if any(instance_id(name) not in self._listing.machines for name in ids):
            await self.inventory()
        return {name: await self._remove(instance_id(name)) for name in ids}

    async def _remove(self, instance: str) -> Refusal | None:
        if instance not in self._listing.machines:
            return None
        group, machine = self._listing.machines[instance]
        if self._terminations.termination_of(instance) is not None:
            # Its group is ending it already: another request would also lower the group. A hook that holds it can be completed.
            return await self._release(group, instance)
        lock = self._increments.lock(self._listing.pools[group.region, group.name])
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await lock.acquire()
        except TimeoutError:
            detail = f"group {group.name}: other changes of its capacity by this process come first"
            return Refusal(THROTTLED, self._instance(group, machine).key, detail, retry_after=TURN_SECONDS)
        try:
            self._ended.add(instance)
            replaced = await self._is_replaced(group, instance)
            refusal = await end_machine(self._calls, group.region, instance, self._instance(group, machine), replaced=replaced)
        finally:
            lock.release()
        if refusal is not None:
            self._ended.discard(instance)
        elif self._inbox is not None and instance in self._inbox.hooks:
            await self._complete_hooks(group, instance)
        return refusal

    async def _is_replaced(self, group: Group, instance: str) -> bool:
        """Whether a group that replaces machines whose end is announced has already launched a replacement for this one."""
        if not group.capacity_rebalance or instance not in self._announced:
            return False
        with contextlib.suppress(CloudError):
            group = await self._calls.group(group.region, group.name)
        return group.surplus > 0

    async def _release(self, group: Group, instance: str) -> Refusal | None:
        self._ended.add(instance)
        await self._complete_hooks(group, instance)
        return None

    async def _complete_hooks(self, group: Group, instance: str) -> None:
        """Complete the hooks that hold a machine whose pods are gone; a hook that stays releases it when its time is over."""
        for name in await self._own_hooks(group, instance):
            with contextlib.suppress(CloudError, LostAnswerError):
                await complete_hook(self._calls, group, name, instance)
        if self._inbox is not None:
            self._inbox.hooks.pop(instance, None)

    async def extend(self, ids: Sequence[str]) -> None:
        """Send a heartbeat for the hooks that hold these machines. EKS manages its own hook."""
        for instance in map(instance_id, ids):
            if instance in self._listing.machines:
                group, _ = self._listing.machines[instance]
                for name in await self._own_hooks(group, instance):
                    await send_heartbeat(self._calls, group, name, instance)

    async def protect(self, ids: Sequence[str], *, on: bool) -> None:
        """Turn scale-in protection of machines on or off. Raises CloudError for the first group that refuses."""
        by_group: dict[tuple[str, str], list[str]] = {}
        for instance in map(instance_id, ids):
            if instance in self._listing.machines:
                group, _ = self._listing.machines[instance]
                by_group.setdefault((group.region, group.name), []).append(instance)
        for (region, group_name), names in by_group.items():
            for batch in chunks(names, PROTECTED_AT_ONCE):
                await set_protection(self._calls, region, group_name, batch, on=on)
                self._calls.protected.difference_update(batch)

    async def _own_hooks(self, group: Group, instance: str) -> tuple[str, ...]:
        """The names of hooks that hold ``instance`` and that we may act on.

        With a queue, gpuscaler acts on hooks as the AWS Node Termination Handler does. A hook with a notification target other than that
        queue belongs to the listener there.
        """
        if self._inbox is None:
            return ()
        hook = self._inbox.hooks.get(instance)
        own_hooks = [hold.name for hold in await self._terminations.holds_on(group.region, group.name) if hold.ours]
        named = [hook.name] if hook is not None and hook.name != EKS_HOOK else []
        return tuple(dict.fromkeys((*named, *own_hooks)))

    # Announcements

    async def notices(self) -> Sequence[Notice]:
        """New announcements in the queue about our machines, and test messages, each once."""
        if self._inbox is None:
            return ()
        await self._inbox.receive()
        notices: list[Notice] = []
        for announcement in self._inbox.take_announcements(self._listing.machines):
            if announcement.kind == TEST:
                notices.append(Notice(TEST, announcement.instance))
                continue
            group, machine = self._listing.machines[announcement.instance]
            if announcement.kind in (INTERRUPTION, REBALANCE):
                self._announced.add(announcement.instance)
            if announcement.instance not in self._ended:
                notices += self._notices_of(announcement, self._instance(group, machine))
            elif announcement.hook is not None:
                await self._complete_hooks(group, announcement.instance)
        return notices

    def _notices_of(self, announcement: Announcement, instance: Instance) -> Sequence[Notice]:
        """Notices for ``announcement``: a machine that ends without our doing is interrupted, unless its group has been seen to end it."""
        if announcement.kind == HELD:
            return (Notice(TERMINATION, instance.id),)
        if announcement.kind != STATE:
            return (Notice(announcement.kind, instance.id, announcement.at),)
        if self._terminations.termination_of(announcement.instance) is not None:
            return ()
        return (Notice(INTERRUPTION, instance.id, why="" if instance.market == "spot" else ENDED_OUTSIDE),)

    async def close(self) -> None:
        """Shut down the threads; a call that was already sent ends by itself."""
        await self._increments.close()
        self._discovery.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
