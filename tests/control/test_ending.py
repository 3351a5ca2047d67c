"""The end of a Capacity Block: by then its machines are empty, and other machines have been ordered for their pods."""

import msgspec
from tests.control.test_replacing import serve
from tests.control.world import BEGAN, world

from gpuscaler.model.pools import Offering
from gpuscaler.planning.capacity.expiring import EMPTY_SECONDS, SAVE_SECONDS, WORTH_SECONDS

POOLS = """
region: us-east-1
pools:
  - name: gpu
    idle_after: 2m
    offerings:
      - {type: g4dn.xlarge, market: reserved, zone: us-east-1a, price: 0}
      - {type: g4dn.xlarge, market: on-demand, zone: us-east-1a}
"""
#: The block lasts ten minutes.
ENDS = BEGAN + EMPTY_SECONDS + SAVE_SECONDS + WORTH_SECONDS + 600.0


def until(offering: Offering) -> Offering:
    return msgspec.structs.replace(offering, ends=ENDS) if offering.market == "reserved" else offering


async def test_the_machine_of_a_capacity_block_is_replaced_and_gone_before_the_block_ends() -> None:
    async with world(POOLS) as here:
        pools = tuple(msgspec.structs.replace(pool, offerings=tuple(map(until, pool.offerings))) for pool in here.policy.pools)
        here.policy = msgspec.structs.replace(here.policy, pools=pools)
        here.cluster.provider.set_pools(pools)
        here.start()
        await serve(here)
        await here.sleep(ENDS - EMPTY_SECONDS - 60.0 - here.now())
        (first,) = here.cluster.core.list()
        assert first.offering.market == "reserved"
        assert list((await here.bound()).values()) == [first.id]

        await here.sleep(ENDS - here.now())
        (second,) = here.cluster.core.list()
        assert second.offering.market == "on-demand"
        assert list((await here.bound()).values()) == [second.id]
        ended = next(machine for machine in here.cluster.core.history() if machine.id == first.id)
        assert ended.ended_at is not None
        assert second.visible_at < ended.ended_at < ENDS
