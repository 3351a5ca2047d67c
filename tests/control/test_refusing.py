"""Machines that do not get the pods they were planned for, because the scheduler has a reason that the controller does not know."""

from typing import Any

import msgspec
from tests.control.world import World, world
from tests.objects import pod

from gpuscaler.embedded.nodes.scheduling import Scheduler
from gpuscaler.kube.resources import NODES, PODS
from gpuscaler.model.cluster import Cluster, Delta
from gpuscaler.model.nodes import Node
from gpuscaler.model.pools import Policy
from gpuscaler.settings.pools_file import parse_policy

TYPE = "node.kubernetes.io/instance-type"
TWO_TYPES = """
region: us-east-1
schedulers: [picky]
pools:
  - name: gpu
    types: [g4dn.xlarge, g5.xlarge]
    markets: [on-demand]
    zones: [us-east-1a]
    idle_after: 2h
"""


class PickyScheduler(Scheduler):
    """A scheduler with an additional filter: it ignores machines of ``spurned`` types or names."""

    spurned: frozenset[str] = frozenset()

    async def turn(self, cluster: Cluster) -> None:
        hidden = (name for name, node in cluster.nodes.items() if {name, node.labels.get(TYPE, "")} & self.spurned)
        await super().turn(cluster.apply(Delta(deletes=tuple((Node, name) for name in hidden))))


async def run_picky_scheduler(here: World, *spurned: str) -> PickyScheduler:
    """Run such a scheduler."""
    client = here.cluster.client("picky")
    seen = here.cluster.picture(client)
    scheduler = PickyScheduler(client, seen, now=here.now, scheduler="picky")
    scheduler.spurned = frozenset(spurned)
    here.support(seen.run(), scheduler.run())
    return scheduler


async def submit(here: World, name: str, **annotations: str) -> None:
    body = pod(name, 1, annotations)
    body["spec"]["schedulerName"] = "picky"
    await here.user.create(PODS, body, namespace="default")


def machine_types(here: World) -> list[str]:
    return [machine.offering.instance_type for machine in here.cluster.core.history()]


async def test_a_pod_not_scheduled_on_its_open_machine_within_a_minute_is_planned_again() -> None:
    async with world(TWO_TYPES, seed=3) as here:
        scheduler = await run_picky_scheduler(here)
        here.start()
        await here.sleep(2.0)
        await submit(here, "first", **{"gpuscaler.io/run-for": "3m"})
        await here.sleep(300.0)
        (node,) = await here.nodes()
        # It is empty now and fits, and the scheduler refuses it from now on.
        scheduler.spurned = frozenset({node["metadata"]["name"]})
        await submit(here, "second")
        await here.sleep(50.0)
        assert machine_types(here) == ["g4dn.xlarge"]
        await here.sleep(130.0)

        assert machine_types(here) == ["g4dn.xlarge", "g4dn.xlarge"]
        assert (await here.bound())["second"] not in {"", node["metadata"]["name"]}
        assert here.controller is not None
        (avoided,) = here.controller.memory.refusals.avoided
        assert avoided.node == node["metadata"]["name"]
        assert avoided.detail == "no nodes available to schedule pods"


async def test_if_a_node_does_not_get_its_promised_pod_no_pod_of_that_class_is_planned_there_until_it_changes() -> None:
    async with world(TWO_TYPES, seed=4) as here:
        scheduler = await run_picky_scheduler(here)
        here.start()
        await here.sleep(2.0)
        await submit(here, "first", **{"gpuscaler.io/run-for": "3m"})
        await here.sleep(300.0)
        (node,) = await here.nodes()
        name = node["metadata"]["name"]
        scheduler.spurned = frozenset({name})
        await submit(here, "second")
        await here.sleep(200.0)
        assert len(machine_types(here)) == 2
        # Another pod of its class does not wait for that node; a changed node is tried again.
        await submit(here, "third")
        await here.sleep(5.0)
        assert len(machine_types(here)) == 3
        await here.user.merge_patch(NODES, name, {"metadata": {"labels": {"repaired": "yes"}}})
        await here.sleep(15.0)
        assert here.controller is not None
        assert here.controller.memory.refusals.avoided == ()


async def test_two_broken_promises_pause_the_offering_for_the_pod_class() -> None:
    async with world(TWO_TYPES, seed=5) as here:
        await run_picky_scheduler(here, "g4dn.xlarge")
        here.start()
        await here.sleep(2.0)
        await submit(here, "p")
        await here.sleep(400.0)

        # The cheapest is tried twice, and then the next: purchases do not repeat forever.
        assert machine_types(here) == ["g4dn.xlarge", "g4dn.xlarge", "g5.xlarge"]
        assert here.notes.outcomes["Broken"] == 2
        assert (await here.bound())["p"] == here.cluster.core.history()[-1].id


# A template that promises more than its machines have


def with_larger_templates(policy: Policy, **more: int) -> Policy:
    """``policy`` with templates that promise more of each resource than machines have."""

    def larger(amounts: Any) -> dict[str, int]:
        return {name: amount + more.get(name, 0) for name, amount in amounts.items()}

    pools = [
        msgspec.structs.replace(
            pool, offerings=tuple(msgspec.structs.replace(offer, allocatable=larger(offer.allocatable)) for offer in pool.offerings)
        )
        for pool in policy.pools
    ]
    return msgspec.structs.replace(policy, pools=tuple(pools))


TWO_SIZES = """
region: us-east-1
pools:
  - name: gpu
    types: [g4dn.xlarge, g4dn.2xlarge]
    markets: [on-demand]
    zones: [us-east-1a]
    idle_after: 2h
"""


async def test_pods_that_fill_a_node_template_get_only_one_machine_that_turns_out_smaller() -> None:
    truth = parse_policy(TWO_SIZES)
    small = next(offering for offering in truth.pools[0].offerings if offering.instance_type == "g4dn.xlarge")
    async with world(TWO_SIZES, seed=6) as here:
        here.policy = with_larger_templates(truth, memory=2 * 2**30)
        here.start()
        await here.sleep(2.0)
        body = pod("p")
        body["spec"]["containers"][0]["resources"]["requests"]["memory"] = str(small.allocatable["memory"] + 2**30)
        await here.user.create(PODS, body, namespace="default")
        await here.sleep(300.0)

        assert machine_types(here) == ["g4dn.xlarge", "g4dn.2xlarge"]
        assert (await here.bound())["p"] == here.cluster.core.history()[-1].id
        assert here.controller is not None
        learned = {lesson.instance_type: lesson.allocatable for lesson in here.controller.memory.learned.lessons}
        assert learned["g4dn.xlarge"]["memory"] == small.allocatable["memory"]
        # For pods of the same kind the right size is bought at once.
        body["metadata"]["name"] = "q"
        await here.user.create(PODS, body, namespace="default")
        await here.sleep(3.0)
        assert machine_types(here)[2:] == ["g4dn.2xlarge"]
