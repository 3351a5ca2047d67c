"""F85 to F89: pods that run, and what is done to them for others."""

from typing import Any

import pytest
from tests.control.leaving import template
from tests.control.world import World
from tests.faults.kit import all_bound, faulty, watch_of

from gpuscaler.kube.resources import DEPLOYMENTS

pytestmark = pytest.mark.looptime(noop_cycles=1)

#: Everything but the limits is as it comes.
SERVING = """
region: us-east-1
limits: {gpus: 80, machines: 80, machines_per_minute: 80, dollars_per_hour: 200}
pools:
  - name: gpu
    types: [g5.xlarge]
    markets: [on-demand]
    zones: [us-east-1a]
"""


async def deploy(here: World, name: str, replicas: int, **more: Any) -> None:
    """A Deployment of pods of one GPU that say nothing about being moved."""
    spec = {"replicas": replicas, "selector": {"matchLabels": {"app": name}}, "template": template(name, annotations={}, **more)}
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}
    await here.user.create(DEPLOYMENTS, body, namespace="default")


async def uids(here: World) -> set[str]:
    return {one["metadata"]["uid"] for one in await here.pods()}


async def test_f85_while_a_deployment_grows_its_running_replicas_stay_where_they_are() -> None:
    """The machines that are bought for the new replicas are promised to those, however well the running ones would fit there."""
    async with faulty(SERVING) as here:
        await deploy(here, "web", 10)
        await here.sleep(690.0)
        assert await all_bound(here)
        first = await uids(here)

        await here.user.merge_patch(DEPLOYMENTS, "web", {"spec": {"replicas": 60}}, namespace="default")
        await here.sleep(300.0)

        assert len(first) == 10
        assert first <= await uids(here)
        assert not watch_of(here).to("/eviction")
        assert len(here.cluster.core.history()) == 60
        assert await all_bound(here)
