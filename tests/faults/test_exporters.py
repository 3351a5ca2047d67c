"""F53: exporters that do not answer, when values come straight from them without a Prometheus in between."""

import pytest
import structlog
from tests.metrics.sources.test_direct import APART, becomes, duty_line, eventually, page, scraped, telling

pytestmark = pytest.mark.looptime(False)

SILENT = "127.0.0.2"
ABOUT = f"exporter {SILENT} on node n1"


async def test_f53_values_of_an_unreachable_exporter_count_until_they_are_stale_and_others_stay_current() -> None:
    pages: dict[str, str | int] = {"127.0.0.1": page(duty_line(40)), SILENT: page(duty_line(70, "p1"))}
    async with scraped(pages, *APART, stale=600.0) as nodes:
        await becomes(nodes, {"p0": "40", "p1": "70"})
        nodes.pages[SILENT] = 500
        nodes.pages["127.0.0.1"] = page(duty_line(50))
        await becomes(nodes, {"p0": "50", "p1": "70"})
        await eventually(lambda: any(exporter.trouble for exporter in nodes.source.exporters.values()))
        nodes.later += 400
        await becomes(nodes, {"p0": "50", "p1": "70"})
        nodes.later += 300
        await becomes(nodes, {"p0": "50"})
        nodes.pages[SILENT] = page(duty_line(80, "p1"))
        await becomes(nodes, {"p0": "50", "p1": "80"})


async def test_f53_one_log_line_reports_that_an_exporter_is_unreachable_and_one_that_it_answers_again() -> None:
    with structlog.testing.capture_logs() as logs:
        async with scraped({"127.0.0.1": page(), SILENT: page()}) as nodes, telling(nodes):
            nodes.pages[SILENT] = 500
            await eventually(lambda: logs)
            nodes.pages[SILENT] = page()
            await eventually(lambda: len(logs) > 1)
    assert [(log["event"], log["about"]) for log in logs] == [("exporter does not answer", ABOUT), ("exporter answers again", ABOUT)]
