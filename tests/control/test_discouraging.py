"""Soft taints on machines with little use, as the API shows them."""

from typing import Any

from tests.control.world import world

from gpuscaler.lifecycle.node_marks.soft_taints import IDLE, LITTLE_USED, SOFT

ONE_SIZE = """
region: us-east-1
pools:
  - name: gpu
    types: [g4dn.12xlarge]
    markets: [on-demand]
    zones: [us-east-1a]
    idle_after: 1h
"""


def soft_taints(node: dict[str, Any]) -> list[str]:
    return [taint["key"] for taint in node["spec"].get("taints", ()) if taint["effect"] == SOFT]


async def test_a_machine_with_little_use_has_soft_taints_and_still_takes_pods_that_fit_nowhere_else() -> None:
    async with world(ONE_SIZE, seed=1) as here:
        here.start()
        await here.sleep(2.0)
        await here.submit("short", 1, **{"gpuscaler.io/run-for": "10m"})
        await here.sleep(400.0)
        (node,) = await here.nodes()
        assert soft_taints(node) == [LITTLE_USED.key]
        await here.sleep(500.0)
        (node,) = await here.nodes()
        assert soft_taints(node) == [LITTLE_USED.key, IDLE.key]
        await here.submit("large", 3)
        await here.sleep(60.0)
        assert (await here.bound())["large"] == node["metadata"]["name"]
        (node,) = await here.nodes()
        assert soft_taints(node) == []
