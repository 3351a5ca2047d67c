"""``gpuscaler run``: runs the controller on the cluster of its pod or of a kubeconfig."""

import asyncio
import gc
import os
import socket
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

import click

from gpuscaler.cli.ending import until_terminated
from gpuscaler.cli.reaching import access_options, namespace_of, report_api_errors, resolve_access

if TYPE_CHECKING:
    from gpuscaler.control.process.running import MakeProvider
    from gpuscaler.control.process.settings_file import SettingsFile
    from gpuscaler.kube.access import Access


@click.command()
@click.option("--config", required=True, type=click.Path(path_type=Path), metavar="FILE", help="The run file: pools, cloud and the rest.")
@access_options
@click.option("--dry-run", is_flag=True, help="Plan and log the actions, but write nothing.")
def run(config: Path, kubeconfig: Path | None, context: str, dry_run: bool) -> None:
    """Watch the cluster, buy machines for pending pods and remove unused ones, until stopped."""
    from gpuscaler.control.loop.store import StoreError
    from gpuscaler.control.process.running import UnusableError

    file = load(config)
    access = resolve_access(kubeconfig, context)
    try:
        with report_api_errors(access):
            asyncio.run(_run(file, access, dry_run=dry_run))
    except (StoreError, UnusableError) as error:
        click.echo(str(error), err=True)
        sys.exit(2)


def load(path: Path) -> "SettingsFile":
    """Load the run file; mistakes are printed and end the command with exit code 2."""
    from gpuscaler.control.process.settings_file import SettingsFile
    from gpuscaler.settings import SettingsError
    from gpuscaler.settings.run_settings import DRIVEN

    try:
        file = SettingsFile(path)
    except SettingsError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    cloud = file.settings.cloud
    if cloud not in DRIVEN:
        seen = f"cloud {cloud}, which this version can read but not drive" if cloud else "no cloud"
        click.echo(f"{path}: saw {seen}, expected one of {', '.join(DRIVEN)}; add cloud: …", err=True)
        sys.exit(2)
    return file


class Clocks:
    """The machine's clocks. Leases use a clock that continues while the machine sleeps, if the machine has such a clock."""

    def wall(self) -> float:
        return time.time()

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME) if hasattr(time, "CLOCK_BOOTTIME") else time.monotonic()


def _cache() -> Path | None:
    """Return the folder that caches rarely changing data; None if it is not writable, as in a read-only container."""
    from gpuscaler.serving.cache_folder import cache_of

    try:
        return cache_of(os.environ)
    except FileNotFoundError:
        return None


def _provider_of(cloud: str) -> "MakeProvider":
    """Return the factory of the cloud's provider. Only the simulated cloud imports the simulation and the embedded cluster."""
    if cloud == "simulated":
        from gpuscaler.embedded.nodes import providers

        return providers.make
    if cloud == "azure":
        from gpuscaler.control.process import azure

        return partial(azure.make_azure_provider, folder=_cache())
    from gpuscaler.control.process import aws

    return partial(aws.make_aws_provider, folder=_cache())


async def _run(file: "SettingsFile", access: "Access", *, dry_run: bool) -> None:
    """Run until SIGTERM, which Kubernetes sends, or Ctrl-C."""
    from gpuscaler.control.process.running import ControllerProcess
    from gpuscaler.control.records.service import make_service as make_records
    from gpuscaler.kube.http import HttpTransport
    from gpuscaler.serving.logs import lines_to

    # A pod's host name is its name.
    pod = socket.gethostname() if access.in_pod else ""
    # Modules and the catalogue stay in memory: garbage collections that scan them each time would stall the event loop.
    gc.freeze()
    with lines_to(sys.stderr, file.settings.log.level, now=time.time) as set_level:
        async with HttpTransport(access) as transport:
            running = ControllerProcess(
                file=file,
                transport=transport,
                namespace=namespace_of(file.settings.namespace, access),
                identity=f"{socket.gethostname()}_{uuid4().hex[:12]}",
                clocks=Clocks(),
                make_provider=_provider_of(file.settings.cloud),
                make_records=partial(make_records, pod=pod, host=socket.gethostname(), set_level=set_level),
                dry_run=dry_run,
                default_limit=True,
            )
            await until_terminated(running.run())
