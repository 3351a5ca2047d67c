"""Random schedules: our orders and removals beside another writer, lost answers, preempted deletions, evictions, dry markets, restarts.

The provider is called as the controller calls it. In the end, and at every write, three things must hold: no machine was ended that no
call named and Azure did not evict; no more machines came than were ordered; and nothing is left of what did not come.
"""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Literal

from msgspec.structs import replace
from tests.embedded.azure.memory import URL, MemoryHttp

from gpuscaler.clouds.azure.api.arm import Arm
from gpuscaler.clouds.azure.api.credentials import FixedToken
from gpuscaler.clouds.azure.discovery.accounts import Account as Place
from gpuscaler.clouds.azure.discovery.discovery import Discovery
from gpuscaler.clouds.azure.prices.source import PriceSource
from gpuscaler.clouds.azure.provider import AzureProvider
from gpuscaler.clouds.protocol import CloudError, LostAnswerError, Order, UnfilledOrder
from gpuscaler.embedded.azure import SUBSCRIPTION, Account, Conditions, Endpoint, Fault, making
from gpuscaler.embedded.azure.compute import capacity
from gpuscaler.embedded.azure.state import DELETING, FAILED, ScaleSet
from gpuscaler.model.azure_names import machine_name
from gpuscaler.model.offerings import OfferingKey

BEGAN = 1_790_000_000.0
SIZE = "Standard_NC24ads_A100_v4"
#: How long a schedule acts, and how long it is quiet afterwards, in seconds.
ACTS_SECONDS, QUIET_SECONDS = 240.0, 400.0


@dataclass(slots=True)
class Tally:
    """What happened in a schedule. ``unnamed`` machines were ended although no call named them and Azure did not evict them."""

    ordered: int = 0
    raised_by_others: int = 0
    came: int = 0
    granted: int = 0
    refused: int = 0
    named: set[str] = field(default_factory=set)
    unnamed: set[str] = field(default_factory=set)
    surplus: int = 0
    left_over: int = 0


