"""``gpuscaler status``: prints the status that the controller last wrote."""

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gpuscaler.cli.leading import NotInstalledError, namespace_option, read_status, talk
from gpuscaler.cli.reaching import access_options, find, namespace_of

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
    access = find(kubeconfig, context)

    async def talking(transport: "Transport") -> int:
        from gpuscaler.kube.client import Client
        from gpuscaler.metrics.command.registration import registrations

        client = Client(transport)
        status, missing = None, None
        try:
            status = await read_status(client, namespace_of(namespace, access))
        except NotInstalledError as error:
            # The metrics API can be installed without a controller.
            missing = error
        if status is not None and not as_json:
            print_status(status, time.time())
        served = await registrations(client)
        if as_json:
            print_json(status, served, time.time())
        else:
            section("Metrics API", [registration.text for registration in served])
        if missing is not None:
            raise missing
        return 0

    sys.exit(talk(access, talking))


def print_json(status: "Status | None", served: "tuple[Registration, ...]", now: float) -> None:
    """Print the status with its age check and the state of the metrics API. Without a status there is only the latter."""
    import msgspec

    from gpuscaler.control.records.status.reporting import OLD_SECONDS

    own = {} if status is None else {**whole(status), "old": now - status.at > OLD_SECONDS}
    told = {**own, "metrics_api": [{**whole(registration), "text": registration.text} for registration in served]}
    click.echo(msgspec.json.format(msgspec.json.encode(told), indent=2).decode())


def whole(value: Any) -> Any:
    """Return a value with all fields of all Structs in it. The copy in the cluster omits zero and empty fields."""
    if isinstance(value, tuple):
        return [whole(one) for one in value]
    fields = getattr(value, "__struct_fields__", None)
    return value if fields is None else {name: whole(getattr(value, name)) for name in fields}


def print_status(status: "Status", now: float) -> None:
    """Print the status as text."""
    from gpuscaler.cli.printing import uncut_console
    from gpuscaler.control.records.status.held import told as all_held
    from gpuscaler.control.records.status.removals import told
    from gpuscaler.control.records.status.reporting import OLD_SECONDS
    from gpuscaler.control.records.status.status import summary
    from gpuscaler.control.records.words import counted, spoken

    console = uncut_console()
    age = now - status.at
    line(f"Written {spoken(age)} ago by {status.leader.identity} (gpuscaler {status.leader.version}).")
    if age > OLD_SECONDS:
        line("The status is outdated: a leading controller writes it every minute. Nothing below is current; check the Lease and the log.")
    if status.looked_at:
        planned = f"planned {spoken(now - status.planned_at)} ago" if status.planned_at else "not planned yet"
        seen = f"{counted(status.nodes, 'node')} and {counted(status.pods, 'pod')}"
        line(f"Last reconciled {spoken(now - status.looked_at)} ago: {seen}; {planned}.{pages_of(status.leader)}")
    line(summary(status) + ".")
    for hold in status.holds:
        line(f"On hold: {hold.text}.")
    click.echo()
    console.print(pools_table(status))
    section("Machines", by_pool(status))
    limits = [used_of(limit) for limit in status.limits]
    if limits:
        line(f"\nLimits: {'; '.join(limits)}.")
    if status.held:
        line(f"\n{all_held(status.held)}")
    if status.priorities:
        line(f"\nPriorities: {status.priorities}.")
    promised = status.promises_kept + status.promises_broken
    if promised:
        line(f"\nPromises kept: {status.promises_kept:,} of {promised:,} pods ran on the machine that was opened for them.")
    section(
        "Pending",
        [
            f"{entry.count} x {', '.join(entry.pods)}{' …' if entry.count > len(entry.pods) else ''}: {entry.reason}"
            for entry in status.waiting
        ],
    )
    section("How machines are bought", [f"{way}: {', '.join(names)}" for way, names in by_way(status).items()])
    section("Leaving", [told(removal, now) for removal in status.removals])
    section("Paused offerings", [breaker.text for breaker in status.breakers])
    section("Problems", status.troubles)
    section("Warnings", status.warnings)
    section(f"Skipped, could not be parsed ({status.set_aside_count})", [f"{entry.about}: {entry.text}" for entry in status.set_aside])
    section("Last events", [happened(entry, now) for entry in reversed(status.happened)])


def used_of(limit: "Limit") -> str:
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
        most = "-" if pool.max is None else str(pool.max)
        counts = (pool.machines, pool.coming, pool.leaving, pool.min, most, pool.gpus, pool.used)
        table.add_row(pool.name, *map(str, counts), f"{pool.dollars_per_hour:.2f}")
    return table


def pages_of(leader: "Process") -> str:
    """Return a sentence with the address of the leader's pages; empty if there are none."""
    if not leader.port:
        return ""
    address = f"[{leader.address}]" if ":" in leader.address else leader.address
    whose = f"pod {leader.namespace}/{leader.pod}" if leader.pod else leader.host
    return f" Its pages are at {address}:{leader.port} of {whose}."


def by_pool(status: "Status") -> list[str]:
    """Return the machines by market, type and state, a line for each pool with machines."""
    kinds: dict[str, list[str]] = {}
    for kind in status.kinds:
        named = " ".join(filter(None, (kind.market, kind.instance_type))) or "unknown"
        kinds.setdefault(kind.pool, []).append(f"{kind.machines} x {named} {kind.state}")
    return [f"{pool}: {', '.join(several)}" for pool, several in kinds.items()]


def by_way(status: "Status") -> dict[str, list[str]]:
    """Group the pools by how their machines are bought; empty if all use the same way."""
    names: dict[str, list[str]] = {}
    for pool in status.pools:
        if pool.way:
            names.setdefault(pool.way, []).append(pool.name)
    return names


def happened(entry: "StatusEntry", now: float) -> str:
    """Format an event as one line."""
    from gpuscaler.control.records.words import spoken

    decision = f"  [{entry.decision}]" if entry.decision else ""
    return f"{spoken(now - entry.at):>6} ago  {entry.about:<15}  {entry.text}{decision}"


def section(title: str, lines: Iterable[str]) -> None:
    """Print a heading and its lines; nothing if there are no lines."""
    entries = list(lines)
    if entries:
        line(f"\n{title}:")
        for entry in entries:
            line(f"  {entry}")


def line(text: str) -> None:
    """Print a line of text read from a cluster, without control characters that a terminal would obey."""
    from gpuscaler.cli.printing import shown

    click.echo("\n".join(shown(part) for part in text.split("\n")))
