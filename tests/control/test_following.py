"""A cloud that accepts an order and later refuses it."""

from collections.abc import Sequence

import pytest
from tests.control.world import World, world

from gpuscaler.clouds.protocol import CAPACITY, BuyResult, LostAnswerError, Order, Refusal, UnfilledOrder

TWO_TYPES = """
region: us-east-1
pools:
  - name: gpu
    types: [g4dn.xlarge, g5.xlarge]
    markets: [on-demand]
    zones: [us-east-1a]
"""


class SlowProvider:
    """Accepts the first order and refuses it after ``after`` seconds; later orders work. With ``lost``, the acceptance is lost."""

    def __init__(self, here: World, after: float, *, lost: bool = False) -> None:
        self._here, self._lost = here, lost
        self._inner = here.cluster.provider.buy
        self._due = here.now() + after
        self.first: Order | None = None
        self.told = False

    async def buy(self, order: Order) -> BuyResult:
        if self.first is None:
            self.first = order
        if order.token != self.first.token:
            return await self._inner(order)
        if self._lost:
            raise LostAnswerError("the connection broke")
        return BuyResult(pending=order.count)

    async def follow(self, _orders: Sequence[UnfilledOrder]) -> Sequence[tuple[str, BuyResult]]:
        if self.first is None or self.told or self._here.now() < self._due:
            return ()
        self.told = True
        return ((self.first.token, BuyResult(refusals=tuple(Refusal(CAPACITY, key, "dry") for key in self.first.offerings))),)


@pytest.mark.parametrize("lost", [False, True], ids=["accepted", "answer lost"])
async def test_if_the_cloud_refuses_an_accepted_order_later_another_offering_is_bought_at_once(
    lost: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world(TWO_TYPES) as here:
        slow = SlowProvider(here, 40.0, lost=lost)
        monkeypatch.setattr(here.cluster.provider, "buy", slow.buy)
        monkeypatch.setattr(here.cluster.provider, "follow", slow.follow)
        here.start()
        await here.sleep(2.0)
        await here.submit("p")
        await here.sleep(30.0)
        assert slow.first is not None
        refused = {key[2] for key in slow.first.offerings}
        assert not here.cluster.core.history()
        await here.sleep(20.0)
        (machine,) = here.cluster.core.history()
        assert machine.offering.instance_type not in refused
