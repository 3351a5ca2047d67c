"""For any answer of a cloud to a purchase, including wrong names of machines, few machines are bought and limits hold."""

from random import Random

import pytest
from msgspec.structs import replace
from tests.control.world import World, world
from tests.faults.guarding import excess

from gpuscaler.clouds.protocol import BuyResult, Order
from gpuscaler.model.instances import Instance, Inventory

POOLS = """
region: us-east-1
limits: {gpus: 12, machines: 9, dollars_per_hour: 30}
pools:
  - name: gpu
    types: [g4dn.xlarge, g4dn.12xlarge]
    markets: [spot, on-demand]
    zones: [us-east-1a, us-east-1b]
  - name: other
    types: [g5.xlarge]
    markets: [on-demand]
    zones: [us-east-1a]
"""


class MalformedProvider:
    """Reports lasting wrong names for the market, type or zone of machines, in random case, and grants more or fewer than ordered."""

    def __init__(self, here: World, seed: int) -> None:
        self._dice, self._provider = Random(seed), here.cluster.provider
        self._buy, self._inventory = self._provider.buy, self._provider.inventory
        #: The reported offering of each machine, by its id; the list may be right.
        self._called: dict[str, Instance] = {}
        self._honest_list = self._dice.random() < 0.5
        #: The number of machines granted beyond the order.
        self.surplus = 0
        self._provider.buy, self._provider.inventory = self.buy, self.inventory  # type: ignore[method-assign]

    def spelt(self, word: str) -> str:
        return "".join(self._dice.choice((letter.lower(), letter.upper())) for letter in word)

    def call(self, instance: Instance) -> Instance:
        if instance.id not in self._called:
            changed = {
                "market": self._dice.choice((instance.market, self.spelt(instance.market), "OnDemand", "teleported")),
                "instance_type": self._dice.choice(
                    (instance.instance_type, instance.instance_type, self.spelt(instance.instance_type), "p9.huge")
                ),
                "zone": self._dice.choice((instance.zone, instance.zone, "use1-az9")),
            }
            self._called[instance.id] = replace(instance, **changed) if self._dice.random() < 0.8 else instance
        answer = self._called[instance.id]
        return replace(instance, market=answer.market, instance_type=answer.instance_type, zone=answer.zone)

    async def buy(self, order: Order) -> BuyResult:
        many = max(0, order.count + self._dice.choice((0, 0, 0, -1, 1)))
        bought = await self._buy(replace(order, count=many)) if many else BuyResult()
        self.surplus += max(0, len(bought.instances) - order.count)
        return replace(bought, instances=tuple(map(self.call, bought.instances)))

    async def inventory(self) -> Inventory:
        seen = await self._inventory()
        return seen if self._honest_list else replace(seen, instances=tuple(map(self.call, seen.instances)))


@pytest.mark.parametrize("seed", range(12))
async def test_whatever_the_cloud_answers_at_most_one_machine_too_many_is_bought(seed: int) -> None:
    dice = Random(seed)
    async with world(POOLS, seed=seed) as here:
        liar = MalformedProvider(here, seed)
        here.start()
        pods = 0
        for _ in range(40):
            if pods < 3 and dice.random() < 0.2:
                await here.submit(f"p{pods}", dice.choice((1, 1, 4)))
                pods += 1
            await here.sleep(5.0)
            machines = here.cluster.core.list()
            by_pool = {pool.name: sum(machine.offering.pool == pool.name for machine in machines) for pool in here.policy.pools}
            assert max(by_pool.values()) <= pods + 1 + liar.surplus, f"{pods} pods are pending, and there are {by_pool}"
            # The controller cannot limit machines granted beyond the order.
            assert liar.surplus or not excess(here.policy, machines)
