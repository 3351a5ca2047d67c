"""``gpuscaler status``: prints the status that the controller last wrote."""

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuscaler.cli.leading import NotInstalledError, namespace_option, read_status, run_with_transport
from gpuscaler.cli.reaching import access_options, namespace_of, resolve_access

if TYPE_CHECKING:
    from gpuscaler.control.records.status.status import Limit, Process, Status, StatusEntry
    from gpuscaler.kube.transport import Transport
    from gpuscaler.metrics.command.registration import Registration


@click.command()
@access_options
@namespace_option
@click.option("--json", "as_json", is_flag=True, help="Print the status as JSON.")
def status(kubeconfig: Path | None, context: str, namespace: str, as_json: bool) -> None:
    """Print pools, pending pods, breakers and the last decisions, from the controller's last status."""
    access = resolve_access(kubeconfig, context)

    async def query_cluster(transport: "Transport") -> int:
        from gpuscaler.kube.client import Client
        from gpuscaler.metrics.command.registration import find_registrations

        client = Client(transport)
        status, missing = None, None
        try:
            status = await read_status(client, namespace_of(namespace, access))
        except NotInstalledError as error:
            # The metrics API can be installed without a controller.
            missing = error
        if status is not None and not as_json:
            print_status(status, time.time())
        served = await find_registrations(client)
        if as_json:
            print_json(status, served, time.time())
        else:
            print_section("Metrics API", [registration.text for registration in served])
        if missing is not None:
            raise missing
        return 0

    sys.exit(run_with_transport(access, query_cluster))


def print_json(status: "Status | None", served: "tuple[Registration, ...]", now: float) -> None:
    """Print the status with its age check, and the state of the metrics API; without a status, only the state of the metrics API."""
    import msgspec

    from gpuscaler.control.records.status.reporting import OLD_SECONDS

    status_fields = {} if status is None else {**with_all_fields(status), "old": now - status.at > OLD_SECONDS}
    document = {**status_fields, "metrics_api": [{**with_all_fields(registration), "text": registration.text} for registration in served]}
    click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())


def with_all_fields(value: Any) -> Any:
    """Return a value with all fields of all Structs in it. The copy in the cluster omits zero and empty fields."""
    if isinstance(value, tuple):
        return [with_all_fields(item) for item in value]
    fields = getattr(value, "__struct_fields__", None)
    return value if fields is None else {name: with_all_fields(getattr(value, name)) for name in fields}


def print_status(status: "Status", now: float) -> None:
    """Print the status as text."""
    from gpuscaler.cli.printing import uncut_console
    from gpuscaler.control.records.status.doctor_status import doctor_lines, summarize
    from gpuscaler.control.records.status.held import describe_held_machines as all_held
    from gpuscaler.control.records.status.removals import describe_removal
    from gpuscaler.control.records.status.reporting import OLD_SECONDS
    from gpuscaler.control.records.status.status import summary
    from gpuscaler.control.records.words import format_duration
    from gpuscaler.model.quantities import format_count

    console = uncut_console()
    age = now - status.at
    print_line(f"Written {format_duration(age)} ago by {status.leader.identity} (gpuscaler {status.leader.version}).")
    if age > OLD_SECONDS:
        print_line(
            "The status is outdated: a leading controller writes it every minute. Nothing below is current; check the Lease and the log."
        )
    if status.looked_at:
        planned = f"planned {format_duration(now - status.planned_at)} ago" if status.planned_at else "not planned yet"
        size = f"{format_count(status.nodes, 'node')} and {format_count(status.pods, 'pod')}"
        print_line(f"Last reconciled {format_duration(now - status.looked_at)} ago: {size}; {planned}.{pages_sentence(status.leader)}")
    print_line(summary(status) + ".")
    for hold in status.holds:
        print_line(f"On hold: {hold.text}.")
    click.echo()
    console.print(pools_table(status))
    print_section("Machines", machines_by_pool(status))
    limits = [format_usage(limit) for limit in status.limits]
    if limits:
        print_line(f"\nLimits: {'; '.join(limits)}.")
    if status.held:
        print_line(f"\n{all_held(status.held)}")
    if status.priorities:
        print_line(f"\nPriorities: {status.priorities}.")
    promised = status.promises_kept + status.promises_broken
    if promised:
        print_line(f"\nPromises kept: {status.promises_kept:,} of {promised:,} pods ran on the machine that was opened for them.")
    print_section(
        "Pending",
        [
            f"{entry.count} x {', '.join(entry.pods)}{' …' if entry.count > len(entry.pods) else ''}: {entry.reason}"
            for entry in status.waiting
        ],
    )
    print_section("How machines are bought", [f"{way}: {', '.join(names)}" for way, names in pools_by_buying(status).items()])
    print_section("Leaving", [describe_removal(removal, now) for removal in status.removals])
    print_section("Paused offerings", [breaker.text for breaker in status.breakers])
    print_section("Problems", status.troubles)
    print_section("Warnings", status.warnings)
    if status.doctor.at:
        title = f"Findings ({summarize(status.doctor)}; checked {format_duration(now - status.doctor.at)} ago)"
        print_section(title, doctor_lines(status.doctor))
    print_section(f"Skipped ({status.set_aside_count})", [f"{entry.about}: {entry.text}" for entry in status.set_aside])
    print_section("Last events", [format_event(entry, now) for entry in reversed(status.happened)])


