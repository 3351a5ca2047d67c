"""``gpuscaler open`` over HTTP."""

import asyncio
import time
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from tests.cli.serving import Served, served

from gpuscaler.cli import main
from gpuscaler.cli.opening import open_nodes
from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.embedded.serving.memory import MemoryTransport
from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import NODES
from gpuscaler.model.well_known import ARRIVING_TAINT, KEPT_TAINT

TAINTS = {"a": ARRIVING_TAINT, "b": KEPT_TAINT, "c": "gpuscaler.io/leaving"}


def invoke(cluster: Served, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["open", *arguments, "--kubeconfig", str(cluster.kubeconfig)])


def closed(cluster: Served) -> dict[str, list[str]]:
    return cluster.ask(taints_of_nodes)


def make(cluster: Served) -> None:
    cluster.ask(create_nodes)


async def create_nodes(client: Client) -> None:
    for name, key in TAINTS.items():
        spec = {"taints": [{"key": key, "effect": "NoSchedule"}, {"key": "team", "effect": "NoSchedule"}]}
        await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec})


async def taints_of_nodes(client: Client) -> dict[str, list[str]]:
    nodes = [msgspec.json.decode(data) for data in await client.list_all(NODES)]
    return {node["metadata"]["name"]: [taint["key"] for taint in node["spec"].get("taints") or ()] for node in nodes}


def test_open_all_opens_every_closed_node_and_keeps_other_taints(tmp_path: Path) -> None:
    with served(tmp_path) as cluster:
        make(cluster)
        result = invoke(cluster, "--all")

        assert (result.exit_code, result.output) == (0, "Node a is open.\nNode b is open.\n")
        taints = closed(cluster)
        assert [taints[name] for name in "abc"] == [["team"], ["team"], ["gpuscaler.io/leaving", "team"]]
        assert invoke(cluster, "--all").output == "No node is closed.\n"


def test_open_opens_the_named_nodes_and_reports_a_missing_one(tmp_path: Path) -> None:
    with served(tmp_path) as cluster:
        make(cluster)
        result = invoke(cluster, "b", "x")

        assert (result.exit_code, result.output) == (1, "Node b is open.\nnode x: saw no node of this name\n")
        assert closed(cluster)["a"] == [ARRIVING_TAINT, "team"]


@pytest.mark.parametrize("words", [(), ("a", "--all")])
def test_open_requires_either_node_names_or_all(tmp_path: Path, words: tuple[str, ...]) -> None:
    with served(tmp_path) as cluster:
        assert invoke(cluster, *words).exit_code == 2


async def test_open_with_a_duration_also_opens_nodes_that_are_closed_in_that_time(capsys: pytest.CaptureFixture[str]) -> None:
    transport = MemoryTransport(ApiServer(time.time))
    client = Client(transport)
    await create_nodes(client)
    opening = asyncio.create_task(open_nodes(transport, (), 5.0))
    await asyncio.sleep(1.0)
    assert (await taints_of_nodes(client))["a"] == ["team"]
    spec = {"taints": [{"key": ARRIVING_TAINT, "effect": "NoSchedule"}, {"key": "team", "effect": "NoSchedule"}]}
    await client.merge_patch(NODES, "c", {"spec": spec})

    assert await opening == 0
    assert sorted(capsys.readouterr().out.splitlines()) == [f"Node {name} is open." for name in "abc"]
    assert (await taints_of_nodes(client))["c"] == ["team"]


def test_open_with_a_duration_lasts_that_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuscaler.cli.opening.PAUSE", 0.01)
    with served(tmp_path) as cluster:
        make(cluster)
        start = time.monotonic()
        result = invoke(cluster, "--all", "--for", "500ms")

        assert (result.exit_code, sorted(result.output.splitlines())) == (0, ["Node a is open.", "Node b is open."])
        # The last pass begins a pause before the end, at most.
        assert time.monotonic() - start > 0.48


def test_open_rejects_an_invalid_duration(tmp_path: Path) -> None:
    with served(tmp_path) as cluster:
        result = invoke(cluster, "--all", "--for", "soon")

        assert (result.exit_code, "--for: saw 'soon'" in result.output) == (2, True)
