"""Printing of plans, as text with tables and as JSON."""

from collections import Counter
from collections.abc import Iterable, Sequence

import msgspec
from rich.console import Console
from rich.table import Table

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.quantities import format_count
from gpuscaler.planning.plans import BlockedNode, Plan, Reason

#: Maximum rows of a table; the rest is only counted. ``--json`` has everything.
ROWS = 20


def plan_json(plan: Plan, seconds: float) -> str:
    """Return the plan as one JSON object, with the keys of the reference."""
    timed = msgspec.structs.replace(plan, solve_seconds=round(seconds, 6))
    return msgspec.json.format(msgspec.json.encode(timed), indent=2).decode()


def print_plan(plan: Plan, cluster: Cluster, seconds: float) -> None:
    """Print the plan: machines to buy, places of pods, nodes to remove, and the reasons for the rest."""
    console = uncut_console()
    pending = sum(len(machine.pods) for machine in plan.machines) + len(plan.placements) + len(plan.unplaced)
    console.print(f"{format_count(len(cluster.nodes), 'node')}, {format_count(len(cluster.pods), 'pod')}, {pending} pending.\n")
    print_purchases(console, plan)
    print_placements(console, plan)
    print_removals(console, plan)
    print_unplaced(console, plan)
    print_rest(console, plan)
    if plan.brake:
        console.print("The search was stopped early; a longer run may find a cheaper plan.")
    console.print(f"Planned in {seconds * 1000:.0f} ms.")


def uncut_console(*, stderr: bool = False) -> Console:
    """Return a console. Tables are fitted to a terminal's width; in a pipe or a file nothing is cut."""
    console = Console(highlight=False, soft_wrap=True, stderr=stderr)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, stderr=stderr, width=10_000)


def print_purchases(console: Console, plan: Plan) -> None:
    if not plan.machines:
        console.print("Nothing to buy.\n")
        return
    table = Table(title="To buy", title_justify="left", box=None, pad_edge=False)
    for heading, justify in (
        ("machines", "right"),
        ("pool", "left"),
        ("type", "left"),
        ("market", "left"),
        ("zone", "left"),
        ("price", "right"),
        ("total", "right"),
    ):
        table.add_column(heading, justify="right" if justify == "right" else "left")
    for purchase in plan.purchases:
        each, together = f"${purchase.price_per_hour:.3f}/h", f"${purchase.price_per_hour * purchase.count:.2f}/h"
        table.add_row(str(purchase.count), purchase.pool, purchase.instance_type, purchase.market, purchase.zone, each, together)
    console.print(table)
    purposes = Counter(machine.purpose for machine in plan.machines)
    for purpose, why in (("spare", "minimum sizes and headroom"), ("replacement", "pods of nodes to remove")):
        if purposes[purpose]:
            are = "is" if purposes[purpose] == 1 else "are"
            console.print(f"\n{purposes[purpose]} of the machines {are} for {why}.")
    print_conditions(console, plan)
    if plan.cost_per_hour > 0:
        undecided = any(machine.choices for machine in plan.machines)
        chosen = "; the cloud's most expensive choice assumed" if undecided else ""
        basis = {"pattern-lp": "over every way to fill a machine", "resource-lp": "resources only"}[plan.lower_bound_kind]
        console.print(
            f"\nFor pending pods: {_cost(plan)} per hour. Lower bound: ${plan.lower_bound_per_hour:.2f} per hour ({basis}{chosen}). "
            f"Gap: {plan.gap * 100:.2f} %."
        )
    console.print()


def _cost(plan: Plan) -> str:
    """Return the cost of the machines for pending pods, as a range if the cloud chooses the offering."""
    machines = [machine for machine in plan.machines if machine.purpose == "demand"]
    minimum = sum(min((choice.price_per_hour for choice in machine.choices), default=machine.price_per_hour) for machine in machines)
    return f"${plan.cost_per_hour:.2f}" if plan.cost_per_hour - minimum < 0.005 else f"${minimum:.2f} to ${plan.cost_per_hour:.2f}"


