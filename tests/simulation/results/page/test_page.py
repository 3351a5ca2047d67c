"""A report as one page."""

import re
from html.parser import HTMLParser

import pytest
from msgspec.structs import replace
from tests.simulation.pools import C8, G1, G4, POLICY, trace

from gpuscaler.model.pools import Policy, Pool
from gpuscaler.simulation.results.campaign import Setting, run_all
from gpuscaler.simulation.results.page import report_page
from gpuscaler.simulation.results.report import inputs_of
from gpuscaler.simulation.services import LoadFile
from gpuscaler.simulation.services.loads import LoadSeries
from gpuscaler.simulation.traces.spot import MarketSeries, SpotFile
from gpuscaler.simulation.traces.traces import Job, Trace
from gpuscaler.simulation.world.meter import Result

EVIL = '"><script>alert(1)</script>&'
SPOT = replace(G1, market="spot", price=1.0)
JOBS = trace(
    *(Job(f"j{number}", 400.0 * number, 900, gpus=1 + number % 3, user=("ana", EVIL)[number % 2], namespace="x") for number in range(12)),
    Job("huge", 300, 60, gpus=64),
    Job("c", 100, 500, cpu_milli=1000),
)
SETTING = Setting(
    trace=JOBS,
    policy=Policy((Pool("gpu", (SPOT, G1, G4)), Pool("cpu", (C8,)))),
    spot=(SpotFile("s.csv", (MarketSeries("s", "t", "z", ((0.0, 100.0), (2000.0, 0.0), (4000.0, 100.0)), 9000.0),)),),
)
VOID = {"meta", "path", "rect", "br"}


