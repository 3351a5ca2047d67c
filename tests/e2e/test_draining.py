"""The writes of a drain, and complete drains, on a real control plane with the rights of the controller's own account."""

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import msgspec
import pytest
import structlog
from tests import objects
from tests.e2e.removals import GRACE, REPLICAS, Diary, Noting, Pair, Pulls, Sleeping, controller, removals, written
from tests.e2e.stage import NAMESPACE, Json, Stage, stage, until, version

from gpuscaler.control.loop.cluster_writes import ClusterWriter, Outcome
from gpuscaler.control.records.status.removals import GIVEN_UP
from gpuscaler.kube.access import from_kubeconfig
from gpuscaler.kube.client import Client
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.resources import EVENTS, NODES, POD_DISRUPTION_BUDGETS, PODS
from gpuscaler.lifecycle.actions import Act, Checkpoint, Clear, Delete, Evict, Exclude, Mark, Unmark
from gpuscaler.lifecycle.termination.eviction import FIRST_PAUSE
from gpuscaler.lifecycle.termination.removing import DRAIN_SECONDS
from gpuscaler.model.decoding import Interner, decode_object
from gpuscaler.model.pods import Pod
from gpuscaler.model.well_known import EXCLUDE_LABEL, EXCLUDE_VALUE, LEAVING_TAINT

pytestmark = pytest.mark.e2e
SPACE, NODE = "drain", "leaves"
AT = 1_790_000_000.0
#: The price of a machine in these tests, in dollars per hour.
PRICE = 3.912
#: Seconds until an evicted pod is ready elsewhere. This is long enough that all evictions of one turn are requested before, and shorter
#: than the first pause after a refused eviction.
PULLS = 4.0

Outcomes = Mapping[str, BaseException | None]


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    """The result of each test. They run one after the other, since a controller removes our taints from nodes that it does not remove."""
    return asyncio.run(_play())


async def _play() -> Outcomes:
    outcomes: dict[str, BaseException | None] = {}
    pulls = Pulls()
    async with stage("draining") as made, made.kubelets(lambda node: node.name != NODE, pull=pulls):
        await made.install()
        with structlog.testing.capture_logs():
            for name, test in {"acts": _acts(made), "moves": _moves(made, pulls)}.items():
                (outcomes[name],) = await asyncio.gather(test, return_exceptions=True)
    return outcomes


def _raise_failure(outcomes: Outcomes, test: str) -> None:
    failure = outcomes[test]
    if failure is not None:
        raise failure


def test_a_real_api_server_accepts_and_refuses_the_writes_of_a_drain_as_expected(outcomes: Outcomes) -> None:
    _raise_failure(outcomes, "acts")


def test_pods_with_a_budget_are_evicted_one_by_one_and_a_drain_that_cannot_finish_is_undone_and_reported(
    outcomes: Outcomes,
) -> None:
    _raise_failure(outcomes, "moves")


async def _acts(made: Stage) -> None:
    """Each action by itself, on a node that no controller knows."""
    await made.namespace(SPACE)
    await made.admin.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": {"zone": "a"}}})
    uids = {name: await _pod(made, name) for name in ("free", "kept", "twice", "saves")}
    await _budget(made, "one", "kept")
    await _budget(made, "two", "twice")
    await _budget(made, "three", "twice")
    access = from_kubeconfig([await made.kubeconfig("acts")], environ={})
    async with HttpTransport(access) as transport:
        actor = ClusterWriter(Client(transport))
        await _nodes(made, actor)
        await _pods(made, actor, uids)
        await _end(made, actor)


async def _moves(made: Stage, pulls: Pulls) -> None:
    """One machine is drained as fast as its budget allows. The other one cannot be drained in time; its time passes at once."""
    pools = [{"name": name, "types": ["g4dn.12xlarge"]} for name in ("moves", "stuck")]
    pace = {"resync": "2s", "consolidate": "2s"}
    run_file = made.run_file("run", pools, http={"enabled": False}, leader_election={"enabled": False}, pace=pace)
    clocks = Sleeping()
    diary, writing = written(made.admin)
    async with writing, controller(made, run_file, clocks) as noting:
        moves, stuck = Pair(made, "moves"), Pair(made, "stuck")
        await asyncio.gather(moves.fill(), stuck.fill())
        first, others = await asyncio.gather(moves.empty(), stuck.empty())
        before = await until("the filler pods of both machines are gone", lambda: _scaled_away(diary))
        await moves.allow(1, of=REPLICAS - 1)
        await stuck.allow(0, of=REPLICAS)
        pulls.seconds = PULLS
        await asyncio.gather(moves.save(first), stuck.save(others))
        await _moved(made, moves, noting)
        await _held(made, stuck)
        clocks.slept += DRAIN_SECONDS + GRACE
        await _kept(made, stuck)
        assert diary.ended_in("moves", "stuck") - before == {f"moves/{name}" for name in first}
        assert diary.worst("moves/web") == REPLICAS - 1
        assert diary.worst("stuck/web") == REPLICAS


