"""What opening a node comes to while somebody else writes to its pods."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec
import pytest
from tests.control.world import pod

from gpuscaler.control.acting import HOLDS, LONGEST_GATE, Actor
from gpuscaler.embedded.api import ApiServer
from gpuscaler.embedded.failures import Failure
from gpuscaler.embedded.faults import Fault
from gpuscaler.embedded.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.kube.rate import RateLimit
from gpuscaler.kube.resources import NODES, PODS
from gpuscaler.kube.transport import Answer, Request
from gpuscaler.planning.acts import Evict, Exclude, Lift, Mark, Nominate

NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "a"},
    "spec": {"taints": [{"key": "gpuscaler.io/arriving", "effect": "NoSchedule"}]},
}


class Telling(MemoryTransport):
    """Tells of every request once it is done."""

    def __init__(self, api: ApiServer, told: Callable[[Request], None]) -> None:
        super().__init__(api)
        self._told = told

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        async with super().exchange(request) as answer:
            yield answer
        self._told(request)


class Cluster:
    """A closed node, a pod that is promised it, and a scheduler that does something ``after`` the node has opened."""

    def __init__(self) -> None:
        self.api = ApiServer(lambda: 1_790_000_000.0)
        self.scheduler = Client(MemoryTransport(self.api), limit=RateLimit(qps=1e6, burst=1_000_000))
        self.opened = asyncio.Event()
        self.nominations: list[float] = []

    def hear(self, request: Request) -> None:
        if request.method == "PATCH" and request.path.endswith("/nodes/a"):
            self.opened.set()
        if request.method == "PATCH" and request.path.endswith("/pods/p/status"):
            self.nominations.append(asyncio.get_running_loop().time())

    async def open(self) -> str:
        await self.scheduler.create(NODES, NODE)
        made = msgspec.json.decode(await self.scheduler.create(PODS, pod("p"), namespace="default"))
        promised = Nominate("default/p", made["metadata"]["uid"], "a")
        actor = Actor(Client(Telling(self.api, self.hear), limit=RateLimit(qps=1e6, burst=1_000_000)))
        (outcome,) = await actor.carry_out([Lift("a", "it is ready", (promised,))])
        return outcome.detail

    async def nominated(self) -> str | None:
        found = msgspec.json.decode(await self.scheduler.get(PODS, "p", namespace="default"))
        node: str | None = found.get("status", {}).get("nominatedNodeName")
        return node


@pytest.mark.parametrize("after", [0.0, 0.03, 0.12, 0.3])
async def test_a_nomination_that_an_attempt_under_way_clears_as_the_node_opens_stands_again(after: float) -> None:
    here = Cluster()

    async def clear() -> None:
        await here.opened.wait()
        await asyncio.sleep(after)
        await here.scheduler.merge_patch(PODS, "p", {"status": {"nominatedNodeName": None}}, namespace="default", subresource="status")

    failing = asyncio.create_task(clear())
    assert await here.open() == ""
    await failing

    assert await here.nominated() == "a"


async def test_it_is_not_written_again_to_a_pod_that_is_bound() -> None:
    here = Cluster()

    async def bind() -> None:
        await here.opened.wait()
        await here.scheduler.bind("default", "p", "a")

    binding = asyncio.create_task(bind())
    assert await here.open() == ""
    await binding

    # Once before the node opens, and at most once until it is seen to be bound.
    assert len(here.nominations) <= 2 < 1 + len(HOLDS)


async def test_a_pod_that_is_gone_holds_nobody_up() -> None:
    here = Cluster()

    async def remove() -> None:
        await here.opened.wait()
        await here.scheduler.delete(PODS, "p", namespace="default")

    removing = asyncio.create_task(remove())
    assert await here.open() == ""
    await removing


class Slow(MemoryTransport):
    """Answers requests for one node's state after ``pause`` seconds, and notes when nodes open."""

    def __init__(self, api: ApiServer, node: str, pause: float) -> None:
        super().__init__(api)
        self._slow, self._pause = f"/nodes/{node}", pause
        self.opened: dict[str, float] = {}

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        if request.method == "GET" and request.path.endswith(self._slow):
            await asyncio.sleep(self._pause)
        async with super().exchange(request) as answer:
            yield answer
        if request.method == "PATCH" and "/nodes/" in request.path:
            self.opened[request.path[-1]] = asyncio.get_running_loop().time()