class Page(HTMLParser):
    """Every tag with its attributes, and whether tags are closed in the right order."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data.strip())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def page_of(setting: Setting, results: list[Result], *, seeds: int = 1, pools: str = "pools.yaml") -> tuple[str, Page]:
    text = report_page(inputs_of(setting, pools=pools, seed=0, seeds=seeds, derived=["a thing that was derived"]), results)
    return text, Page(text)


@pytest.fixture(scope="module")
def results() -> list[Result]:
    return run_all(SETTING, ("gpuscaler", "static", "optimal-hindsight"), (0, 1), workers=1)


def test_the_html_report_loads_no_resources_and_runs_no_scripts(results: list[Result]) -> None:
    text, page = page_of(SETTING, results, seeds=2)
    assert {name for name, _ in page.tags} & {"script", "link", "img", "iframe", "object", "base"} == set()
    assert {key for _, attributes in page.tags for key in attributes} & {"src", "href", "onload", "onclick", "srcset"} == set()
    assert re.findall(r"https?:|@import|url\((?!#)", text) == []
    assert {"http-equiv": "Content-Security-Policy", "content": "default-src 'none'; style-src 'unsafe-inline'"} in page.all("meta")


def test_names_from_input_files_are_escaped_in_the_html_report(results: list[Result]) -> None:
    named = replace(SETTING, trace=Trace(EVIL, JOBS.jobs))
    text, page = page_of(named, [replace(result, policy=EVIL) if result.policy == "static" else result for result in results], pools=EVIL)
    assert "<script>" not in text
    assert EVIL in page.words
    assert f"Simulation of {EVIL}" in page.words


def test_scrolling_tables_are_reachable_by_keyboard_and_have_names(results: list[Result]) -> None:
    _, page = page_of(SETTING, results)
    scrolling = [tag for tag in page.all("div") if tag.get("class") == "scroll"]
    assert len(scrolling) == len(page.all("table")) > 4
    assert all(tag["tabindex"] == "0" and tag["role"] == "region" and tag["aria-label"] for tag in scrolling)


def test_the_html_report_has_four_plots_each_with_a_text_description(results: list[Result]) -> None:
    _, page = page_of(SETTING, results, seeds=2)
    pictures = [tag for tag in page.all("svg") if tag.get("role") == "img"]
    idents = {attributes["id"] for name, attributes in page.tags if name in {"title", "desc"} and attributes}
    assert len(pictures) == 4
    assert {ident for picture in pictures for ident in (picture["aria-labelledby"] or "").split()} == idents
    assert len(idents) == 8
    for words in ("gpuscaler: at most", "static spent $", "half of the pods ran within"):
        assert any(words in word for word in page.words)


def test_the_html_report_names_all_values_that_were_derived_and_not_read(results: list[Result]) -> None:
    _, page = page_of(SETTING, results)
    inputs = inputs_of(SETTING, pools="pools.yaml", seed=0)
    for note in (*inputs.generated, *inputs.derived, "a thing that was derived"):
        assert note in page.words


def test_the_html_report_has_tables_of_results_users_and_reasons(results: list[Result]) -> None:
    _, page = page_of(SETTING, results, seeds=2)
    for words in (
        "no policy can cost less than",
        "ana",
        "unattributed: boot and idle time",
        "8 GPUs or more",
        "1 GPU",
        "spot",
        "Pods that never ran",
    ):
        assert words in page.words
    assert any(words.startswith("≥ ") for words in page.words)
    assert any("±" in words for words in page.words)
    assert any(words.startswith("gpuscaler: 1 pod: pool ") for words in page.words)


def test_the_html_report_has_a_table_of_services() -> None:
    load = LoadFile("load.csv", "requests/s", (LoadSeries("chat", (0.0, 600.0), (3.0, 1.0)),))
    setting = replace(SETTING, load=load)
    _, page = page_of(setting, run_all(setting, ("gpuscaler",), (0,), workers=1))
    assert "Services" in page.words
    assert "chat" in page.words


def test_the_html_report_of_a_long_trace_is_small() -> None:
    def size(jobs: int) -> int:
        drawn = trace(
            *(Job(f"j{number}", 137.0 * number, 300 + number % 7 * 100, gpus=1 + number % 3, user=f"u{number}") for number in range(jobs))
        )
        setting = Setting(trace=drawn, policy=POLICY)
        return len(page_of(setting, run_all(setting, ("gpuscaler",), (0,), workers=1))[0])

    short, long = size(150), size(600)
    assert long < 1.6 * short < 300_000


def test_a_run_without_gpus_or_machines_has_no_empty_plots() -> None:
    setting = Setting(trace=trace(Job("huge", 0, 60, gpus=64), Job("other", 9, 60, gpus=64)), policy=POLICY)
    _, page = page_of(setting, run_all(setting, ("gpuscaler", "optimal-hindsight"), (0,), workers=1))
    titles = [
        words for words in page.words if words in {"Capacity against demand", "Cost over time", "Waiting times", "Machines over time"}
    ]
    assert titles == ["Capacity against demand"]


def test_machine_kinds_beyond_the_most_used_ones_share_a_band() -> None:
    kinds = tuple(replace(C8, instance_type=f"c{number}", price=0.1 + number, labels={"size": str(number)}) for number in range(12))
    (result,) = run_all(
        Setting(trace=trace(Job("c", 0, 600, cpu_milli=1000)), policy=Policy((Pool("cpu", kinds[:1]),))), ("gpuscaler",), (0,), workers=1
    )
    (row,), (line,) = result.machine_hours, result.fleet
    many = replace(
        result,
        machine_hours=tuple(replace(row, instance_type=offering.instance_type, hours=offering.price) for offering in kinds),
        fleet=tuple(replace(line, instance_type=offering.instance_type) for offering in kinds),
    )
    _, page = page_of(Setting(trace=trace(Job("c", 0, 1)), policy=POLICY), [many])
    assert "other offerings" in page.words
    assert sum(words == "c11" for words in page.words) == 2  # the legend and the table
    assert sum(words == "c1" for words in page.words) == 1  # the table
    assert "gpuscaler: at most 12 machines" in page.words


def test_lists_of_notes_come_after_the_summary_or_after_the_tables(results: list[Result]) -> None:
    inputs = inputs_of(SETTING, pools="pools.yaml", seed=0)
    text = report_page(inputs, results, lead={"Before:": [EVIL, "early"]}, annex={"Behind": ["late"], "Nothing": []})
    words = Page(text).words
    assert EVIL in words
    places = [words.index(heading) for heading in ("Before:", "early", "Figures", "Machines", "Behind", "late", "Inputs")]
    assert places == sorted(places)
    assert "Nothing" not in words
