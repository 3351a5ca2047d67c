"""``gpuscaler replay``: recomputes the plan of a decision from its inputs, and compares."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuscaler.cli.leading import (
    Leader,
    NotInstalledError,
    OutOfReachError,
    leader_options,
    namespace_option,
    query_leader,
    run_with_transport,
)
from gpuscaler.cli.reaching import UNREACHABLE, access_options, resolve_access
from gpuscaler.cli.status import print_line

if TYPE_CHECKING:
    from gpuscaler.control.records.history.history import DecisionSummary
    from gpuscaler.kube.http import HttpTransport

#: Exit status if the plan is different now.
DIFFERENT = 1


@click.command()
@click.argument("name", metavar="[ID]", default="")
@access_options
@namespace_option
@leader_options
@click.option("--history", type=click.Path(path_type=Path), metavar="FILE", help="Read this history.db instead of querying the leader.")
@click.option(
    "--inputs", type=click.Path(path_type=Path), metavar="FILE", help="Read the inputs of a decision from a file written by --save."
)
@click.option("--save", type=click.Path(path_type=Path), metavar="FILE", help="Also write the inputs to a file, to keep or to share.")
@click.option("--json", "as_json", is_flag=True, help="Print the recomputed plan as JSON.")
def replay(
    *,
    name: str,
    kubeconfig: Path | None,
    context: str,
    namespace: str,
    leader: Leader,
    history: Path | None,
    inputs: Path | None,
    save: Path | None,
    as_json: bool,
) -> None:
    """Recompute the plan of a decision locally, and report whether it is identical to the last bit. Without ID, list the decisions.

    The ids of decisions are in the log, in the status and in the output of why.
    """
    if history is not None and inputs is not None:
        raise click.UsageError("saw both --history and --inputs, expected one of them")
    if inputs is not None:
        sys.exit(replay_inputs(read_file(inputs), save, as_json=as_json))
    if history is not None:
        sys.exit(from_history(history, name, save, as_json=as_json))
    access = resolve_access(kubeconfig, context)

    async def query_cluster(transport: "HttpTransport") -> int:
        path = f"/decisions/{name}/inputs" if name else "/decisions"
        try:
            status, body = await query_leader(access, transport, leader, namespace=namespace, path=path)
        except (OutOfReachError, NotInstalledError) as error:
            if isinstance(error, NotInstalledError):
                raise
            click.echo(f"the leader cannot be queried: {error}; read its history.db with --history", err=True)
            return UNREACHABLE
        if status != 200:
            click.echo(body.decode(errors="replace").strip(), err=True)
            return 2
        if name:
            return replay_inputs(body, save, as_json=as_json)
        import msgspec

        from gpuscaler.control.records.history.history import DecisionSummary

        print_list(msgspec.json.decode(body, type=list[DecisionSummary]))
        return 0

    sys.exit(run_with_transport(access, query_cluster))


def read_file(path: Path) -> bytes:
    """Read the file, or exit with status 2 and a message."""
    try:
        return path.read_bytes()
    except OSError as error:
        click.echo(f"{path}: saw {error.strerror}, expected a readable file", err=True)
        sys.exit(2)


def from_history(path: Path, name: str, save: Path | None, *, as_json: bool) -> int:
    """Replay a decision of a file, or list all its decisions."""
    import sqlite3

    from gpuscaler.control.records.history.history import read_history
    from gpuscaler.control.records.status.pages import missing_decision

    read_file(path)
    try:
        history = read_history(path)
        if not name:
            print_list(history.decisions(most=1_000))
            return 0
        decision = history.decision(name, inputs=True)
    except sqlite3.Error as error:
        click.echo(f"{path}: saw {error}, expected the history.db of a controller", err=True)
        return 2
    if decision is None:
        click.echo(f"{path}: {missing_decision(name)}".strip(), err=True)
        return 2
    if decision.inputs is None:
        click.echo(f"{path}: decision {name}: {decision.missing}", err=True)
        return 2
    return replay_inputs(decision.inputs, save, as_json=as_json)


def replay_inputs(data: bytes, save: Path | None, *, as_json: bool) -> int:
    """Recompute the plan from ``data``, print the comparison, and return the exit status."""
    import msgspec

    from gpuscaler import __version__
    from gpuscaler.control.records.history.inputs import InputsError, unpack_decision
    from gpuscaler.control.records.history.replaying import replay_decision
    from gpuscaler.model.quantities import format_count

    try:
        decision, version = unpack_decision(data)
    except InputsError as error:
        click.echo(f"the inputs: {error}", err=True)
        return 2
    if save is not None:
        try:
            save.write_bytes(data)
        except OSError as error:
            click.echo(f"{save}: saw {error.strerror}, expected a file that can be written (--save)", err=True)
            return 2
    result = replay_decision(decision)
    if as_json:
        click.echo(msgspec.json.format(msgspec.json.encode(result.plan), indent=2).decode())
        return 0 if result.identical else DIFFERENT
    print_line(f"Decision {decision.id}: {decision.text}.")
    nodes, pods = format_count(len(decision.cluster.nodes), "node"), format_count(len(decision.cluster.pods), "pod")
    print_line(f"Made from {nodes} and {pods} by gpuscaler {version}.")
    if result.identical:
        print_line("Planned again: identical.")
        return 0
    versions = f" It was planned by gpuscaler {version}, this is {__version__}." if version != __version__ else ""
    print_line(f"Planned again: different.{versions}")
    for difference in result.differences:
        print_line(f"  {difference}")
    return DIFFERENT


def print_list(decisions: "list[DecisionSummary]") -> None:
    from gpuscaler.serving.logs import timestamp

    if not decisions:
        print_line("No decisions are recorded.")
    for brief in decisions:
        missing_inputs = "" if brief.size else "  (inputs not recorded)"
        print_line(f"{brief.id:<22}  {timestamp(brief.at)}  {brief.text}{missing_inputs}")