def print_conditions(console: Console, plan: Plan) -> None:
    """Print the conditions of purchases: offerings that the cloud chooses, fallbacks, and machines that open after others."""
    chosen = {machine.pool: machine.choices for machine in plan.machines if machine.choices}
    for pool, choices in chosen.items():
        prices = [choice.price_per_hour for choice in choices]
        number = format_count(len(choices), "offering")
        console.print(f"\nIn pool {pool} the cloud chooses among {number} at {_price_range(prices)}; the table shows the most expensive.")
    fallbacks = [machine.fallbacks for machine in plan.machines if machine.fallbacks]
    if fallbacks:
        offerings = {choice for choices in fallbacks for choice in choices}
        prices = [choice.price_per_hour for choice in offerings]
        console.print(
            f"\nIf spot has no capacity, {len(fallbacks)} of the machines can be {_describe_choices(len(offerings))} instead, "
            f"for {_price_range(prices)} each; the same request includes these offerings."
        )
    closed = sum(bool(machine.opens_after) for machine in plan.machines)
    if closed:
        opens = "opens" if closed == 1 else "open"
        console.print(f"\n{closed} of the machines {opens} only after others, whose pods theirs have affinity to.")


def _describe_choices(offerings: int) -> str:
    return "another offering" if offerings == 1 else f"one of {offerings} other offerings"


def _price_range(prices: Sequence[float]) -> str:
    low, high = min(prices), max(prices)
    return f"${low:.3f} to ${high:.3f} per hour" if low < high else f"${low:.3f} per hour"


def print_placements(console: Console, plan: Plan) -> None:
    if plan.placements:
        nodes = Counter(placement.node for placement in plan.placements)
        fit = "fits" if len(plan.placements) == 1 else "fit"
        console.print(f"{format_count(len(plan.placements), 'pod')} {fit} on machines that exist or are coming:")
        print_some(console, (f"  {node}: {format_count(number, 'pod')}" for node, number in nodes.most_common()), len(nodes))


def print_removals(console: Console, plan: Plan) -> None:
    if not plan.removals:
        return
    saving = sum(removal.saving_per_hour for removal in plan.removals)
    console.print(f"To remove: {format_count(len(plan.removals), 'node')}, saving ${saving:.2f} per hour.")
    lines = []
    for removal in plan.removals:
        moves = f"; {format_count(len(removal.moves), 'pod')} to move" if removal.moves else ""
        needs = f" after {', '.join(removal.needs)} {'is' if len(removal.needs) == 1 else 'are'} ready" if removal.needs else ""
        lines.append(f"  {removal.node}: {removal.reason}{moves}{needs}")
    print_some(console, lines, len(lines))


def print_unplaced(console: Console, plan: Plan) -> None:
    if not plan.unplaced:
        return
    console.print(f"Not placed: {format_count(len(plan.unplaced), 'pod')}.")
    pods_by_reasons: dict[tuple[Reason, ...], list[str]] = {}
    for entry in plan.unplaced:
        pods_by_reasons.setdefault(entry.reasons, []).append(entry.pod)
    lines = []
    for reasons, pods in pods_by_reasons.items():
        others = f" and {len(pods) - 1} more" if len(pods) > 1 else ""
        lines.append(f"  {pods[0]}{others}")
        lines += [f"    pool {reason.pool}: {reason.excluded_by}: {reason.detail}" for reason in reasons]
        if not reasons:
            lines.append("    there is no pool")
    print_some(console, lines, len(lines))


def print_rest(console: Console, plan: Plan) -> None:
    print_grouped("Ignored", [(entry.reason, entry.pod) for entry in plan.ignored], console)
    blocked: Sequence[BlockedNode] = plan.blocked_nodes
    print_grouped("Nodes that stay", [(f"{entry.blocker}: {entry.detail}", entry.node) for entry in blocked], console)
    print_grouped("Skipped (could not be parsed)", [(entry.reason, entry.object) for entry in plan.set_aside], console)
    if plan.warnings:
        console.print(f"Warnings: {len(plan.warnings)}.")
        print_some(console, (f"  {warning}" for warning in plan.warnings), len(plan.warnings))


def print_grouped(title: str, entries: Sequence[tuple[str, str]], console: Console) -> None:
    """Print the objects, those with the same reason on one line."""
    if not entries:
        return
    names_by_reason: dict[str, list[str]] = {}
    for reason, name in entries:
        names_by_reason.setdefault(reason, []).append(name)
    console.print(f"{title}: {len(entries)}.")
    lines = [
        f"  {names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {reason}" for reason, names in names_by_reason.items()
    ]
    print_some(console, lines, len(lines))


def print_some(console: Console, lines: Iterable[str], total: int) -> None:
    for number, line in enumerate(lines):
        if number == ROWS:
            console.print(f"  … and {total - ROWS} more lines; --json prints all.")
            break
        console.print(escape_controls(line), markup=False)
    console.print()


def escape_controls(text: str) -> str:
    """Return ``text`` without control characters: names in files are untrusted, and a terminal would obey them."""
    return text if text.isprintable() else "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)
