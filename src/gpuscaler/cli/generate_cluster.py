"""``gpuscaler generate cluster`` and ``gpuscaler generate description``: files that set up a cluster, and their short description."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from gpuscaler.cli.reaching import FILE, cluster_options, refuse_files_and_access

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpuscaler.generating.description.resolved import Description
    from gpuscaler.generating.description.starting import Origin, Sighting
    from gpuscaler.model.nodes import Node

#: A path in the README of a folder.
_PATH = re.compile(r"`([\w.-]+(?:/[\w.-]+)*)`")


@click.command()
@click.argument("file", type=click.Path(path_type=Path, allow_dash=True), metavar="DESCRIPTION")
@click.option("--output", required=True, type=click.Path(path_type=Path, file_okay=False), help="The folder to write to; it may exist.")
@click.option("--explain", is_flag=True, help="Write into the files, as comments, why each line is there.")
@click.option("--force", is_flag=True, help="Replace files that differ.")
def cluster(*, file: Path, output: Path, explain: bool, force: bool) -> None:
    """Write the files that set up a cluster: groups of machines, permissions, values of charts, example workloads.

    DESCRIPTION is a short file (- for standard input) that names the cloud, the cluster and the GPU pools. Nothing is applied: review the
    files, and apply them with your tools in the order that README.md in the folder states.
    """
    from gpuscaler.cli.convert import link_below
    from gpuscaler.generating.bundle import files_of, notes_of
    from gpuscaler.generating.description.reading import read_description
    from gpuscaler.model.quantities import format_count
    from gpuscaler.settings import SettingsError

    try:
        text = sys.stdin.read() if str(file) == "-" else file.read_text(encoding="utf-8-sig")
        description = read_description(text, str(file))
    except (OSError, UnicodeDecodeError) as error:
        _refuse(f"{file}: saw {getattr(error, 'strerror', None) or error}, expected a description as UTF-8 text")
    except SettingsError as error:
        _refuse(str(error))
    texts = {output / generated.path: generated.text(explain=explain) for generated in files_of(description)}
    for path in texts:
        if (link := link_below(output, path)) is not None:
            _refuse(f"{link}: saw a symbolic link, expected a file or folder of its own below {output}; remove the link")
    different = [path for path, content in texts.items() if path.exists() and _differs(path, content)]
    if different and not force:
        listed = "".join(f"\n  {path}" for path in different)
        _refuse(
            f"saw {format_count(len(different), 'file')} with other content, expected none; move away what is yours, or replace all with "
            f"--force:{listed}"
        )
    left_over = _left_over(output, texts)
    try:
        for path, content in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(content, encoding="utf-8")
    except OSError as error:
        _refuse(f"{error.filename}: saw {error.strerror}, expected a folder that can be written to")
    _print_groups(description)
    for note in notes_of(description):
        click.echo(f"note: {note}", err=True)
    if left_over:
        listed = "".join(f"\n  {path}" for path in left_over)
        click.echo(
            f"warning: {format_count(len(left_over), 'file')} of an earlier run remained, which the description no longer has; take what "
            f"was made of it out of the cluster, and then remove it:{listed}",
            err=True,
        )
    click.echo(f"{output}: {format_count(len(texts), 'file')}; begin with {output / 'README.md'}")


def _left_over(folder: Path, texts: "Mapping[Path, str]") -> "list[Path]":
    """Return the files that the README of an earlier run names, and that neither are written now nor are named by the new README."""
    readme = folder / "README.md"
    try:
        before = readme.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return []
    named = {folder / name: None for name in _PATH.findall(before) if ".." not in name.split("/")}
    kept = {folder / name for name in _PATH.findall(texts[readme])}
    return [path for path in named if path not in texts and path not in kept and path.is_file()]


def _print_groups(description: "Description") -> None:
    """Print what the groups are, to standard error: standard output is for scripts."""
    from rich.table import Table

    from gpuscaler.cli.printing import uncut_console
    from gpuscaler.generating.description.summary import HEADINGS, rows_of

    table = Table(box=None, pad_edge=False)
    for heading, is_number in HEADINGS.items():
        table.add_column(heading, justify="right" if is_number else "left")
    for row in rows_of(description):
        table.add_row(*row)
    uncut_console(stderr=True).print(table)


def _differs(path: Path, content: str) -> bool:
    try:
        return path.read_bytes() != content.encode()
    except OSError:
        return True


def _refuse(message: str) -> NoReturn:
    """End with a message, which may have several lines. Descriptions are files of others: what they could do to a terminal is escaped."""
    from gpuscaler.cli.printing import escape_controls

    click.echo("\n".join(map(escape_controls, message.split("\n"))), err=True)
    sys.exit(2)


@click.command()
@click.option("--config", type=FILE, metavar="FILE", help="Begin with the pools of a pools file, or of the account that a run file names.")
@cluster_options
def description(*, config: str | None, files: tuple[str, ...], kubeconfig: Path | None, context: str) -> None:
    """Write a description of what exists to standard output, as a start for `gpuscaler generate cluster`.

    It is made from the pools that --config names, or else from the GPU nodes of a cluster. Nothing is changed. Flags of Cluster Autoscaler
    become a run file with `gpuscaler convert`.
    """
    from gpuscaler.generating.description.starting import of_nodes, origin_of_nodes, write_description

    refuse_files_and_access(files, kubeconfig, context)
    if config is not None and (files or kubeconfig is not None or context):
        raise click.UsageError("saw --config together with options of a cluster, expected one of them; omit the others")
    if config is not None:
        sightings, origin = _seen_in_pools(config)
    else:
        nodes = tuple(_nodes(files, kubeconfig, context))
        sightings, origin = of_nodes(nodes), origin_of_nodes(nodes)
    text = write_description(sightings, origin)
    if text is None:
        source = config or (", ".join(files) if files else "the cluster")
        click.echo(
            f"{source}: saw no GPU machine of an instance type that is known on AWS or Azure, expected at least one; write "
            "the description by hand (docs/reference/description.md)",
            err=True,
        )
        sys.exit(1)
    click.echo(text, nl=False)


def _seen_in_pools(config: str) -> "tuple[Iterable[Sighting], Origin]":
    from gpuscaler.cli.plan import account_of, load_settings
    from gpuscaler.generating.description.starting import Origin, of_pools

    settings = load_settings(config)
    policy = account_of(settings).policy if settings.has_account_pools else settings.policy
    origin = Origin(region=policy.region)
    if settings.cloud == "aws":
        origin = Origin("aws", settings.aws.cluster, next(iter(settings.aws.regions), policy.region))
    elif settings.cloud == "azure" and settings.azure.subscriptions:
        first = settings.azure.subscriptions[0]
        origin = Origin("azure", first.cluster.name, policy.region, first.cluster.resource_group, first.id)
    return of_pools(policy.pools), origin


def _nodes(files: tuple[str, ...], kubeconfig: Path | None, context: str) -> "Iterable[Node]":
    from gpuscaler.cli.plan import load_cluster
    from gpuscaler.cli.pools import live_nodes

    return load_cluster(files).nodes.values() if files else live_nodes(kubeconfig, context)
