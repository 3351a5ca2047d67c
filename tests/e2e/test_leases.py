"""Kubernetes' own controller manager with its default flags, and nodes with simulated kubelets."""

import asyncio
import time

import pytest
from tests.e2e.stage import Json, Stage, stage, until

from gpuscaler.embedded.serving.alone import PLAIN, make_node, ready_conditions
from gpuscaler.kube.resources import LEASES, NODES

pytestmark = pytest.mark.e2e
SILENT, LIVES = "silent", "lives"


def ready(node: Json) -> str:
    return next(str(condition["status"]) for condition in node["status"]["conditions"] if condition["type"] == "Ready")


async def _play() -> dict[str, Json]:
    async with stage("leases") as made, made.kubelets() as kubelets:
        for name in (SILENT, LIVES):
            node = make_node(name, PLAIN, {})
            await made.admin.create(NODES, {**node, "status": {**node["status"], "conditions": ready_conditions(time.time())}})
        await until("both nodes have a Lease", lambda: _leased(made))
        kubelets.stop(SILENT)
        await until("the node whose kubelet stopped is unreachable", lambda: _unreachable(made, SILENT))
        return {node["metadata"]["name"]: node for node in await made.listed(NODES)}


async def _leased(made: Stage) -> bool:
    return len(await made.listed(LEASES, "kube-node-lease")) == 2


async def _unreachable(made: Stage, name: str) -> bool:
    node = await made.find(NODES, name)
    return node is not None and any(taint["key"] == "node.kubernetes.io/unreachable" for taint in node["spec"].get("taints") or ())


def test_a_node_is_ready_while_its_kubelet_is_simulated_and_unreachable_once_it_stops() -> None:
    nodes = asyncio.run(_play())

    assert {name: ready(node) for name, node in nodes.items()} == {SILENT: "Unknown", LIVES: "True"}
