"""Despite all faults, workloads reach the requested state."""

from contextlib import suppress
from random import Random

import pytest
from tests.embedded.workloads.lab import Lab, lab

from gpuscaler.embedded.apiserver.faults import Fault, broken
from gpuscaler.kube.errors import ApiError, Unreachable
from gpuscaler.kube.resources import DAEMON_SETS, DEPLOYMENTS, JOBS, NODES, STATEFUL_SETS


async def _submit(here: Lab, *, mode: str) -> None:
    await here.create(DEPLOYMENTS, "web", replicas=4)
    await here.create(STATEFUL_SETS, "db", replicas=2)
    await here.create(DAEMON_SETS, "agent")
    await here.create(JOBS, "train", completions=6, parallelism=2, run_for="10s", completionMode=mode, backoffLimit=100)


async def _disturb(here: Lab, dice: Random, step: int) -> None:
    match dice.choice(("drop", "forget", "evict", "roll", "lose", "bring")):
        case "drop":
            here.cluster.api.drop_watches()
        case "forget":
            here.cluster.api.forget()
            here.cluster.api.drop_watches()
        case "evict":
            if pods := await here.pods():
                await here.user.evict("default", dice.choice(pods)["metadata"]["name"])
        case "roll":
            await here.patch(DEPLOYMENTS, "web", {"spec": {"template": {"metadata": {"labels": {"version": str(step)}}}}})
        case "lose":
            await here.user.delete(NODES, "c")
        case _:
            await here.node("c")


@pytest.mark.parametrize("seed", range(5))
async def test_workloads_reach_their_state_despite_server_errors_evictions_and_vanishing_nodes(seed: int) -> None:
    dice = Random(seed)
    async with lab("a", "b", "c") as here:
        await _submit(here, mode=dice.choice(("Indexed", "NonIndexed")))
        for method in ("POST", "PATCH", "DELETE"):
            here.cluster.api.faults.add(Fault(method=method, chance=0.1, refusal=broken()))
            here.cluster.api.faults.add(Fault(method=method, chance=0.1, sever="after"))
        for step in range(12):
            await here.wait(dice.choice((0.5, 2.0, 5.0)))
            with suppress(ApiError, Unreachable):
                await _disturb(here, dice, step)
        here.cluster.api.faults.clear()
        await here.wait(700.0)
        nodes = len(await here.all(NODES))
        web, db, agent, train = [
            await here.status(*workload)
            for workload in ((DEPLOYMENTS, "web"), (STATEFUL_SETS, "db"), (DAEMON_SETS, "agent"), (JOBS, "train"))
        ]
        assert (web["replicas"], web["updatedReplicas"], web["availableReplicas"]) == (4, 4, 4)
        assert (db["readyReplicas"], agent["numberReady"], train["succeeded"]) == (2, nodes, 6)
        assert len(await here.pods()) == 4 + 2 + nodes
        assert not any(pod["metadata"].get("deletionTimestamp") for pod in await here.all())
