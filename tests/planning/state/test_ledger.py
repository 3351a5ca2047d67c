"""The ledger: every ordered machine is in it once, from before the call until it is open."""

from collections.abc import Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.building import offering

from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.ledger import (
    ACCEPTED,
    DOUBTFUL,
    INTENDED,
    Adopted,
    Answered,
    Broken,
    BrokenPromiseCleared,
    Doubted,
    Event,
    Exchanged,
    Finished,
    Found,
    Intended,
    Ledger,
    Lost,
    Noticed,
    Opened,
    Order,
    OrderedMachine,
    Planned,
    Promise,
    Promised,
    PromiseFulfilled,
    Ready,
    Registered,
    Removal,
    RemovalUpdated,
    Settled,
    Withdrawal,
    Withdrawing,
    Withdrawn,
    fold_events,
    step,
    unnamed_counts,
    upcoming_machines,
)

CHEAP, DEAR = offering("cheap", 0.5).key, offering("dear", 2.0).key


def intended_order(token: str, count: int = 1, *, at: float = 0.0, needs: Sequence[str] = ()) -> Intended:
    """An order of machines ``token-0``, ``token-1``, … each for a pod of that name, preferably of the cheap offering."""
    machines = [
        OrderedMachine(f"{token}-{n}", token, (CHEAP, DEAR), 0.5, at, meant=2, pods=(f"pod-{token}-{n}",), after=tuple(needs))
        for n in range(count)
    ]
    return Intended(Order(token, "main", (CHEAP, DEAR), count, at, at), tuple(machines))


def after(*events: Event) -> Ledger:
    return fold_events(Ledger(), events)


def names(ledger: Ledger) -> list[tuple[str, str]]:
    return [(machine.id, machine.instance) for machine in ledger.coming]


def test_an_order_is_recorded_completely_before_it_is_sent() -> None:
    ledger = after(intended_order("a", 2))

    assert [(order.token, order.state) for order in ledger.orders] == [("a", INTENDED)]
    assert [(machine.id, machine.instance, machine.node) for machine in ledger.coming] == [("a-0", "", ""), ("a-1", "", "")]
    assert ledger.serial == 1


def test_the_answer_of_the_cloud_sets_the_machine_ids_and_ends_the_order() -> None:
    ledger = after(intended_order("a", 2), Answered("a", 3.0, (("i-1", CHEAP), ("i-2", CHEAP))))

    assert names(ledger) == [("a-0", "i-1"), ("a-1", "i-2")]
    assert ledger.orders == ()
    assert {machine.granted for machine in ledger.coming} == {3.0}


def test_machines_missing_from_a_partial_answer_leave_the_ledger() -> None:
    ledger = after(intended_order("a", 3), Answered("a", 3.0, (("i-1", CHEAP),)))

    assert names(ledger) == [("a-0", "i-1")]
    assert ledger.orders == ()


def test_machines_accepted_without_an_id_stay_in_the_ledger() -> None:
    ledger = after(intended_order("a", 3), Answered("a", 3.0, (("i-1", CHEAP),), pending=1))

    assert names(ledger) == [("a-0", "i-1"), ("a-1", "")]
    assert [(order.state, order.since) for order in ledger.orders] == [(ACCEPTED, 3.0)]
    named = step(ledger, Found("a-1", "i-2", DEAR, 9.0))
    assert names(named) == [("a-0", "i-1"), ("a-1", "i-2")]
    assert named.orders == ()
    assert named.coming[1].key == DEAR


def test_machines_granted_beyond_the_order_are_also_in_the_ledger() -> None:
    answer = Answered("a", 3.0, (("i-1", CHEAP), ("i-2", DEAR), ("i-2", DEAR)))
    ledger = after(intended_order("a", 1), answer)

    assert names(ledger) == [("a-0", "i-1"), ("a-i-2", "i-2")]
    assert [machine.key for machine in ledger.coming] == [CHEAP, DEAR]
    assert names(step(ledger, answer)) == names(ledger)


def test_a_repeated_answer_of_the_cloud_changes_nothing() -> None:
    answer = Answered("a", 3.0, (("i-1", CHEAP), ("i-2", CHEAP)), pending=1)
    once = after(intended_order("a", 3), answer)

    assert names(step(once, answer)) == names(once)


def test_a_repeated_answer_of_the_cloud_does_not_restore_a_lost_machine() -> None:
    doubted = after(intended_order("a", 2), Answered("a", 3.0, (("i-1", CHEAP),), pending=1), Lost("a-0"))
    ledger = step(doubted, Answered("a", 9.0, (("i-1", CHEAP),), pending=1))

    assert names(ledger) == [("a-1", "")]


