"""Faults around two controllers on a real control plane, one after the other."""

import asyncio
import time
from collections.abc import Mapping

import pytest
from tests.e2e.cutting import wire
from tests.e2e.faults import AHEAD, FAULTS, SEVERAL, Broken
from tests.e2e.stage import AT_ONCE, stage

from gpuscaler.model.nodes import Node
from gpuscaler.model.well_known import POOL_LABEL

pytestmark = pytest.mark.e2e

Outcomes = Mapping[str, BaseException | None]


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    return asyncio.run(_play())


async def _play() -> Outcomes:
    names = {fault: f"f{number}" for number, fault in enumerate(FAULTS)}

    def ours(node: Node) -> bool:
        return node.labels.get(POOL_LABEL) != names[AHEAD]

    outcomes: dict[str, BaseException | None] = {}
    async with stage("faults") as made, wire(made.plane.url) as line, made.kubelets(ours):
        await made.install()
        pools = [{"name": name, "types": ["g4dn.xlarge"]} for name in names.values()]
        run_file = made.run_file("run", pools, http={"enabled": False}, pace=AT_ONCE)
        broken = Broken(made, line, run_file, await made.kubeconfig(server=line.url))
        for _ in range(SEVERAL):
            broken.start()
        await broken.leader()
        for fault, play in FAULTS.items():
            await made.namespace(names[fault])
            began = time.monotonic()
            try:
                await play(broken, names[fault])
                outcomes[fault] = None
            except Exception as error:  # noqa: BLE001 - the test with this parameter raises it
                outcomes[fault] = error
            print(f"{time.monotonic() - began:5.1f} s: {fault}")
    return outcomes


@pytest.mark.parametrize("fault", FAULTS)
def test_all_pods_run_and_all_machines_are_removed_despite_the_fault(outcomes: Outcomes, fault: str) -> None:
    failure = outcomes[fault]
    if failure is not None:
        raise failure
