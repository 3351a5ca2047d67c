"""``gpuscaler open`` over HTTP."""

import threading
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from tests.cli.serving import Served, served

from gpuscaler.cli import main
from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import NODES
from gpuscaler.model.well_known import ARRIVING_TAINT, KEPT_TAINT

pytestmark = pytest.mark.looptime(False)
TAINTS = {"a": ARRIVING_TAINT, "b": KEPT_TAINT, "c": "gpuscaler.io/leaving"}


def invoke(cluster: Served, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["open", *arguments, "--kubeconfig", str(cluster.kubeconfig)])


def closed(cluster: Served) -> dict[str, list[str]]:
    async def read(client: Client) -> dict[str, list[str]]:
        nodes = [msgspec.json.decode(data) for data in await client.list_all(NODES)]
        return {node["metadata"]["name"]: [taint["key"] for taint in node["spec"].get("taints") or ()] for node in nodes}

    return cluster.ask(read)


def make(cluster: Served) -> None:
    async def write(client: Client) -> None:
        for name, key in TAINTS.items():
            spec = {"taints": [{"key": key, "effect": "NoSchedule"}, {"key": "team", "effect": "NoSchedule"}]}
            await client.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "spec": spec})

    cluster.ask(write)


def close(cluster: Served, name: str) -> None:
    async def write(client: Client) -> None:
        spec = {"taints": [{"key": ARRIVING_TAINT, "effect": "NoSchedule"}, {"key": "team", "effect": "NoSchedule"}]}
        await client.merge_patch(NODES, name, {"spec": spec})

    cluster.ask(write)


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


def test_open_with_a_duration_also_opens_nodes_that_are_closed_in_that_time(tmp_path: Path) -> None:
    with served(tmp_path) as cluster:
        make(cluster)
        closing = threading.Timer(1.0, lambda: close(cluster, "c"))
        closing.start()
        result = invoke(cluster, "--all", "--for", "5s")
        closing.join()

        assert (result.exit_code, sorted(result.output.splitlines())) == (0, [f"Node {name} is open." for name in "abc"])
        assert closed(cluster)["c"] == ["team"]


def test_open_rejects_an_invalid_duration(tmp_path: Path) -> None:
    with served(tmp_path) as cluster:
        result = invoke(cluster, "--all", "--for", "soon")

        assert (result.exit_code, "--for: saw 'soon'" in result.output) == (2, True)