async def _scaled_away(diary: Diary) -> frozenset[str]:
    """The pods that have ended in both namespaces, once these are all filler pods."""
    ended = diary.ended_in("moves", "stuck")
    return ended if len(ended) == len(("fills", "goes")) * 2 else frozenset()


async def _moved(made: Stage, pair: Pair, noting: Noting) -> None:
    """All pods moved to the other machine, one after the other, and nothing is left of the first machine."""

    async def is_gone() -> bool:
        return await made.find(NODES, pair.leaves) is None

    await until("the machine is gone", is_gone)
    pods = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in await made.pods(pair.name)}
    assert set(pods.values()) == {pair.stays}
    assert len(pods) == REPLICAS + 1
    assert _removal_marks(*await made.nodes(pair.name)) == []
    tried: dict[str, list[tuple[float, int]]] = {}
    for pod, at, status in noting.evictions:
        if pod.startswith(f"{pair.name}/"):
            tried.setdefault(pod, []).append((at, status))
    assert sorted([status for _, status in tries][-1] for tries in tried.values()) == [201] * REPLICAS
    # Of the pods that are evicted at the same time, the budget allows one.
    refused = sum(status == 429 for tries in tried.values() for _, status in tries)
    assert refused
    gaps = [[later - at for (at, _), (later, _) in pairwise(tries)] for tries in tried.values()]
    # On a busy machine, any time may pass between the decision and the request.
    assert all(gap >= FIRST_PAUSE * 0.5 * 2**number for some in gaps for number, gap in enumerate(some)), gaps
    print(f"\nKubernetes {version()}: {REPLICAS} pods moved under a budget of one at a time, {refused} evictions refused")


async def _held(made: Stage, pair: Pair) -> None:
    """While the drain is tried, the status names the pod that holds it up, and the reason."""

    async def reported() -> bool:
        removal_nows = [removal for removal in await removals(made) if removal.node == pair.leaves]
        return any("disruption budget" in removal.held for removal in removal_nows)

    await until("the status reports what holds up the drain", reported)
    (removal,) = [removal for removal in await removals(made) if removal.node == pair.leaves]
    assert removal.step == "draining"
    assert f"pod {pair.name}/web-" in removal.held
    assert f"it costs ${removal.dollars_per_hour:.2f} an hour" in removal.held
    (node,) = [node for node in await made.nodes(pair.name) if node["metadata"]["name"] == pair.leaves]
    assert _removal_marks(node) == [LEAVING_TAINT, EXCLUDE_LABEL]


async def _kept(made: Stage, pair: Pair) -> None:
    """The drain is undone. The status and an Event name the pod that kept the node, and the status names the node's price."""

    async def opened() -> bool:
        return _removal_marks(*await made.nodes(pair.name)) == []

    await until("the node is open again", opened)

    async def reported() -> bool:
        return any(removal.step == GIVEN_UP for removal in await removals(made))

    await until("the status reports that the drain was given up", reported)
    (removal,) = [removal for removal in await removals(made) if removal.node == pair.leaves]
    assert (removal.pool, removal.dollars_per_hour) == (pair.name, PRICE)
    why = f"could not be drained within {DRAIN_SECONDS:g} s: pod {pair.name}/web-"
    assert all(words in removal.held for words in (why, "disruption budget", f"it costs ${PRICE:.2f} an hour")), removal

    async def announced() -> bool:
        events = await made.listed(EVENTS, "default")
        notes = [event["note"] for event in events if event["reason"] == "ScaleDownGivenUp" and event["regarding"]["name"] == pair.leaves]
        return any(why in note for note in notes)

    await until("the node has an Event that reports it", announced)
    words = (sys.executable, "-m", "gpuscaler", "status", "--namespace", NAMESPACE, "--kubeconfig", str(made.plane.kubeconfig))
    done = await asyncio.to_thread(subprocess.run, words, capture_output=True, text=True, check=True)
    assert f"{pair.leaves} (${PRICE:.2f}/h) stays: it {why}" in " ".join(done.stdout.split()), done.stdout
    where = await made.bound(pair.name, REPLICAS + 1)
    assert sorted(where.values()) == sorted([pair.leaves] * REPLICAS + [pair.stays])


def _removal_marks(*nodes: Json) -> list[str]:
    """The marks of a removal on nodes: our taint, and the label for load balancers."""
    taints = [taint["key"] for node in nodes for taint in node["spec"].get("taints", ()) if taint["key"] == LEAVING_TAINT]
    return [*taints, *(EXCLUDE_LABEL for node in nodes if EXCLUDE_LABEL in node["metadata"]["labels"])]


