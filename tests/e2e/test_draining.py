"""What a drain writes, to a real API server and with the rights of the controller's own account."""

import asyncio
from typing import Any

import msgspec
import pytest
from tests.e2e.stage import Stage, stage, until

from gpuscaler.control.acting import Actor, Outcome
from gpuscaler.kube.access import from_kubeconfig
from gpuscaler.kube.client import Client
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.resources import NODES, POD_DISRUPTION_BUDGETS, PODS
from gpuscaler.model.decoding import Interner, decode_object
from gpuscaler.model.pods import Pod
from gpuscaler.planning.acts import Act, Checkpoint, Clear, Delete, Evict, Exclude, Mark, Unmark
from gpuscaler.planning.leaving.labels import EXCLUDE_LABEL, EXCLUDE_VALUE
from gpuscaler.planning.scale_down.blockers import LEAVING_TAINT

pytestmark = pytest.mark.e2e
SPACE, NODE = "drain", "leaves"
AT = 1_790_000_000.0


def test_a_real_api_server_takes_and_refuses_what_a_drain_writes_as_expected() -> None:
    asyncio.run(_play())


async def _play() -> None:
    async with stage("draining") as made:
        await made.install()
        await made.namespace(SPACE)
        await made.admin.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": NODE, "labels": {"zone": "a"}}})
        uids = {name: await _pod(made, name) for name in ("free", "kept", "twice", "saves")}
        await _budget(made, "one", "kept")
        await _budget(made, "two", "twice")
        await _budget(made, "three", "twice")
        access = from_kubeconfig([await made.kubeconfig()], environ={})
        async with HttpTransport(access) as transport:
            actor = Actor(Client(transport))
            await _nodes(made, actor)
            await _pods(made, actor, uids)
            await _end(made, actor)


async def _nodes(made: Stage, actor: Actor) -> None:
    assert await _done(actor, Exclude(NODE, "idle")) == ""
    assert EXCLUDE_LABEL not in (await _node(made))["metadata"]["labels"], "before it is marked, nobody keeps load balancers away"
    assert await _done(actor, Mark(NODE, "idle")) == ""
    assert await _done(actor, Exclude(NODE, "idle")) == ""
    node = await _node(made)
    assert {"key": LEAVING_TAINT, "effect": "NoSchedule"} in node["spec"]["taints"]
    assert node["metadata"]["labels"][EXCLUDE_LABEL] == EXCLUDE_VALUE
    assert await _done(actor, Unmark(NODE, "it stays")) == ""
    node = await _node(made)
    assert LEAVING_TAINT not in [taint["key"] for taint in node["spec"].get("taints", ())]
    assert EXCLUDE_LABEL not in node["metadata"]["labels"]


async def _pods(made: Stage, actor: Actor, uids: dict[str, str]) -> None:
    assert await _done(actor, Checkpoint(f"{SPACE}/saves", uids["saves"], NODE, AT, 60.0)) == ""
    assert await _done(actor, Checkpoint(f"{SPACE}/saves", "another", NODE, AT, 60.0)) != ""
    asked = decode_object(await _found(made, "saves"), Interner())
    assert isinstance(asked, Pod)
    assert (asked.checkpoint_requested, asked.node_name) == (AT, NODE)

    assert await _done(actor, Evict(f"{SPACE}/free", "another", NODE)) == ""
    assert "deletionTimestamp" not in (await _found(made, "free"))["metadata"], "a pod of another life is not meant"
    assert await _done(actor, Evict(f"{SPACE}/free", uids["free"], NODE)) == ""
    assert (await _found(made, "free"))["metadata"]["deletionGracePeriodSeconds"] == 30
    assert await _done(actor, Evict(f"{SPACE}/free", uids["free"], NODE, 7)) == ""
    assert (await _found(made, "free"))["metadata"]["deletionGracePeriodSeconds"] == 7, "who ends already may be asked to hurry"

    for name in ("kept", "twice"):
        outcome = await _outcome(actor, Evict(f"{SPACE}/{name}", uids[name], NODE))
        assert outcome.budget, outcome
        assert "budget" in outcome.detail.lower()
    assert await _done(actor, Delete(f"{SPACE}/kept", "another", NODE, 9)) == ""
    assert "deletionTimestamp" not in (await _found(made, "kept"))["metadata"]
    assert await _done(actor, Delete(f"{SPACE}/kept", uids["kept"], NODE, 9)) == ""
    assert (await _found(made, "kept"))["metadata"]["deletionGracePeriodSeconds"] == 9


async def _end(made: Stage, actor: Actor) -> None:
    uid = (await _node(made))["metadata"]["uid"]
    assert await _done(actor, Clear(NODE, "another", "its machine is gone")) == ""
    assert (await _node(made))["metadata"]["uid"] == uid
    assert await _done(actor, Clear(NODE, uid, "its machine is gone")) == ""
    assert await made.find(NODES, NODE) is None
    assert await _done(actor, Clear(NODE, uid, "its machine is gone")) == ""


async def _outcome(actor: Actor, act: Act) -> Outcome:
    (outcome,) = await actor.carry_out([act])
    return outcome


async def _done(actor: Actor, act: Act) -> str:
    """Why ``act`` was not done; empty where it was."""
    return (await _outcome(actor, act)).detail


async def _pod(made: Stage, name: str) -> str:
    """A pod that runs on the node, as far as its status says."""
    body = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {"containers": [{"name": "main", "image": "train:1"}]},
    }
    await made.admin.create(PODS, body, namespace=SPACE)
    await made.admin.bind(SPACE, name, NODE)
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    found = await made.admin.merge_patch(PODS, name, {"status": ready}, namespace=SPACE, subresource="status")
    uid: str = msgspec.json.decode(found)["metadata"]["uid"]
    return uid


async def _budget(made: Stage, name: str, app: str) -> None:
    """A budget that lets nobody go, once the disruption controller has looked at it."""
    body = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": name},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": app}}},
    }
    await made.admin.create(POD_DISRUPTION_BUDGETS, body, namespace=SPACE)

    async def seen() -> Any:
        return ((await made.find(POD_DISRUPTION_BUDGETS, name, SPACE)) or {}).get("status", {}).get("currentHealthy")

    await until(f"budget {name} is looked at", seen)


async def _node(made: Stage) -> dict[str, Any]:
    found = await made.find(NODES, NODE)
    assert found is not None
    return found


async def _found(made: Stage, name: str) -> dict[str, Any]:
    found = await made.find(PODS, name, SPACE)
    assert found is not None
    return found
