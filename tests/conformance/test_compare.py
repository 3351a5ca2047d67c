"""The comparison itself: it reports no difference if both sides agree, and finds, reduces and reports differences."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conformance import ours
from tests.conformance.__main__ import main
from tests.conformance.asking import Oracle
from tests.conformance.building import oracle as built
from tests.conformance.cases import draw_case
from tests.conformance.compare import compare, minimal, variant
from tests.conformance.equivalent import EQUIVALENT, matches
from tests.conformance.mutants import TARGETS, Mutant, every_mutant, hunt
from tests.conformance.mutating import mutations

pytestmark = pytest.mark.conformance


@pytest.fixture(scope="module")
def binary() -> Path:
    return built()


@pytest.fixture(scope="module")
def oracle(binary: Path) -> Iterator[Oracle]:
    with Oracle(binary) as running:
        yield running


def test_both_sides_agree_on_some_cases(oracle: Oracle) -> None:
    tally = compare(oracle, 7, range(100))
    assert tally.cases == 100
    assert tally.pairs > 500
    assert tally.differences == []


@pytest.fixture
def blind_to_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our side ignores host ports."""
    honest = ours.refusals

    def refusals(*arguments: object) -> ours.Refusals:
        found = {name: [plugin for plugin in plugins if plugin != "NodePorts"] for name, plugins in honest(*arguments).items()}  # type: ignore[arg-type]
        return {name: plugins for name, plugins in found.items() if plugins}

    monkeypatch.setattr(ours, "refusals", refusals)


@pytest.mark.usefixtures("blind_to_ports")
def test_a_difference_is_found_and_reduced_to_a_minimal_case(oracle: Oracle) -> None:
    found = compare(oracle, 7, range(100)).differences
    number, difference = next((number, difference) for number, difference in found if difference.theirs == ("NodePorts",))
    assert difference.ours == ()
    part = minimal(oracle, draw_case(7, number), difference, otherwise=variant(number))
    assert len(part["nodes"]) == 1
    assert [kind for kind in part if kind not in ("nodes", "pods", "replay")] == ["pending"]
    assert "hostPort" in json.dumps(part["pending"])


@pytest.mark.usefixtures("blind_to_ports")
def test_the_command_prints_a_difference_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cases", "100", "--seed", "7", "--jobs", "1", "--show", "1"]) == 1
    printed = capsys.readouterr().out
    assert "kube-scheduler refuses (NodePorts), ours accepts" in printed
    assert "the smallest case with this difference" in printed


def test_an_exception_on_our_side_is_a_difference(oracle: Oracle, monkeypatch: pytest.MonkeyPatch) -> None:
    def trip(*_: object, **__: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(ours, "refusals", trip)
    assert compare(oracle, 7, [1]).differences[0][1].ours == ("ZeroDivisionError: oops",)


def test_a_mutant_that_changes_a_verdict_is_caught(binary: Path) -> None:
    path = next(path for path in TARGETS if path.stem == "taints")
    mutation = next(
        mutation for mutation in mutations(path.read_text()) if mutation.kind == "another text" and mutation.source == "'NoExecute'"
    )
    (outcome,) = hunt(binary, [Mutant(path, mutation)], cases=300, seed=1, jobs=1)
    assert outcome.caught
    assert "TaintToleration" in outcome.how


def test_every_change_that_is_listed_as_equivalent_still_exists() -> None:
    possible = [mutant.change for mutant in every_mutant()]
    assert [wanted for wanted in EQUIVALENT if not any(matches(wanted, change) for change in possible)] == []
