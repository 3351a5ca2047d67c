"""``gpuscaler doctor``: finds mistakes in a cluster, its account and its files."""

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuscaler.cli.doctor_manifests import manifests
from gpuscaler.cli.doctor_smoke import SmokeOptions, smoke_options, smoke_test
from gpuscaler.cli.reaching import FORBIDDEN, UNREACHABLE, access_options, resolve_access

if TYPE_CHECKING:
    from gpuscaler.doctor.evidence import Evidence
    from gpuscaler.doctor.findings import Report
    from gpuscaler.settings.run_settings import RunSettings

#: A path type, so that shells complete file names; unreadable files are reported when they are opened.
FILE = click.Path(readable=False, allow_dash=True)


@click.group(invoke_without_command=True)
@click.option(
    "--cluster",
    "files",
    multiple=True,
    type=FILE,
    metavar="FILE",
    help="Kubernetes objects as printed by kubectl (JSON or YAML); repeatable; - is standard input. Default: read a live cluster.",
)
@access_options
@click.option("--config", type=FILE, metavar="FILE", help="The run file: its settings are checked, and the account that it names is read.")
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
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Also write the report as a page in HTML.")
@smoke_options
@click.pass_context
def doctor(
    ctx: click.Context,
    *,
    files: tuple[str, ...],
    kubeconfig: Path | None,
    context: str,
    config: str | None,
    fail_on: str,
    partial_ok: bool,
    as_json: bool,
    as_sarif: bool,
    html: Path | None,
    smoke: SmokeOptions | None,
) -> None:
    """Find mistakes in a cluster, and print for each what it breaks and the command that mends it. Nothing is changed.

    Only --smoke changes something: it starts a Job and removes it. It exits with 0 if the Job ran.

    Exits with 1 if there is a finding of at least --fail-on, 3 if something could not be checked and nothing was found, 5 if nothing could
    be read.
    """
    if ctx.invoked_subcommand is not None:
        return
    from gpuscaler.cli.doctor_printing import print_report, report_json
    from gpuscaler.cli.doctor_sarif import report_sarif
    from gpuscaler.cli.plan import load_settings
    from gpuscaler.doctor.checks.all_checks import CHECKS
    from gpuscaler.doctor.running import run_checks
    from gpuscaler.doctor.silencing import silence

    if files and (kubeconfig is not None or context):
        raise click.UsageError("saw --cluster together with --kubeconfig or --context, expected files or a live cluster; omit one of them")
    if as_json and as_sarif:
        raise click.UsageError("saw --json together with --sarif, expected one of them")
    if smoke is not None:
        if files or as_sarif or html is not None:
            other = "--cluster" if files else "--sarif" if as_sarif else "--html"
            raise click.UsageError(f"saw --smoke together with {other}, expected a live cluster and no report; omit {other}")
        sys.exit(smoke_test(kubeconfig, context, config, smoke, as_json=as_json))
    now = time.time()
    settings = None if config is None else load_settings(config)
    evidence = _with_settings(_from_files(files, now) if files else _from_cluster(kubeconfig, context, now), settings)
    report = silence(run_checks(evidence, CHECKS), evidence, settings.doctor.ignore if settings is not None else ())
    count = len({check.id for check in CHECKS})
    if html is not None:
        from gpuscaler.cli.doctor_page import doctor_page

        _write_page(html, doctor_page(report, checks=count, now=now))
    if as_json:
        click.echo(json.dumps(report_json(report), indent=2))
    elif as_sarif:
        click.echo(json.dumps(report_sarif(report, CHECKS), indent=2))
    else:
        print_report(report, checks=count)
    sys.exit(_exit_status(report, evidence, fail_on=fail_on, partial_ok=partial_ok))


doctor.add_command(manifests)


def _from_files(files: tuple[str, ...], now: float) -> "Evidence":
    from gpuscaler.cli.doctor_reading import FileError, evidence_of_files

    try:
        return evidence_of_files(files, now=now)
    except FileError as error:
        click.echo(str(error), err=True)
        sys.exit(2)


def _from_cluster(kubeconfig: Path | None, context: str, now: float) -> "Evidence":
    import asyncio

    from gpuscaler.cli.doctor_reading import evidence_of_cluster

    access = resolve_access(kubeconfig, context)
    # A pod that names another cluster is not inside it.
    inside = bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and kubeconfig is None and not context
    return asyncio.run(evidence_of_cluster(access, now=now, inside=inside))


def _write_page(path: Path, page: str) -> None:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        click.echo(f"{path}: saw {error.strerror}, expected a file that can be written", err=True)
        sys.exit(2)


def _with_settings(evidence: "Evidence", settings: "RunSettings | None") -> "Evidence":
    """``evidence`` with the pools and settings of the run file."""
    from dataclasses import replace

    from gpuscaler.doctor.evidence import ACCOUNT, POLICY

    if settings is None:
        reason = "no run file was given; name it with --config"
        return replace(evidence, unread={**evidence.unread, POLICY: reason, ACCOUNT: reason})
    evidence = replace(evidence, policy=settings.policy)
    if settings.cloud == "aws":
        from gpuscaler.cli.doctor_account import with_aws_account

        return with_aws_account(evidence, settings)
    if settings.cloud == "azure":
        from gpuscaler.cli.doctor_azure import with_azure_account

        return with_azure_account(evidence, settings)
    return evidence


def _exit_status(report: "Report", evidence: "Evidence", *, fail_on: str, partial_ok: bool) -> int:
    if report.at_least(fail_on):
        return 1
    # What was asked beside the objects has a kind of its own.
    objects = (documents for kind, documents in evidence.documents.items() if not kind.startswith("probe/"))
    if evidence.unread and not any(objects):
        return FORBIDDEN
    return UNREACHABLE if report.unchecked and not partial_ok else 0
