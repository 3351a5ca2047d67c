"""From the end of the first failed operation to on-demand: the real controller against our Azure account, with all spot pools dry.

Operations of spot pools fail after 5 s, every answer takes 0.1 s; time is virtual. Half a minute after the order for on-demand, spot has
machines again, so that anything that was left behind would arrive.
"""

from collections.abc import Iterator
from functools import partial
from itertools import islice, product
from typing import Literal

from msgspec import Struct

from benchmarks.azure_world import AzureWorld, azure_world
from benchmarks.cloud_world import BOOT
from benchmarks.figures import Figure
from benchmarks.live_scenes import run_in_virtual_time
from gpuscaler.embedded.azure import Conditions, making

DRY_POOLS = (1, 3, 12)
PEERS = "Cluster Autoscaler: 15 to 20 minutes for each pool, loops for ever on GPU spot pools (AKS issue 3179)"
#: One GPU each.
SIZES = ("Standard_NC4as_T4_v3", "Standard_NC8as_T4_v3", "Standard_NC16as_T4_v3", "Standard_NC24ads_A100_v4")
ON_DEMAND_SIZE = "Standard_NC16as_T4_v3"
PODS = 8
#: When an operation of a dry pool ends, in seconds after it began; and the target, in seconds from the end of the first.
FAILURE_SECONDS, TARGET_SECONDS = 5.0, 10.0
#: When pods come, in seconds after the controller began: its periodic calls are in another phase each time.
PHASES = (5.0, 6.0, 7.0)
#: When spot has capacity again, and for how long arrivals are observed afterwards, in seconds.
SPOT_RETURNS_SECONDS, OBSERVED_SECONDS = 30.0, 900.0
TOLERATIONS = [{"key": "kubernetes.azure.com/scalesetpriority", "operator": "Exists"}]


class Failover(Struct, frozen=True):
    """``seconds`` from the end of the first failed operation until on-demand is ordered.

    ``tried`` spot pools were asked before, and ``surplus`` machines more than pods were allocated.
    """

    seconds: float
    tried: int
    surplus: int
    bound: int


def figures() -> Iterator[Figure]:
    failed: tuple[Literal["stay", "vanish"], ...] = ("stay", "vanish")
    failovers = [
        worst(run_in_virtual_time(partial(play_failover, pools, phase, kind)) for phase, kind in product(PHASES, failed))
        for pools in DRY_POOLS
    ]
    seconds = " / ".join(f"{failover.seconds:.1f}" for failover in failovers)
    tried = " / ".join(str(failover.tried) for failover in failovers)
    surplus = max(failover.surplus for failover in failovers)
    yield Figure(
        f"end of the first failed operation → on-demand ordered; {' / '.join(map(str, DRY_POOLS))} dry spot pools, {PODS} pods, "
        f"operations fail after {FAILURE_SECONDS:g} s",
        PEERS,
        f"≤ {TARGET_SECONDS:g} s each, 0 surplus",
        f"{seconds} s; {tried} pools tried; {surplus} machines surplus",
        all(failover.seconds <= TARGET_SECONDS and failover.bound == PODS for failover in failovers) and surplus == 0,
        {
            **{f"seconds_{pools}": failover.seconds for pools, failover in zip(DRY_POOLS, failovers, strict=True)},
            **{f"tried_{pools}": failover.tried for pools, failover in zip(DRY_POOLS, failovers, strict=True)},
            "surplus": surplus,
        },
    )


def worst(failovers: Iterator[Failover]) -> Failover:
    results = list(failovers)
    return Failover(
        max(failover.seconds for failover in results),
        max(failover.tried for failover in results),
        max(failover.surplus for failover in results),
        min(failover.bound for failover in results),
    )


async def play_failover(pools: int, phase: float, failed: Literal["stay", "vanish"]) -> Failover:
    """What happens with so many dry spot pools, when pods come ``phase`` seconds after the controller began."""
    conditions = Conditions(allocation=FAILURE_SECONDS, provisioning=30.0, failed=failed, fails_fast=True, boot=BOOT)
    async with azure_world(conditions) as here:
        for index, (zone, size) in enumerate(islice(product("123", SIZES), pools)):
            making.create_pool(here.account, here.aks, f"spot{index}", size, spot=True, zones=(zone,))
        making.create_pool(here.account, here.aks, "demand", ON_DEMAND_SIZE, zones=("1",))
        making.set_limit(here.account, 0, market="spot", code="OverconstrainedZonalAllocationRequest")
        await here.start()
        await here.sleep(phase)
        await here.submit((f"pod{number}" for number in range(PODS)), tolerations=TOLERATIONS)
        while not writes_of(here, "demand"):
            await here.sleep(0.5)
        ordered_at, first_request_at = writes_of(here, "demand")[0], min(at for at, name in here.endpoint.log if "-spot" in name)
        tried = {name for at, name in here.endpoint.log if "-spot" in name and at <= ordered_at}
        await here.sleep(SPOT_RETURNS_SECONDS)
        making.set_limit(here.account, None, market="spot")
        await here.sleep(OBSERVED_SECONDS)
        allocated = len(here.account.owners)
        return Failover(ordered_at - first_request_at - FAILURE_SECONDS, len(tried), allocated - PODS, await here.count_bound())


def writes_of(here: AzureWorld, pool: str) -> list[float]:
    """When the capacity of a pool's scale set was written."""
    return [at for at, name in here.endpoint.log if f"-{pool}-" in name]
