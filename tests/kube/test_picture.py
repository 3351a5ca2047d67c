"""One state of the cluster, the picture, from many reflectors."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import pytest
from tests import objects
from tests.kube.scripted import SILENCE, Json, Reply, Scripted, event, failure, listed, page, pod, waiting

from gpuscaler.kube.client import Client
from gpuscaler.kube.decode import ObjectDecoder
from gpuscaler.kube.picture import ClusterState, Picture
from gpuscaler.kube.reflector import Batch
from gpuscaler.kube.resources import JOB_SETS, NODES, PODS, Resource
from gpuscaler.kube.transport import Answer, Request
from gpuscaler.model.aside import Skipped
from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.instances import Instance, Inventory
from gpuscaler.model.pods import Pod


class Servers:
    """One script per resource."""

    def __init__(self, scripts: dict[Resource, Scripted]) -> None:
        self.scripts = {resource.path(): script for resource, script in scripts.items()}

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        async with self.scripts[request.path].exchange(request) as answer:
            yield answer

    async def close(self) -> None:
        pass


def node(name: str, *, version: int = 1, heartbeat: str = "2026-03-01T08:00:00Z") -> Json:
    conditions = [{"type": "Ready", "status": "True", "lastHeartbeatTime": heartbeat}]
    return objects.node(name, 1, metadata={"resourceVersion": str(version)}, status={"conditions": conditions})


@asynccontextmanager
async def picture_of(*, inline: int = 2_000, **scripts: Scripted) -> AsyncIterator[Picture]:
    resources = {"pods": PODS, "nodes": NODES, "job_sets": JOB_SETS}
    servers = Servers({resources[name]: script for name, script in scripts.items()})
    picture = Picture(
        Client(servers),
        clock=asyncio.get_running_loop().time,
        random=Random(1),
        resources=[resources[name] for name in scripts],
        inline=inline,
    )
    task = asyncio.create_task(picture.run())
    try:
        yield picture
    finally:
        task.cancel()
        await asyncio.wait([task])


async def until_synced(picture: Picture) -> None:
    while not picture.synced:
        await picture.changed.wait()
        picture.changed.clear()


async def test_pods_and_nodes_become_one_cluster() -> None:
    pods, nodes = Scripted(Reply([listed(pod("a", node="n1")), SILENCE])), Scripted(Reply([listed(node("n1")), SILENCE]))
    async with picture_of(pods=pods, nodes=nodes) as picture:
        await asyncio.sleep(1)
        taken = await picture.take()
    assert picture.synced
    assert taken.cluster.on_node.keys() == {"n1"}
    assert taken.cluster.requested["nvidia.com/gpu"].tolist() == [1]
    assert taken.kinds == {"Pod", "Node"}


async def test_a_picture_is_not_synced_while_a_mandatory_resource_is_not_listed() -> None:
    pods, nodes = Scripted(Reply([listed(pod("a")), SILENCE])), Scripted(*[failure(403, "Forbidden")] * 5)
    async with picture_of(pods=pods, nodes=nodes) as picture:
        await asyncio.sleep(10)
        assert not picture.synced
        assert picture.stale_for(10.0) == float("inf")
        assert [trouble.partition(":")[0] for trouble in picture.troubles] == ["nodes"]


@pytest.mark.parametrize("refusal", [404, 403, 500])
async def test_an_unavailable_optional_resource_does_not_delay_syncing(refusal: int) -> None:
    async with picture_of(pods=Scripted(Reply([listed(pod("a")), SILENCE])), job_sets=Scripted(*[failure(refusal)] * 5)) as picture:
        await asyncio.sleep(1)
        assert picture.synced
        assert picture.stale_for(1.0) == pytest.approx(1.0)


async def test_a_picture_waits_for_the_first_answer_about_an_optional_resource() -> None:
    slow = Scripted(Reply([5.0, listed(), SILENCE]))
    async with picture_of(pods=Scripted(Reply([listed(pod("a")), SILENCE])), job_sets=slow) as picture:
        await asyncio.sleep(4)
        assert not picture.synced
        await asyncio.sleep(2)
        assert picture.synced


async def test_staleness_is_the_age_of_the_most_outdated_resource() -> None:
    pods = Scripted(Reply([listed(pod("a")), 40.0, event("ADDED", pod("b", version=101)), SILENCE]))
    nodes = Scripted(Reply([listed(node("n1")), 10.0, event("MODIFIED", node("n1", version=102)), SILENCE]))
    async with picture_of(pods=pods, nodes=nodes) as picture:
        await asyncio.sleep(50)
        assert picture.stale_for(50.0) == pytest.approx(40, abs=0.1)


async def test_a_version_identifies_one_picture() -> None:
    pods = Scripted(Reply([listed(pod("a")), 5.0, event("ADDED", pod("b", version=101)), SILENCE]))
    async with picture_of(pods=pods) as picture:
        await asyncio.sleep(1)
        first = await picture.take()
        again = await picture.take()
        await asyncio.sleep(5)
        later = await picture.take()
    assert (first.version, first.cluster) == (again.version, again.cluster)
    assert later.version > first.version
    assert first.cluster.pods.keys() == {"team/a"}
    assert later.cluster.pods.keys() == {"team/a", "team/b"}


async def test_a_node_heartbeat_changes_no_picture_and_wakes_no_task() -> None:
    beat = event("MODIFIED", node("n1", version=103, heartbeat="2026-03-01T08:05:00Z"))
    async with picture_of(nodes=Scripted(Reply([listed(node("n1")), 5.0, beat, SILENCE]))) as picture:
        await asyncio.sleep(1)
        first = await picture.take()
        await asyncio.sleep(6)
        assert not picture.changed.is_set()
        assert (await picture.take()).version == first.version


async def test_a_new_list_with_the_same_content_changes_no_picture() -> None:
    pods = Scripted(Reply([listed(pod("a"), pod("b"))]), failure(410), Reply([listed(pod("a"), pod("b"), version=900), SILENCE]))
    async with picture_of(pods=pods) as picture:
        await asyncio.sleep(0.5)
        first = await picture.take()
        await asyncio.sleep(20)
        assert len(pods.requests) == 3
        assert (await picture.take()).version == first.version


async def test_of_several_pending_changes_the_last_one_is_used() -> None:
    there_and_back: list[bytes | float | str] = [
        2.0,
        event("MODIFIED", pod("a", node="n1", version=101)),
        1.0,
        event("MODIFIED", pod("a", version=102)),
        SILENCE,
    ]
    async with picture_of(pods=Scripted(Reply([listed(pod("a")), *there_and_back]))) as picture:
        await asyncio.sleep(1)
        await picture.take()
        await asyncio.sleep(3)
        assert not (await picture.take()).cluster.pods["team/a"].node_name


async def test_an_empty_cluster_wakes_waiting_tasks() -> None:
    async with picture_of(pods=Scripted(Reply([3.0, listed(), SILENCE]))) as picture:
        await picture.changed.wait()
        assert picture.synced
        assert (await picture.take()).cluster.pods == {}


async def test_changes_wake_waiting_tasks() -> None:
    async with picture_of(pods=Scripted(Reply([listed(), 7.0, event("ADDED", pod("a")), SILENCE]))) as picture:
        await asyncio.sleep(1)
        await picture.take()
        await picture.changed.wait()
        assert asyncio.get_running_loop().time() == pytest.approx(7, abs=0.1)
        await picture.take()
        assert not picture.changed.is_set()


async def test_each_kind_of_changed_objects_is_reported_by_one_take() -> None:
    bound = event("MODIFIED", pod("a", node="n1", version=101))
    async with picture_of(pods=Scripted(Reply([listed(waiting("a")), 2.0, bound, SILENCE]))) as picture:
        await asyncio.sleep(1)
        assert (await picture.take()).kinds == {"Pod"}
        assert (await picture.take()).kinds == set()
        await asyncio.sleep(2)
        taken = await picture.take()
        assert taken.kinds == {"Pod"}
        assert taken.cluster.pods["team/a"].node_name == "n1"


def odd(name: str) -> Json:
    malformed = pod(name)
    malformed["spec"]["containers"] = "none"
    return malformed


async def test_an_unreadable_object_is_reported_until_it_can_be_read() -> None:
    async with picture_of(pods=Scripted(Reply([listed(odd("a")), 2.0, event("MODIFIED", pod("a", version=101)), SILENCE]))) as picture:
        await asyncio.sleep(1)
        assert [skipped.object for skipped in (await picture.take()).cluster.set_aside] == ["Pod team/a"]
        await asyncio.sleep(2)
        taken = await picture.take()
        assert taken.cluster.set_aside == ()
        assert taken.cluster.pods.keys() == {"team/a"}


async def test_an_object_that_becomes_readable_without_a_change_is_no_longer_reported_as_skipped() -> None:
    changes: list[bytes | float | str] = [2.0, event("MODIFIED", odd("a")), 2.0, event("MODIFIED", pod("a", version=103)), SILENCE]
    async with picture_of(pods=Scripted(Reply([listed(pod("a")), *changes]))) as picture:
        await asyncio.sleep(3)
        assert [skipped.object for skipped in (await picture.take()).cluster.set_aside] == ["Pod team/a"]
        await asyncio.sleep(2)
        assert (await picture.take()).cluster.set_aside == ()


async def test_a_deleted_unreadable_object_is_forgotten() -> None:
    async with picture_of(pods=Scripted(Reply([listed(odd("a")), 2.0, event("DELETED", odd("a")), SILENCE]))) as picture:
        await asyncio.sleep(1)
        await picture.take()
        await asyncio.sleep(2)
        assert (await picture.take()).cluster.set_aside == ()


async def test_listeners_get_each_batch_as_it_comes() -> None:
    received: list[str] = []
    async with picture_of(pods=Scripted(Reply([listed(pod("a")), 2.0, event("DELETED", pod("a")), SILENCE]))) as picture:
        picture.listen(lambda batch: received.extend(f"{key} {item is not None}" for key, item in batch.changes.items()))
        await asyncio.sleep(3)
    assert received == ["team/a True", "team/a False"]


async def test_a_removed_listener_is_not_called() -> None:
    received: list[str] = []
    async with picture_of(pods=Scripted(Reply([listed(pod("a")), 2.0, event("DELETED", pod("a")), SILENCE]))) as picture:
        leave = picture.listen(lambda batch: received.extend(batch.changes))
        await asyncio.sleep(1)
        leave()
        await asyncio.sleep(2)
    assert received == ["team/a"]


@pytest.mark.looptime(False)
async def test_many_changes_are_applied_outside_the_event_loop() -> None:
    many = [pod(f"p{number}", node=f"n{number % 10}") for number in range(300)]
    async with picture_of(inline=100, pods=Scripted(Reply([listed(*many), SILENCE]))) as picture:
        await until_synced(picture)
        taken = await picture.take()
        assert len(taken.cluster.pods) == 300


@pytest.mark.looptime(False)
async def test_a_cancelled_take_loses_no_changes() -> None:
    many = [waiting(f"p{number}") for number in range(300)]
    async with picture_of(inline=100, pods=Scripted(Reply([listed(*many), SILENCE]))) as picture:
        await until_synced(picture)
        taking = asyncio.create_task(picture.take())
        await asyncio.sleep(0)
        taking.cancel()
        await asyncio.wait([taking])
        assert picture.changed.is_set()
        taken: ClusterState = await picture.take()
    assert taking.cancelled()
    assert len(taken.cluster.pods) == 300
    assert taken.kinds == {"Pod"}


def batch_of(*pods: Json, aside: tuple[Skipped, ...] = ()) -> Batch:
    decoder = ObjectDecoder(PODS, Interner())
    decoded = [decoder.read(json.dumps(pod).encode()) for pod in pods]
    return Batch(PODS, Pod, {decoded.identity: decoded.items[0] for decoded in decoded}, aside)


async def test_larger_numbers_of_changes_are_applied_in_parts() -> None:
    picture = Picture(Client(Scripted()), clock=lambda: 0.0, random=Random(1), resources=[PODS], inline=2_000)
    picture.receive(batch_of(*(pod(f"p{number}", node="n1") for number in range(1_700))))
    taking = asyncio.create_task(picture.take())
    turns = 0
    while not taking.done():
        turns += 1
        await asyncio.sleep(0)
    assert len(taking.result().cluster.pods) == len(taking.result().cluster.on_node["n1"]) == 1_700
    assert turns > 3


#: Applied in a thread, and on the event loop in parts.
FOLDINGS = pytest.mark.parametrize(("inline", "count"), [(100, 300), (2_000, 1_200)])


@FOLDINGS
@pytest.mark.looptime(False)
async def test_a_reverse_change_during_the_application_of_a_change_is_not_lost(inline: int, count: int) -> None:
    picture = Picture(Client(Scripted()), clock=lambda: 0.0, random=Random(1), resources=[PODS], inline=inline)
    names = [f"p{number}" for number in range(count)]
    picture.receive(batch_of(*map(pod, names)))
    await picture.take()
    picture.receive(batch_of(*(pod(name, node="n1") for name in names)))
    taking = asyncio.create_task(picture.take())
    await asyncio.sleep(0)
    picture.receive(batch_of(pod("p0")))
    assert (await taking).cluster.pods["team/p0"].node_name == "n1"
    assert not (await picture.take()).cluster.pods["team/p0"].node_name


@FOLDINGS
@pytest.mark.looptime(False)
async def test_an_object_that_becomes_readable_during_a_take_is_no_longer_reported_as_skipped(inline: int, count: int) -> None:
    picture = Picture(Client(Scripted()), clock=lambda: 0.0, random=Random(1), resources=[PODS], inline=inline)
    names = [f"p{number}" for number in range(count)]
    picture.receive(batch_of(*map(pod, names)))
    await picture.take()
    picture.receive(batch_of(*(pod(name, node="n1") for name in names[1:]), aside=(Skipped("Pod team/p0", "odd"),)))
    taking = asyncio.create_task(picture.take())
    await asyncio.sleep(0)
    picture.receive(batch_of(pod("p0")))
    assert len((await taking).cluster.set_aside) == 1
    assert (await picture.take()).cluster.set_aside == ()


async def test_pages_and_a_stream_give_the_same_picture() -> None:
    items = [pod("a", node="n1"), waiting("b"), odd("c")]
    paged = Scripted(failure(422), page(items[0], items[1], more="t"), page(items[2]))
    async with picture_of(pods=Scripted(Reply([listed(*items), SILENCE]))) as picture, picture_of(pods=paged) as paged_picture:
        await asyncio.sleep(1)
        streamed, listed_ = (await picture.take()).cluster, (await paged_picture.take()).cluster
    assert streamed.pods == listed_.pods
    assert streamed.set_aside == listed_.set_aside


async def test_nodes_have_the_offering_of_their_machine_from_the_clouds_latest_list() -> None:
    def machine(name: str, version: int = 1, provider: str = "aws:///z/i-1") -> Json:
        return {**node(name, version=version), "spec": {"providerID": provider}}

    spot, reserved = Instance("aws:///z/i-1", "a", "spot", "g5.xlarge", "z"), Instance("aws:///z/i-1", "a", "reserved", "g5.xlarge", "z")
    nodes = Scripted(
        Reply([listed(machine("n1"), machine("n2", provider="aws:///z/i-2")), 5.0, event("MODIFIED", machine("n1", 2)), SILENCE])
    )
    async with picture_of(nodes=nodes) as picture:
        picture.set_offerings(Inventory(1.0, (spot,)))
        await asyncio.sleep(1)
        first = await picture.take()
        await asyncio.sleep(10)
        assert (await picture.take()).version == first.version
        picture.set_offerings(Inventory(2.0, (reserved,)))
        changed = await picture.take()
        picture.set_offerings(Inventory(3.0, ()))
        assert (await picture.take()).cluster is changed.cluster
    assert {name: node.bought for name, node in first.cluster.nodes.items()} == {"n1": spot.key, "n2": None}
    assert (changed.cluster.nodes["n1"].bought, sorted(changed.kinds)) == (reserved.key, ["Node"])
    assert changed.cluster.nodes["n2"] is first.cluster.nodes["n2"]
