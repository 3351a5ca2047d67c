"""F90 to F96: what whoever may create pods in one namespace, or send to the queue, could write to stop the controller for all."""

import pytest
from tests.clouds.aws.providers import Shop
from tests.clouds.aws.test_inbox import drain, machines, send, shop, warning
from tests.control.world import World
from tests.faults.kit import bought, faulty
from tests.hostile.workloads import HUGE, NOW, POOLS, Object, cluster_of, containers, gangs, node, ordinary, pod, policy

from gpuscaler.kube.resources import PODS
from gpuscaler.planning.planner import plan
from gpuscaler.planning.state import State

__all__ = ["shop"]

pytestmark = pytest.mark.looptime(noop_cycles=1)


async def create(here: World, *pods: Object) -> None:
    for each in pods:
        await here.user.create(PODS, each, namespace=each["metadata"]["namespace"])


async def test_f90_a_pod_whose_containers_sum_up_to_more_than_can_be_counted_stops_nobody() -> None:
    async with faulty() as here:
        await create(here, pod("poison", containers(1024, memory=HUGE), namespace="default"))
        await here.sleep(5.0)
        await here.submit("a")
        await bought(here, 1)
        await here.sleep(60.0)

        assert (await here.bound())["a"]
        assert here.notes.last is not None
        assert [aside.object for aside in here.notes.last.set_aside] == ["Pod default/poison"]


def test_f90_many_bound_pods_of_the_largest_request_fill_their_node_alone() -> None:
    crowd = [pod(n, {"nodeName": "n1", **containers(1, memory=HUGE)}) for n in range(1100)]
    made = plan(cluster_of([node("n1"), node("n2"), *crowd, *ordinary(1)]), State(), policy(POOLS), NOW)

    assert [placement.node for placement in made.placements] == ["n2"]


def test_f91_six_hundred_gangs_are_planned_for_without_recursion() -> None:
    made = plan(cluster_of([*gangs(600, 1, alike=True), *ordinary(1)]), State(), policy(POOLS), NOW)

    assert "others/o0" in {key for machine in made.machines for key in machine.pods}


@pytest.mark.looptime(False)
@pytest.mark.parametrize("poison", ["[" * 200_000, '{"a":' * 100_000, "{}"])
async def test_f92_a_message_that_makes_no_sense_is_deleted_at_once_and_what_follows_is_heard(shop: Shop, poison: str) -> None:
    await drain(shop)
    queue = shop.aws.account.region("us-east-1").queues["events"]
    first, _ = machines(shop)
    send(shop, poison, warning(first.id))
    before = len(queue.messages)

    assert [one.instance.rpartition("/")[2] for one in await shop.provider.notices()] == [first.id]
    assert (before, len(queue.messages)) == (2, 1)
    assert shop.provider.inbox is not None
    assert shop.provider.inbox.counts.malformed == 1
