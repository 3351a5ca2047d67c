"""``gpuscaler doctor manifests``: finds mistakes in files that people write, without a cluster."""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from gpuscaler.doctor.manifests.reading import Machine
    from gpuscaler.model.reading.errors import Problem

#: The names of files that are looked at in folders.
_ENDINGS = (".yaml", ".yml", ".json")
_NOTHING_READ, _INCOMPLETE = 5, 3


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(readable=False, allow_dash=True))
@click.option(
    "--fail-on",
    type=click.Choice(("critical", "warning", "info")),
    default="warning",
    show_default=True,
    help="The least severity of a finding that ends the command with 1.",
)
@click.option("--partial-ok", is_flag=True, help="Exit with 0 instead of 3 if something could not be checked and nothing was found.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--sarif", "as_sarif", is_flag=True, help="Print SARIF, which code hosts and editors show.")
def manifests(*, files: tuple[str, ...], fail_on: str, partial_ok: bool, as_json: bool, as_sarif: bool) -> None:
    """Find mistakes in FILES, without a cluster: ClusterConfigs of eksctl, InstanceGroups of kOps, objects of Kubernetes, values of charts.

    Of folders, all files that end with .yaml, .yml or .json are read; - is standard input. Prints for each mistake the line, what it
    breaks, and the patch that mends it, which patch -p0 applies. Files that belong together are given together.
    """
    from gpuscaler.cli.doctor_printing import print_report, report_json
    from gpuscaler.cli.doctor_sarif import report_sarif
    from gpuscaler.doctor.manifests.reading import read_manifests
    from gpuscaler.doctor.manifests.running import check_titles, lint_manifests

    if as_json and as_sarif:
        raise click.UsageError("saw --json together with --sarif, expected one of them")
    texts = list(_texts(files))
    read = read_manifests(texts, now=time.time(), machines=known_machines(), read_rules=problems_of_rules)
    report = lint_manifests(read)
    titles = check_titles()
    if as_json:
        click.echo(json.dumps(report_json(report), indent=2))
    elif as_sarif:
        click.echo(json.dumps(report_sarif(report, titles), indent=2))
    else:
        print_report(report, checks=len({check.id for check in titles}))
    if report.at_least(fail_on):
        sys.exit(1)
    if not texts or (report.unchecked and not read.items):
        sys.exit(_NOTHING_READ)
    sys.exit(_INCOMPLETE if report.unchecked and not partial_ok else 0)


def _texts(files: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The files with their texts, each once."""
    seen: set[str] = set()
    for name in files:
        path = Path(name)
        found = sorted(item for item in path.rglob("*") if item.suffix in _ENDINGS and item.is_file()) if path.is_dir() else [path]
        for item in found:
            if str(item) not in seen:
                seen.add(str(item))
                yield ("standard input" if name == "-" else str(item)), _text(str(item))


def _text(name: str) -> str:
    try:
        with click.open_file(name, "rb") as stream:
            data: bytes = stream.read()
        return data.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "bytes that are not UTF-8"
        click.echo(f"{name}: saw {reason}, expected a readable file of text", err=True)
        sys.exit(2)


def known_machines() -> "dict[str, Machine]":
    from gpuscaler.catalogue import types
    from gpuscaler.doctor.manifests.reading import Machine

    return {item.name: Machine(item.gpus, item.vcpu, item.memory_mib) for item in types()}


def problems_of_rules(text: str) -> "Iterable[Problem]":
    from gpuscaler.metrics.rules.reading import read_rules
    from gpuscaler.model.reading.errors import SettingsError

    try:
        rules = read_rules(text)
    except SettingsError as error:
        return error.problems
    return (*rules.problems, *rules.notes)