class Schedule:
    """One schedule, from its seed. ``api`` is the setting that says how machines are bought."""

    def __init__(self, seed: int, api: str = "auto") -> None:
        self.draw, self.api = Random(seed), api
        loop = asyncio.get_running_loop()
        began = loop.time()
        self.now: Callable[[], float] = lambda: BEGAN + loop.time() - began
        choice = self.draw.choice
        conditions = Conditions(
            allocation=choice((1.0, 5.0, 20.0)),
            provisioning=choice((10.0, 40.0)),
            failed=choice(("stay", "vanish")),
            nesting=choice(("plain", "details", "text")),
            preempts=choice((False, False, True)),
            etag_of_deletions=choice((True, True, False)),
            read_lag=choice((0.0, 0.0, 4.0)),
            spelling=choice(("kept", "group", "random")),
            retry_after=choice((None, 0, 5)),
            follow=choice(("both", "operation", "location")),
            throttling=False,
        )
        self.account = Account(now=self.now, conditions=conditions, seed=seed)
        self.cluster = making.create_cluster(self.account, "aks", "rg")
        self.spot, self.contested, self.restarts = choice((True, False)), choice((True, False)), choice((True, False))
        making.create_pool(self.account, self.cluster, "gpus", SIZE, spot=self.spot, count=self.draw.randint(0, 2))
        self.endpoint = Endpoint(self.account, seed=seed)
        self.market = "spot" if self.spot else "on-demand"
        self.tally = Tally()
        self.in_doubt = False
        self.unfilled: dict[str, UnfilledOrder] = {}
        self.owners: dict[str, str] = {}
        self.evicted: set[str] = set()
        self.seen: set[str] = set(self.scale_set.machines)
        self.initial = len(self.scale_set.machines)
        self.provider = self.start()
        self.old_providers: list[AzureProvider] = []

    @property
    def scale_set(self) -> ScaleSet:
        (found,) = [
            scale_set
            for group in self.account.groups.values()
            for scale_set in group.scale_sets.values()
            if scale_set.agent_pool is not None and scale_set.agent_pool.name == "gpus"
        ]
        return found

    def start(self) -> AzureProvider:
        http = MemoryHttp(self.endpoint, delay=0.1)
        arm = Arm(FixedToken("token"), fence=lambda _: None, now=self.now, sleep=asyncio.sleep, endpoint_url=URL, http=http)
        prices = PriceSource(http, now=self.now, endpoint_url=URL)
        discovery = Discovery(arm, (Place(SUBSCRIPTION, "aks", "rg"),), now=self.now, prices=prices, api=self.api)
        return AzureProvider(arm, discovery, now=self.now)

    # What happens

    async def run(self) -> Tally:
        await self.provider.inventory()
        loops = [
            asyncio.create_task(part)
            for part in (
                self.repeat(self.list_machines, 10.0),
                self.repeat(self.follow, 3.0),
                self.repeat(self.watch, 0.5),
            )
        ]
        until = self.now() + ACTS_SECONDS
        acts = [self.buy, self.buy, self.buy, self.remove, self.evict, self.limit, self.break_connection, self.preempt]
        acts += [self.other_raises, self.other_removes] if self.contested else []
        acts += [self.restart] if self.restarts else []
        running: set[asyncio.Task[None]] = set()
        while self.now() < until:
            running.add(asyncio.create_task(self.draw.choice(acts)()))
            await asyncio.sleep(self.draw.choice((0.05, 1.0, 5.0, 20.0)))
        await asyncio.gather(*running)
        self.endpoint.faults.all.clear()
        making.set_limit(self.account, None, market=self.market)
        await asyncio.sleep(QUIET_SECONDS)
        for task in loops:
            task.cancel()
        outcomes = await asyncio.gather(*loops, return_exceptions=True)
        for provider in (*self.old_providers, self.provider):
            await provider.close()
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                raise outcome
        return self.judge()

    async def repeat(self, act: Callable[[], Awaitable[None]], seconds: float) -> None:
        while True:
            provider = self.provider
            try:
                await act()
            except (CloudError, LostAnswerError):
                pass
            except asyncio.CancelledError:
                if provider is self.provider:
                    raise
            await asyncio.sleep(seconds)

    async def list_machines(self) -> None:
        inventory = await self.provider.inventory()
        # As the controller does: machines that appear belong to the oldest order that lacks any.
        for instance in sorted(inventory.instances, key=lambda one: (one.launched, one.id)):
            if instance.pool != "gpus" or instance.id in self.owners or instance.state not in ("pending", "running"):
                continue
            for token, rest in self.unfilled.items():
                if instance.token in ("", token) and instance.launched >= rest.at - 30.0:
                    self.owners[instance.id] = token
                    self.lower(token, 1)
                    break

    def lower(self, token: str, machines: int) -> None:
        rest = self.unfilled[token]
        if rest.missing <= machines:
            del self.unfilled[token]
        else:
            self.unfilled[token] = replace(rest, missing=rest.missing - machines)

    async def follow(self) -> None:
        if not self.unfilled:
            return
        for token, bought in await self.provider.follow(tuple(self.unfilled.values())):
            if token in self.unfilled:
                self.answer(token, bought)

    def answer(self, token: str, bought: Any) -> None:
        new = [instance.id for instance in bought.instances if instance.id not in self.owners]
        self.owners |= dict.fromkeys(new, token)
        self.tally.granted += len(new)
        rest = self.unfilled[token]
        missing = max(0, rest.missing - len(new))
        self.tally.refused += max(0, missing - bought.pending)
        if bought.pending and missing:
            self.unfilled[token] = replace(rest, missing=min(missing, bought.pending), operation=bought.operation, accepted=True)
        else:
            del self.unfilled[token]

    async def buy(self) -> None:
        count, token = self.draw.randint(1, 4), f"order-{self.tally.ordered}-{self.draw.random()}"
        order = Order(token, "gpus", (OfferingKey("gpus", self.market, SIZE, "eastus-0"),), count)
        self.tally.ordered += count
        self.unfilled[token] = UnfilledOrder(order, count, self.now(), accepted=False)
        provider = self.provider
        try:
            bought = await provider.buy(order)
        except CloudError:
            self.unfilled.pop(token, None)
        except LostAnswerError:
            self.in_doubt = True
        except asyncio.CancelledError:
            # Its process ended: what became of the order is not known.
            if provider is self.provider:
                raise
        else:
            if token in self.unfilled:
                self.answer(token, bought)

    async def remove(self) -> None:
        alive = [ident for ident in self.owners if self.is_alive(ident)]
        if alive:
            named = self.draw.sample(sorted(alive), self.draw.randint(1, min(2, len(alive))))
            self.tally.named |= {self.key_of(ident) for ident in named}
            provider = self.provider
            try:
                await provider.remove(named)
            except (CloudError, LostAnswerError):
                pass
            except asyncio.CancelledError:
                if provider is self.provider:
                    raise

    async def other_raises(self) -> None:
        count = self.draw.randint(1, 3)
        if any(machine.state == DELETING for machine in self.scale_set.machines.values()):
            # Its write would end a deletion, and Azure would then end a machine of its choice: that is not our doing.
            return
        self.tally.raised_by_others += count
        capacity.set_capacity(self.account, self.scale_set, self.scale_set.capacity + count)

    async def other_removes(self) -> None:
        alive = [machine for machine in self.scale_set.machines.values() if machine.cloud is not None and machine.state != DELETING]
        if alive:
            machine = self.draw.choice(sorted(alive, key=lambda one: one.key))
            self.tally.named.add(machine.key)
            capacity.delete_machines(self.account, self.scale_set, [machine], force=False)

    async def evict(self) -> None:
        alive = [machine for machine in self.scale_set.machines.values() if machine.power == "running" and machine.state != DELETING]
        if alive and self.spot:
            machine = self.draw.choice(sorted(alive, key=lambda one: one.key))
            self.evicted.add(machine.key)
            making.evict(self.account, self.scale_set, machine.key, notice=self.draw.choice((0.0, 30.0)))

    async def limit(self) -> None:
        alive = sum(machine.cloud is not None for machine in self.scale_set.machines.values())
        making.set_limit(self.account, self.draw.choice((None, alive, alive, alive + 1, alive + 2)), market=self.market)

    async def break_connection(self) -> None:
        method = self.draw.choice(("PUT", "PUT", "POST", "GET"))
        sever: Literal["before", "after"] = self.draw.choice(("before", "after"))
        path = "*virtualMachineScaleSets*" if self.api == "auto" else self.draw.choice(("*agentPools*", "*virtualMachineScaleSets*"))
        self.endpoint.faults.all.append(Fault(method=method, path=path, times=1, sever=sever))

    async def preempt(self) -> None:
        self.account.preempt_deletions += 1

    async def restart(self) -> None:
        old, self.provider = self.provider, self.start()
        # The old process ends: what it is doing at this moment is cut off, as when it loses its lease.
        await old.close()

    # What must hold

    async def watch(self) -> None:
        """Look at the machines: those that go must have been named or evicted."""
        scale_set = self.scale_set
        present = {key: machine for key, machine in scale_set.machines.items() if machine.cloud is not None}
        new = present.keys() - self.seen
        self.tally.came += len(new)
        self.seen |= new
        for key, machine in scale_set.machines.items():
            if key in self.seen and machine.state == DELETING and machine.cloud is not None:
                self.check_end(key)
        for key in self.seen - scale_set.machines.keys():
            self.check_end(key)

    def check_end(self, key: str) -> None:
        if key not in self.tally.named and key not in self.evicted:
            self.tally.unnamed.add(key)

    def judge(self) -> Tally:
        tally, scale_set = self.tally, self.scale_set
        tally.surplus = max(0, tally.came - tally.ordered - tally.raised_by_others)
        alive = sum(machine.state not in (DELETING, FAILED) or machine.cloud is not None for machine in scale_set.machines.values())
        # What others left over is theirs, and so may be what an order left over whose answer was lost, or whose process ended.
        tally.left_over = 0 if self.contested or self.restarts or self.in_doubt else scale_set.capacity - alive
        return tally

    def key_of(self, ident: str) -> str:
        name = machine_name(ident)
        return name.name if name is not None else ""

    def is_alive(self, ident: str) -> bool:
        machine = self.scale_set.machines.get(self.key_of(ident))
        return machine is not None and machine.state != DELETING


async def play(seed: int, api: str = "auto") -> Tally:
    """What happened in the schedule of ``seed``."""
    return await Schedule(seed, api).run()
