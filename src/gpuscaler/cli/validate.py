"""``gpuscaler validate``: checks a pools file or a run file and prints all mistakes."""

import json
import sys
from pathlib import Path

import click


@click.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--schema", is_flag=True, help="Print the JSON Schema of the pools file instead, for editors.")
def validate(file: Path | None, schema: bool) -> None:
    """Check a pools file, a run file or the Helm chart's values.

    Exits with 0 if it is valid, else with 2, after printing every mistake with its place.
    """
    # Imported here, so that other commands start without YAML and the catalogue.
    from gpuscaler.model.overrides import on_demand_only
    from gpuscaler.model.pools import boundless_warning, min_gpus_warnings, with_default_limit
    from gpuscaler.settings import SettingsError, load_settings
    from gpuscaler.settings.schema import pools_file_schema

    if schema:
        click.echo(json.dumps(pools_file_schema(), indent=2))
        return
    if file is None:
        raise click.UsageError("saw no file, expected the path of a pools file or a run file; or give --schema")
    try:
        settings = load_settings(file)
    except SettingsError as error:
        click.echo(str(error), err=True)
        mistakes = len(error.problems)
        click.echo(f"{file}: {mistakes} {'mistake' if mistakes == 1 else 'mistakes'}", err=True)
        sys.exit(2)
    policy = settings.policy
    if settings.has_account_pools:
        click.echo(
            f"{file}: valid; pools come from the account (gpuscaler pools prints them), pools with overrides: {len(settings.overrides)}"
        )
        if without_spot := on_demand_only(settings.azure.prices if settings.cloud == "azure" else settings.aws.prices):
            click.echo(
                f"{file}: note: {settings.cloud}.prices has on-demand prices only of {', '.join(without_spot)}: spot keeps its own price; "
                f"add {without_spot[0]}/spot to state it",
                err=True,
            )
        return
    offerings = sum(len(pool.offerings) for pool in policy.pools)
    types = {offering.instance_type for offering in policy.offerings.values()}
    click.echo(f"{file}: valid; pools: {len(policy.pools)}, offerings: {offerings}, instance types: {len(types)}")
    warnings = [] if settings.limits_stated else [boundless_warning(with_default_limit(policy))]
    for warning in filter(None, (*warnings, *min_gpus_warnings(policy))):
        click.echo(f"{file}: warning: {warning}", err=True)