def test_a_granted_offering_is_assigned_to_the_ordered_machine_that_prefers_it() -> None:
    order = intended_order("a", 2)
    picky = msgspec.structs.replace(order.machines[1], offerings=(DEAR, CHEAP))
    ledger = after(
        msgspec.structs.replace(order, machines=(order.machines[0], picky)), Answered("a", 1.0, (("i-dear", DEAR), ("i-cheap", CHEAP)))
    )

    assert names(ledger) == [("a-0", "i-cheap"), ("a-1", "i-dear")]


def test_a_lost_answer_leaves_the_order_doubtful_with_all_its_machines() -> None:
    ledger = after(intended_order("a", 2), Doubted("a", 5.0))

    assert [(order.state, order.since) for order in ledger.orders] == [(DOUBTFUL, 5.0)]
    assert len(ledger.coming) == 2


def test_when_an_order_is_closed_only_its_machines_with_an_id_stay() -> None:
    ledger = after(intended_order("a", 3), Doubted("a", 5.0), Found("a-0", "i-1", CHEAP, 6.0), Settled("a"))

    assert names(ledger) == [("a-0", "i-1")]
    assert ledger.orders == ()


def test_a_machine_leaves_the_ledger_when_it_opens() -> None:
    events: list[Event] = [intended_order("a"), Answered("a", 1.0, (("i-1", CHEAP),)), Registered("a-0", "n", 2.0), Ready("a-0", 3.0)]
    ledger = after(*events)

    assert [(machine.node, machine.registered, machine.ready) for machine in ledger.coming] == [("n", 2.0, 3.0)]
    assert step(ledger, Opened("a-0")) == Ledger(serial=1, bought=((0.0, 1),))


def test_a_removal_waits_until_its_replacements_open_and_is_bereft_if_one_is_lost() -> None:
    leaving = Removal("old", "i-old", DEAR, "dear", 0.0, 0.0, needs=("a-0", "a-1"))
    ledger = after(intended_order("a", 2), RemovalUpdated(leaving))

    assert step(ledger, Opened("a-0")).leaving[0].needs == ("a-1",)
    assert not step(ledger, Opened("a-0")).leaving[0].bereft
    assert step(ledger, Lost("a-1")).leaving[0].bereft


def test_a_removal_is_bereft_if_its_replacements_are_refused() -> None:
    leaving = Removal("old", "i-old", DEAR, "dear", 0.0, 0.0, needs=("a-0",))

    assert after(intended_order("a"), RemovalUpdated(leaving), Answered("a", 1.0)).leaving[0].bereft


@pytest.mark.parametrize("event", [Answered("b", 9.0), Settled("b"), Lost("b-0")], ids=["refused", "not filled", "lost"])
def test_machines_of_a_gang_have_no_promised_pods_after_one_is_lost(event: Event) -> None:
    others = [intended_order("a"), of_gang("c", "default/other")]
    ledger = after(*others, of_gang("b", "default/train"), of_gang("d", "default/train"), event)

    assert {machine.id: machine.pods for machine in ledger.coming} == {"a-0": ("pod-a-0",), "c-0": ("pod-c-0",), "d-0": ()}


def test_the_other_machines_of_a_gang_keep_their_pods_when_one_opens() -> None:
    ledger = after(of_gang("b", "default/train"), of_gang("d", "default/train"), Opened("b-0"))

    assert [machine.pods for machine in ledger.coming] == [("pod-d-0",)]


def of_gang(token: str, gang: str) -> Intended:
    made = intended_order(token)
    return msgspec.structs.replace(made, machines=tuple(msgspec.structs.replace(machine, gang=gang) for machine in made.machines))


def test_the_newest_plan_decides_which_pods_each_ordered_machine_is_for() -> None:
    ledger = after(intended_order("a", 2), Planned({"a-1": ("x", "y")}))

    assert [machine.pods for machine in ledger.coming] == [(), ("x", "y")]
    assert step(ledger, Planned({"a-1": ("x", "y")})) is ledger


def test_exchanged_pods_swap_their_machines() -> None:
    ledger = after(intended_order("a", 3), Exchanged("a-0", (("pod-a-0", "pod-a-2"),)))

    assert [machine.pods for machine in ledger.coming] == [("pod-a-2",), ("pod-a-1",), ("pod-a-0",)]


