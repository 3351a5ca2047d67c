"""Leadership, and until when a leader may write, in virtual time."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

import pytest
import structlog

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import Unreachable
from gpuscaler.kube.leases import LeaderElection, LeaseTimes, NotLeaderError
from gpuscaler.kube.resources import CONFIG_MAPS
from gpuscaler.kube.transport import Answer, Request

Json = dict[str, Any]


class LeaseServer:
    """Stores one lease with compare-and-swap. ``cut`` lists processes without a connection; ``deaf`` those without answers to writes."""

    def __init__(self) -> None:
        self.lease: Json | None = None
        self.version = 0
        self.cut: set[str] = set()
        #: Why writes are refused.
        self.refused = ""
        self.deaf: set[str] = set()
        self.delay = 0.0
        #: How many seconds an answer takes to arrive.
        self.late = 0.0
        self.holders: list[tuple[float, str]] = []
        self.writes: list[tuple[float, str]] = []

    def transport(self, identity: str) -> "LeaseTransport":
        return LeaseTransport(self, identity)

    def handle(self, request: Request, identity: str) -> tuple[int, Json]:
        if "configmaps" in request.path:
            self.writes.append((asyncio.get_running_loop().time(), identity))
            return 200, {}
        if request.method == "GET":
            return (200, self.lease) if self.lease is not None else (404, {})
        if self.refused:
            return 403, {"kind": "Status", "reason": "Forbidden", "message": self.refused}
        sent = json.loads(request.body)
        if request.method == "POST" and self.lease is not None:
            return 409, {"kind": "Status", "reason": "AlreadyExists"}
        if request.method == "PUT" and (self.lease is None or sent["metadata"].get("resourceVersion") != str(self.version)):
            return 409, {"kind": "Status", "reason": "Conflict"}
        self.put(sent)
        return 200, sent

    def put(self, lease: Json) -> None:
        self.version += 1
        lease["metadata"]["resourceVersion"] = str(self.version)
        self.lease = lease
        holder = lease["spec"]["holderIdentity"]
        if not self.holders or self.holders[-1][1] != holder:
            self.holders.append((asyncio.get_running_loop().time(), holder))


class LeaseTransport:
    def __init__(self, server: LeaseServer, identity: str) -> None:
        self.server, self.who = server, identity

    @asynccontextmanager
    async def exchange(self, request: Request) -> AsyncIterator[Answer]:
        await asyncio.sleep(self.server.delay)
        if self.who in self.server.cut:
            raise Unreachable("the connection broke")
        status, body = self.server.handle(request, self.who)
        if self.who in self.server.deaf and request.method != "GET":
            raise Unreachable("the connection broke before an answer came")
        await asyncio.sleep(self.server.late)

        async def pieces() -> AsyncIterator[bytes]:
            yield json.dumps(body).encode()

        yield Answer(status, {}, pieces())

    async def close(self) -> None:
        pass


class Candidate:
    """One process: an election, and its work while it leads."""

    def __init__(self, server: LeaseServer, name: str, *, wall: float = 1_780_000_000.0, times: LeaseTimes | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.client = Client(server.transport(name))
        self.election = LeaderElection(
            self.client,
            name="gpuscaler",
            namespace="kube-system",
            identity=name,
            clock=loop.time,
            wall=lambda: wall + loop.time(),
            random=Random(name),
            times=times,
        )
        self.led: list[tuple[float, float]] = []
        self.task: asyncio.Task[None] | None = None

    async def lead(self) -> None:
        loop = asyncio.get_running_loop()
        begin = loop.time()
        try:
            await asyncio.Event().wait()
        finally:
            self.led.append((begin, loop.time()))

    def start(self) -> None:
        self.task = asyncio.create_task(self.election.run(self.lead))

    async def stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
            await asyncio.wait([self.task])


@asynccontextmanager
async def candidates(server: LeaseServer, *names: str, **options: Any) -> AsyncIterator[list[Candidate]]:
    candidates = [Candidate(server, name, **options) for name in names]
    for candidate in candidates:
        candidate.start()
    try:
        yield candidates
    finally:
        for candidate in candidates:
            await candidate.stop()


def overlap(candidate: Candidate, other: Candidate) -> bool:
    return any(begin < end2 and begin2 < end for begin, end in candidate.led for begin2, end2 in other.led)


async def test_the_only_candidate_leads_at_once_and_writes_a_lease_like_kubernetes() -> None:
    server = LeaseServer()
    async with candidates(server, "a") as [a]:
        await asyncio.sleep(1)
        assert a.election.is_leader
    assert server.lease is not None
    spec = server.lease["spec"]
    assert server.holders[0][1] == "a"
    assert spec["renewTime"] == "2026-05-28T20:26:41.000000Z"
    assert spec["acquireTime"] == "2026-05-28T20:26:40.000000Z"
    assert spec["leaseTransitions"] == 0


async def test_of_two_candidates_one_leads() -> None:
    server = LeaseServer()
    async with candidates(server, "a", "b") as [a, b]:
        await asyncio.sleep(120)
        assert a.election.is_leader != b.election.is_leader
        assert a.election.holder == b.election.holder
        assert len(server.holders) == 1


async def test_a_released_lease_is_taken_over_within_seconds() -> None:
    server = LeaseServer()
    async with candidates(server, "a") as [a], candidates(server, "b") as [b]:
        await asyncio.sleep(30)
        await a.stop()
        stopped = asyncio.get_running_loop().time()
        await asyncio.sleep(5)
        assert b.election.is_leader
        assert [holder for _, holder in server.holders] == ["a", "", "b"]
        assert server.holders[-1][0] - stopped < 4.5
        assert server.lease is not None
        assert server.lease["spec"]["leaseTransitions"] == 1


@pytest.mark.parametrize("ended", [0.75, 3.25, 5.75])
async def test_a_lease_is_released_even_if_the_last_write_was_not_answered_yet(ended: float) -> None:
    server = LeaseServer()
    server.late = 0.5
    async with candidates(server, "a") as [a]:
        await asyncio.sleep(ended)
        assert server.holders[-1][1] == "a"
        await a.stop()

    assert (server.holders[-1][1], a.election.holder, a.election.trouble) == ("", "", "")


async def test_a_lease_that_another_process_took_over_is_not_released() -> None:
    server = LeaseServer()
    async with candidates(server, "a") as [a]:
        await asyncio.sleep(1)
        assert server.lease is not None
        server.put({**server.lease, "spec": {**server.lease["spec"], "holderIdentity": "b"}})
        await a.stop()

    assert [holder for _, holder in server.holders] == ["a", "b"]


async def test_the_lease_is_released_only_after_the_leader_has_ended() -> None:
    server = LeaseServer()
    ended: list[float] = []

    async def slow_to_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(3)
            ended.append(asyncio.get_running_loop().time())

    a = Candidate(server, "a")
    task = asyncio.create_task(a.election.run(slow_to_end))
    await asyncio.sleep(10)
    task.cancel()
    await asyncio.wait([task])
    assert server.holders[-1] == (ended[0], "")


async def test_a_disconnected_leader_stops_after_10_seconds_and_another_leads_after_15() -> None:
    server = LeaseServer()
    async with candidates(server, "a") as [a]:
        await asyncio.sleep(20)
        async with candidates(server, "b") as [b]:
            await asyncio.sleep(5)
            cut = asyncio.get_running_loop().time()
            server.cut.add("a")
            await asyncio.sleep(40)
            assert b.election.is_leader
            assert not a.election.is_leader
            taken = server.holders[-1]
    assert taken[1] == "b"
    assert 8 <= a.led[0][1] - cut <= 10
    assert 13 <= taken[0] - cut <= 20
    assert not overlap(a, b)


async def test_a_leader_that_gets_no_answers_stops_before_another_leads() -> None:
    server = LeaseServer()
    async with candidates(server, "a") as [a]:
        await asyncio.sleep(10)
        async with candidates(server, "b") as [b]:
            await asyncio.sleep(5)
            server.deaf.add("a")
            await asyncio.sleep(60)
            server.deaf.clear()
            await asyncio.sleep(30)
    assert a.led
    assert not overlap(a, b)


async def test_one_lost_answer_does_not_end_leadership() -> None:
    server = LeaseServer()
    async with candidates(server, "a") as [a]:
        await asyncio.sleep(10.5)
        server.deaf.add("a")
        await asyncio.sleep(2)
        server.deaf.clear()
        await asyncio.sleep(30)
        assert a.election.is_leader
        assert a.led == []


async def test_an_annotation_by_another_client_does_not_end_leadership_and_is_kept() -> None:
    server = LeaseServer()
    async with candidates(server, "a") as [a]:
        await asyncio.sleep(5)
        assert server.lease is not None
        server.put({**server.lease, "metadata": {"name": "gpuscaler", "annotations": {"note": "hello"}}})
        await asyncio.sleep(60)
        assert a.election.is_leader
        assert a.led == []
        assert server.lease["metadata"]["annotations"] == {"note": "hello"}


async def test_a_leader_that_sees_another_holder_stops_at_its_next_renewal() -> None:
    server = LeaseServer()
    async with candidates(server, "a") as [a]:
        await asyncio.sleep(5)
        assert server.lease is not None
        server.put({**server.lease, "spec": {**server.lease["spec"], "holderIdentity": "thief"}})
        await asyncio.sleep(2.5)
        assert not a.election.is_leader
        assert a.election.holder == "thief"


@pytest.mark.parametrize("skew", [-86_400.0, 86_400.0], ids=["a day behind", "a day ahead"])
async def test_a_candidate_with_a_differing_clock_does_not_take_over_the_lease(skew: float) -> None:
    server = LeaseServer()
    async with candidates(server, "a") as [a]:
        await asyncio.sleep(3)
        async with candidates(server, "b", wall=1_780_000_000.0 + skew):
            await asyncio.sleep(100)
            assert a.election.is_leader
            assert len(server.holders) == 1


async def test_a_dead_leaders_lease_is_taken_over_after_its_own_duration() -> None:
    server = LeaseServer()
    metadata = {"name": "gpuscaler", "namespace": "kube-system"}
    server.put({"metadata": metadata, "spec": {"holderIdentity": "dead", "leaseDurationSeconds": 40, "renewTime": "2036-01-01T00:00:00Z"}})
    async with candidates(server, "a") as [a]:
        await asyncio.sleep(39)
        assert not a.election.is_leader
        await asyncio.sleep(6)
        assert a.election.is_leader


@pytest.mark.parametrize(
    "spec", [None, {}, {"holderIdentity": None}, {"holderIdentity": 7, "leaseDurationSeconds": "x", "leaseTransitions": "y"}]
)
async def test_a_lease_without_a_sensible_holder_is_free(spec: Any) -> None:
    server = LeaseServer()
    server.version = 1
    server.lease = {"metadata": {"name": "gpuscaler", "resourceVersion": "1"}, "spec": spec}
    async with candidates(server, "a") as [a]:
        await asyncio.sleep(1)
        assert a.election.is_leader


async def test_the_fence_allows_only_writes_that_end_before_the_lease() -> None:
    server = LeaseServer()
    loop = asyncio.get_running_loop()
    async with candidates(server, "a") as [a]:
        await asyncio.sleep(1)
        server.cut.add("a")
        assert a.election.deadline() == pytest.approx(15)
        await asyncio.sleep(8 - loop.time())
        a.election.fence(6.9)
        with pytest.raises(NotLeaderError, match=r"saw 7\.0 s left for a, expected more than 7 s"):
            a.election.fence(7.0)
        await asyncio.sleep(2.5)
        with pytest.raises(NotLeaderError):
            a.election.fence(0.1)


async def test_a_process_that_does_not_lead_may_not_write() -> None:
    server = LeaseServer()
    async with candidates(server, "a"):
        await asyncio.sleep(1)
        b = Candidate(server, "b")
        with pytest.raises(NotLeaderError):
            b.client.fenced(b.election.fence).fence(0.0)
        assert b.election.deadline() == float("-inf")


async def test_a_write_after_a_pause_of_the_whole_process_is_stopped() -> None:
    """The process sleeps longer than its lease between deciding and writing: the check right before the write reads the clock."""
    server = LeaseServer()
    jump = 0.0
    loop = asyncio.get_running_loop()
    client = Client(server.transport("a"))
    election = LeaderElection(
        client, name="l", namespace="n", identity="a", clock=lambda: loop.time() + jump, wall=loop.time, random=Random(1)
    )
    stopped: list[NotLeaderError] = []

    async def lead() -> None:
        nonlocal jump
        fenced = client.fenced(election.fence)
        await fenced.merge_patch(CONFIG_MAPS, "status", {}, namespace="n")
        jump = 16.0
        try:
            await fenced.merge_patch(CONFIG_MAPS, "status", {}, namespace="n")
        except NotLeaderError as error:
            stopped.append(error)

    await election.run(lead)
    assert len(server.writes) == 1
    assert len(stopped) == 1


async def test_no_write_overlaps_with_another_leader_whatever_the_network_does() -> None:
    """Writers that keep writing through their fence while links are randomly cut, delayed or lose answers."""
    changes = 0
    for seed in range(6):
        random = Random(seed)
        server = LeaseServer()
        async with candidates(server, "a", "b", "c") as group:
            writers = [asyncio.create_task(_write_on(candidate)) for candidate in group]
            for _ in range(20):
                await asyncio.sleep(random.uniform(0.5, 12))
                server.cut = {name for name in "abc" if random.random() < 0.3}
                server.deaf = {name for name in "abc" if random.random() < 0.3}
                server.delay = random.choice((0.0, 0.05, 0.5, 3.0))
            for writer in writers:
                writer.cancel()
            await asyncio.wait(writers)
        for time, identity in server.writes:
            holder = [name for since, name in server.holders if since <= time and name][-1]
            assert identity == holder, f"seed {seed}: {identity} wrote at {time:g} while {holder} led"
        changes += len({identity for _, identity in server.writes}) - 1
    assert changes > 2


async def _write_on(candidate: Candidate) -> None:
    client = candidate.client.fenced(candidate.election.fence)
    while True:
        with suppress(NotLeaderError, Unreachable):
            await client.merge_patch(CONFIG_MAPS, "status", {}, namespace="kube-system")
        await asyncio.sleep(1.1)


async def test_when_the_leader_function_returns_the_election_ends_and_the_lease_is_released() -> None:
    server = LeaseServer()

    async def lead() -> None:
        await asyncio.sleep(7)

    await Candidate(server, "a").election.run(lead)
    assert [holder for _, holder in server.holders] == ["a", ""]


async def test_when_the_leader_function_raises_the_exception_is_passed_on_and_the_lease_is_released() -> None:
    server = LeaseServer()

    async def lead() -> None:
        raise RuntimeError("no plan")

    with pytest.raises(RuntimeError, match="no plan"):
        await Candidate(server, "a").election.run(lead)
    assert server.holders[-1][1] == ""


async def test_lost_leadership_is_regained() -> None:
    server = LeaseServer()
    async with candidates(server, "a") as [a]:
        await asyncio.sleep(10)
        server.cut.add("a")
        await asyncio.sleep(30)
        assert "connection broke" in a.election.trouble
        server.cut.clear()
        await asyncio.sleep(10)
        assert a.election.is_leader
        assert a.election.trouble == ""
    assert len(a.led) == 2


async def test_an_obstacle_to_leading_is_logged_once_and_again_when_it_changes() -> None:
    server = LeaseServer()
    with structlog.testing.capture_logs() as logs:
        async with candidates(server, "a") as [a]:
            await asyncio.sleep(10)
            server.cut.add("a")
            await asyncio.sleep(30)
            server.cut.clear()
            server.refused = "cannot update leases"
            await asyncio.sleep(30)
            server.refused = ""
            await asyncio.sleep(10)
            assert a.election.trouble == ""

    assert [log["problem"] for log in logs] == [
        "lease kube-system/gpuscaler: the connection broke",
        "lease kube-system/gpuscaler: cannot update leases (403 Forbidden)",
    ]


async def test_a_process_on_standby_logs_whom_it_waits_for_once_and_again_when_the_leader_changes() -> None:
    server = LeaseServer()
    with structlog.testing.capture_logs() as logs:
        async with candidates(server, "a") as [a]:
            await asyncio.sleep(5)
            assert logs == []
            async with candidates(server, "b") as [b]:
                await asyncio.sleep(60)
                assert server.lease is not None
                server.put({**server.lease, "spec": {**server.lease["spec"], "holderIdentity": "c"}})
                await asyncio.sleep(10)
                assert not a.election.is_leader
                assert not b.election.is_leader

    assert [(log["identity"], log["event"]) for log in logs[:1]] == [("b", "stands by: a leads (Lease kube-system/gpuscaler)")]
    assert sorted((log["identity"], log["event"]) for log in logs[1:]) == [
        ("a", "stands by: c leads (Lease kube-system/gpuscaler)"),
        ("b", "stands by: c leads (Lease kube-system/gpuscaler)"),
    ]


async def test_a_process_that_led_in_between_logs_the_same_leader_again() -> None:
    server = LeaseServer()
    with structlog.testing.capture_logs() as logs:
        async with candidates(server, "a") as [a]:
            for holder in ("b", "b"):
                await asyncio.sleep(5)
                assert a.election.is_leader
                assert server.lease is not None
                server.put({**server.lease, "spec": {**server.lease["spec"], "holderIdentity": holder}})
                await asyncio.sleep(25)
            assert a.election.is_leader

    assert [log["event"] for log in logs] == ["stands by: b leads (Lease kube-system/gpuscaler)"] * 2


async def test_a_leader_stops_if_the_server_never_answers() -> None:
    server = LeaseServer()
    async with candidates(server, "a") as [a]:
        await asyncio.sleep(4.5)
        server.delay = 1000.0
        await asyncio.sleep(12)
        assert not a.election.is_leader
        assert "no answer within" in a.election.trouble
    assert 12.0 <= a.led[0][1] <= 14.5


@pytest.mark.parametrize("times", [(10.0, 10.0, 2.0), (15.0, 2.0, 2.0), (15.0, 10.0, 0.0)])
def test_inconsistent_lease_durations_are_rejected(times: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="expected lease > renew > retry > 0"):
        LeaseTimes(lease=times[0], renew=times[1], retry=times[2])


async def test_a_deleted_lease_is_not_taken_from_a_leader_that_does_not_know_it_yet() -> None:
    server = LeaseServer()
    async with candidates(server, "a") as [a]:
        await asyncio.sleep(10)
        async with candidates(server, "b", times=LeaseTimes(retry=1.0)) as [b]:
            await asyncio.sleep(10)
            server.cut.add("a")
            server.lease = None
            await asyncio.sleep(60)
            assert b.election.is_leader
    assert not overlap(a, b)


@pytest.mark.parametrize("phase", [0.0, 0.4, 0.8, 1.2, 1.6, 2.0])
async def test_a_dead_leader_is_replaced_within_20_seconds_whenever_it_dies(phase: float) -> None:
    server = LeaseServer()
    async with candidates(server, "a") as [_]:
        await asyncio.sleep(10)
        async with candidates(server, "b"):
            await asyncio.sleep(30 + phase)
            server.cut.add("a")
            died = asyncio.get_running_loop().time()
            await asyncio.sleep(30)
            taken, holder = server.holders[-1]
    assert holder == "b"
    assert taken - died <= 20


async def test_the_duration_in_a_lease_is_never_less_than_its_holder_relies_on() -> None:
    server = LeaseServer()
    async with candidates(server, "a", times=LeaseTimes(lease=15.5)):
        await asyncio.sleep(5)
        assert server.lease is not None
        assert server.lease["spec"]["leaseDurationSeconds"] == 16
