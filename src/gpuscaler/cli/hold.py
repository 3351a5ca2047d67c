"""``gpuscaler hold`` and ``gpuscaler resume``: a user pauses buying or removing machines, and resumes it."""

import getpass
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuscaler.cli.leading import namespace_option, require_controller, run_with_transport
from gpuscaler.cli.reaching import access_options, namespace_of, resolve_access

if TYPE_CHECKING:
    from gpuscaler.kube.access import Access
    from gpuscaler.kube.transport import Transport
    from gpuscaler.model.holds import Hold


@click.command()
@access_options
@namespace_option
@click.option("--buying", is_flag=True, help="Pause purchases only.")
@click.option("--removing", is_flag=True, help="Pause removals only.")
@click.option("--for", "duration", default="", metavar="DURATION", help="How long, such as 2h. Default: until `gpuscaler resume`.")
@click.option("--reason", default="", metavar="TEXT", help="Reason, shown in the status.")
def hold(kubeconfig: Path | None, context: str, namespace: str, *, buying: bool, removing: bool, duration: str, reason: str) -> None:
    """Pause buying and removing machines until `gpuscaler resume`, or for a while.

    Without --buying or --removing, both are paused. The hold is stored in the cluster: every replica of the controller obeys it, also after
    a restart. Removals in progress are undone if that is still possible. Machines that the cloud interrupts are drained all the same.
    """
    from gpuscaler.model.durations import DurationError, parse_positive_duration
    from gpuscaler.model.holds import Hold

    now = time.time()
    try:
        until = now + parse_positive_duration(duration) if duration else None
    except DurationError as error:
        raise click.UsageError(f"--for: {error}") from error
    if until == now:
        raise click.UsageError("--for: saw 0, expected a duration above zero such as 2h; `gpuscaler resume` ends a hold")
    entry = Hold(since=now, until=until, by=caller(), reason=reason)
    access = resolve_access(kubeconfig, context)
    sys.exit(
        change_holds(access, namespace_of(namespace, access), dict.fromkeys(selected_activities(buying=buying, removing=removing), entry))
    )


@click.command()
@access_options
@namespace_option
@click.option("--buying", is_flag=True, help="Resume purchases; a hold on removals stays.")
@click.option("--removing", is_flag=True, help="Resume removals; a hold on purchases stays.")
def resume(kubeconfig: Path | None, context: str, namespace: str, *, buying: bool, removing: bool) -> None:
    """End a hold of `gpuscaler hold`: without --buying or --removing, on both."""
    access = resolve_access(kubeconfig, context)
    sys.exit(change_holds(access, namespace_of(namespace, access), dict.fromkeys(selected_activities(buying=buying, removing=removing))))


def selected_activities(*, buying: bool, removing: bool) -> tuple[str, ...]:
    """Return the activities that the flags name; all of them if there is no flag."""
    from gpuscaler.model.holds import ACTIVITIES, BUYING, REMOVING

    named = [activity for activity, flag in ((BUYING, buying), (REMOVING, removing)) if flag]
    return tuple(named) or ACTIVITIES


def change_holds(access: "Access", namespace: str, changes: "Mapping[str, Hold | None]") -> int:
    """Save the change, print the holds that are now in force, and say if no controller runs that would obey them."""

    async def query_cluster(transport: "Transport") -> int:
        from gpuscaler.cli.printing import escape_controls
        from gpuscaler.control.loop.holding import write_holds
        from gpuscaler.kube.client import Client
        from gpuscaler.kube.errors import NotFound

        client = Client(transport)
        try:
            holds = await write_holds(client, namespace, changes)
        except NotFound as error:
            raise ValueError(
                f"namespace {namespace}: saw no such namespace, expected that of the controller; "
                "create it, or give the controller's with --namespace"
            ) from error
        now = time.time()
        for sentence in holds.sentences(now, namespace=namespace) or (f"nothing is on hold in namespace {namespace}",):
            click.echo(escape_controls(f"{sentence[0].upper()}{sentence[1:]}."))
        if warning := await require_controller(client, namespace, now=now):
            click.echo(escape_controls(f"warning: {warning}"), err=True)
        return 0

    return run_with_transport(access, query_cluster)


def caller() -> str:
    """Return the name of the user who runs the command, shown with the hold; empty if the system has none."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return ""