def test_a_pod_without_a_machine_can_take_the_place_of_another() -> None:
    ledger = after(intended_order("a", 2), Exchanged("a-0", (("pod-a-0", "older"),)))

    assert [machine.pods for machine in ledger.coming] == [("older",), ("pod-a-1",)]


def test_the_ledger_has_at_most_one_promise_and_one_removal_per_node() -> None:
    book = after(
        Promised(Promise("n", CHEAP, ("p",), 1.0)),
        Promised(Promise("m", CHEAP, ("q",), 1.0)),
        Promised(Promise("n", CHEAP, ("p",), 2.0, ledger.OPEN)),
        RemovalUpdated(Removal("n", "i", CHEAP, "idle", 1.0, 1.0)),
        RemovalUpdated(Removal("n", "i", CHEAP, "idle", 1.0, 2.0, ledger.DRAINING)),
    )

    assert [(promise.node, promise.step) for promise in book.promises] == [("m", ledger.NOMINATING), ("n", ledger.OPEN)]
    assert [(removal.node, removal.step) for removal in book.leaving] == [("n", ledger.DRAINING)]
    assert step(step(book, PromiseFulfilled("n")), Finished("n")).leaving == ()


def test_a_broken_promise_stays_in_the_ledger_until_its_nomination_is_gone() -> None:
    ledger = after(Broken("p", "n"), Broken("p", "m"), Broken("q", "n"))

    assert ledger.broken == (("p", "m"), ("q", "n"))
    assert step(ledger, BrokenPromiseCleared("p")).broken == (("q", "n"),)


def test_the_ledger_contains_only_purchases_of_the_last_minute() -> None:
    ledger = after(intended_order("a", 2, at=0.0), intended_order("b", 1, at=30.0), intended_order("c", 4, at=61.0))

    assert ledger.bought == ((30.0, 1), (61.0, 4))


def test_the_possible_offerings_of_a_machine_are_those_of_the_plan_until_its_own_is_known() -> None:
    event = intended_order("a")
    (coming,) = event.machines
    unsure = msgspec.structs.replace(event, machines=(msgspec.structs.replace(coming, meant=1),))

    (upcoming,) = upcoming_machines(after(unsure))
    assert (upcoming.instance_type, upcoming.choices) == ("cheap", (("cheap", "on-demand", "z1"),))
    (upcoming,) = upcoming_machines(after(unsure, Answered("a", 1.0, (("i", DEAR),))))
    assert (upcoming.instance_type, upcoming.choices) == ("dear", ())


@pytest.mark.parametrize(
    "event",
    [
        Answered("x", 1.0, (("i", CHEAP),)),
        Doubted("x", 1.0),
        Settled("x"),
        Found("x", "i", CHEAP, 1.0),
        Registered("x", "n", 1.0),
        Ready("x", 1.0),
        Opened("x"),
        Lost("x"),
        Exchanged("x", (("p", "q"),)),
        PromiseFulfilled("x"),
        Finished("x"),
        BrokenPromiseCleared("x"),
    ],
    ids=lambda event: type(event).__name__,
)
def test_ledger_events_about_unknown_entries_are_ignored(event: Event) -> None:
    ledger = after(intended_order("a", 2), Answered("a", 1.0, (("i-1", CHEAP),), pending=1), Promised(Promise("n", CHEAP, ("p",), 1.0)))

    assert step(ledger, event) == ledger


@st.composite
def event_histories(draw: st.DrawFn) -> list[Event]:
    """Events of three orders, in random order, also repeated and about unknown entries."""
    tokens = ["a", "b", "c"]
    machines = [f"{token}-{n}" for token in tokens for n in range(3)]
    instances = [f"i-{n}" for n in range(6)]
    events: list[Event] = [intended_order(token, draw(st.integers(1, 3))) for token in tokens]
    for _ in range(draw(st.integers(0, 25))):
        token, machine = draw(st.sampled_from(tokens)), draw(st.sampled_from(machines))
        given_names = draw(st.lists(st.sampled_from(instances), unique=True, max_size=3))
        granted = tuple((name, draw(st.sampled_from((CHEAP, DEAR)))) for name in given_names)
        choices: tuple[Event, ...] = (
            Answered(token, 1.0, granted, draw(st.integers(0, 2))),
            Doubted(token, 1.0),
            Settled(token),
            Registered(machine, f"n-{machine}", 2.0),
            Ready(machine, 3.0),
            Opened(machine),
            Lost(machine),
            Exchanged(machine, ((f"pod-{machine}", f"pod-{draw(st.sampled_from(machines))}"),)),
        )
        events.append(choices[draw(st.integers(0, len(choices) - 1))])
    return events


