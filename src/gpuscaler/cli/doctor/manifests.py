"""``gpuscaler doctor manifests``: finds mistakes in files that people write, without a cluster."""

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuscaler.cli.doctor.output import Output, output_options
from gpuscaler.cli.printing import escape_controls
from gpuscaler.model.quantities import format_count

if TYPE_CHECKING:
    from gpuscaler.doctor.manifests.reading import Machine, Manifests
    from gpuscaler.model.reading.errors import Problem

#: The names of files that are looked at in folders.
_ENDINGS = (".yaml", ".yml", ".json")
#: Files that are named; the rest is counted.
_NAMED = 3


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(readable=False, allow_dash=True))
@output_options
def manifests(*, files: tuple[str, ...], output: Output) -> None:
    """Find mistakes in FILES, without a cluster: ClusterConfigs of eksctl, InstanceGroups of kOps, objects of Kubernetes, values of charts.

    Of folders, all files that end with .yaml, .yml or .json are read; - is standard input. Prints for each mistake the line, what it
    breaks, and the patch that mends it, which patch -p0 applies. Files that belong together are given together.
    """
    from gpuscaler.doctor.manifests.reading import read_manifests
    from gpuscaler.doctor.manifests.running import check_titles, lint_manifests

    texts = list(_texts(files))
    read = read_manifests(texts, now=time.time(), machines=known_machines(), read_rules=problems_of_rules)
    report = lint_manifests(read)
    output.print(report, check_titles(), read=_summary(read))
    if not texts:
        endings = f"{', '.join(_ENDINGS[:-1])} or {_ENDINGS[-1]}"
        click.echo(f"{', '.join(map(escape_controls, files))}: saw no file that ends with {endings}, expected one at least", err=True)
    sys.exit(output.exit_status(report, anything_read=bool(texts) and (bool(read.items) or not read.unread)))


def _summary(read: "Manifests") -> str:
    """What was read, and the first files in which nothing is known."""
    from gpuscaler.doctor.manifests.recognising import not_recognised, recognised

    counts = f"{format_count(len(read.files), 'file')}, {format_count(len(recognised(read)), 'object')}"
    names = [entry.subject for entry in not_recognised(read)]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{counts}; not recognised: {', '.join(names[:_NAMED])}{more}" if names else counts


def _texts(files: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The files with their texts, each once."""
    from gpuscaler.doctor.manifests.reading import STANDARD_INPUT

    seen: set[str] = set()
    for name in files:
        path = Path(name)
        found = sorted(item for item in path.rglob("*") if item.suffix in _ENDINGS and item.is_file()) if path.is_dir() else [path]
        for item in found:
            if str(item) not in seen:
                seen.add(str(item))
                yield (STANDARD_INPUT if name == "-" else str(item)), _text(str(item))


def _text(name: str) -> str:
    try:
        with click.open_file(name, "rb") as stream:
            data: bytes = stream.read()
        return data.decode("utf-8")
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
