"""``gpuscaler open``: removes the taints that keep pods off machines, at a user's request."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuscaler.cli.leading import run_with_transport
from gpuscaler.cli.reaching import access_options, resolve_access

if TYPE_CHECKING:
    from gpuscaler.kube.client import Client
    from gpuscaler.kube.transport import Transport


#: Time between two passes with ``--for``, in seconds.
PAUSE = 2.0


@click.command("open")
@click.argument("nodes", nargs=-1, metavar="[NODE]...")
@access_options
@click.option("--all", "every", is_flag=True, help="Open all closed nodes.")
@click.option("--for", "duration", default="", metavar="DURATION", help="Keep opening nodes for this long, such as 40s.")
def open_(nodes: tuple[str, ...], kubeconfig: Path | None, context: str, *, every: bool, duration: str) -> None:
    """Remove the taints that keep NODEs closed: gpuscaler.io/arriving and gpuscaler.io/kept.

    A running controller closes machines again that are not ready yet; stop or uninstall it first. Needs get, list and patch on nodes.
    """
    from gpuscaler.model.durations import DurationError, parse_duration

    if every == bool(nodes):
        raise click.UsageError(f"saw {'--all and names' if every else 'neither names nor --all'}, expected either node names or --all")
    try:
        seconds = parse_duration(duration) if duration else 0.0
    except DurationError as error:
        raise click.UsageError(f"--for: {error}") from error
    sys.exit(run_with_transport(resolve_access(kubeconfig, context), lambda transport: open_nodes(transport, nodes, seconds)))


#: The name under which the group finds the command.
open = open_  # noqa: A001


async def open_nodes(transport: "Transport", nodes: tuple[str, ...], seconds: float) -> int:
    """Open ``nodes``, or all closed nodes, for ``seconds``; return 1 if a node is missing or could not be opened in the last pass."""
    from gpuscaler.kube.client import Client

    client, clock = Client(transport), asyncio.get_running_loop().time
    until, any_closed = clock() + seconds, False
    while True:
        names, errors = await _open_once(client, nodes)
        any_closed = any_closed or bool(names or errors)
        if clock() + PAUSE > until:
            break
        await asyncio.sleep(PAUSE)
    if not any_closed:
        click.echo("No node is closed.")
    return 1 if errors else 0


async def _open_once(client: "Client", nodes: tuple[str, ...]) -> tuple[list[str], list[str]]:
    """Open the closed nodes among ``nodes``, or all; return their names and the errors."""
    import msgspec

    from gpuscaler.cli.printing import escape_controls
    from gpuscaler.control.loop.cluster_writes import ClusterWriter, WireNode
    from gpuscaler.kube.resources import NODES
    from gpuscaler.lifecycle.actions import Lift
    from gpuscaler.model.well_known import CLOSING_TAINTS

    wire_nodes = [msgspec.json.decode(data, type=WireNode) for data in await client.list_all(NODES)]
    closed = [node.metadata.name for node in wire_nodes if any(taint.key in CLOSING_TAINTS for taint in node.spec.taints or ())]
    missing = sorted(set(nodes) - {node.metadata.name for node in wire_nodes})
    selected = [name for name in closed if not nodes or name in nodes]
    outcomes = await ClusterWriter(client).carry_out(Lift(name, "requested by a user") for name in selected)
    errors = [*(f"node {name}: saw no node of this name" for name in missing), *(outcome.detail for outcome in outcomes if outcome.detail)]
    for name, outcome in zip(selected, outcomes, strict=True):
        if not outcome.detail:
            click.echo(escape_controls(f"Node {name} is open."))
    for sentence in errors:
        click.echo(escape_controls(sentence), err=True)
    return selected, errors
