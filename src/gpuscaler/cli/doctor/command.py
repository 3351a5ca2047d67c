"""``gpuscaler doctor``: finds mistakes in a cluster, its account and its files."""

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuscaler.cli.doctor.manifests import manifests
from gpuscaler.cli.doctor.notices.command import send_test_message
from gpuscaler.cli.doctor.output import Output, count_ids, output_options
from gpuscaler.cli.doctor.smoke import SmokeOptions, smoke_options, smoke_test
from gpuscaler.cli.reaching import FILE, cluster_options, namespace_of, refuse_files_and_access, resolve_access

if TYPE_CHECKING:
    from gpuscaler.doctor.evidence import Evidence
    from gpuscaler.settings.run_settings import RunSettings


@click.group(invoke_without_command=True)
@cluster_options
@click.option("--config", type=FILE, metavar="FILE", help="The run file: its settings are checked, and the account that it names is read.")
@output_options
@click.option("--html", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Also write the report as a page in HTML.")
@smoke_options
@click.option(
    "--send-test-message",
    "test_message",
    is_flag=True,
    help="Send a message to the queue of notices in --config (AWS), and report whether the controller receives it.",
)
@click.pass_context
def doctor(
    ctx: click.Context,
    *,
    files: tuple[str, ...],
    kubeconfig: Path | None,
    context: str,
    config: str | None,
    html: Path | None,
    output: Output,
    smoke: SmokeOptions | None,
    test_message: bool,
) -> None:
    """Find mistakes in a cluster, and print for each what it breaks and the command that mends it. Nothing is changed.

    Only two options change something, and make no checks: --smoke starts a Job and removes it, --send-test-message sends a message. They
    exit with 0 if the Job ran, or the message arrived.

    Exits with 1 if there is a finding of at least --fail-on, 3 if something could not be checked and nothing was found, or the cluster
    cannot be reached, 5 if the cluster allows nothing to be read.
    """
    if ctx.invoked_subcommand is not None:
        return
    from gpuscaler.cli.plan import load_settings
    from gpuscaler.doctor.checks.all_checks import CHECKS
    from gpuscaler.doctor.evidence import CLOCKS
    from gpuscaler.doctor.running import run_checks
    from gpuscaler.doctor.silencing import silence

    refuse_files_and_access(files, kubeconfig, context)
    if smoke is not None or test_message:
        option = "--smoke" if smoke is not None else "--send-test-message"
        if smoke is not None and test_message:
            raise click.UsageError("saw --smoke together with --send-test-message, expected one of them")
        if files or output.as_sarif or html is not None:
            other = "--cluster" if files else "--sarif" if output.as_sarif else "--html"
            raise click.UsageError(f"saw {option} together with {other}, expected a live cluster and no report; omit {other}")
        if smoke is not None:
            sys.exit(smoke_test(kubeconfig, context, config, smoke, as_json=output.as_json))
        sys.exit(send_test_message(kubeconfig, context, config, as_json=output.as_json))
    now = time.time()
    settings = None if config is None else load_settings(config)
    evidence = _with_settings(_from_files(files, now) if files else _from_cluster(kubeconfig, context, now), settings)
    report = silence(run_checks(evidence, CHECKS), evidence, settings.doctor.ignore if settings is not None else ())
    output.print(report, CHECKS)
    if html is not None:
        from gpuscaler.cli.doctor.page import doctor_page

        _write_page(html, doctor_page(report, checks=count_ids(CHECKS), now=now))
    # What was asked beside the objects has a kind of its own.
    objects = (documents for kind, documents in evidence.documents.items() if not kind.startswith("probe/"))
    # Only a server that does not answer has no clock.
    unreachable = not files and CLOCKS in evidence.unread
    sys.exit(output.exit_status(report, anything_read=any(objects) or not evidence.unread, unreachable=unreachable))


doctor.add_command(manifests)


def _from_files(files: tuple[str, ...], now: float) -> "Evidence":
    from gpuscaler.cli.doctor.reading import FileError, evidence_of_files

    try:
        return evidence_of_files(files, now=now)
    except FileError as error:
        click.echo(str(error), err=True)
        sys.exit(2)


def _from_cluster(kubeconfig: Path | None, context: str, now: float) -> "Evidence":
    import asyncio
    from dataclasses import replace

    from gpuscaler.cli.doctor.reading import evidence_of_cluster

    access = resolve_access(kubeconfig, context)
    # A pod that names another cluster is not inside it.
    inside = bool(os.environ.get("KUBERNETES_SERVICE_HOST")) and kubeconfig is None and not context
    evidence = asyncio.run(evidence_of_cluster(access, now=now, inside=inside))
    return replace(evidence, own_namespace=namespace_of("", access))


def _write_page(path: Path, page: str) -> None:
    try:
        # Names of objects may be half of a pair of characters, which UTF-8 does not have.
        path.write_text(page, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        click.echo(f"{path}: saw {error.strerror}, expected a file that can be written", err=True)
        sys.exit(2)


def _with_settings(evidence: "Evidence", settings: "RunSettings | None") -> "Evidence":
    """``evidence`` with the pools and settings of the run file, and with the account that it names."""
    from dataclasses import replace

    from gpuscaler.doctor.evidence import ACCOUNT, POLICY

    if settings is None:
        reason = "no run file was given; name it with --config"
        return replace(evidence, unread={**evidence.unread, POLICY: reason, ACCOUNT: reason})
    if settings.namespace:
        evidence = replace(evidence, named=frozenset({settings.namespace}), own_namespace=settings.namespace)
    if not settings.has_account_pools:
        return replace(evidence, policy=settings.policy)
    evidence = _with_account_pools(evidence, settings)
    if settings.cloud == "aws":
        from gpuscaler.cli.doctor.aws import with_aws_account

        return with_aws_account(evidence, settings)
    from gpuscaler.cli.doctor.azure import with_azure_account

    return with_azure_account(evidence, settings)


def _with_account_pools(evidence: "Evidence", settings: "RunSettings") -> "Evidence":
    """``evidence`` with the policy whose pools are those of the account; without it, if a part of the account cannot be read."""
    from dataclasses import replace

    import msgspec.structs

    from gpuscaler.cli.account import pools_and_machines, with_bought_offerings
    from gpuscaler.cli.doctor.reading import with_documents
    from gpuscaler.clouds.aws.api.calls import MissingPackageError
    from gpuscaler.clouds.protocol import CloudError
    from gpuscaler.doctor.checks.pool_names import UNKNOWN_POOL
    from gpuscaler.doctor.evidence import POLICY
    from gpuscaler.lifecycle.observed.machine_index import MachineIndex
    from gpuscaler.model.overrides import EVERY_POOL
    from gpuscaler.serving.cache_folder import cache_of

    try:
        report, inventory = pools_and_machines(settings, cache=cache_of(os.environ))
        unread = "; ".join(part.text for part in report.failed)
    except (CloudError, MissingPackageError) as error:
        unread = str(error)
    if unread:
        return replace(evidence, unread={**evidence.unread, POLICY: f"its pools are those of the account: {unread}"})
    adopted = {pool.name for pool in report.pools}
    named = {f"Pool {override.name}": override.name for override in settings.overrides if override.name not in {EVERY_POOL, *adopted}}
    # The account says of an unadopted pool that exists "saw the pool in the file, but …".
    reasons = {skipped.object: skipped.reason.removeprefix("saw the pool in the file, ") for skipped in report.set_aside}
    unknown = [
        {"Name": name, "Reason": reasons[title].removeprefix("but "), "Exists": reasons[title].startswith("but ")}
        for title, name in named.items()
        if title in reasons
    ]
    evidence = with_documents(evidence, {UNKNOWN_POOL: unknown}, {})
    cluster = with_bought_offerings(evidence.cluster, inventory)
    unlisted = MachineIndex.of(cluster, inventory).unlisted
    policy = msgspec.structs.replace(settings.policy, pools=report.pools)
    return replace(evidence, policy=policy, cluster=cluster, unlisted=unlisted)
