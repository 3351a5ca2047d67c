"""A report as one self-contained HTML page: no network, no scripts, no fonts. It prints, and follows the reader's light or dark theme."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from gpuscaler.simulation.results.figures import AT_LEAST, FIGURES, by_policy, format_figure, spread
from gpuscaler.simulation.results.page import plots, tables
from gpuscaler.simulation.results.page.drawing import HATCH
from gpuscaler.simulation.results.page.style import STYLE
from gpuscaler.simulation.results.report import Inputs
from gpuscaler.simulation.world.meter import Result

#: Nothing is fetched and nothing runs, even if a trace contains hostile names.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def report_page(
    inputs: Inputs,
    results: Sequence[Result],
    *,
    heading: str = "Simulation of",
    lead: Mapping[str, Sequence[str]] | None = None,
    annex: Mapping[str, Sequence[str]] | None = None,
) -> str:
    """Return the page. Plots show the first seed of each policy, tables all of them.

    ``heading`` comes before the trace's name; ``lead`` after the summary and ``annex`` after the tables are lists of sentences under their
    titles.
    """
    policies = by_policy(results)
    first = [runs[0] for runs in policies.values()]
    title = f"{heading} {inputs.trace}"
    parts = [
        f"<h1>{escape(title)}</h1>",
        *_summary(inputs, policies),
        *(part for words, sentences in (lead or {}).items() for part in _list(words, sentences)),
        "<h2>Figures</h2>",
        tables.figures_table(policies),
        *_notes(results),
        *_plots(first, inputs),
        *_section("Waits", tables.classes_table(policies)),
        *_section(
            "Cost by user and namespace",
            tables.shares_table("namespace", {name: [result.namespaces for result in runs] for name, runs in policies.items()}),
            tables.shares_table("user", {name: [result.users for result in runs] for name, runs in policies.items()}),
        ),
        *_section("Machines", tables.machines_table(policies)),
        *_section("Services", tables.services_table(first)),
        *_section("Pods that never ran", tables.unserved_table(first)),
        *(part for words, sentences in (annex or {}).items() for part in _section(words, *_list("", sentences))),
        *_inputs(inputs),
    ]
    return html_page(title, (HATCH, "<main>", *(part for part in parts if part), "</main>"))


def html_page(title: str, parts: Iterable[str]) -> str:
    """A whole page of ``parts`` in HTML, in the style of all reports."""
    body = "\n".join(parts)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>{escape(title)}</title>
<style>{STYLE}</style>
</head>
<body>
{body}
</body>
</html>
"""


def _summary(inputs: Inputs, policies: tables.Policies) -> list[str]:
    jobs = f"{inputs.jobs:,} jobs, {inputs.pods:,} pods, submitted over {_period(inputs.days)}, on the pools of {inputs.pools}."
    seeds = (
        f" Mean ± standard deviation of {inputs.seeds} seeds, starting at {inputs.seed}." if inputs.seeds > 1 else f" Seed {inputs.seed}."
    )
    figure = next(figure for figure in FIGURES if figure.key == "cost")
    costs = "; ".join(f"{name} {format_figure(figure.unit, spread(figure, runs))}" for name, runs in policies.items())
    return [f"<p>{escape(jobs + seeds)}</p>", f"<p><strong>Cost: {escape(costs)}.</strong></p>"]


def _period(days: float) -> str:
    return f"{days:,.1f} days" if days >= 1 or not days else f"{24 * days:.1f} hours"


def _notes(results: Sequence[Result]) -> list[str]:
    if not any(result.wait.at_least for result in results):
        return []
    return [f'<p class="quiet">{escape(AT_LEAST)}</p>']


def _plots(results: Sequence[Result], inputs: Inputs) -> list[str]:
    seed = f" Seed {inputs.seed}." if inputs.seeds > 1 else ""
    drawn = [
        (
            "Capacity against demand",
            plots.capacity_plot(results),
            "Averages over equal intervals; the area between paid and used GPUs is idle or booting.",
        ),
        ("Cost over time", plots.spending_plot(results), "Dollars spent since the first submission."),
        (
            "Waiting times",
            plots.waiting_plot(results),
            "The share of all pods that ran within a time, on a logarithmic scale. A line that ends below 100 %: some pods never ran.",
        ),
        ("Machines over time", plots.machines_plot(results), "From the bottom up in the order of the legend; hatched: spot."),
    ]
    return [
        f"<h2>{escape(title)}</h2>\n<figure>{picture}\n<figcaption>{escape(words + seed)}</figcaption></figure>"
        for title, picture, words in drawn
        if picture is not None
    ]


def _section(title: str, *contents: str) -> list[str]:
    return [f"<h2>{escape(title)}</h2>", *contents] if any(contents) else []


def _inputs(inputs: Inputs) -> list[str]:
    files = [("trace", inputs.trace), ("pools", inputs.pools), *(("spot markets", name) for name in inputs.spot)]
    files += [("load of services", inputs.load)] if inputs.load else []
    rows = [
        *files,
        ("GPU models", inputs.gpu_model),
        ("kube-scheduler's scoring", inputs.scheduler_scoring),
        ("steering", "on" if inputs.steering else "off"),
        ("lower bound", inputs.lower_bound),
        ("rows skipped", f"{inputs.set_aside:,}"),
    ]
    aside = [f"line {row['line']}: {row['reason']}" for row in inputs.set_aside_rows[:10]]
    return [
        "<h2>Inputs</h2>",
        tables.html_table("Files and settings", ("", ""), rows, words=2),
        *_list("Skipped rows:", aside),
        *_list("Generated, not read from a file:", inputs.generated),
        *_list("Derived:", inputs.derived),
    ]


def _list(title: str, entries: Sequence[str]) -> list[str]:
    if not entries:
        return []
    head = [f"<p>{escape(title)}</p>"] if title else []
    return [*head, "<ul>" + "".join(f"<li>{escape(entry)}</li>" for entry in entries) + "</ul>"]