@given(event_histories())
def test_no_machine_is_in_the_ledger_twice_and_every_order_waits_for_machines(events: list[Event]) -> None:
    ledger = Ledger()
    for event in events:
        ledger = step(ledger, event)
        ids, instances = [machine.id for machine in ledger.coming], [machine.instance for machine in ledger.coming if machine.instance]
        assert len(ids) == len(set(ids))
        assert len(instances) == len(set(instances))
        unnamed = {machine.order for machine in ledger.coming if not machine.instance}
        assert unnamed == {order.token for order in ledger.orders}
    assert msgspec.json.decode(msgspec.json.encode(ledger), type=Ledger) == ledger


def test_refused_machines_do_not_count_as_purchases() -> None:
    # Two orders of one moment, one of them granted in part, and an older one.
    ledger = after(intended_order("a", 3, at=1.0), intended_order("b", 3, at=9.0), intended_order("c", 2, at=9.0))
    ledger = fold_events(ledger, (Answered("b", 10.0, (("i-1", CHEAP),)), Answered("c", 10.0, (("i-2", CHEAP), ("i-3", CHEAP)))))

    assert sum(many for at, many in ledger.bought if at == 9.0) == 3
    assert step(ledger, Answered("a", 11.0)).bought == tuple(entry for entry in ledger.bought if entry[0] == 9.0)
    assert sum(many for _, many in step(ledger, Answered("a", 11.0, pending=3)).bought) == 6


def test_a_closed_order_is_withdrawn_repeatedly_until_the_cloud_confirms() -> None:
    accepted = after(intended_order("a", 3), Answered("a", 1.0, (("i-1", CHEAP),), pending=2))
    (order,) = accepted.orders
    assert unnamed_counts(accepted) == {"a": 2}
    ledger = step(accepted, Settled("a"))

    assert (ledger.orders, ledger.withdrawals) == ((), (Withdrawal("a", order=order, missing=2),))
    ledger = fold_events(ledger, (Withdrawing("a", 5.0), Withdrawing("a", 9.0)))
    assert ledger.withdrawals == (Withdrawal("a", 9.0, 2, order, 2),)
    assert step(ledger, Withdrawn("a")).withdrawals == ()


def test_an_unregistered_machine_is_recorded_and_then_adopted_like_an_ordered_one() -> None:
    stranger = OrderedMachine("found-i-9", "", (CHEAP,), 0.5, 3.0, offering=CHEAP, instance="i-9", granted=3.0)
    ledger = after(Noticed({"i-9": 3.0}), Noticed({}), Adopted(stranger), Registered("found-i-9", "n", 5.0))

    assert ledger.unregistered == {}
    assert [(upcoming.id, upcoming.node, upcoming.instance_type) for upcoming in upcoming_machines(ledger)] == [("found-i-9", "n", "cheap")]
    assert step(ledger, Opened("found-i-9")).coming == ()


@pytest.mark.parametrize(
    ("launched", "began"),
    [(0.0, 500.0), (480.0, 500.0), (100.0, 100.0), (10.0, 50.0), (900.0, 500.0)],
    ids=["unknown", "a moment ago", "long ago", "by a clock that is behind", "by a clock that is ahead"],
)
def test_the_boot_of_a_machine_whose_id_is_learned_late_counts_from_its_launch(launched: float, began: float) -> None:
    ledger = after(intended_order("a", at=50.0), Doubted("a", 51.0), Found("a-0", "i-1", CHEAP, 500.0, launched))
    answered = after(intended_order("a", at=50.0), Doubted("a", 51.0), Answered("a", 500.0, (("i-1", CHEAP),), launched={"i-1": launched}))

    assert [machine.began for machine in (*ledger.coming, *answered.coming)] == [began, began]
    assert [machine.granted for machine in (*ledger.coming, *answered.coming)] == [500.0, 500.0]


def test_an_order_keeps_what_its_cloud_calls_the_operation_until_it_is_filled() -> None:
    url = "https://management.azure.com/subscriptions/s/operations/1"
    waiting = fold_events(Ledger(), [intended_order("a", 2), Answered("a", 1.0, pending=2, operation=url)])
    assert [order.operation for order in waiting.orders] == [url]
    assert msgspec.json.decode(msgspec.json.encode(waiting), type=Ledger) == waiting

    filled = step(waiting, Answered("a", 2.0, granted=(("i-1", CHEAP), ("i-2", CHEAP))))
    assert not filled.orders
