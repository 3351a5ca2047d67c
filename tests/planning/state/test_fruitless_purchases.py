"""Fruitless machines: offerings bought for pods that never run are not bought again."""

from collections.abc import Mapping

import pytest
from tests.planning.building import offering, pod

from gpuscaler.model.pods import Pod
from gpuscaler.planning.state.breakers import Breakers
from gpuscaler.planning.state.fruitless_purchases import (
    SETTLE_SECONDS,
    PurchaseAttempt,
    PurchaseAttempts,
    departed_machines,
    judge_attempts,
    with_hourly_breakers,
)
from gpuscaler.planning.state.ledger.ledger import Ledger, OrderedMachine, Promise, Removal
from gpuscaler.planning.state.offering_events import Event, Fruitless, Served

KEY, SPOT = offering().key, offering(market="spot").key


def waiting(*names: str) -> Mapping[str, Pod]:
    return {pod.key: pod for pod in map(pod, names)}


def lost(number: int, at: float, *names: str) -> PurchaseAttempt:
    return PurchaseAttempt(f"i-{number}", KEY, tuple(f"default/{name}" for name in names), at, lost=True)


def after(*efforts: PurchaseAttempt, pods: Mapping[str, Pod]) -> tuple[PurchaseAttempts, list[Event]]:
    attempts, fates = PurchaseAttempts(), list[Event]()
    for attempt in efforts:
        attempts, events = judge_attempts(attempts, (attempt,), pods, attempt.at)
        fates += events
    return attempts, fates


def test_three_consecutive_lost_machines_for_one_pod_are_fruitless_and_two_are_not() -> None:
    machines = [lost(number, 100.0 * number, "p") for number in range(3)]

    assert after(*machines[:2], pods=waiting("p"))[1] == []
    (fate,) = after(*machines, pods=waiting("p"))[1]
    assert fate == Fruitless(KEY, 200.0, "pod default/p is still pending after 3 machines; the last one, i-2, ended before it opened")


def test_lost_machines_for_three_different_pods_are_not_fruitless() -> None:
    assert after(*[lost(number, 1.0, f"p-{number}") for number in range(3)], pods=waiting("p-0", "p-1", "p-2"))[1] == []


def test_an_open_machine_is_fruitless_if_its_pods_are_not_bound_in_time() -> None:
    opened = PurchaseAttempt("i-1", KEY, ("default/p",), 0.0, node="a")
    efforts, _ = judge_attempts(PurchaseAttempts(), (opened,), waiting("p"), SETTLE_SECONDS - 1.0)
    assert not efforts.machines[0].fruitless
    efforts, _ = judge_attempts(efforts, (), waiting("p"), SETTLE_SECONDS)
    assert efforts.machines[0].fruitless
    assert efforts.lately == {"main": (SETTLE_SECONDS,)}


def test_a_running_pod_proves_that_its_offering_works() -> None:
    opened = PurchaseAttempt("i-1", KEY, ("default/p", "default/q"), 0.0, node="a")
    runs = {pod.key: pod for pod in (pod("p", on="a"), pod("q"))}

    assert judge_attempts(PurchaseAttempts(), (opened,), runs, 9.0) == (PurchaseAttempts(), (Served(KEY, 9.0),))
    elsewhere = {pod.key: pod for pod in (pod("p", on="b"), pod("q"))}
    assert judge_attempts(PurchaseAttempts(), (opened,), elsewhere, 9.0) == (PurchaseAttempts(), ())


def test_a_lost_machine_is_forgotten_once_its_pods_are_deleted() -> None:
    assert judge_attempts(PurchaseAttempts(), (lost(1, 0.0, "p"),), {}, 0.0) == (PurchaseAttempts(), ())


@pytest.mark.parametrize(
    ("one", "book", "there"),
    [
        (OrderedMachine("m", "t", (SPOT,), 1.0, 0.0, instance="i-1", bought_for=("default/p",)), Ledger(), frozenset()),
        (
            OrderedMachine("m", "t", (KEY,), 1.0, 0.0, instance="i-1", node="a", bought_for=("default/p",)),
            Ledger(leaving=(Removal("a", "i-1", KEY, "taken", 0.0, 0.0, forced=True),)),
            frozenset({"i-1"}),
        ),
        (OrderedMachine("m", "", (KEY,), 1.0, 0.0, instance="i-1"), Ledger(), frozenset()),
        (OrderedMachine("m", "t", (KEY,), 1.0, 0.0, bought_for=("default/p",)), Ledger(), frozenset()),
        (OrderedMachine("m", "t", (KEY,), 1.0, 0.0, instance="i-1", gang="default/g", bought_for=("default/p",)), Ledger(), frozenset()),
    ],
    ids=["spot that vanished", "taken back", "of others", "refused", "half a gang"],
)
def test_machines_that_prove_nothing_about_their_offering_are_not_recorded(
    one: OrderedMachine, book: Ledger, there: frozenset[str]
) -> None:
    assert list(departed_machines((one,), book, there, 5.0)) == []


def test_open_machines_without_their_pods_and_lost_machines_are_recorded_differently() -> None:
    machines = [
        OrderedMachine("m-1", "t", (KEY,), 1.0, 0.0, instance="i-1", node="a", ready=3.0, bought_for=("default/p",)),
        OrderedMachine("m-2", "t", (KEY,), 1.0, 0.0, instance="i-2", node="b", bought_for=("default/q",)),
        OrderedMachine("m-3", "t", (KEY,), 1.0, 0.0, instance="i-3", node="c", bought_for=("default/r",)),
    ]
    ledger = Ledger(promises=(Promise("c", KEY, ("default/r",), 4.0),))

    assert [(attempt.machine, attempt.lost) for attempt in departed_machines(machines, ledger, frozenset({"i-1"}), 5.0)] == [
        ("i-1", False),
        ("i-2", True),
        ("i-3", False),
    ]


def test_a_pool_with_too_many_fruitless_machines_in_an_hour_is_blocked() -> None:
    machines = [lost(number, 10.0 * number, f"p-{number}") for number in range(10)]
    efforts, _ = after(*machines, pods=waiting(*[f"p-{number}" for number in range(10)]))

    assert with_hourly_breakers(Breakers(), efforts, 11, 100.0).open == ()
    (stop,) = with_hourly_breakers(Breakers(), efforts, 10, 100.0).open
    assert (stop.target.pool, stop.cause, stop.until) == ("main", "fruitless", 3600.0)
    assert "10 machines within an hour whose pods are still pending; the limit is 10 (limits.fruitless_per_hour)" in stop.detail
    assert with_hourly_breakers(Breakers(), efforts, 10, 3601.0).open == ()
