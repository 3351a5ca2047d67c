"""How a machine is given back, step by step, and how every step but the last can be undone."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planning.building import NOW, node, offering, pod, pool

from gpuscaler.model.aside import SetAside
from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.instances import TERMINATED, Instance, Inventory
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Owner
from gpuscaler.model.pools import Policy
from gpuscaler.model.taints import Taint
from gpuscaler.planning.acts import End, Evict, Mark, Unmark
from gpuscaler.planning.arrivals import Overdue
from gpuscaler.planning.leaving import (
    DRAIN_SECONDS,
    END_SECONDS,
    EVICTION_SECONDS,
    REPEAT_SECONDS,
    WAIT_SECONDS,
    Departure,
    begin,
    give_up,
    take_leave,
)
from gpuscaler.planning.plans import Move, Removal
from gpuscaler.planning.state import ledger
from gpuscaler.planning.state.ledger import DRAINING, ENDING, MARKING, REOPENING, WAITING, Coming, Leaving, Ledger, Promise

KIND = offering()
POLICY = Policy((pool(KIND),))
LEAVING = (Taint("gpuscaler.io/leaving"),)
P = "default/p"
STEPS = (MARKING, WAITING, DRAINING, ENDING, REOPENING)


def machine(*, marked: bool = True, **more: Any) -> Node:
    return node("n", KIND, **{"taints": LEAVING if marked else (), "provider_id": "i-1", **more})


def resident(name: str = "p", **more: Any) -> Any:
    return pod(name, on="n", uid=f"uid-{name}", **more)


def going(step: str = WAITING, **more: Any) -> Leaving:
    fields: dict[str, Any] = {"reason": "idle", "at": NOW - 9.0, "since": NOW - 9.0, **more}
    return Leaving("n", "i-1", KIND.key, step=step, **fields)


def turn(
    one: Leaving, *items: Item, book: Ledger | None = None, gone: bool = False, aside: tuple[SetAside, ...] = (), listed: bool = True
) -> Departure:
    there = Instance("i-1", *KIND.key, state=TERMINATED) if gone else Instance("i-1", *KIND.key)
    inventory = Inventory(NOW, (there,)) if listed else None
    known = book or Ledger(leaving=(one,))
    return take_leave(known, Cluster.of(items, aside), inventory, POLICY, now=NOW)


def step_of(found: Departure) -> str:
    """Where the removal stands afterwards; empty when it is over, "as it was" when nothing was written down."""
    left = [one.leaving.step for one in found.steps if isinstance(one, ledger.Left)]
    over = any(isinstance(one, ledger.Finished) for one in found.steps)
    return "" if over else left[-1] if left else "as it was"


# The way of a removal


def test_a_node_is_closed_first() -> None:
    found = turn(going(MARKING), machine(marked=False))

    assert found.acts == (Mark("n", "idle"),)
    assert turn(going(MARKING, tried=NOW - 1.0), machine(marked=False)) == Departure()
    assert turn(going(MARKING, tried=NOW - REPEAT_SECONDS), machine(marked=False)).acts == (Mark("n", "idle"),)


def test_an_empty_closed_node_is_ended_at_once() -> None:
    found = turn(going(MARKING), machine())

    assert found.acts == (End("i-1", "n", "idle"),)
    assert step_of(found) == ENDING


def test_pods_that_were_to_move_are_evicted_by_their_uid_and_with_their_own_time() -> None:
    found = turn(going(pods=(P,)), machine(), resident(options={"grace": 90.0}))

    assert found.acts == (Evict(P, "uid-p", "n", 90.0),)
    assert step_of(found) == DRAINING


def test_nobody_is_evicted_before_what_replaces_the_node_is_open() -> None:
    assert turn(going(pods=(P,), needs=("o-0",)), machine(), resident()) == Departure()


def test_pods_that_leave_with_the_machine_are_not_evicted() -> None:
    found = turn(going(), machine(), resident(owner=Owner("DaemonSet", "d", "u")))

    assert step_of(found) == ENDING


def test_an_eviction_that_was_refused_is_tried_again_and_terminating_pods_are_waited_for() -> None:
    draining = going(DRAINING, pods=(P,), tried=NOW - EVICTION_SECONDS)

    assert turn(draining, machine(), resident()).acts == (Evict(P, "uid-p", "n", None),)
    assert turn(draining, machine(), resident(deleted=NOW - 1.0)).acts == ()
    assert turn(going(DRAINING, pods=(P,), tried=NOW - 1.0), machine(), resident()) == Departure()


def test_the_removal_is_over_when_machine_and_node_are_gone() -> None:
    assert step_of(turn(going(ENDING, tried=NOW - 1.0), gone=True)) == ""
    assert turn(going(ENDING, tried=NOW - 1.0), machine(), gone=True) == Departure()
    assert turn(going(ENDING, tried=NOW - 1.0), gone=False) == Departure()
    assert turn(going(ENDING, tried=NOW - 1.0), listed=False) == Departure()


def test_a_machine_that_does_not_end_is_ended_again() -> None:
    assert turn(going(ENDING, tried=NOW - END_SECONDS), machine()).acts == (End("i-1", "n", "idle"),)


def test_where_somebody_else_deleted_the_node_its_machine_is_ended_all_the_same() -> None:
    for step in (MARKING, WAITING, DRAINING, REOPENING):
        assert step_of(turn(going(step))) == ENDING


# Why a node stays after all


@pytest.mark.parametrize(
    ("items", "why"),
    [
        ((machine(do_not_disrupt=True),), "an annotation of the node asks for it"),
        ((machine(scale_down_disabled=True),), "an annotation of the node asks for it"),
        ((machine(), resident("new")), "pod default/new came to it meanwhile"),
        ((machine(), resident(options={"do_not_disrupt": True})), "pod default/p has the annotation karpenter.sh/do-not-disrupt: true"),
    ],
)
def test_seen_again_a_node_may_have_a_reason_to_stay(items: tuple[Item, ...], why: str) -> None:
    found = turn(going(pods=(P,)), *items)

    assert found.kept == (("n", why),)
    assert step_of(found) == REOPENING
    assert found.acts == (Unmark("n", "its removal was given up"),)


def test_a_node_that_a_pod_was_promised_stays() -> None:
    promise = Promise("n", KIND.key, ("default/q",), NOW)
    found = turn(going(), machine(), book=Ledger(leaving=(going(),), promises=(promise,)))

    assert found.kept == (("n", "pod default/q is promised to it"),)


@pytest.mark.parametrize("more", [{"bereft": True}, {"since": NOW - WAIT_SECONDS}], ids=["lost", "too late"])
def test_where_the_replacement_does_not_come_the_node_is_opened_again_and_nobody_was_evicted(more: dict[str, Any]) -> None:
    found = turn(going(pods=(P,), needs=("o-0",), **more), machine(), resident())

    assert found.kept == (("n", "what replaces it did not come"),)
    assert found.acts == (Unmark("n", "its removal was given up"),)


def test_a_node_that_cannot_be_emptied_in_time_stays_and_says_why() -> None:
    found = turn(going(DRAINING, since=NOW - DRAIN_SECONDS, pods=(P,), detail="budget"), machine(), resident())

    assert found.kept == (("n", "pod default/p could not be evicted within 600 s: budget"),)


@pytest.mark.parametrize("where", ["n", None], ids=["there", "somewhere"])
@pytest.mark.parametrize("step", [WAITING, DRAINING])
def test_a_node_on_which_a_pod_may_run_that_cannot_be_read_is_not_ended(step: str, where: str | None) -> None:
    found = turn(going(step), machine(), aside=(SetAside("Pod n/odd", "odd", where),))

    assert [node for node, _ in found.kept] == ["n"]
    assert "Pod n/odd" in found.kept[0][1]
    assert turn(going(step), machine(), aside=(SetAside("Pod n/odd", "odd", "elsewhere"),)).kept == ()


def test_a_node_is_reopened_until_its_taint_is_seen_gone() -> None:
    assert turn(going(REOPENING, tried=NOW - REPEAT_SECONDS), machine()).acts == (Unmark("n", "its removal was given up"),)
    assert turn(going(REOPENING, tried=NOW - 1.0), machine()) == Departure()
    assert step_of(turn(going(REOPENING), machine(marked=False))) == ""


def test_a_taint_that_no_removal_stands_behind_comes_off_and_a_persons_cordon_does_not() -> None:
    assert turn(going(), machine(), book=Ledger()).acts == (Unmark("n", "no removal of it is under way"),)
    assert turn(going(), machine(marked=False, unschedulable=True), book=Ledger()).acts == ()


@pytest.mark.parametrize("step", [WAITING, DRAINING])
def test_a_node_from_which_somebody_took_our_taint_stays(step: str) -> None:
    found = turn(going(step, pods=(P,)), machine(marked=False), resident())

    assert found.kept == (("n", "somebody has taken our taint off it"),)
    assert step_of(found) == ""
    assert found.acts == ()


# Machines that go whatever stands against it


def test_a_machine_that_the_cloud_takes_is_emptied_whatever_protects_its_pods() -> None:
    forced = {"forced": True, "pods": (P,)}
    protected = resident(options={"do_not_disrupt": True}), resident("new")

    assert len(turn(going(WAITING, **forced), machine(do_not_disrupt=True), *protected).acts) == 2
    late = turn(going(DRAINING, since=NOW - DRAIN_SECONDS, **forced), machine(), *protected)
    assert (late.kept, len(late.acts)) == ((), 2)
    assert turn(going(WAITING, forced=True), machine(), aside=(SetAside("Pod n/odd", "odd"),)).kept == ()


# Beginning


def removal(**more: Any) -> Removal:
    return Removal(**{"node": "n", "reason": "dear", "moves": (Move(P, "new-1"),), "needs": ("new-1", "new-2"), **more})


def begun(*items: Item, book: Ledger | None = None) -> list[ledger.Event]:
    return begin(book or Ledger(), Cluster.of(items), POLICY, (removal(),), names={"new-1": "o-0"}, now=NOW)


def test_a_plans_removal_is_written_down_with_the_ledgers_names() -> None:
    (left,) = begun(machine(marked=False))

    assert left == ledger.Left(Leaving("n", "i-1", KIND.key, "dear", NOW, NOW, pods=(P,), needs=("o-0",)))


@pytest.mark.parametrize(
    ("items", "book"),
    [
        ((), Ledger()),
        ((machine(provider_id=""),), Ledger()),
        ((machine(labels={"gpuscaler.io/pool": "theirs"}),), Ledger()),
        ((machine(),), Ledger(leaving=(going(DRAINING),))),
        ((machine(),), Ledger(coming=(Coming("o-0", "o", (KIND.key,), 1.0, NOW, node="n"),))),
    ],
    ids=["gone", "no machine is known", "not ours", "under way", "arriving"],
)
def test_what_cannot_be_removed_by_name_is_not_begun(items: tuple[Item, ...], book: Ledger) -> None:
    assert begun(*items, book=book) == []


def test_a_machine_that_never_came_is_ended_at_once() -> None:
    late = Coming("o-0", "o", (KIND.key,), 1.0, NOW, instance="i-1")

    assert give_up(Overdue(late, "too late"), NOW).leaving == Leaving("i-1", "i-1", KIND.key, "too late", NOW, NOW, ENDING)


# Whatever is seen


@st.composite
def sights(draw: st.DrawFn) -> tuple[Leaving, list[Item]]:
    """A removal at any step, and what may be seen of its node and of what runs there."""
    one = going(
        draw(st.sampled_from(STEPS)),
        needs=draw(st.sampled_from(((), ("o-0",)))),
        pods=(P,),
        since=NOW - draw(st.sampled_from((1.0, 700.0, 3000.0))),
        tried=NOW - draw(st.sampled_from((1.0, 100.0))),
    )
    if draw(st.integers(0, 4)) == 0:
        return one, []
    pods = [
        resident(name, deleted=NOW * draw(st.booleans()), options={"do_not_disrupt": draw(st.booleans())})
        for name in draw(st.lists(st.sampled_from("pqr"), max_size=3, unique=True))
    ]
    return one, [machine(marked=draw(st.booleans())), *pods]


@given(sights(), st.booleans())
def test_no_machine_is_ended_while_pods_run_on_it_and_no_pod_is_evicted_from_an_open_node(
    sight: tuple[Leaving, list[Item]], gone: bool
) -> None:
    one, items = sight
    found = turn(one, *items, gone=gone)
    acts = {type(act) for act in found.acts}

    if len(items) > 1 and one.step != ENDING:
        assert End not in acts
    if Evict in acts:
        assert isinstance(items[0], Node)
        assert items[0].taints == LEAVING
        assert one.step == DRAINING or not one.needs
    if found.kept:
        assert acts <= {Unmark}
