"""The tables of a report's page. External texts (names of users, pools, files, reasons) are escaped here."""

from collections.abc import Mapping, Sequence
from html import escape

from gpuscaler.simulation.measures.shares import Share
from gpuscaler.simulation.results.figures import (
    DOLLARS,
    FIGURES,
    HOURS,
    SECONDS,
    class_wait,
    classes_of,
    format_figure,
    mean_machines,
    mean_shares,
    reported_figures,
    single_value,
    spread,
)
from gpuscaler.simulation.results.report import has_named_shares
from gpuscaler.simulation.world.meter import Result

#: Maximum number of rows; the rest is added up or counted.
ROWS = 25

Policies = Mapping[str, Sequence[Result]]


def html_table(caption: str, headings: Sequence[str], rows: Sequence[Sequence[str]], *, words: int = 1) -> str:
    """A table: the first ``words`` columns are text, the others are numbers."""
    if not rows:
        return ""

    def kind(number: int) -> str:
        return ' class="text"' if number < words else ""

    head = "".join(f'<th scope="col"{kind(number)}>{escape(heading)}</th>' for number, heading in enumerate(headings))
    lines = []
    for row in rows:
        cells = "".join(f"<td{kind(number)}>{escape(cell)}</td>" for number, cell in enumerate(row[1:], 1))
        lines.append(f'<tr><th scope="row">{escape(row[0])}</th>{cells}</tr>')
    body = "\n".join(lines)
    head = f"<caption>{escape(caption)}</caption>\n<thead><tr>{head}</tr></thead>"
    region = f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">'
    return f"{region}<table>{head}\n<tbody>\n{body}\n</tbody></table></div>"


def figures_table(policies: Policies) -> str:
    """All figures, side by side."""
    results = [result for runs in policies.values() for result in runs]
    rows = [
        (figure.title, *(format_figure(figure.unit, spread(figure, runs)) for runs in policies.values()))
        for figure in reported_figures(FIGURES, results)
    ]
    return html_table("All figures, by policy", ("", *policies), rows)


def classes_table(policies: Policies) -> str:
    """Waiting time by size of pod."""
    results = [result for runs in policies.values() for result in runs]
    rows = []
    for name in classes_of(results):
        for policy, runs in policies.items():
            kinds = [class_wait for run in runs for class_wait in run.wait_by_class if class_wait.pod_class == name]
            if kinds:
                counts = (
                    f"{sum(class_wait.pods for class_wait in kinds) / len(kinds):,.0f}",
                    f"{sum(class_wait.served for class_wait in kinds) / len(kinds):,.0f}",
                )
                waits = (format_figure(SECONDS, class_wait(name, field, runs)) for field in ("mean", "p50", "p95", "p99"))
                rows.append((name, policy, *counts, *waits))
    headings = ("size of pod", "policy", "pods", "ran", "mean wait", "median", "p95", "p99")
    return html_table("Waiting time by size of pod", headings, rows, words=2)


def shares_table(kind: str, policies: Mapping[str, Sequence[Sequence[Share]]]) -> str:
    """Cost and GPU-hours by user or namespace; empty if the trace names none."""
    divided = {name: mean_shares(runs) for name, runs in policies.items() if any(has_named_shares(shares) for shares in runs)}
    if not divided:
        return ""
    names = list(dict.fromkeys(share.name for shares in divided.values() for share in shares.values() if share.name is not None))
    groups: list[tuple[str, list[str | None]]] = [(name or "(unknown)", [name]) for name in names[:ROWS]]
    if names[ROWS:]:
        groups.append((f"{len(names) - ROWS} more", list(names[ROWS:])))
    groups.append(("unattributed: boot and idle time", [None]))
    rows = []
    for title, members in groups:
        sums = []
        for shares in divided.values():
            named = [shares[name] for name in members if name in shares]
            sums.append(format_figure(DOLLARS, single_value(sum(share.cost for share in named))))
            sums.append(format_figure(HOURS, single_value(sum(share.gpu_hours for share in named))))
        rows.append((title, *sums))
    headings = [words for name in divided for words in (f"{name}, cost", "GPU-hours")]
    return html_table(f"Cost by {kind}: each is charged the part of a machine that its pods held", ("", *headings), rows)


def machines_table(policies: Policies) -> str:
    """Machine-hours by offering."""
    rows = []
    hidden = 0
    for policy, runs in policies.items():
        machine_hours = mean_machines(runs)
        hidden += max(0, len(machine_hours) - ROWS)
        for row in machine_hours[:ROWS]:
            numbers = (f"{row.machines:,}", f"{row.hours:,.1f}", format_figure(DOLLARS, single_value(row.cost)))
            rows.append((policy, row.pool, row.instance_type, row.market, row.zone, *numbers))
    more = f"; {hidden:,} more offerings are in report.json" if hidden else ""
    headings = ("policy", "pool", "type", "market", "zone", "machines", "hours", "cost")
    return html_table(f"Machine-hours by offering{more}", headings, rows, words=5)


def services_table(runs: Sequence[Result]) -> str:
    """Results of services, under each policy."""
    rows = [
        (
            service_result.name,
            result.policy,
            f"{service_result.served / service_result.load:.2%}" if service_result.load else "-",
            f"{service_result.replica_hours:,.1f}",
            f"{service_result.ready_hours:,.1f}",
            f"{service_result.most_replicas:,}",
            f"{service_result.rescales:,}",
        )
        for result in runs
        for service_result in result.services[:ROWS]
    ]
    hidden = sum(max(0, len(result.services) - ROWS) for result in runs)
    more = f"; {hidden:,} more are in report.json" if hidden else ""
    return html_table(
        f"Services{more}",
        ("service", "policy", "load served", "replica-hours", "ready hours", "max replicas", "rescales"),
        rows,
        words=2,
    )


def unserved_table(runs: Sequence[Result]) -> str:
    """Reasons why pods never ran."""
    items = "".join(
        f"<li>{escape(result.policy)}: {reason.pods:,} {'pod' if reason.pods == 1 else 'pods'}: {escape(reason.reason)}</li>"
        for result in runs
        for reason in result.unserved_reasons[:5]
    )
    return f"<ul>{items}</ul>" if items else ""