async def _nodes(made: Stage, actor: ClusterWriter) -> None:
    assert await _done(actor, Exclude(NODE, "idle")) == ""
    assert EXCLUDE_LABEL not in (await _node(made))["metadata"]["labels"], "a node that is not marked stays in load balancers"
    assert await _done(actor, Mark(NODE, "idle")) == ""
    assert await _done(actor, Exclude(NODE, "idle")) == ""
    node = await _node(made)
    assert {"key": LEAVING_TAINT, "effect": "NoSchedule"} in node["spec"]["taints"]
    assert node["metadata"]["labels"][EXCLUDE_LABEL] == EXCLUDE_VALUE
    assert await _done(actor, Unmark(NODE, "it stays")) == ""
    node = await _node(made)
    assert LEAVING_TAINT not in [taint["key"] for taint in node["spec"].get("taints", ())]
    assert EXCLUDE_LABEL not in node["metadata"]["labels"]


async def _pods(made: Stage, actor: ClusterWriter, uids: dict[str, str]) -> None:
    assert await _done(actor, Checkpoint(f"{SPACE}/saves", uids["saves"], NODE, AT, 60.0)) == ""
    assert await _done(actor, Checkpoint(f"{SPACE}/saves", "another", NODE, AT, 60.0)) != ""
    asked = decode_object(await _find_pod(made, "saves"), Interner())
    assert isinstance(asked, Pod)
    assert (asked.checkpoint_requested, asked.node_name) == (AT, NODE)

    assert await _done(actor, Evict(f"{SPACE}/free", "another", NODE)) == ""
    assert "deletionTimestamp" not in (await _find_pod(made, "free"))["metadata"], "a pod with another UID is not evicted"
    assert await _done(actor, Evict(f"{SPACE}/free", uids["free"], NODE)) == ""
    assert (await _find_pod(made, "free"))["metadata"]["deletionGracePeriodSeconds"] == 30
    assert await _done(actor, Evict(f"{SPACE}/free", uids["free"], NODE, 7)) == ""
    assert (await _find_pod(made, "free"))["metadata"]["deletionGracePeriodSeconds"] == 7, (
        "a terminating pod can get a shorter grace period"
    )

    for name in ("kept", "twice"):
        outcome = await _outcome(actor, Evict(f"{SPACE}/{name}", uids[name], NODE))
        assert outcome.budget, outcome
        assert "budget" in outcome.detail.lower()
    assert await _done(actor, Delete(f"{SPACE}/kept", "another", NODE, 9)) == ""
    assert "deletionTimestamp" not in (await _find_pod(made, "kept"))["metadata"]
    assert await _done(actor, Delete(f"{SPACE}/kept", uids["kept"], NODE, 9)) == ""
    assert (await _find_pod(made, "kept"))["metadata"]["deletionGracePeriodSeconds"] == 9


async def _end(made: Stage, actor: ClusterWriter) -> None:
    uid = (await _node(made))["metadata"]["uid"]
    assert await _done(actor, Clear(NODE, "another", "its machine is gone")) == ""
    assert (await _node(made))["metadata"]["uid"] == uid
    assert await _done(actor, Clear(NODE, uid, "its machine is gone")) == ""
    assert await made.find(NODES, NODE) is None
    assert await _done(actor, Clear(NODE, uid, "its machine is gone")) == ""


async def _outcome(actor: ClusterWriter, act: Act) -> Outcome:
    (outcome,) = await actor.carry_out([act])
    return outcome


async def _done(actor: ClusterWriter, act: Act) -> str:
    """The reason why ``act`` failed, or an empty text."""
    return (await _outcome(actor, act)).detail


async def _pod(made: Stage, name: str) -> str:
    """Create a pod that runs on the node according to its status; returns its UID."""
    await made.admin.create(PODS, objects.pod(name, 0, labels={"app": name}), namespace=SPACE)
    await made.admin.bind(SPACE, name, NODE)
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    patched = await made.admin.merge_patch(PODS, name, {"status": ready}, namespace=SPACE, subresource="status")
    uid: str = msgspec.json.decode(patched)["metadata"]["uid"]
    return uid


async def _budget(made: Stage, name: str, app: str) -> None:
    """Create a budget that allows no disruption, and wait until the disruption controller has processed it."""
    await made.admin.create(POD_DISRUPTION_BUDGETS, objects.budget(name, app, minAvailable=1), namespace=SPACE)

    async def observed() -> Any:
        return ((await made.find(POD_DISRUPTION_BUDGETS, name, SPACE)) or {}).get("status", {}).get("currentHealthy")

    await until(f"budget {name} is processed", observed)


async def _node(made: Stage) -> dict[str, Any]:
    node = await made.find(NODES, NODE)
    assert node is not None
    return node


async def _find_pod(made: Stage, name: str) -> dict[str, Any]:
    pod = await made.find(PODS, name, SPACE)
    assert pod is not None
    return pod
