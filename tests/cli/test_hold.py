"""``gpuscaler hold`` and ``resume`` over HTTP, and the resulting ``status``."""

import re
import time
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner, Result
from tests.cli.serving import Served, served

from gpuscaler.cli import main
from gpuscaler.control.loop.holding import NAME, parse_holds
from gpuscaler.control.records.status.reporting import status_config_map
from gpuscaler.control.records.status.status import HoldStatus, Process, Status
from gpuscaler.embedded.apiserver.faults import Fault
from gpuscaler.embedded.apiserver.wire.failures import Failure
from gpuscaler.kube.client import Client
from gpuscaler.kube.resources import CONFIG_MAPS
from gpuscaler.model.holds import Holds

pytestmark = pytest.mark.looptime(False)


def invoke(cluster: Served, *arguments: str) -> Result:
    return CliRunner().invoke(main, [*arguments, "--kubeconfig", str(cluster.kubeconfig)])


def held(cluster: Served, namespace: str = "kube-system") -> Holds:
    async def read(client: Client) -> Holds:
        return parse_holds(await client.get(CONFIG_MAPS, NAME, namespace=namespace))

    return cluster.ask(read)


def write_status(cluster: Served, namespace: str = "kube-system", age: float = 0.0) -> None:
    """Write the status of a controller that runs in ``namespace``."""
    cluster.load(status_config_map(Status(at=time.time() - age, leader=Process("one", "0")), namespace))


