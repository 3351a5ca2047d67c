"""F85 to F89: pods that run, and what is done to them for others."""

from typing import Any

import pytest
from tests.control.leaving import template
from tests.control.world import World
from tests.faults.kit import all_bound, faulty, latest, markets, watch_of
from tests.faults.test_removals import dear, offer_spot

from gpuscaler.control.records.why import why_node
from gpuscaler.kube.resources import DEPLOYMENTS, NAMESPACES, PODS, STATEFUL_SETS, Resource

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


async def annotate(here: World, resource: Resource, name: str, value: str | None) -> None:
    namespace = "default" if resource.namespaced else ""
    patch = {"metadata": {"annotations": {"gpuscaler.io/disruption": value}}}
    await here.user.merge_patch(resource, name, patch, namespace=namespace)


NOTEBOOK = {"name": "nb", "resource": STATEFUL_SETS, "annotations": {}}


async def test_f86_a_notebook_stays_on_its_dear_machine_until_its_namespace_allows_to_move_it() -> None:
    async with dear(NOTEBOOK) as here:
        offer_spot(here)
        await here.sleep(1200.0)

        said = why_node(await latest(here), "sim-00001", (), here.now())
        assert any("sole-replica: pod default/nb-0 holds a GPU and no other replica of StatefulSet default/nb" in one for one in said.now)
        assert (markets(here), watch_of(here).to("/eviction")) == (["on-demand"], [])

        await annotate(here, NAMESPACES, "default", "allow")
        await here.sleep(1200.0)

        assert markets(here) == ["on-demand", "spot"]
        assert len(watch_of(here).to("/eviction")) == 1
        assert await all_bound(here)


async def test_f86_what_an_owner_forbids_in_the_middle_of_a_removal_ends_it() -> None:
    """The word comes after the plan: the replacement is there, and the pod stays all the same."""
    async with dear({**NOTEBOOK, "annotations": {"gpuscaler.io/disruption": "allow"}}) as here:
        offer_spot(here)
        while markets(here) == ["on-demand"]:
            await here.sleep(1.0)
        await annotate(here, STATEFUL_SETS, "nb", "never")
        await here.user.merge_patch(PODS, "nb-0", {"metadata": {"annotations": {"gpuscaler.io/disruption": None}}}, namespace="default")
        await here.sleep(600.0)

        assert watch_of(here).to("/eviction") == []
        assert await here.bound() == {"nb-0": "sim-00001"}
