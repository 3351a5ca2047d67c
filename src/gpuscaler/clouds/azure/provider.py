"""Scale sets and agent pools as a :class:`~gpuscaler.clouds.protocol.Provider`: discovery, inventory, buying and ending."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from gpuscaler.clouds.azure.api.arm import Arm, ArmError
from gpuscaler.clouds.azure.api.causes import ArmFailure, meaning_of, refusals
from gpuscaler.clouds.azure.api.rights import describe_denial
from gpuscaler.clouds.azure.buying.ending import Endings
from gpuscaler.clouds.azure.buying.groups import group_of
from gpuscaler.clouds.azure.buying.increments import Increments
from gpuscaler.clouds.azure.buying.quotas import Quotas
from gpuscaler.clouds.azure.discovery.discovery import Discovery, DiscoveryResult
from gpuscaler.clouds.azure.discovery.pools import AGENT_POOL, SCALE_SET, AzurePool
from gpuscaler.clouds.azure.documents.resources import SPOT, VirtualMachine, is_word
from gpuscaler.clouds.azure.documents.skus import Sku
from gpuscaler.clouds.azure.machines.listing import READ_LAG, has_come, instance_of, is_leaving, provider_id
from gpuscaler.clouds.azure.machines.lists import MachineLists, PoolMachines
from gpuscaler.clouds.discovery.describing import pools_by_warning, shortened_names, unread_parts
from gpuscaler.clouds.protocol import (
    CAPACITY,
    CONFIGURATION,
    QUOTA,
    UNAUTHORISED,
    UNKNOWN,
    AccountReport,
    BuyResult,
    CloudError,
    Notice,
    Order,
    Refusal,
    UnfilledOrder,
    UnreadPart,
)
from gpuscaler.model.azure_names import canonical_provider_id, fold_id
from gpuscaler.model.instances import STOPPING, Delivery, Instance, Inventory
from gpuscaler.model.pools import Pool

#: A machine of a system pool is never the last one that is ended: AKS runs its own pods there.
_SYSTEM: Final = "System"
#: Codes with which Azure refuses writes in the resource group of AKS's machines that only AKS may make.
_LOCKED: Final = ("denyassignmentauthorizationfailed", "scopelocked")


@dataclass(slots=True)
class _Listing:
    """The last inventory: the pool and machine by provider id, and the machines of each pool."""

    machines: Mapping[str, tuple[AzurePool, VirtualMachine]] = field(default_factory=dict)
    pools: Mapping[str, PoolMachines] = field(default_factory=dict)


class AzureProvider:
    """Buys in the scale sets and agent pools that ``discovery`` finds, with the calls of ``arm``, whose fence stops writes.

    ``now`` is the wall clock and ``sleep`` waits by it.
    """

    name = "azure"
    read_lag = READ_LAG
    #: Azure keeps no tokens of orders: a repeated order would buy again.
    keeps_tokens = False

    def __init__(
        self, arm: Arm, discovery: Discovery, *, now: Callable[[], float], sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> None:
        self._arm, self._discovery, self._now = arm, discovery, now
        self._azure_pools: dict[str, AzurePool] = {}
        self._released_names: tuple[str, ...] = ()
        #: Subscriptions that are still unknown (None before the first pass), and the failures of the latest pass.
        self._unknown: tuple[str, ...] | None = None
        self._failed: tuple[UnreadPart, ...] = ()
        self._forbidden = False
        self._discovering: asyncio.Task[DiscoveryResult] | None = None
        self._listing = _Listing()
        #: Pools whose scale sets only AKS may write, as Azure has answered.
        self._locked: set[str] = set()
        self._lists = MachineLists(arm, now=now)
        self._increments = Increments(arm, now=now, sleep=sleep, refuse=self._refusals, known=self._known_machines)
        self._endings = Endings(
            arm, self._increments.deletions, now=now, sleep=sleep, lock=self._increments.lock, runs=self._increments.is_running
        )
        self._quotas = Quotas(arm, now=now)

    # Reading

    async def pools(self) -> Sequence[Pool]:
        """The current pools of the subscriptions."""
        return (await self.read_account()).pools

    async def read_account(self) -> AccountReport:
        """Read the subscriptions. Never raises for an answer of Azure: failures are reported, and what was known before stays valid."""
        if self._discovering is None or self._discovering.done():
            self._discovering = asyncio.create_task(self._discovery.discover())
        # The pass continues even if the caller is cancelled, and two must not run at once.
        discovered = await asyncio.shield(self._discovering)
        found = (*discovered.pools, *discovered.released)
        self._azure_pools = {azure_pool.pool.name: self._as_allowed(azure_pool) for azure_pool in found}
        self._released_names = tuple(azure_pool.pool.name for azure_pool in discovered.released)
        self._increments.refuse_queued({azure_pool.pool.name for azure_pool in discovered.pools})
        self._unknown, self._forbidden = discovered.unknown, discovered.forbidden
        self._failed = unread_parts(discovered.set_aside, discovered.causes)
        return AccountReport(
            pools=tuple(azure_pool.pool for azure_pool in discovered.pools),
            set_aside=tuple(skipped for skipped in discovered.set_aside if skipped.object not in discovered.causes),
            warnings=tuple(
                f"{'pool' if len(names) == 1 else 'pools'} {shortened_names(names)}: {warning}"
                for warning, names in pools_by_warning(discovered.pools).items()
            ),
            ways={name: azure_pool.way for name, azure_pool in self._azure_pools.items()},
            taint_advice={name: azure_pool.taint_advice for name, azure_pool in self._azure_pools.items()},
            failed=self._failed,
            complete=not discovered.unknown,
        )

    def _as_allowed(self, azure_pool: AzurePool) -> AzurePool:
        """The pool, bought through AKS if only AKS may write its scale set."""
        return replace(azure_pool, way=AGENT_POOL) if azure_pool.pool.name in self._locked else azure_pool

    async def inventory(self) -> Inventory:
        """All machines of the groups that are pools. A partial list would be wrong: one group that does not answer fails the call."""
        if self._unknown is None or self._unknown:
            await self.read_account()
        if self._unknown:
            problem = f"nothing is known yet about {', '.join(self._unknown)}, and a list without the machines there would be incomplete"
            raise CloudError(UNAUTHORISED if self._forbidden else UNKNOWN, "; ".join((*(part.text for part in self._failed), problem)))
        self._increments.tend_soon()
        lists = await self._lists.refresh(self._azure_pools, self._increments.watched)
        machines = {
            provider_id(machine): (self._azure_pools[name], machine)
            for name, known in lists.items()
            for machine in known.machines
            if has_come(machine)
        }
        self._listing = _Listing(machines, dict(lists))
        listed = {fold_id(machine.id) for _, machine in machines.values()}
        self._endings.drop_gone(listed)
        self._increments.attribution.drop_gone(listed)
        instances = tuple(self._instance(azure_pool, machine) for azure_pool, machine in machines.values())
        deliveries = tuple(Delivery(name, known.missing) for name, known in lists.items())
        now = self._now()
        return Inventory(now, instances, deliveries, self._released_names, age=max(0.0, now - self._lists.read_at))

    def _instance(self, azure_pool: AzurePool, machine: VirtualMachine) -> Instance:
        ident, attribution = fold_id(machine.id), self._increments.attribution
        instance = instance_of(machine, azure_pool, token=attribution.tokens.get(ident, ""), reserved=attribution.reserved)
        # A deletion that Azure accepted is not on the list at once.
        return replace(instance, state=STOPPING) if ident in self._endings.ending else instance

    def _known_machines(self, azure_pool: AzurePool) -> Sequence[VirtualMachine]:
        known = self._listing.pools.get(azure_pool.pool.name)
        return known.machines if known is not None else ()

    # Buying

    async def buy(self, order: Order) -> BuyResult:
        """Raise the capacity of the pool's group. :meth:`follow` returns the results of what is ``pending`` afterwards."""
        azure_pool = self._azure_pools.get(order.pool)
        if azure_pool is None:
            raise CloudError(CONFIGURATION, f"saw no group for pool {order.pool}, expected one; was it deleted, or its tags changed?")
        key = order.offerings[0]
        room, quota = await self._quotas.room(azure_pool, self._sku(azure_pool, key.instance_type), key.market)
        if room != 0:
            # What is ordered now counts towards the quota, too.
            self._quotas.forget(azure_pool)
        if room is None or room >= order.count:
            return await self._increments.buy(azure_pool, order)
        bought = await self._increments.buy(azure_pool, replace(order, count=room)) if room else BuyResult()
        detail = f"{order.count} machines of {key.instance_type} do not fit: {quota}"
        short = self._of_subscription(azure_pool, (Refusal(QUOTA, key, detail, bucket=(key.instance_type,), every_zone=True),))
        return replace(bought, refusals=(*bought.refusals, *short))

    def _sku(self, azure_pool: AzurePool, size: str) -> Sku | None:
        return next((sku for name, sku in azure_pool.skus.items() if is_word(name, size)), None)

    def _refusals(
        self, azure_pool: AzurePool, order: Order, failure: ArmFailure | None, detail: str, *, partial: bool = False
    ) -> tuple[Refusal, ...]:
        """Why machines of ``order`` did not come; without a failure, ``detail`` is all that is known."""
        if failure is None:
            return tuple(Refusal(CAPACITY, key, detail) for key in order.offerings)
        if self._is_locked(azure_pool, failure):
            # The next order goes through AKS.
            return ()
        meaning = meaning_of(failure)
        if meaning.cause == UNAUTHORISED and (denial := describe_denial(failure)):
            meaning = replace(meaning, detail=f"{denial}: {meaning.detail}")
        if meaning.cause == QUOTA:
            self._quotas.forget(azure_pool)
        place = (azure_pool.subscription, azure_pool.location)
        beside = [other for other in self._azure_pools.values() if (other.subscription, other.location) == place]
        offered = [offering.key for other in beside for offering in other.pool.offerings]
        skus = {name: sku for other in beside for name, sku in other.skus.items()}
        return self._of_subscription(azure_pool, refusals((meaning,), order.offerings, offered, skus, partial=partial))

    def _of_subscription(self, azure_pool: AzurePool, refused: tuple[Refusal, ...]) -> tuple[Refusal, ...]:
        """``refused``, with the pools of the subscription where others have pools in the location, too.

        Quotas and offered sizes are a subscription's own, and zone 1 of one may be zone 2 of another.
        """
        beside = [other for other in self._azure_pools.values() if other.location == azure_pool.location]
        own = [other.pool for other in beside if other.subscription == azure_pool.subscription]
        if len(own) == len(beside):
            return refused
        return tuple(
            replace(refusal, account_pools=tuple(sorted({refusal.offering.pool, *(pool.name for pool in own if _offers(pool, refusal))})))
            for refusal in refused
        )

    def _is_locked(self, azure_pool: AzurePool, failure: ArmFailure) -> bool:
        """Whether a write failed since only AKS may write the pool's scale set; from then on it is written through AKS."""
        if failure.code.lower() not in _LOCKED or azure_pool.agent_pool is None or azure_pool.way != SCALE_SET:
            return False
        name = azure_pool.pool.name
        self._locked.add(name)
        self._azure_pools[name] = self._as_allowed(self._azure_pools.get(name, azure_pool))
        return True

    async def follow(self, orders: Sequence[UnfilledOrder] = (), /) -> Sequence[tuple[str, BuyResult]]:
        """Final answers, by token, of orders that were ``pending`` and are settled now. ``orders`` of another process are continued."""
        tokens = {unfilled.order.token for unfilled in orders}
        self._increments.drop_resumed_except(tokens)
        for unfilled in orders:
            self._resume(unfilled)
        return await self._increments.follow(tokens)

    async def withdraw(self, rest: UnfilledOrder, /) -> None:
        """Cancel what an order still lacks."""
        if self._unknown and rest.order.pool not in self._azure_pools:
            raise CloudError(UNKNOWN, f"nothing is known yet about {', '.join(self._unknown)}, where pool {rest.order.pool} may be")
        self._resume(rest, in_doubt=True)
        await self._increments.withdraw(rest)

    def _resume(self, rest: UnfilledOrder, *, in_doubt: bool = False) -> None:
        azure_pool = self._azure_pools.get(rest.order.pool)
        if azure_pool is not None and rest.missing and rest.order.offerings:
            self._increments.resume(rest, azure_pool, in_doubt=in_doubt)

    # Ending

    async def remove(self, ids: Sequence[str]) -> Mapping[str, Refusal | None]:
        """End machines by id. A machine that none of our groups lists is never touched."""
        wanted = [canonical_provider_id(ident) for ident in ids]
        if any(ident not in self._listing.machines for ident in wanted):
            await self.inventory()
        answers = await asyncio.gather(*map(self._remove, wanted), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return dict(zip(ids, (answer for answer in answers if not isinstance(answer, BaseException)), strict=True))

    async def _remove(self, ident: str) -> Refusal | None:
        if ident not in self._listing.machines:
            return None
        azure_pool, machine = self._listing.machines[ident]
        instance = self._instance(azure_pool, machine)
        if is_leaving(machine):
            return None
        if self._is_last_of_system_pool(azure_pool, machine):
            name = azure_pool.pool.name
            return Refusal(CONFIGURATION, instance.key, f"pool {name} is a system pool, and this is its last machine; AKS needs one")
        # Spot machines and machines that do not run are not asked to shut down first.
        force = instance.market == SPOT or is_word(machine.state, "Failed")
        try:
            await self._end(azure_pool, machine, force=force)
        except CloudError as error:
            return Refusal(error.cause, instance.key, error.detail, retry_after=error.retry_after)
        return None

    async def _end(self, azure_pool: AzurePool, machine: VirtualMachine, *, force: bool) -> None:
        # The pool may be written in another way than when its machines were listed.
        group = group_of(self._arm, self._as_allowed(azure_pool), "")
        try:
            await self._endings.end(group, machine, force=force)
        except ArmError as error:
            if not self._is_locked(azure_pool, error.failure):
                raise
            await self._end(self._as_allowed(azure_pool), machine, force=force)

    def _is_last_of_system_pool(self, azure_pool: AzurePool, machine: VirtualMachine) -> bool:
        if azure_pool.agent_pool is None or not is_word(azure_pool.agent_pool.mode, _SYSTEM):
            return False
        known = self._listing.pools.get(azure_pool.pool.name)
        others = known.machines if known is not None else ()
        return not any(
            other.id != machine.id and not is_leaving(other) and has_come(other) and fold_id(other.id) not in self._endings.asked
            for other in others
        )

    async def extend(self, ids: Sequence[str]) -> None:
        """Azure delays no end of a machine."""

    async def protect(self, ids: Sequence[str], *, on: bool) -> None:
        """Scale sets and agent pools that are pools end no machine by themselves: those that would are set aside."""

    # Announcements

    async def notices(self) -> Sequence[Notice]:
        """Azure announces nothing to controllers: nodes carry what their machines read."""
        return ()

    async def close(self) -> None:
        """Cancel what is in progress and close connections; a call that was already sent ends by itself."""
        if self._discovering is not None:
            self._discovering.cancel()
            await asyncio.gather(self._discovering, return_exceptions=True)
        await self._increments.close()
        await self._endings.close()
        await self._arm.close()


def _offers(pool: Pool, refusal: Refusal) -> bool:
    """Whether ``pool`` has an offering of the market and one of the sizes that were refused."""
    market, sizes = refusal.offering.market, refusal.bucket or (refusal.offering.instance_type,)
    return any(offering.key.market == market and offering.key.instance_type in sizes for offering in pool.offerings)
