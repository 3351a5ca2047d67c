"""The report of ``gpuscaler doctor`` as one HTML page, in the style of all reports."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from html import escape

from gpuscaler.doctor.findings import Group, Report, count_words, grouped
from gpuscaler.simulation.results.page import html_page

#: Objects of a group that are listed with their commands.
_LISTED = 50


def doctor_page(report: Report, *, checks: int, now: float) -> str:
    """The page: a summary, the findings in groups, and what could not be checked. It runs nothing and fetches nothing."""
    moment = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%d %H:%M UTC")
    counts = count_words(Counter(finding.severity for finding in report.findings))
    silenced = f" {report.silenced} silenced." if report.silenced else ""
    parts = [
        "<main>",
        "<h1>gpuscaler doctor</h1>",
        f"<p><strong>{escape(counts)}.</strong> {checks} checks at {escape(moment)}.{silenced}</p>",
    ]
    for group in grouped(report.findings):
        parts += _group(group)
    if report.unchecked:
        parts.append("<h2>Not checked</h2><ul>")
        parts += [f"<li>{escape(entry.check)}: {escape(entry.message)}</li>" for entry in report.unchecked]
        parts.append("</ul>")
    return html_page("gpuscaler doctor", (*parts, "</main>"))


def _group(group: Group) -> Iterator[str]:
    first, count = group.first, len(group.findings)
    title = first.object if count == 1 else f"{first.object} and {count - 1} more"
    yield f"<h2>{escape(first.severity)} {escape(first.check)}: {escape(title)}</h2>"
    yield f"<p>{escape(first.field)}: saw {escape(first.seen)}, expected {escape(first.expected)}.</p>"
    yield f"<p>Effect: {escape(first.effect)}.</p>"
    if first.note:
        yield f"<p>Note: {escape(first.note)}.</p>"
    if first.fix.advice:
        yield f"<p>Fix: {escape(first.fix.advice)}.</p>"
    yield "<ul>"
    for finding in group.findings[:_LISTED]:
        place = f" ({finding.place})" if finding.place else ""
        commands = "".join(f"<br><code>{escape(command)}</code>" for command in finding.fix.commands)
        yield f"<li>{escape(finding.object + place)}{commands}</li>"
    if count > _LISTED:
        yield f"<li>and {count - _LISTED} more</li>"
    yield f'</ul>\n<p class="quiet">See {escape(first.page)}.</p>'
