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
        found, missing = None, None
        try:
            found = await read_status(client, namespace_of(namespace, access))
        except NotInstalledError as error:
            # The metrics API can be installed without a controller.
            missing = error
        if found is not None and not as_json:
            print_status(found, time.time())
        served = await registrations(client)
        if as_json:
            print_json(found, served, time.time())
        else:
            section("Metrics API", [one.text for one in served])
        if missing is not None:
            raise missing
        return 0

    sys.exit(talk(access, talking))


def print_json(found: "Status | None", served: "tuple[Registration, ...]", now: float) -> None:
    """Print the status with its age check and the state of the metrics API. Without a status there is only the latter."""
    import msgspec

    from gpuscaler.control.records.status.reporting import OLD_SECONDS

    own = {} if found is None else {**whole(found), "old": now - found.at > OLD_SECONDS}
    told = {**own, "metrics_api": [{**whole(one), "text": one.text} for one in served]}
    click.echo(msgspec.json.format(msgspec.json.encode(told), indent=2).decode())


def whole(value: Any) -> Any:
    """Return a value with all fields of all Structs in it. The copy in the cluster omits zero and empty fields."""
    if isinstance(value, tuple):
        return [whole(one) for one in value]
    fields = getattr(value, "__struct_fields__", None)
    return value if fields is None else {name: whole(getattr(value, name)) for name in fields}


def print_status(found: "Status", now: float) -> None:
    """Print the status as text."""
    from gpuscaler.cli.printing import uncut_console
    from gpuscaler.control.records.status.held import told as all_held
    from gpuscaler.control.records.status.removals import told
    from gpuscaler.control.records.status.reporting import OLD_SECONDS
    from gpuscaler.control.records.status.status import summary
    from gpuscaler.control.records.words import counted, spoken

    console = uncut_console()
    age = now - found.at
    line(f"Written {spoken(age)} ago by {found.leader.identity} (gpuscaler {found.leader.version}).")
    if age > OLD_SECONDS:
        line("The status is outdated: a leading controller writes it every minute. Nothing below is current; check the Lease and the log.")
    if found.looked_at:
        planned = f"planned {spoken(now - found.planned_at)} ago" if found.planned_at else "not planned yet"
        seen = f"{counted(found.nodes, 'node')} and {counted(found.pods, 'pod')}"
        line(f"Last reconciled {spoken(now - found.looked_at)} ago: {seen}; {planned}.{pages_of(found.leader)}")
    line(summary(found) + ".")
    for hold in found.holds:
        line(f"On hold: {hold.text}.")
    click.echo()
    console.print(pools_table(found))
    section("Machines", by_pool(found))
    limits = [used_of(one) for one in found.limits]
    if limits:
        line(f"\nLimits: {'; '.join(limits)}.")
    if found.held:
        line(f"\n{all_held(found.held)}")
    if found.priorities:
        line(f"\nPriorities: {found.priorities}.")
    promised = found.promises_kept + found.promises_broken
    if promised:
        line(f"\nPromises kept: {found.promises_kept:,} of {promised:,} pods ran on the machine that was opened for them.")
    section(
        "Pending",
        [
            f"{entry.count} x {', '.join(entry.pods)}{' …' if entry.count > len(entry.pods) else ''}: {entry.reason}"
            for entry in found.waiting
        ],
    )
    section("How machines are bought", [f"{way}: {', '.join(names)}" for way, names in by_way(found).items()])
    section("Leaving", [told(one, now) for one in found.removals])
    section("Paused offerings", [one.text for one in found.breakers])
    section("Problems", found.troubles)
    section("Warnings", found.warnings)
    section(f"Skipped, could not be parsed ({found.set_aside_count})", [f"{one.about}: {one.text}" for one in found.set_aside])
    section("Last events", [happened(one, now) for one in reversed(found.happened)])


def used_of(limit: "Limit") -> str:
    """Format a limit and how much of it is used."""
    if limit.name == "dollars_per_hour":
        return f"{limit.name} ${limit.used:,.2f} of ${limit.most:,.10g}"
    return f"{limit.name} {limit.used:,.10g} of {limit.most:,.10g}"


def pools_table(found: "Status") -> object:
    """Return the table of pools, a row each."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("pool")
    for name in ("machines", "coming", "leaving", "min", "max", "GPUs", "in use", "$/h"):
        table.add_column(name, justify="right")
    for pool in found.pools:
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


def by_pool(found: "Status") -> list[str]:
    """Return the machines by market, type and state, a line for each pool with machines."""
    kinds: dict[str, list[str]] = {}
    for one in found.kinds:
        named = " ".join(filter(None, (one.market, one.instance_type))) or "unknown"
        kinds.setdefault(one.pool, []).append(f"{one.machines} x {named} {one.state}")
    return [f"{pool}: {', '.join(several)}" for pool, several in kinds.items()]


def by_way(found: "Status") -> dict[str, list[str]]:
    """Group the pools by how their machines are bought; empty if all use the same way."""
    names: dict[str, list[str]] = {}
    for pool in found.pools:
        if pool.way:
            names.setdefault(pool.way, []).append(pool.name)
    return names


def happened(one: "StatusEntry", now: float) -> str:
    """Format an event as one line."""
    from gpuscaler.control.records.words import spoken

    decision = f"  [{one.decision}]" if one.decision else ""
    return f"{spoken(now - one.at):>6} ago  {one.about:<15}  {one.text}{decision}"


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
