"""``gpuscaler hold`` and ``resume`` over HTTP, and the resulting ``status``."""

import re
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from tests.cli.serving import Served, served

from gpuscaler.cli import main
from gpuscaler.control.loop.holding import NAME, parse_holds
from gpuscaler.control.records.status.reporting import status_config_map
from gpuscaler.control.records.status.status import HoldStatus, Process, Status
from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import CONFIG_MAPS
from gpuscaler.model.holds import Holds

pytestmark = pytest.mark.looptime(False)


def invoke(cluster: Served, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--kubeconfig", str(cluster.kubeconfig)])


def held(cluster: Served) -> Holds:
    async def read(client: Client) -> Holds:
        return parse_holds(await client.get(CONFIG_MAPS, NAME, namespace="kube-system"))

    return cluster.ask(read)


def test_hold_stores_both_holds_in_the_cluster_and_resume_ends_them_one_by_one(tmp_path: Path) -> None:
    with served(tmp_path) as cluster:
        result = invoke(cluster, "hold", "--reason", "something is odd")
        first, second = result.output.splitlines()
        assert result.exit_code == 0, result.output
        assert re.fullmatch(
            r"Buying is on hold until it is resumed \(requested by .+\): something is odd; `gpuscaler resume --buying` ends the hold\.",
            first,
        )
        assert second.startswith("Removing is on hold")

        result = invoke(cluster, "resume", "--removing")
        assert result.output.splitlines() == [first]
        assert held(cluster).removing is None

        assert invoke(cluster, "resume").output == "Nothing is on hold.\n"
        assert held(cluster) == Holds()


def test_a_hold_replaces_only_the_hold_on_the_same_activity(tmp_path: Path) -> None:
    with served(tmp_path) as cluster:
        invoke(cluster, "hold", "--removing", "--for", "2h")
        removing = held(cluster).removing
        both = invoke(cluster, "hold", "--buying").output.splitlines()

        assert [line.partition(" is on hold")[0] for line in both] == ["Buying", "Removing"]
        assert removing is not None
        assert held(cluster).removing == removing

        invoke(cluster, "hold", "--removing", "--reason", "an audit")
        later = held(cluster).removing
        assert later is not None
        assert (later.until, later.reason) == (None, "an audit")


def test_a_hold_with_a_duration_prints_its_end(tmp_path: Path) -> None:
    with served(tmp_path) as cluster:
        result = invoke(cluster, "hold", "--buying", "--for", "2h")

        assert re.match(r"Buying is on hold until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", result.output)
        hold = held(cluster).buying
        assert hold is not None
        assert hold.until == hold.since + 7200.0


@pytest.mark.parametrize(
    ("duration", "message"),
    [("soon", "--for: saw 'soon', expected a duration such as 90s, 10m or 1h30m"), ("0", "--for: saw 0, expected a duration above zero")],
)
def test_an_invalid_duration_is_rejected_and_nothing_is_held(tmp_path: Path, duration: str, message: str) -> None:
    with served(tmp_path) as cluster:
        result = invoke(cluster, "hold", "--for", duration)

        assert result.exit_code == 2
        assert message in result.output
        assert cluster.api.writes == ()


def test_resume_repairs_an_unparsable_config_map(tmp_path: Path) -> None:
    broken = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": NAME, "namespace": "kube-system"}, "data": {"buying": "yes"}}
    with served(tmp_path) as cluster:
        cluster.load(broken)

        assert invoke(cluster, "resume").exit_code == 0
        assert held(cluster) == Holds()


def test_status_lists_holds(tmp_path: Path) -> None:
    text = "buying is on hold until it is resumed; `gpuscaler resume --buying` ends the hold"
    status = Status(at=1.0, leader=Process("one", "0"), holds=(HoldStatus("buying", 1.0, None, text),))
    with served(tmp_path) as cluster:
        cluster.load(status_config_map(status, "kube-system"))

        assert f"On hold: {text}.\n" in invoke(cluster, "status").output
        assert msgspec.json.decode(invoke(cluster, "status", "--json").output)["holds"][0]["activity"] == "buying"
