"""A simulated cloud on a real control plane, when one of its programs ends."""

import pytest

from gpuscaler.cli.control_plane import report_exited_programs
from gpuscaler.embedded.controlplane.cluster import RealCluster
from gpuscaler.embedded.controlplane.processes import EndedError
from gpuscaler.embedded.serving.cluster import Conditions
from gpuscaler.kube.access import Access
from gpuscaler.model.pools import Policy


class Plane:
    """A control plane whose etcd ends at once."""

    def access(self) -> Access:
        return Access("http://127.0.0.1:9", "a plane that does not exist")

    async def run(self) -> None:
        raise EndedError("etcd ended with 1")


async def test_the_command_names_a_program_that_exited_and_exits_with_the_status_for_unreachable(
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = RealCluster(Policy(()), Plane(), now=lambda: 0.0, conditions=Conditions())  # type: ignore[arg-type]  # all that it uses
    with pytest.raises(SystemExit) as left, report_exited_programs():
        await cluster.run()

    assert (left.value.code, capsys.readouterr().err) == (3, "etcd ended with 1\n")
