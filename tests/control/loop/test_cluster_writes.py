"""Outcomes of acts on nodes: opening, marking, forbidden acts."""

import asyncio
from typing import Any

import msgspec
import pytest

from gpuscaler.control.loop.cluster_writes import CONCURRENT_WRITES, ClusterWriter
from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.kube.rate import RateLimit
from gpuscaler.kube.resources import NODES
from gpuscaler.lifecycle.actions import Act, Close, Evict, Exclude, Lift, Mark, OpenWindow

NODE: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "a"},
    "spec": {"taints": [{"key": "gpuscaler.io/arriving", "effect": "NoSchedule"}]},
}


def empty_cluster_client() -> Client:
    return Client(MemoryTransport(ApiServer(lambda: 1_790_000_000.0)), limit=RateLimit(qps=1e6, burst=1_000_000))


async def test_opening_a_node_keeps_other_taints() -> None:
    client = empty_cluster_client()
    other = {"key": "dedicated", "effect": "NoSchedule"}
    await client.create(NODES, {**NODE, "spec": {"taints": [*NODE["spec"]["taints"], other]}})
    (outcome,) = await ClusterWriter(client).carry_out([Lift("a", "it is ready")])

    assert outcome.detail == ""
    assert msgspec.json.decode(await client.get(NODES, "a"))["spec"]["taints"] == [other]


async def spec_after(client: Client, *acts: Act) -> dict[str, Any]:
    """The spec of node a after ``acts``, one after the other."""
    for act in acts:
        (outcome,) = await ClusterWriter(client).carry_out([act])
        assert outcome.detail == ""
    spec: dict[str, Any] = msgspec.json.decode(await client.get(NODES, "a"))["spec"]
    return {name: value for name, value in spec.items() if name in {"taints", "unschedulable"}}


@pytest.mark.parametrize("kept", [False, True])
async def test_a_node_is_cordoned_during_its_window_and_uncordoned_afterwards(kept: bool) -> None:
    client = empty_cluster_client()
    other = {"key": "dedicated", "effect": "NoSchedule"}
    await client.create(NODES, {**NODE, "spec": {"taints": [*NODE["spec"]["taints"], other]}})
    key = "gpuscaler.io/kept" if kept else "gpuscaler.io/arriving"
    window = OpenWindow("a", "it lacks a DaemonSet", kept=kept)

    in_window = {"taints": [other, {"key": key, "effect": "PreferNoSchedule"}], "unschedulable": True}
    assert await spec_after(client, window) == in_window
    assert await spec_after(client, window) == in_window
    assert await spec_after(client, Close("a", "", kept=kept)) == {"taints": [other, {"key": key, "effect": "NoSchedule"}]}
    assert await spec_after(client, window, Lift("a", "")) == {"taints": [other]}


async def test_a_node_that_a_user_cordoned_stays_cordoned_and_gets_no_window() -> None:
    client = empty_cluster_client()
    await client.create(NODES, {**NODE, "spec": {**NODE["spec"], "unschedulable": True}})

    assert await spec_after(client, OpenWindow("a", ""), Close("a", "")) == {**NODE["spec"], "unschedulable": True}
    assert await spec_after(client, Lift("a", "")) == {"unschedulable": True}


@pytest.mark.parametrize(
    ("said", "others"),
    [
        ('admission webhook "nodes.example.com" denied the request: a is frozen', True),
        ("nodes \"a\" is forbidden: ValidatingAdmissionPolicy 'frozen' with binding 'all' denied request: a is frozen", True),
        ('nodes "a" is forbidden: User "gpuscaler" cannot patch resource "nodes" in API group "" at the cluster scope', False),
    ],
)
async def test_an_admission_policy_blocks_acts_on_one_node_and_a_missing_right_pauses_all_acts_of_that_type(
    said: str, others: bool
) -> None:
    api = ApiServer(lambda: 1_790_000_000.0)
    user = Client(MemoryTransport(api), limit=RateLimit(qps=1e6, burst=1_000_000))
    for name in ("a", "b"):
        await user.create(NODES, {**NODE, "metadata": {"name": name}})
    api.faults.add(Fault(method="PATCH", path=r"/nodes/a", refusal=Failure(403, "Forbidden", said)))
    actor = ClusterWriter(Client(MemoryTransport(api), limit=RateLimit(qps=1e6, burst=1_000_000)))
    (refused,) = await actor.carry_out([Mark("a", "idle")])
    (after,) = await actor.carry_out([Mark("b", "idle")])
    taints = {taint["key"] for taint in msgspec.json.decode(await user.get(NODES, "b"))["spec"]["taints"]}

    assert said in refused.detail
    assert (after.detail == "", "gpuscaler.io/leaving" in taints) == (others, others)
    assert (refused.tried, after.tried) == (True, others)


