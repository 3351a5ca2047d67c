"""Pods run where they were planned, in whatever order machines arrive."""

from dataclasses import dataclass
from random import Random
from typing import Any

import pytest
from tests.control.world import World, seeded_random, world
from tests.objects import pod

from gpuscaler.kube.resources import PODS
from gpuscaler.simulation.cloud.delays import Delay, Delays

#: Tests wait only for the event loop, so one pass over it is enough before time advances.

#: Machines of three sizes at prices that make mixing worthwhile.
SIZES = """
region: us-east-1
pools:
  - name: gpu
    types: [g4dn.xlarge, g4dn.12xlarge, g5.12xlarge, g5.48xlarge]
    markets: [on-demand]
    zones: [us-east-1a, us-east-1b]
"""
#: A topology spread over zones with a maximum skew of 1.
EVEN = {
    "maxSkew": 1,
    "topologyKey": "topology.kubernetes.io/zone",
    "whenUnsatisfiable": "DoNotSchedule",
    "labelSelector": {"matchLabels": {"app": "even"}},
}
#: Machines arrive in any order, up to 120 s apart, and their GPUs a little later.
SCATTERED = Delays(
    boot=Delay(30.0, 30.0, 150.0), device_plugin=Delay(1.0, 3.0, 20.0), answer=Delay(0.5, 1.0, 2.0), image_pull=Delay(0, 0, 0)
)


@dataclass(frozen=True)
class WorkloadResult:
    """The result of a workload: pods planned and bound, machines bought by the first plan and later, promises kept."""

    planned: int
    bound: int
    bought: int
    further: int
    kept: int
    promised: int


async def run_workload(seed: int, *, steered: bool = True) -> WorkloadResult:
    """A random workload on machines that arrive in random order, with unrelated pods created meanwhile."""
    dice = seeded_random(seed, "promises")
    async with world(SIZES, seed=seed, delays=SCATTERED, steered=steered) as here:
        here.start()
        await here.sleep(2.0)
        wanted = await submit(here, dice)
        await here.sleep(6.0)
        first = len(here.cluster.core.history())
        unrelated = dice.randint(0, 6)
        for number in range(unrelated):
            await here.sleep(dice.uniform(2.0, 25.0))
            # They request no GPU and so little that they fit on any node, and nothing is bought for them: they must not take machines
            # from the pods that those are meant for.
            await here.user.create(PODS, pod(f"other{number}", 0, cpu="50m"), namespace="default")
        for _ in range(20):
            await here.sleep(20.0)
            bound = await here.bound()
            if all(bound[name] for name in wanted):
                break
        await here.sleep(100.0)
        bound = await here.bound()
        notes = here.notes
        return WorkloadResult(
            planned=len(wanted),
            bound=sum(bool(bound[name]) for name in wanted),
            bought=first,
            further=len(here.cluster.core.history()) - first,
            kept=notes.outcomes["Kept"],
            # The nodes of the unrelated pods do not matter.
            promised=notes.outcomes["Kept"] + notes.outcomes["Broken"] + sum(pod.partition("/")[2] in wanted for pod in notes.stray),
        )


async def submit(here: World, dice: Random) -> list[str]:
    """Pods of mixed sizes, all within one debounce; in every third workload they spread over zones."""
    sizes = [dice.choice((1, 1, 1, 2, 3, 4, 5, 8)) for _ in range(dice.randint(2, 14))]
    rules: dict[str, Any] = {"labels": {"app": "even"}, "topologySpreadConstraints": [EVEN]} if dice.random() < 1 / 3 else {}
    for number, gpus in enumerate(sizes):
        await here.user.create(PODS, pod(f"p{number}", gpus, **rules), namespace="default")
    return [f"p{number}" for number in range(len(sizes))]


@pytest.mark.parametrize("seed", range(30))
async def test_every_promised_pod_is_bound_in_any_order_of_arrival_and_nothing_more_is_bought(seed: int) -> None:
    result = await run_workload(seed)

    assert result.bound == result.planned
    assert result.further == 0
    assert result.kept == result.promised