def format_usage(limit: "Limit") -> str:
    """Format a limit and how much of it is used."""
    if limit.name == "dollars_per_hour":
        return f"{limit.name} ${limit.used:,.2f} of ${limit.most:,.10g}"
    return f"{limit.name} {limit.used:,.10g} of {limit.most:,.10g}"


def pools_table(status: "Status") -> object:
    """Return the table of pools, a row each."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("pool")
    for name in ("machines", "coming", "leaving", "min", "max", "GPUs", "in use", "$/h"):
        table.add_column(name, justify="right")
    for pool in status.pools:
        maximum = "-" if pool.max is None else str(pool.max)
        counts = (pool.machines, pool.coming, pool.leaving, pool.min, maximum, pool.gpus, pool.used)
        table.add_row(pool.name, *map(str, counts), f"{pool.dollars_per_hour:.2f}")
    return table


def pages_sentence(leader: "Process") -> str:
    """Return a sentence with the address of the leader's pages; empty if there are none."""
    if not leader.port:
        return ""
    address = f"[{leader.address}]" if ":" in leader.address else leader.address
    host = f"pod {leader.namespace}/{leader.pod}" if leader.pod else leader.host
    return f" Its pages are at {address}:{leader.port} of {host}."


def machines_by_pool(status: "Status") -> list[str]:
    """Return the machines by market, type and state, a line for each pool with machines."""
    kinds: dict[str, list[str]] = {}
    for kind in status.kinds:
        machines = " ".join(filter(None, (kind.market, kind.instance_type))) or "unknown"
        kinds.setdefault(kind.pool, []).append(f"{kind.machines} x {machines} {kind.state}")
    return [f"{pool}: {', '.join(machines)}" for pool, machines in kinds.items()]


def pools_by_buying(status: "Status") -> dict[str, list[str]]:
    """Group the pools by how their machines are bought; empty if all use the same way."""
    names: dict[str, list[str]] = {}
    for pool in status.pools:
        if pool.way:
            names.setdefault(pool.way, []).append(pool.name)
    return names


def format_event(entry: "StatusEntry", now: float) -> str:
    """Format an event as one line."""
    from gpuscaler.control.records.words import format_duration

    decision = f"  [{entry.decision}]" if entry.decision else ""
    return f"{format_duration(now - entry.at):>6} ago  {entry.about:<15}  {entry.text}{decision}"


def print_section(title: str, lines: Iterable[str]) -> None:
    """Print a heading and its lines; nothing if there are no lines."""
    entries = list(lines)
    if entries:
        print_line(f"\n{title}:")
        for entry in entries:
            print_line(f"  {entry}")


def print_line(text: str) -> None:
    """Print a line of text read from a cluster, without control characters that a terminal would obey."""
    from gpuscaler.cli.printing import escape_controls

    click.echo("\n".join(escape_controls(part) for part in text.split("\n")))
