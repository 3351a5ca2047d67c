"""Workloads on a real control plane, from nothing to machines and back to none, all of them side by side."""

import asyncio
from collections.abc import Mapping

import pytest
from tests.e2e.stage import AT_ONCE, CLOUD, Stage, free_port, stage, version
from tests.e2e.storage import provisioner
from tests.e2e.workloads import DRY, SCENARIOS, Scenario

pytestmark = pytest.mark.e2e

Outcomes = Mapping[str, BaseException | None]


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """The result of each scenario. All scenarios run at once, as the workloads of different users do."""
    return asyncio.run(_play())


async def _play() -> Outcomes:
    async with stage("workloads") as made, made.kubelets(), provisioner(made.admin):
        await made.install()
        names = {scenario: f"w{number}" for number, scenario in enumerate(SCENARIOS)}
        pools = [{"name": names[scenario], **pool} for scenario, (_, pool) in SCENARIOS.items()]
        cloud = {**CLOUD, "dry": [{"pool": names[DRY], "market": "spot"}]}
        port = free_port()
        controller = made.start(made.run_file("run", pools, cloud=cloud, port=port, pace=AT_ONCE), await made.kubeconfig(), port=port)
        results = await asyncio.gather(
            *(_play_one(made, names[scenario], play) for scenario, (play, _) in SCENARIOS.items()), return_exceptions=True
        )
        controller.check()
        metrics = await made.metrics(controller)
        kept, stray = metrics['gpuscaler_promises_total{outcome="kept"}'], metrics["gpuscaler_stray_pods_total"]
        broken = metrics['gpuscaler_promises_total{outcome="broken"}']
        print(f"\nKubernetes {version()}: {kept:g} pods where they were promised, {stray:g} elsewhere, {broken:g} that did not fit there")
        assert await controller.end() == 0
        assert broken == 0
    return dict(zip(SCENARIOS, results, strict=True))


async def _play_one(made: Stage, name: str, play: Scenario) -> None:
    await made.namespace(name)
    await play(made, name)


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_workloads_scale_up_and_down_on_a_real_control_plane(outcomes: Outcomes, scenario: str) -> None:
    failure = outcomes[scenario]
    if failure is not None:
        raise failure
