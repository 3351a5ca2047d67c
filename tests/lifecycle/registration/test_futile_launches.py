"""Machines that a group launches in place of failed ones are ended once it keeps launching, and not before."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.planning.building import NOW, offering

from gpuscaler.lifecycle.observed.machine_index import MachineIndex
from gpuscaler.lifecycle.registration.futile_launches import MOST_ENDED, WITHIN_SECONDS, FailingRelaunches
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.instances import TERMINATED, Instance, Inventory
from gpuscaler.planning.state import breakers
from gpuscaler.planning.state.breakers import Breakers
from gpuscaler.planning.state.ledger.ledger import Ledger
from gpuscaler.planning.state.offering_events import Absent, Failed, Fruitless

KIND = offering("g.1")
OTHER = offering("g.2")


def instance(name: str, **more: Any) -> Instance:
    return Instance(name, *KIND.key, **{"launched": NOW - 5.0, **more})


def ended(count: int, **more: Any) -> tuple[Instance, ...]:
    return tuple(instance(f"i-{number}", **{"state": TERMINATED, "launched": NOW - 60.0, **more}) for number in range(count))


def failing(times: int = 2, key: Any = KIND.key) -> Breakers:
    open_breakers = Breakers()
    for _ in range(times):
        open_breakers = breakers.step(open_breakers, Failed(key, NOW - 300.0, "it ended before it opened"))
    return open_breakers


def is_covered(over: tuple[Instance, ...], breakers: Breakers, *, ledger: Ledger | None = None) -> bool:
    newest = instance("i-new")
    index = MachineIndex.of(Cluster(), Inventory(NOW, (newest, *over)))
    return FailingRelaunches(ledger or Ledger(), index, breakers, NOW).contains(newest)


def test_a_launching_machine_is_ended_if_several_before_it_ended_by_themselves() -> None:
    assert is_covered(ended(MOST_ENDED), failing())


@pytest.mark.parametrize(
    ("over", "open_breakers"),
    [
        (ended(MOST_ENDED - 1), failing()),
        (ended(MOST_ENDED), Breakers()),
        (ended(MOST_ENDED), failing(1)),
        (ended(MOST_ENDED), failing(key=OTHER.key)),
        (ended(MOST_ENDED, launched=NOW - WITHIN_SECONDS - 1.0), failing()),
        (tuple(replace(instance, pool="another") for instance in ended(MOST_ENDED)), failing()),
    ],
    ids=["few ended", "nothing fails", "one failed", "another type fails", "long ago", "of another group"],
)
def test_a_launching_machine_is_not_ended_without_such_a_failure_pattern(over: tuple[Instance, ...], open_breakers: Breakers) -> None:
    assert not is_covered(over, open_breakers)


def test_machines_that_we_ended_do_not_count_as_failed_launches() -> None:
    over = ended(MOST_ENDED)

    assert not is_covered(over, failing(), ledger=Ledger(departed_ids=frozenset(instance.id for instance in over)))


@pytest.mark.parametrize("absent", [True, False])
def test_every_cause_of_failure_counts_as_a_failed_launch(*, absent: bool) -> None:
    open_breakers = Breakers()
    for number in range(3):
        at = NOW - 300.0 + number
        what = Absent(KIND.key, at, at, "it never was a node") if absent else Fruitless(KIND.key, at, "its pods still wait")
        open_breakers = breakers.step(open_breakers, what)

    assert is_covered(ended(MOST_ENDED), open_breakers)
