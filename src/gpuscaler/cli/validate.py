"""``gpuscaler validate``: checks a pools file or a run file and prints all mistakes."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuscaler.settings import RunSettings, SettingsError

#: The names under which a ConfigMap has a run file or a pools file; the first is the chart's.
EMBEDDED = ("run.yaml", "pools.yaml")
_REMEDY = f"name such a file, or a manifest that has it in a ConfigMap, under {' or '.join(EMBEDDED)}"


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--schema", is_flag=True, help="Print the JSON Schema of the pools file instead, for editors.")
def validate(file: Path | None, schema: bool) -> None:
    """Check a pools file, a run file, the Helm chart's values, or a manifest with such a file in a ConfigMap.

    Exits with 0 if it is valid, else with 2, after printing every mistake with its place.
    """
    # Imported here, so that other commands start without YAML and the catalogue.
    from gpuscaler.settings import SettingsError
    from gpuscaler.settings.pools_file import decode_settings, decode_text, parse_settings, read_settings
    from gpuscaler.settings.schema import pools_file_schema

    if schema:
        click.echo(json.dumps(pools_file_schema(), indent=2))
        return
    if file is None:
        raise click.UsageError("saw no file, expected the path of a pools file or a run file; or give --schema")
    try:
        data = read_settings(file)
        embedded = list(find_embedded(decode_text(data, file), file))
        checked = [(str(file), decode_settings(data, file, remedy=_REMEDY))] if not embedded else []
    except SettingsError as error:
        report_mistakes(str(file), error)
        sys.exit(2)
    failed = False
    for part in embedded:
        try:
            checked.append((part.name, parse_settings(part.text, part.source, folder=file.parent, first=part.first)))
        except SettingsError as error:
            report_mistakes(part.name, error)
            failed = True
    for name, settings in checked:
        report_valid(name, settings)
    if failed:
        sys.exit(2)


class Embedded(NamedTuple):
    """The ``text`` of a settings file in a ConfigMap, ``name`` for people. It begins at line ``first`` of ``source``."""

    name: str
    text: str
    source: str
    first: int


def find_embedded(text: str, file: Path) -> "Iterator[Embedded]":
    """The settings files in the ConfigMaps of the manifest ``text``, which is the content of ``file``; none in other files."""
    from gpuscaler.doctor.manifests.reading import read_manifests

    if "ConfigMap" not in text:
        return  # A large pools file need not be read twice.
    lines = text.split("\n")
    for item in read_manifests([(str(file), text)], now=0.0).of("ConfigMap"):
        data = item.root.value.get("data")
        members = data.value if data is not None and isinstance(data.value, dict) else {}
        for key in EMBEDDED:
            if key not in members or not isinstance(members[key].value, str):
                continue
            name, content, line = f"{file}: {item.title}, {key}", members[key].value, members[key].line
            # Lines of a block (|) are lines of the file; those of quoted text are not.
            expected = [part.strip() for part in content.rstrip("\n").split("\n")]
            is_block = [part.strip() for part in lines[line : line + len(expected)]] == expected
            yield Embedded(name, content, str(file) if is_block else name, line + 1 if is_block else 1)


def report_mistakes(name: str, error: "SettingsError") -> None:
    """Print the mistakes of the file ``name``, and their number."""
    click.echo(str(error), err=True)
    mistakes = len(error.problems)
    click.echo(f"{name}: {mistakes} {'mistake' if mistakes == 1 else 'mistakes'}", err=True)


def report_valid(name: str, settings: "RunSettings") -> None:
    """Print what the valid file ``name`` has, and warnings about it."""
    from gpuscaler.model.overrides import on_demand_only
    from gpuscaler.model.pools import boundless_warning, min_gpus_warnings, with_default_limit

    policy = settings.policy
    if settings.has_account_pools:
        click.echo(
            f"{name}: valid; pools come from the account (gpuscaler pools prints them), pools with overrides: {len(settings.overrides)}"
        )
        if without_spot := on_demand_only(settings.azure.prices if settings.cloud == "azure" else settings.aws.prices):
            click.echo(
                f"{name}: note: {settings.cloud}.prices has on-demand prices only of {', '.join(without_spot)}: spot keeps its own price; "
                f"add {without_spot[0]}/spot to state it",
                err=True,
            )
        return
    offerings = sum(len(pool.offerings) for pool in policy.pools)
    types = {offering.instance_type for offering in policy.offerings.values()}
    click.echo(f"{name}: valid; pools: {len(policy.pools)}, offerings: {offerings}, instance types: {len(types)}")
    warnings = [] if settings.limits_stated else [boundless_warning(with_default_limit(policy))]
    for warning in filter(None, (*warnings, *min_gpus_warnings(policy))):
        click.echo(f"{name}: warning: {warning}", err=True)
