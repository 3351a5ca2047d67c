"""``gpuscaler cluster``: the embedded cluster without a controller, for kubectl and other clients of an API server."""

import asyncio
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuscaler.cli.control_plane import REAL, check_release_option, compile_programs, control_plane_options, report_exited_programs
from gpuscaler.cli.ending import until_terminated
from gpuscaler.cli.simulated_account import account_options, report_unusable_account, simulated_account

if TYPE_CHECKING:
    from gpuscaler.embedded.controlplane.alone import StandaloneControlPlane
    from gpuscaler.embedded.serving.accounts import AccountServer

#: ``2`` plain nodes, or ``g5.xlarge=2`` for nodes of an instance type in the catalogue.
_NODES = re.compile(r"(?:(?P<type>[A-Za-z0-9._-]+)=)?(?P<count>[0-9]{1,5})")


@click.command()
@click.option(
    "--kubeconfig",
    required=True,
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Where to write the kubeconfig; it is deleted at the end.",
)
@click.option("--nodes", multiple=True, metavar="[TYPE=]N", help="Nodes at the start: with 8 cores, or of an instance type; repeatable.")
@click.option("--speed", default=1.0, show_default=True, type=click.FloatRange(min=0.01, max=1000), help="Speed of the cluster's clock.")
@click.option("--tls", is_flag=True, help="Serve HTTPS, and require the token in the kubeconfig.")
@click.option("--port", default=0, type=click.IntRange(0, 65535), metavar="N", help="Port on 127.0.0.1; default: a free one.")
@control_plane_options
@account_options
def cluster(  # noqa: PLR0917 - click passes them by their names
    kubeconfig: Path,
    nodes: tuple[str, ...],
    speed: float,
    tls: bool,
    port: int,
    control_plane: str,
    kubernetes: str | None,
    **clouds: Any,
) -> None:
    """Run a small Kubernetes cluster until Ctrl-C: API server, scheduler, kubelets that simulate pods, controllers."""
    from gpuscaler.embedded.serving.alone import ForeignFileError, StandaloneCluster

    def ready(url: str) -> None:
        click.echo(f"The API server is at {url}\nTry: kubectl --kubeconfig {kubeconfig} get nodes")

    node_objects = parse_nodes(nodes)
    check_release_option(control_plane, kubernetes)
    account = simulated_account(**clouds)
    if control_plane == REAL and speed != 1.0:
        raise click.BadParameter(f"saw {speed:g}, expected 1: a real control plane runs on this machine's clock", param_hint="--speed")
    try:
        if control_plane == REAL:
            real = _real_cluster(kubeconfig, node_objects, port=port, kubernetes=kubernetes, ready=ready, account=account)
            with report_exited_programs(), report_unusable_account():
                asyncio.run(until_terminated(real.run()))
        else:
            alone = StandaloneCluster(kubeconfig, nodes=node_objects, speed=speed, tls=tls, port=port, ready=ready, beside=account)
            with report_unusable_account():
                asyncio.run(until_terminated(alone.run()))
    except ForeignFileError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    except OSError as error:
        if error.filename:
            text = f"{kubeconfig}: saw {error.strerror}, expected a file that can be written (--kubeconfig)"
        else:
            ports = {"--port": port, **{f"--{name.replace('_', '-')}": value for name, value in clouds.items() if name.endswith("_port")}}
            option = next((name for name, number in ports.items() if number and str(number) in str(error)), "--port")
            text = f"port {ports[option]}: saw {error.strerror or error}, expected a free port; choose another or omit {option}"
        click.echo(text, err=True)
        sys.exit(2)


def _real_cluster(
    kubeconfig: Path,
    nodes: list[dict[str, Any]],
    *,
    port: int,
    kubernetes: str | None,
    ready: Callable[[str], None],
    account: "AccountServer | None",
) -> "StandaloneControlPlane":
    """Start a real control plane. Its programs are compiled first if necessary."""
    from gpuscaler.embedded.controlplane.alone import StandaloneControlPlane
    from gpuscaler.embedded.serving.alone import check_overwritable

    # Checked before compiling, which takes minutes.
    check_overwritable(kubeconfig)
    return StandaloneControlPlane(
        kubeconfig, compile_programs(kubernetes), environ=os.environ, nodes=nodes, port=port, ready=ready, beside=account
    )


def parse_nodes(texts: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return the Nodes that ``--nodes`` asks for."""
    from gpuscaler.embedded.serving.alone import PLAIN, make_node
    from gpuscaler.model.well_known import POOL_LABEL
    from gpuscaler.settings import SettingsError, parse_policy

    node_objects: list[dict[str, Any]] = []
    for text in texts:
        match = _NODES.fullmatch(text)
        if match is None:
            raise click.BadParameter(
                f"saw {text!r}, expected a number, or an instance type and a number such as g5.xlarge=2", param_hint="--nodes"
            )
        amounts, labels = dict(PLAIN), dict[str, str]()
        if match["type"]:
            pool = f"{{name: nodes, types: [{match['type']}], markets: [on-demand], zones: [us-east-1a]}}"
            try:
                (offering,) = parse_policy(f"region: us-east-1\npools: [{pool}]").pools[0].offerings
            except SettingsError as error:
                raise click.BadParameter(f"{match['type']}: {error.problems[0].message}", param_hint="--nodes") from error
            amounts = dict(offering.allocatable)
            labels = {name: value for name, value in offering.labels.items() if name != POOL_LABEL}
        first = len(node_objects) + 1
        node_objects += [make_node(f"node-{number}", amounts, labels) for number in range(first, first + int(match["count"]))]
    return node_objects
