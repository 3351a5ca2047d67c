"""Disruption budgets trim a plan instead of refusing it."""

from datetime import UTC, datetime

import pytest
from tests.planning.building import node, offering, pool
from tests.planning.scale_down.kit import BIG, big, blockers, detail, removed, scale_down_of

from gpuscaler.model.pools import Budget
from gpuscaler.planning.scale_down.budgets import allowance, allowed_disruptions
from gpuscaler.planning.state import State

FRIDAY_NOON = datetime(2026, 11, 20, 12, tzinfo=UTC).timestamp()


@pytest.mark.parametrize(
    ("text", "nodes", "count"), [("5", 3, 5), ("0", 9, 0), ("10%", 10, 1), ("10%", 11, 2), ("0%", 50, 0), ("100%", 7, 7)]
)
def test_the_percentage_of_a_disruption_budget_is_rounded_up(text: str, nodes: int, count: int) -> None:
    assert allowance(text, nodes) == count


@pytest.mark.parametrize(
    ("budgets", "reason", "count"),
    [
        ([], "idle", None),
        ([Budget("3"), Budget("50%")], "idle", 3),
        ([Budget("1", reasons=("consolidation",)), Budget("4")], "idle", 4),
        ([Budget("1", reasons=("consolidation",)), Budget("4")], "consolidation", 1),
        ([Budget("0", reasons=("Empty",))], "idle", 0),
        ([Budget("0", reasons=("Empty",))], "consolidation", None),
        ([Budget("0", schedule="0 9 * * mon-fri", duration=8 * 3600.0)], "idle", 0),
        ([Budget("0", schedule="0 9 * * sat", duration=8 * 3600.0)], "idle", None),
        ([Budget("many")], "idle", 0),
        ([Budget("9", schedule="whenever", duration=60.0)], "idle", 0),
    ],
)
def test_the_most_restrictive_active_disruption_budget_for_the_reason_applies(
    budgets: list[Budget], reason: str, count: int | None
) -> None:
    assert allowed_disruptions(pool(BIG, budgets=tuple(budgets)), reason, nodes=10, now=FRIDAY_NOON) == count


def test_under_a_disruption_budget_the_most_expensive_machines_are_removed_first() -> None:
    dear = offering("m.dear", 9.0, gpus=0)
    result = scale_down_of([big("a"), big("b"), node("c", dear)], pool(BIG, dear, budgets=(Budget("2"),)))
    assert removed(result) == ["a", "c"]
    assert blockers(result) == {"b": "budget"}
    assert detail(result, "b") == "the disruption budgets of pool main allow no more removals for the reason idle now"


def test_machines_that_are_already_being_removed_use_up_the_disruption_budget() -> None:
    nodes = [big("a"), big("b"), big("sick", ready=False), big("leaving")]
    state = State(idle_seconds={"a": 9e9, "b": 9e9}, disrupting=frozenset(["leaving"]))
    assert removed(scale_down_of(nodes, pool(BIG, budgets=(Budget("3"),)), state=state)) == ["a"]
    assert removed(scale_down_of(nodes, pool(BIG, budgets=(Budget("2"),)), state=state)) == []
    assert removed(scale_down_of(nodes, pool(BIG, budgets=(Budget("75%"),)), state=state)) == ["a"]


def test_the_disruption_budget_of_one_pool_does_not_restrict_another() -> None:
    other = offering("m.other", pool="other", gpus=0)
    pools = (pool(BIG, budgets=(Budget("0"),)), pool(other, name="other"))
    assert removed(scale_down_of([big("a"), node("b", other)], *pools)) == ["b"]