def write_lease(cluster: Served, holder: str) -> None:
    metadata = {"name": "gpuscaler", "namespace": "kube-system"}
    cluster.load({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": {"holderIdentity": holder}})


def forbid(cluster: Served, path: str) -> None:
    cluster.api.faults.add(Fault(path=path, refusal=Failure(403, "Forbidden", f"{path} is forbidden")))


def test_hold_stores_both_holds_in_the_cluster_and_resume_ends_them_one_by_one(tmp_path: Path) -> None:
    with served(tmp_path) as cluster:
        write_status(cluster)
        result = invoke(cluster, "hold", "--reason", "something is odd")
        first, second = result.output.splitlines()
        assert result.exit_code == 0, result.output
        assert re.fullmatch(
            r"Buying is on hold in namespace kube-system until it is resumed \(requested by .+\): something is odd; "
            r"`gpuscaler resume --buying --namespace kube-system` ends the hold\.",
            first,
        )
        assert second.startswith("Removing is on hold")

        result = invoke(cluster, "resume", "--removing")
        assert result.output.splitlines() == [first]
        assert held(cluster).removing is None

        assert invoke(cluster, "resume").output == "Nothing is on hold in namespace kube-system.\n"
        assert held(cluster) == Holds()


def test_a_hold_replaces_only_the_hold_on_the_same_activity(tmp_path: Path) -> None:
    with served(tmp_path) as cluster:
        invoke(cluster, "hold", "--removing", "--for", "2h")
        removing = held(cluster).removing
        both = invoke(cluster, "hold", "--buying").stdout.splitlines()

        assert [line.partition(" is on hold")[0] for line in both] == ["Buying", "Removing"]
        assert removing is not None
        assert held(cluster).removing == removing

        invoke(cluster, "hold", "--removing", "--reason", "an audit")
        later = held(cluster).removing
        assert later is not None
        assert (later.until, later.reason) == (None, "an audit")


def test_a_hold_with_a_duration_prints_its_end(tmp_path: Path) -> None:
    with served(tmp_path) as cluster:
        write_status(cluster)
        result = invoke(cluster, "hold", "--buying", "--for", "2h")

        assert re.match(r"Buying is on hold in namespace kube-system until \d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC", result.output)
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
        write_status(cluster)

        assert invoke(cluster, "resume").exit_code == 0
        assert held(cluster) == Holds()


def test_status_lists_holds(tmp_path: Path) -> None:
    text = "buying is on hold until it is resumed; `gpuscaler resume --buying` ends the hold"
    status = Status(at=1.0, leader=Process("one", "0"), holds=(HoldStatus("buying", 1.0, None, text),))
    with served(tmp_path) as cluster:
        cluster.load(status_config_map(status, "kube-system"))

        assert f"On hold: {text}.\n" in invoke(cluster, "status").output
        assert msgspec.json.decode(invoke(cluster, "status", "--json").output)["holds"][0]["activity"] == "buying"


NO_STATUS = (
    "no controller runs in namespace kube-system: ConfigMap kube-system/gpuscaler-status: saw none, expected the status of a controller; "
    "gpuscaler is not installed there, has never led, or runs in another namespace (--namespace)\n"
)


@pytest.mark.parametrize("command", ["hold", "resume"])
def test_without_a_controller_in_the_namespace_the_change_is_stored_and_the_exit_status_is_4(tmp_path: Path, command: str) -> None:
    with served(tmp_path) as cluster:
        cluster.load({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "gpuscaler"}})
        write_status(cluster, "gpuscaler")

        result = invoke(cluster, command)
        assert (result.exit_code, result.stderr) == (4, NO_STATUS)
        assert "on hold in namespace kube-system" in result.stdout
        assert (held(cluster) != Holds()) == (command == "hold")

        result = invoke(cluster, command, "--namespace", "gpuscaler")
        assert (result.exit_code, result.stderr) == (0, "")
        assert "on hold in namespace gpuscaler" in result.stdout
        assert (held(cluster, "gpuscaler") != Holds()) == (command == "hold")


def test_a_hold_reaches_a_leader_that_has_not_written_its_status_yet(tmp_path: Path) -> None:
    with served(tmp_path) as cluster:
        write_lease(cluster, "one")

        result = invoke(cluster, "hold")
        assert (result.exit_code, result.stderr) == (0, "")


def test_a_hold_after_the_last_leader_ended_exits_4(tmp_path: Path) -> None:
    with served(tmp_path) as cluster:
        write_lease(cluster, "")

        assert invoke(cluster, "hold").exit_code == 4

        write_status(cluster, age=7200.0)
        result = invoke(cluster, "hold")
        assert result.exit_code == 4
        assert result.stderr == (
            "no controller runs: ConfigMap kube-system/gpuscaler-status: saw a status that is 2h old, expected one of the last minute; "
            "see its log and its Lease, or give the namespace of another controller with --namespace\n"
        )
        assert held(cluster).buying is not None


def test_an_old_status_is_only_a_warning_if_the_lease_has_a_holder(tmp_path: Path) -> None:
    with served(tmp_path) as cluster:
        write_lease(cluster, "one")
        write_status(cluster, age=7200.0)

        result = invoke(cluster, "hold")
        assert result.exit_code == 0
        assert result.stderr.startswith("warning: no controller runs: ConfigMap kube-system/gpuscaler-status: saw a status that is 2h old")


def test_a_hold_succeeds_with_a_warning_if_the_status_may_not_be_read(tmp_path: Path) -> None:
    with served(tmp_path) as cluster:
        forbid(cluster, "gpuscaler-status")

        result = invoke(cluster, "hold")
        assert result.exit_code == 0
        assert result.stderr.startswith("warning: it could not be checked whether a controller runs in namespace kube-system: ")
        assert held(cluster).buying is not None


@pytest.mark.parametrize(("age", "status"), [(0.0, 0), (7200.0, 0), (None, 4)])
def test_a_lease_that_may_not_be_read_leaves_the_answer_to_the_status(tmp_path: Path, age: float | None, status: int) -> None:
    with served(tmp_path) as cluster:
        forbid(cluster, "leases/gpuscaler")
        if age is not None:
            write_status(cluster, age=age)

        assert invoke(cluster, "hold").exit_code == status
        assert held(cluster).buying is not None


@pytest.mark.parametrize("command", ["hold", "resume"])
def test_a_missing_namespace_exits_2_and_says_what_to_do(tmp_path: Path, command: str) -> None:
    with served(tmp_path) as cluster:
        result = invoke(cluster, command, "--namespace", "nosuch")

        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr == (
            "namespace nosuch: saw no such namespace, expected that of the controller; "
            "create it, or give the controller's with --namespace\n"
        )