@pytest.mark.parametrize(
    ("there", "pause", "at"),
    [("ab", 0.4, (0.4, 0.4)), ("ab", 30.0, (LONGEST_GATE, 30.0)), ("a", 0.0, (0.0, None))],
    ids=["both", "slow", "gone"],
)
async def test_nodes_that_open_together_do_so_in_one_moment_but_wait_for_none_that_is_gone_or_hangs(
    there: str, pause: float, at: tuple[float, float | None]
) -> None:
    transport = Slow(ApiServer(lambda: 1_790_000_000.0), "b", pause)
    client = Client(transport, limit=RateLimit(qps=1e6, burst=1_000_000))
    for name in there:
        await client.create(NODES, {**NODE, "metadata": {"name": name}})
    began = asyncio.get_running_loop().time()

    outcomes = await Actor(client).carry_out([Lift(name, "it is ready", ()) for name in "ab"])

    assert [bool(one.detail) for one in outcomes] == [False, there == "a"]
    opened = [transport.opened[name] - began if name in transport.opened else None for name in "ab"]
    assert opened == [None if one is None else pytest.approx(one, abs=0.01) for one in at]


@pytest.mark.parametrize(
    ("said", "others"),
    [
        ('admission webhook "nodes.example.com" denied the request: a is frozen', True),
        ("nodes \"a\" is forbidden: ValidatingAdmissionPolicy 'frozen' with binding 'all' denied request: a is frozen", True),
        ('nodes "a" is forbidden: User "gpuscaler" cannot patch resource "nodes" in API group "" at the cluster scope', False),
    ],
)
async def test_what_a_policy_forbids_of_one_node_is_done_to_others_and_a_right_that_is_missing_is_not_tried(
    said: str, others: bool
) -> None:
    api = ApiServer(lambda: 1_790_000_000.0)
    user = Client(MemoryTransport(api), limit=RateLimit(qps=1e6, burst=1_000_000))
    for name in ("a", "b"):
        await user.create(NODES, {**NODE, "metadata": {"name": name}})
    api.faults.add(Fault(method="PATCH", path=r"/nodes/a", refusal=Failure(403, "Forbidden", said)))
    actor = Actor(Client(MemoryTransport(api), limit=RateLimit(qps=1e6, burst=1_000_000)))
    (refused,) = await actor.carry_out([Mark("a", "idle")])
    (after,) = await actor.carry_out([Mark("b", "idle")])
    taints = {one["key"] for one in msgspec.json.decode(await user.get(NODES, "b"))["spec"]["taints"]}

    assert said in refused.detail
    assert (after.detail == "", "gpuscaler.io/leaving" in taints) == (others, others)
    assert (refused.tried, after.tried) == (True, others)


async def test_a_node_that_is_gone_needs_nobody_kept_away_from_it_and_cannot_be_marked() -> None:
    outcomes = await Actor(Cluster().scheduler).carry_out([Exclude("b", "idle"), Mark("b", "idle")])

    assert [one.detail for one in outcomes] == ["", "node b is gone"]


async def test_nodes_that_are_taken_back_are_marked_before_hundreds_of_evictions_are_through() -> None:
    api = ApiServer(lambda: 1_790_000_000.0)
    user = Client(MemoryTransport(api), limit=RateLimit(qps=1e6, burst=1_000_000))
    await user.create(NODES, NODE)
    actor = Actor(Client(MemoryTransport(api), limit=RateLimit(qps=1, burst=1)))
    loop = asyncio.get_running_loop()
    evictions = asyncio.create_task(actor.carry_out([Evict(f"default/pod{number}", "", "a") for number in range(100)]))
    await asyncio.sleep(2)
    (marked,) = await actor.carry_out([Mark("a", "it is taken back")])
    assert (marked.detail, evictions.done()) == ("", False)
    assert loop.time() == pytest.approx(2, abs=0.1)
    assert "gpuscaler.io/leaving" in (await user.get(NODES, "a")).decode()
    await evictions
