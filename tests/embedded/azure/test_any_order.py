"""Whatever is done in any order: capacities are those of the machines that count, operations end, and nothing is left over."""

from random import Random
from typing import Any

import pytest
from tests.embedded.azure.conftest import BEGAN, SIZE

from gpuscaler.embedded.azure import SUBSCRIPTION, Account, Conditions, Endpoint, making
from gpuscaler.embedded.azure.serving.control import set_conditions
from gpuscaler.embedded.azure.state import FAILED, IN_PROGRESS, ScaleSet
from gpuscaler.embedded.azure.wire.requests import Request

VERSION = "api-version=2024-11-01"


class Story:
    """Random steps of callers, markets and the clock on one account."""

    def __init__(self, seed: int) -> None:
        self.luck = Random(seed)
        self.time = BEGAN
        conditions = Conditions(
            failed=self.luck.choice(("stay", "vanish")),
            capacity_falls=self.luck.choice(("start", "end")),
            preempts=self.luck.random() < 0.3,
            read_lag=self.luck.choice((0.0, 10.0)),
            throttling=False,
            fails_fast=self.luck.random() < 0.3,
        )
        self.account = Account(now=lambda: self.time, conditions=conditions, seed=seed)
        self.endpoint = Endpoint(self.account, seed=seed)
        self.cluster = making.create_cluster(self.account)
        making.create_pool(self.account, self.cluster, "spot", SIZE, spot=True, zones=("1", "2"), count=2)
        making.create_pool(self.account, self.cluster, "gpu", SIZE, count=1)
        making.create_pool(self.account, self.cluster, "mixed", {SIZE: 1, "Standard_NC48ads_A100_v4": 1})
        making.create_scale_set(self.account, "rg", "flex", SIZE, spot=True, flexible=True, count=2)

    def ask(self, method: str, path: str, body: bytes = b"") -> int:
        return self.endpoint.handle(Request(method, path, {}, body, VERSION)).status

    def scale_sets(self) -> list[ScaleSet]:
        return list(self.account.all_scale_sets())

    def step(self) -> None:
        scale_set = self.luck.choice(self.scale_sets())
        kind = self.luck.randrange(9)
        if kind == 0 and scale_set.mode != "VirtualMachines":
            self.ask("PATCH", scale_set.id, b'{"sku": {"capacity": %d}}' % self.luck.randrange(7))
        elif kind == 1 and scale_set.machines and scale_set.mode != "VirtualMachines":
            keys = self.luck.sample(sorted(scale_set.machines), self.luck.randint(1, len(scale_set.machines)))
            names = ", ".join(f'"{key}"' for key in keys)
            assert self.ask("POST", f"{scale_set.id}/delete", f'{{"instanceIds": [{names}]}}'.encode()) == 202
        elif kind == 2:
            making.set_limit(self.account, self.luck.choice((None, 0, 1, 3)), market=self.luck.choice(("", "spot")))
        elif kind == 3:
            making.add_trouble(
                self.account, self.luck.choice(("AllocationFailed", "VMExtensionProvisioningError", "SkuNotAvailable")), times=1
            )
        elif kind == 4 and scale_set.market == "spot" and scale_set.machines:
            making.evict(self.account, scale_set, self.luck.choice(sorted(scale_set.machines)), notice=self.luck.choice((0.0, 30.0)))
        elif kind == 5:
            pool = self.luck.choice(("spot", "gpu"))
            path = f"{self.cluster.id}/agentPools/{pool}"
            assert self.ask("PUT", path, b'{"properties": {"count": %d}}' % self.luck.randrange(5)) in {200, 409}
        elif kind == 6 and scale_set.agent_pool is not None and scale_set.machines:
            machine = scale_set.machines[self.luck.choice(sorted(scale_set.machines))]
            path = f"{self.cluster.id}/agentPools/{scale_set.agent_pool.name}/deleteMachines"
            assert self.ask("POST", path, f'{{"machineNames": ["{machine.computer}"]}}'.encode()) in {202, 400, 409}
        elif kind == 7:
            set_conditions(self.account, self.account.conditions)
        self.time += self.luck.choice((0.0, 1.0, 7.0, 45.0))
        self.account.advance()

    def settle(self) -> None:
        self.account.hardware.troubles.clear()
        self.time += 1000
        self.account.advance()


@pytest.mark.parametrize("seed", range(60))
def test_an_account_is_consistent_after_any_steps(seed: int) -> None:
    story = Story(seed)
    for _ in range(60):
        story.step()
        for scale_set in story.scale_sets():
            assert scale_set.capacity >= 0
            if story.account.conditions.capacity_falls == "start":
                assert len(scale_set.counted) <= scale_set.capacity, scale_set.name
    story.settle()
    check(story)


def check(story: Story) -> None:
    account = story.account
    assert [operation.id for operation in account.operations.values() if operation.status == IN_PROGRESS] == []
    placed: dict[str, Any] = {}
    for scale_set in story.scale_sets():
        assert {machine.state for machine in scale_set.machines.values()} <= {"Succeeded", FAILED}
        assert scale_set.state in {"Succeeded", FAILED}
        if account.conditions.failed == "stay":
            assert scale_set.capacity == len(scale_set.machines), scale_set.name
        else:
            assert scale_set.capacity >= len(scale_set.machines), scale_set.name
        for machine in scale_set.machines.values():
            assert (machine.cloud is not None) == (machine.power == "running")
            if machine.cloud is not None:
                placed[machine.cloud.id] = machine
        if scale_set.agent_pool is not None and scale_set.mode == "Uniform":
            assert scale_set.agent_pool.count == scale_set.capacity
    assert placed.keys() == {machine.id for machine in account.hardware.core.list()} == account.owners.keys()
    assert account.usage(SUBSCRIPTION, "eastus")["lowPriorityCores"] % 24 == 0
    assert account.events == {}