async def test_excluding_a_deleted_node_from_load_balancers_succeeds_and_tainting_it_fails() -> None:
    outcomes = await ClusterWriter(empty_cluster_client()).carry_out([Exclude("b", "idle"), Mark("b", "idle")])

    assert [outcome.detail for outcome in outcomes] == ["", "node b is gone"]


async def test_interrupted_nodes_are_tainted_before_hundreds_of_queued_evictions_finish() -> None:
    api = ApiServer(lambda: 1_790_000_000.0)
    user = Client(MemoryTransport(api), limit=RateLimit(qps=1e6, burst=1_000_000))
    await user.create(NODES, NODE)
    actor = ClusterWriter(Client(MemoryTransport(api), limit=RateLimit(qps=1, burst=1)))
    loop = asyncio.get_running_loop()
    evictions = asyncio.create_task(actor.carry_out([Evict(f"default/pod{number}", "", "a") for number in range(100)]))
    await asyncio.sleep(2)
    (marked,) = await actor.carry_out([Mark("a", "it is taken back")])
    assert (marked.detail, evictions.done()) == ("", False)
    assert loop.time() == pytest.approx(2, abs=0.1)
    assert "gpuscaler.io/leaving" in (await user.get(NODES, "a")).decode()
    await evictions


async def test_an_act_is_queued_once_and_is_dropped_if_an_opposite_act_follows() -> None:
    api = ApiServer(lambda: 1_790_000_000.0)
    user = Client(MemoryTransport(api), limit=RateLimit(qps=1e6, burst=1_000_000))
    names = [f"n{number}" for number in range(2 * CONCURRENT_WRITES)]
    for name in names:
        await user.create(NODES, {**NODE, "metadata": {"name": name}})
    actor = ClusterWriter(Client(MemoryTransport(api), limit=RateLimit(qps=10.0, burst=1)))
    first = asyncio.create_task(actor.carry_out(Lift(name, "it is ready") for name in names))
    await asyncio.sleep(0.5)
    again = asyncio.create_task(actor.carry_out(Lift(name, "a second look") for name in names[-3:]))
    other = asyncio.create_task(actor.carry_out([Close(names[-1], "it is not ready any more")]))
    done, repeated, (closed,) = await asyncio.gather(first, again, other)
    taints = {name: msgspec.json.decode(await user.get(NODES, name))["spec"].get("taints") for name in names}

    assert repeated == []
    assert [outcome.act.node for outcome in done] == names[:-1]
    assert (closed.detail, [name for name, some in taints.items() if some]) == ("", [names[-1]])


async def test_an_act_without_an_answer_is_tried_again() -> None:
    api = ApiServer(lambda: 1_790_000_000.0)
    user = Client(MemoryTransport(api), limit=RateLimit(qps=1e6, burst=1_000_000))
    await user.create(NODES, NODE)
    api.faults.add(Fault(method="GET", path=r"/nodes/a", delay=30.0, times=1))
    actor = ClusterWriter(Client(MemoryTransport(api), limit=RateLimit(qps=1e6, burst=1_000_000)))
    async with asyncio.timeout(10.0):
        (outcome,) = await actor.carry_out([Lift("a", "it is ready")])

    assert outcome.detail == ""
    assert not msgspec.json.decode(await user.get(NODES, "a"))["spec"].get("taints")


async def test_a_write_that_takes_long_does_not_undo_a_later_one() -> None:
    api = ApiServer(lambda: 1_790_000_000.0)
    user = Client(MemoryTransport(api), limit=RateLimit(qps=1e6, burst=1_000_000))
    await user.create(NODES, {**NODE, "spec": {}})
    api.faults.add(Fault(method="PATCH", path=r"/nodes/a", delay=2.0, times=1))
    actor = ClusterWriter(Client(MemoryTransport(api), limit=RateLimit(qps=1e6, burst=1_000_000)))
    closing = asyncio.create_task(actor.carry_out([Close("a", "it is not open yet")]))
    await asyncio.sleep(1.0)
    assert actor.nodes_in_change(None) == {"a"}
    await actor.carry_out([Lift("a", "it is ready")])
    await closing
    node = msgspec.json.decode(await user.get(NODES, "a"))
    version = int(node["metadata"]["resourceVersion"])

    assert not node["spec"].get("taints")
    assert [actor.nodes_in_change(seen) for seen in (None, version - 1, version)] == [{"a"}, {"a"}, set()]


async def test_writes_that_a_restored_server_has_lost_are_not_waited_for() -> None:
    client = empty_cluster_client()
    await client.create(NODES, NODE)
    actor = ClusterWriter(client)
    await actor.carry_out([Lift("a", "it is ready")])

    assert [actor.nodes_in_change(seen) for seen in (1, 0)] == [{"a"}, set()]
