"""The report as data."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.simulation.pools import POLICY, trace

from gpuscaler.simulation.results.campaign import Setting, run_all
from gpuscaler.simulation.results.figures import FIGURES
from gpuscaler.simulation.results.report import document, inputs_of
from gpuscaler.simulation.traces.traces import Job

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "simulation-report.md"
JOBS = trace(
    Job("a", 0, 3600, gpus=1, user="ana", namespace="x"),
    Job("b", 100, 600, gpus=3, user="ben"),
    Job("c", 200, 60, cpu_milli=1000),
    Job("huge", 300, 60, gpus=64),
)
SETTING = Setting(trace=JOBS, policy=POLICY)


@pytest.fixture(scope="module")
def report() -> dict:  # type: ignore[type-arg]  # any JSON
    results = run_all(SETTING, ("gpuscaler", "optimal-hindsight"), (3, 4), workers=1)
    return document(inputs_of(SETTING, pools="pools.yaml", seed=3, seeds=2), results)


def keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            if key != "figures":
                yield from keys(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from keys(inner)


def test_the_documentation_of_the_report_names_every_key(report: dict) -> None:  # type: ignore[type-arg]
    words = set(re.findall(r"`([^`\n]+)`", PAGE.read_text()))
    assert set(keys(report)) - words == set()


def test_cost_of_users_namespaces_and_kinds_of_pods_adds_up(report: dict) -> None:  # type: ignore[type-arg]
    for policy in report["policies"][:2]:
        for key in ("user", "namespace", "class"):
            shares = policy[f"cost_by_{key}"]
            assert sum(share["cost"] for share in shares) == pytest.approx(policy["cost"])
            assert shares[-1][key] is None
        assert [share["user"] for share in policy["cost_by_user"]] == ["ana", "ben", "", None]


def test_a_trace_without_users_has_no_cost_by_user() -> None:
    jobs = trace(Job("a", 0, 60, gpus=1))
    setting = replace(SETTING, trace=jobs)
    (policy,) = document(inputs_of(setting, pools="p", seed=0), run_all(setting, ("gpuscaler",), (0,), workers=1))["policies"]
    assert (policy["cost_by_user"], policy["cost_by_namespace"], len(policy["cost_by_class"])) == ([], [], 2)


def test_derived_values_of_a_trace_are_listed_as_derived() -> None:
    jobs = replace(JOBS, notes=(("pods_derived", 1), ("generated like philly, seed 9", 1200)))
    derived = inputs_of(replace(SETTING, trace=jobs), pools="p", seed=0).derived
    assert derived[:2] == (
        "1 job of the trace, by its notes: pods_derived",
        "1,200 jobs of the trace, by its notes: generated like philly, seed 9",
    )


def test_the_waits_of_a_kind_include_pods_that_never_ran(report: dict) -> None:  # type: ignore[type-arg]
    kinds = {entry["class"]: entry for entry in report["policies"][0]["wait_by_class"]}
    assert {name: (entry["pods"], entry["served"]) for name, entry in kinds.items()} == {
        "no GPU": (1, 1),
        "1 GPU": (1, 1),
        "2-3 GPUs": (1, 1),
        "8 GPUs or more": (1, 0),
    }
    assert kinds["8 GPUs or more"]["at_least"] == ("mean", "p50", "p95", "p99")
    assert report["policies"][0]["wait_at_least"] == ("mean", "p95", "p99")


def test_the_summary_over_seeds_has_mean_and_spread_of_every_result(report: dict) -> None:  # type: ignore[type-arg]
    ours, bound = report["summary"]
    assert (ours["name"], ours["seeds"], set(ours["figures"])) == ("gpuscaler", 2, {figure.key for figure in FIGURES})
    first, second = (policy["cost"] for policy in report["policies"][:2])
    assert first != second
    cost = ours["figures"]["cost"]
    assert (cost["least"], cost["most"]) == (min(first, second), max(first, second))
    assert cost["mean"] == pytest.approx((first + second) / 2)
    assert cost["sd"] == pytest.approx(abs(first - second) / 2**0.5)
    assert ours["figures"]["wait_p99"]["at_least"] is True
    assert bound["figures"]["wait_p50"] is None


def test_held_and_idle_gpu_hours_add_up_to_the_paid_gpu_hours(report: dict) -> None:  # type: ignore[type-arg]
    policy = report["policies"][0]
    assert policy["gpu_hours_held"] + policy["gpu_hours_idle"] == pytest.approx(policy["gpu_hours_paid"])
    assert policy["gpu_allocation"] == pytest.approx(policy["gpu_hours_held"] / policy["gpu_hours_paid"])
    assert policy["cost_per_gpu_hour_used"] == pytest.approx(policy["cost"] / policy["gpu_hours_used"])
    assert policy["gpu_hours_used"] <= policy["gpu_hours_held"]
