"""``gpuscaler plan``: what would be bought and given back for a cluster, as a dry run."""

import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, BinaryIO, cast

import click

if TYPE_CHECKING:
    from gpuscaler.model.cluster import Cluster
    from gpuscaler.model.pools import Policy

#: A path, so that shells complete files; whether it can be read is found out and told where it is opened.
FILE = click.Path(readable=False, allow_dash=True)


@click.command()
@click.option(
    "--cluster",
    "files",
    required=True,
    multiple=True,
    type=FILE,
    metavar="FILE",
    help="Kubernetes objects as kubectl prints them (JSON or YAML); may be repeated; - is standard input.",
)
@click.option("--pools", required=True, type=FILE, metavar="FILE", help="The pools file.")
@click.option("--now", metavar="RFC3339", help="The time to plan for, such as 2026-11-21T12:00:00Z; the default is the current time.")
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.option("--proof", type=FILE, metavar="FILE", help="Write what proves the lower bound; gpuscaler check-proof checks it.")
def plan(files: tuple[str, ...], pools: str, now: str | None, as_json: bool, proof: str | None) -> None:
    """Print what would be bought and given back. Nothing is changed anywhere."""
    from gpuscaler.cli.printing import plan_json, print_plan
    from gpuscaler.cli.proofs import write_proof
    from gpuscaler.planning.planner import Planner
    from gpuscaler.planning.state import State

    moment = parse_time(now) if now is not None else time.time()
    policy = load_pools(pools)
    cluster = load_cluster(files)
    began = time.perf_counter()
    made, solved = Planner(policy).plan_and_proof(cluster, State(), moment)
    seconds = time.perf_counter() - began
    if proof is not None:
        write_proof(proof, solved)
    if as_json:
        click.echo(plan_json(made, seconds))
    else:
        print_plan(made, cluster, seconds)


def parse_time(text: str) -> float:
    """An RFC 3339 time as seconds since the epoch; without an offset it is refused, as the two readings differ by hours."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise click.BadParameter(f"saw {text!r}, expected a time with offset such as 2026-11-21T12:00:00Z", param_hint="--now")
    return moment.timestamp()


def load_pools(path: str) -> "Policy":
    """The policy of a pools file; every mistake in it is printed and ends the command with exit code 2."""
    from gpuscaler.settings import SettingsError, load_policy

    try:
        return load_policy(path)
    except SettingsError as error:
        click.echo(str(error), err=True)
        sys.exit(2)


def load_cluster(files: tuple[str, ...]) -> "Cluster":
    """The cluster of several files; a file that cannot be read ends the command with exit code 2, an odd object is set aside."""
    from gpuscaler.model.aside import SetAside
    from gpuscaler.model.cluster import Cluster, Item
    from gpuscaler.model.decoding import InputError, Interner, read_items

    interner = Interner()
    items: list[Item] = []
    aside: list[SetAside] = []
    try:
        for file in files:
            name = "standard input" if file == "-" else file
            with click.open_file(file, "rb") as stream:
                for item in read_items(cast(BinaryIO, stream), interner, file=name):
                    if isinstance(item, SetAside):
                        aside.append(item)
                    else:
                        items.append(item)
    except InputError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    except OSError as error:
        click.echo(f"{error.filename}: saw {error.strerror}, expected a readable file with Kubernetes objects", err=True)
        sys.exit(2)
    return Cluster.of(items, aside)
