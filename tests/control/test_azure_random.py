"""Despite random failures and replacements of the controller, pods run, no surplus is bought in Azure, and all machines are removed.

A node of others, with the size and the labels of a pool, is never touched.
"""

from pathlib import Path
from typing import Any

import pytest
from tests.control.azure_stage import SIZE, Stage, azure_stage
from tests.control.world import seeded_random
from tests.soaking import seeds

from gpuscaler.embedded.azure import SUBSCRIPTION
from gpuscaler.embedded.serving.accounts import boot_delays
from gpuscaler.embedded.serving.alone import make_node, ready_conditions
from gpuscaler.kube.resources import NODES

NAMES = ("aspot", "bspot", "cdemand")
SHORT = "pools:\n" + "".join(f"  - {{name: {name}, idle_after: 20s, max: 30}}\n" for name in NAMES)
#: How long random events happen, and how long it is quiet afterwards, in seconds.
CHAOS, QUIET = 120.0, 900.0
FAULTS: tuple[dict[str, Any], ...] = (
    {"sever": "before"},
    {"sever": "after"},
    {"code": "TooManyRequests", "status": 429, "headers": {"retry-after": "5"}},
    {"code": "InternalServerError", "status": 500},
    {"code": "OperationNotAllowed", "status": 409, "message": "Another operation is in progress"},
)
CALLS = (
    ("PUT", "*virtualMachineScaleSets*"),
    ("PUT", "*agentPools*"),
    ("POST", "*delete*"),
    ("GET", "*virtualMachines"),
    ("GET", "*operations*"),
    ("GET", "*usages*"),
    ("GET", "*virtualMachineScaleSets/*"),
)
CODES = ("AllocationFailed", "OverconstrainedZonalAllocationRequest", "SkuNotAvailable", "ZonalAllocationFailed")


#: A node that looks like one of pool ``aspot``, whose machine is in a scale set of others.
FOREIGN: dict[str, Any] = {
    "providerID": (
        f"azure:///subscriptions/{SUBSCRIPTION}/resourceGroups/theirs/providers/Microsoft.Compute/virtualMachineScaleSets/theirs"
        "/virtualMachines/0"
    ),
    "taints": [{"key": "theirs", "effect": "NoSchedule"}],
}
FOREIGN_LABELS = {
    "agentpool": "aspot",
    "kubernetes.azure.com/agentpool": "aspot",
    "node.kubernetes.io/instance-type": SIZE,
    "topology.kubernetes.io/region": "eastus",
    "topology.kubernetes.io/zone": "0",
}


async def add_foreign_node(here: Stage) -> None:
    node = make_node("theirs", {"cpu": 24_000, "memory": 200 << 30, "pods": 110, "nvidia.com/gpu": 1}, FOREIGN_LABELS)
    await here.user.create(NODES, {**node, "spec": FOREIGN, "status": {**node["status"], "conditions": ready_conditions(here.now())}})


class Chaos:
    """Random events on a stage, from ``seed``."""

    def __init__(self, here: Stage, seed: int, api: str) -> None:
        self.here, self.dice = here, seeded_random(seed, "azure")
        self.text = here.settings(api=api, more=SHORT)
        self.pods, self.lives, self.evicted = 0, 0, 0
        self.leading = False
        #: In some worlds most pods run until the end, and there are no idle machines to use for others.
        self.longest = (40, 400)[seed // 2 % 2]

    async def replace(self) -> None:
        """Stop the controller if it runs, otherwise start another one."""
        if self.leading and self.dice.random() < 0.5:
            self.here.crash()
        elif self.leading:
            await self.here.stop()
        else:
            self.lives += 1
            self.here.start(self.text, identity=f"life-{self.lives}")
        self.leading = not self.leading

    async def step(self) -> None:
        here, choice = self.here, self.dice.choice
        match choice(("submit", "submit", "limit", "fault", "replace", "replace", "mend", "evict", "forget")):
            case "submit":
                for _ in range(self.dice.randint(1, 3)):
                    self.pods += 1
                    await here.submit(f"pod-{self.pods}", run_for=f"{self.dice.randint(5, self.longest)}s")
            case "limit":
                alive = len(here.machines("aspot")) + len(here.machines("bspot"))
                here.limit(choice((alive, alive, alive + 1, None)), market="spot", code=choice(CODES))
            case "fault":
                method, path = choice(CALLS)
                here.fault(method=method, path=path, times=self.dice.randint(1, 4), **choice(FAULTS))
            case "replace":
                await self.replace()
                if not self.leading and self.dice.random() < 0.5:
                    # The next process finds machines that are only seconds old.
                    await self.replace()
            case "mend":
                here.endpoint.faults.all.clear()
            case "evict":
                name = choice(("aspot", "bspot"))
                if machines := here.machines(name):
                    self.evicted += 1
                    here.evict(name, choice(machines))
            case "forget":
                here.account.forget_operations()

    async def run(self) -> None:
        until = self.here.now() + CHAOS
        while self.here.now() < until:
            await self.here.sleep(self.dice.uniform(0.1, 8.0))
            await self.step()
        self.here.endpoint.faults.all.clear()
        self.here.account.hardware.markets.limits.clear()
        if not self.leading:
            await self.replace()
        await self.here.sleep(QUIET)


@pytest.mark.parametrize("seed", seeds(6))
async def test_under_random_azure_failures_every_pod_runs_and_every_machine_is_removed_later(seed: int, tmp_path: Path) -> None:
    conditions: dict[str, Any] = {
        "failed": ("stay", "vanish")[seed // 2 % 2],
        "preempts": seed % 3 == 0,
        "allocation": 3.0,
        "provisioning": 10.0,
        "boot": boot_delays(8.0),
    }
    async with azure_stage(tmp_path, **conditions) as here:
        here.pool("aspot", spot=True)
        here.pool("bspot", spot=True, zones=("1", "2"))
        here.pool("cdemand", size=SIZE)
        await add_foreign_node(here)
        chaos = Chaos(here, seed, "agentpool" if seed % 2 else "auto")
        await chaos.replace()
        await chaos.run()
        # A process that ended may have left numbers without machines behind: they must not become machines with the next order.
        for name in ("last", "very-last"):
            await here.submit(name, run_for="20s")
            await here.sleep(300)
        assert [name for name, node in (await here.bound()).items() if not node] == []
        (foreign,) = await here.nodes()
        assert (here.machines(), foreign["metadata"]["name"], foreign["spec"]) == ([], "theirs", FOREIGN)
        # What is evicted is bought again.
        assert 0 < here.count_registered() <= chaos.pods + 2 + chaos.evicted
