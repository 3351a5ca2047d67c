"""How a machine is removed, step by step, and how every step but the last can be undone."""

from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.planning.building import DAEMON, NOW, node, offering, pod, pool, spec

from gpuscaler.lifecycle.actions import Clear, End, Evict, Exclude, Mark, Unmark
from gpuscaler.lifecycle.termination import EndAnswered, RemovalFindings, begin_removals, continue_removals, remove_overdue
from gpuscaler.lifecycle.termination.removing import CLEAR_SECONDS, DETACH_SECONDS, DRAIN_SECONDS, END_SECONDS, REPEAT_SECONDS, WAIT_SECONDS
from gpuscaler.lifecycle.termination.starting import Overdue
from gpuscaler.model.aside import Skipped
from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.instances import TERMINATED, Instance, Inventory
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import VolumeUse
from gpuscaler.model.pools import Policy
from gpuscaler.model.storage import PersistentVolumeClaim, VolumeAttachment
from gpuscaler.model.taints import Taint, Toleration
from gpuscaler.model.well_known import EXCLUDE_LABEL, EXCLUDE_VALUE
from gpuscaler.planning.plans import Move, PlannedRemoval
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.entries import (
    CLEARING,
    DETACHING,
    DRAINING,
    ENDING,
    MARKING,
    REOPENING,
    WAITING,
    Eviction,
    OrderedMachine,
    Promise,
    Removal,
)
from gpuscaler.planning.state.ledger.ledger import Ledger

KIND = offering()
POLICY = Policy((pool(KIND),))
LEAVING = (Taint("gpuscaler.io/leaving"),)
P = "default/p"
STEPS = (MARKING, WAITING, DRAINING, DETACHING, ENDING, CLEARING, REOPENING)
EXCLUDED = {EXCLUDE_LABEL: EXCLUDE_VALUE}


def machine(*, marked: bool = True, excluded: bool | None = None, **more: Any) -> Node:
    """The node: with our taint if ``marked``, with our label if load balancers are ``excluded``, which is the default after the taint."""
    labels = {**(EXCLUDED if (marked if excluded is None else excluded) else {}), **more.pop("labels", {})}
    return node("n", KIND, labels=labels, **{"taints": LEAVING if marked else (), "provider_id": "i-1", "uid": "u", **more})


def resident(name: str = "p", *, options: Mapping[str, Any] | None = None, **more: Any) -> Any:
    """A pod that may be moved to save money although it is the last of its kind."""
    return pod(name, on="n", uid=f"uid-{name}", options={"disruption": "allow", **(options or {})}, **more)


def going(step: str = WAITING, **more: Any) -> Removal:
    fields: dict[str, Any] = {"reason": "idle", "at": NOW - 9.0, "since": NOW - 9.0, **more}
    return Removal("n", "i-1", KIND.key, step=step, **fields)


def turn(
    removal: Removal,
    *items: Item,
    ledger: Ledger | None = None,
    is_gone: bool = False,
    aside: tuple[Skipped, ...] = (),
    listed: bool = True,
    answers: Mapping[str, EndAnswered] | None = None,
) -> RemovalFindings:
    there = Instance("i-1", *KIND.key, state=TERMINATED) if is_gone else Instance("i-1", *KIND.key)
    inventory = Inventory(NOW, (there,)) if listed else None
    current = ledger or Ledger(leaving=(removal,))
    return continue_removals(current, Cluster.of(items, aside), inventory, POLICY, now=NOW, answers=answers)


def noted(departure: RemovalFindings) -> Removal:
    """Return the removal as it was last saved."""
    return [step.removal for step in departure.steps if isinstance(step, ledger.RemovalUpdated)][-1]


def step_of(departure: RemovalFindings) -> str:
    """Return the step of the removal afterwards; empty if it is over, "as it was" if nothing was saved."""
    left = [step.removal.step for step in departure.steps if isinstance(step, ledger.RemovalUpdated)]
    over = any(isinstance(step, ledger.Finished) for step in departure.steps)
    return "" if over else left[-1] if left else "as it was"


# The steps of a removal


def test_a_removal_taints_the_node_first() -> None:
    departure = turn(going(MARKING), machine(marked=False))

    assert departure.acts == (Mark("n", "idle"),)
    assert turn(going(MARKING, tried=NOW - 1.0), machine(marked=False)) == RemovalFindings()
    assert turn(going(MARKING, tried=NOW - REPEAT_SECONDS), machine(marked=False)).acts == (Mark("n", "idle"),)


def test_an_empty_closed_node_is_ended_after_a_last_check() -> None:
    first = turn(going(MARKING, at=NOW - 99.0), machine())
    assert (first.acts, step_of(first)) == ((), ENDING)

    ending = going(ENDING, at=NOW - 99.0, since=NOW - 1.0)
    assert turn(ending, machine()).acts == (End("i-1", "n", "idle", look=True),)
    assert turn(going(ENDING, at=NOW - 99.0, since=NOW - 0.5), machine()).acts == ()


@pytest.mark.parametrize("step", [DRAINING, DETACHING, ENDING])
def test_a_pod_bound_between_the_last_check_and_termination_keeps_the_machine(step: str) -> None:
    departure = turn(going(step, at=NOW - 99.0), machine(), resident("new"))

    assert departure.kept == (("n", "pod default/new was scheduled onto it after the removal was planned"),)
    assert departure.acts == (Unmark("n", "its removal was given up"),)


@pytest.mark.parametrize("step", [DETACHING, ENDING])
def test_a_pod_that_returns_to_a_draining_node_is_evicted_again(step: str) -> None:
    departure = turn(going(step, at=NOW - 99.0, pods=(P,)), machine(), resident())

    assert (departure.acts, departure.kept, step_of(departure)) == ((), (), DRAINING)


def test_a_machine_is_not_checked_again_after_its_termination_was_requested() -> None:
    assert turn(going(ENDING, at=NOW - 99.0, tried=NOW - 5.0), machine(), resident("new")) == RemovalFindings()


@pytest.mark.parametrize(("name", "step"), [("new", REOPENING), ("p", DRAINING)])
def test_a_machine_that_did_not_terminate_is_checked_before_another_request(name: str, step: str) -> None:
    removal = going(ENDING, at=NOW - 99.0, tried=NOW - END_SECONDS, pods=(P,))

    assert step_of(turn(removal, machine(), resident(name))) == step
    assert turn(removal, machine()).acts == (End("i-1", "n", "idle", look=True),)


def test_a_machine_that_the_cloud_does_not_end_yet_is_ended_when_the_cloud_takes_the_next_call() -> None:
    asked = going(ENDING, at=NOW - 99.0, tried=NOW - 1.0)
    delayed = noted(turn(asked, machine(), answers={"n": EndAnswered(NOW + 10.0, "the pool is busy")}))
    assert (delayed.step, delayed.detail) == (ENDING, "the pool is busy")
    assert turn(delayed, machine()) == RemovalFindings()

    due = turn(replace(delayed, again=NOW), machine())
    assert due.acts == (End("i-1", "n", "idle", look=True),)
    # Nothing has been heard of this call: it is repeated as late as any other.
    assert turn(noted(due), machine()) == RemovalFindings()
    assert turn(replace(noted(due), tried=NOW - END_SECONDS), machine()).acts
    accepted = noted(turn(noted(due), machine(), answers={"n": EndAnswered()}))
    assert (accepted.detail, accepted.again) == ("", 0.0)


def test_evictions_wait_for_load_balancers_for_a_limited_time() -> None:
    departure = turn(going(pods=(P,)), machine(excluded=False), resident())
    assert (departure.acts, step_of(departure)) == ((Exclude("n", "idle"),), DRAINING)

    draining = going(DRAINING, pods=(P,), since=NOW - 1.0, tried=NOW - 1.0)
    assert turn(draining, machine(excluded=False), resident()) == RemovalFindings()
    late = turn(going(DRAINING, pods=(P,), since=NOW - REPEAT_SECONDS, tried=NOW - REPEAT_SECONDS), machine(excluded=False), resident())
    assert late.acts == (Exclude("n", "idle"), Evict(P, "uid-p", "n"))


def test_an_interrupted_machine_does_not_wait_for_load_balancers() -> None:
    departure = turn(going(pods=(P,), forced=True, ends=NOW + 100.0), machine(excluded=False), resident())

    assert departure.acts == (Exclude("n", "idle"), Evict(P, "uid-p", "n"))


def test_no_pod_is_evicted_before_the_replacement_machine_is_open() -> None:
    assert turn(going(pods=(P,), needs=("o-0",)), machine(), resident()) == RemovalFindings()


# Volumes


def attachment(volume: str) -> VolumeAttachment:
    return VolumeAttachment(f"va-{volume}", "ebs.csi.aws.com", "n", volume, attached=True)


def test_termination_waits_for_volumes_to_detach_for_a_limited_time() -> None:
    detaching = going(DETACHING, since=NOW - 1.0)
    departure = turn(detaching, machine(), attachment("v"))
    assert (departure.acts, step_of(departure)) == ((), DETACHING)
    assert noted(departure).detail == "volume v is still attached to it"

    assert step_of(turn(detaching, machine())) == ENDING
    assert step_of(turn(going(DETACHING, since=NOW - DETACH_SECONDS), machine(), attachment("v"))) == ENDING


def test_termination_does_not_wait_for_the_volume_of_a_pod_that_is_not_evicted() -> None:
    daemon = resident("d", of=spec(tolerations=(Toleration(operator="Exists"),), volumes=(VolumeUse(claim="c"),)), owner=DAEMON)
    claim = PersistentVolumeClaim("default", "c", volume="v")

    assert step_of(turn(going(DETACHING, since=NOW - 1.0), machine(), daemon, claim, attachment("v"))) == ENDING


def test_an_interrupted_machine_waits_for_volumes_only_until_its_announced_end() -> None:
    assert step_of(turn(going(DETACHING, forced=True, ends=NOW + 60.0), machine(), attachment("v"))) == DETACHING
    assert step_of(turn(going(DETACHING, forced=True, ends=NOW + 4.0), machine(), attachment("v"))) == ENDING


# The end


def test_the_removal_is_over_when_machine_and_node_are_gone() -> None:
    assert step_of(turn(going(ENDING, tried=NOW - 1.0), is_gone=True)) == ""
    assert step_of(turn(going(ENDING, tried=NOW - 1.0), machine(), is_gone=True)) == CLEARING
    assert turn(going(ENDING, tried=NOW - 1.0), is_gone=False) == RemovalFindings()
    assert turn(going(ENDING, tried=NOW - 1.0), listed=False) == RemovalFindings()


def test_an_unlisted_machine_is_ended_anyway_because_the_cloud_list_may_be_outdated() -> None:
    assert turn(going(ENDING), is_gone=True).acts == (End("i-1", "n", "idle"),)


def test_termination_is_requested_again_if_the_machine_does_not_end() -> None:
    assert turn(going(ENDING, tried=NOW - END_SECONDS), machine()).acts == (End("i-1", "n", "idle"),)


def test_a_node_whose_machine_is_gone_is_deleted_if_it_still_exists_after_a_while() -> None:
    clearing = going(CLEARING, since=NOW - CLEAR_SECONDS)

    assert turn(clearing, machine(), is_gone=True).acts == (Clear("n", "u", "its machine is gone"),)
    assert turn(going(CLEARING), machine(), is_gone=True) == RemovalFindings()
    assert step_of(turn(clearing, is_gone=True)) == ""
    assert turn(clearing, machine(deleted=NOW - 1.0), is_gone=True) == RemovalFindings()


def test_a_machine_that_reappears_on_the_list_is_ended_again_and_its_node_stays() -> None:
    departure = turn(going(CLEARING, since=NOW - CLEAR_SECONDS), machine())

    assert (departure.acts, step_of(departure)) == ((), ENDING)


def test_a_new_machine_with_the_node_name_of_a_removed_one_is_not_touched() -> None:
    fresh = machine(marked=False, provider_id="i-2")

    assert step_of(turn(going(CLEARING), fresh, is_gone=True)) == ""
    assert step_of(turn(going(ENDING, tried=NOW - 1.0), fresh, is_gone=True)) == ""
    assert step_of(turn(going(DRAINING), fresh)) == ENDING


def test_the_machine_of_a_node_deleted_during_its_removal_is_ended_anyway() -> None:
    for step in (MARKING, WAITING, DRAINING, DETACHING, REOPENING):
        assert step_of(turn(going(step))) == ENDING


# Why a node stays after all


@pytest.mark.parametrize(
    ("items", "why"),
    [
        ((machine(do_not_disrupt=True),), "the node has a do-not-disrupt or scale-down-disabled annotation"),
        ((machine(scale_down_disabled=True),), "the node has a do-not-disrupt or scale-down-disabled annotation"),
        ((machine(), resident("new")), "pod default/new was scheduled onto it after the removal was planned"),
        ((machine(), resident(options={"do_not_disrupt": True})), "pod default/p has the annotation karpenter.sh/do-not-disrupt: true"),
    ],
)
def test_the_last_check_before_termination_may_keep_the_node(items: tuple[Item, ...], why: str) -> None:
    departure = turn(going(pods=(P,)), *items)

    assert departure.kept == (("n", why),)
    assert step_of(departure) == REOPENING
    assert departure.acts == (Unmark("n", "its removal was given up"),)


def test_a_node_that_is_promised_to_a_pod_is_not_removed() -> None:
    promise = Promise("n", KIND.key, ("default/q",), NOW)
    departure = turn(going(), machine(), ledger=Ledger(leaving=(going(),), promises=(promise,)))

    assert departure.kept == (("n", "it is promised to pod default/q"),)


@pytest.mark.parametrize("more", [{"bereft": True}, {"since": NOW - WAIT_SECONDS}], ids=["lost", "too late"])
def test_if_the_replacement_is_lost_the_node_is_reopened_without_evictions(more: dict[str, Any]) -> None:
    departure = turn(going(pods=(P,), needs=("o-0",), **more), machine(), resident())

    assert departure.kept == (("n", "the replacement machine did not become ready in time"),)
    assert departure.acts == (Unmark("n", "its removal was given up"),)


def test_a_node_that_cannot_be_drained_in_time_stays_and_the_reason_and_cost_are_reported() -> None:
    refused = (Eviction(P, "uid-p", tries=9, again=NOW + 9.0, why="the budget web allows no evictions", budget=True),)
    departure = turn(going(DRAINING, since=NOW - DRAIN_SECONDS, pods=(P,), evictions=refused), machine(), resident())

    why = "pod default/p cannot be evicted: the budget web allows no evictions; it costs $1.00 an hour"
    assert departure.kept == (("n", f"it could not be drained within 600 s: {why}"),)
    assert step_of(departure) == REOPENING


def test_a_node_stays_if_a_pod_does_not_terminate_and_that_pod_is_reported_first() -> None:
    evictions = (Eviction(P, "uid-p", tries=9, again=NOW + 9.0), Eviction("default/q", "uid-q", tries=9, again=NOW + 9.0, why="a budget"))
    removal = going(DRAINING, since=NOW - DRAIN_SECONDS, pods=(P, "default/q"), evictions=evictions)
    departure = turn(removal, machine(), resident(), resident("q"))

    why = "pod default/p is still there: pod default/q cannot be evicted: a budget; it costs $1.00 an hour"
    assert departure.kept == (("n", f"it could not be drained within 600 s: {why}"),)


def test_the_drain_limit_does_not_count_the_time_that_pods_get_to_save_work() -> None:
    late = going(DRAINING, since=NOW - DRAIN_SECONDS - 100.0, pods=(P,))
    assert turn(late, machine(), resident(options={"grace": 101.0})).kept == ()
    assert turn(late, machine(), resident(deleted=NOW + 60.0)).kept == ()
    assert turn(late, machine(), resident()).kept != ()


def test_draining_stops_while_the_node_is_not_ready_and_is_finally_undone() -> None:
    sick = machine(ready=False)

    assert turn(going(WAITING, pods=(P,)), sick, resident()).kept == (("n", "it is not Ready any more"),)
    departure = turn(going(DRAINING, pods=(P,)), sick, resident())
    assert (departure.acts, departure.kept) == ((), ())
    assert noted(departure).detail == "it is not Ready, so it is unknown which pods run on it"
    assert step_of(turn(going(DRAINING, pods=(P,), since=NOW - DRAIN_SECONDS), sick, resident())) == REOPENING


@pytest.mark.parametrize("where", ["n", None], ids=["there", "somewhere"])
@pytest.mark.parametrize("step", [WAITING, DRAINING])
def test_a_machine_that_may_run_an_unreadable_pod_is_not_ended(step: str, where: str | None) -> None:
    departure = turn(going(step), machine(), aside=(Skipped("Pod n/odd", "odd", where),))

    assert [node for node, _ in departure.kept] == ["n"]
    assert "Pod n/odd" in departure.kept[0][1]
    assert turn(going(step), machine(), aside=(Skipped("Pod n/odd", "odd", "elsewhere"),)).kept == ()


def test_reopening_a_node_is_repeated_until_its_taint_is_gone() -> None:
    assert turn(going(REOPENING, tried=NOW - REPEAT_SECONDS), machine()).acts == (Unmark("n", "its removal was given up"),)
    assert turn(going(REOPENING, tried=NOW - 1.0), machine()) == RemovalFindings()
    assert step_of(turn(going(REOPENING), machine(marked=False))) == ""


def test_a_leaving_taint_without_a_removal_is_removed_but_a_persons_cordon_stays() -> None:
    assert turn(going(), machine(), ledger=Ledger()).acts == (Unmark("n", "no removal of it is in progress"),)
    assert turn(going(), machine(marked=False, unschedulable=True), ledger=Ledger()).acts == ()


def test_a_leaving_taint_stays_on_an_unlisted_machine_which_may_belong_to_another_gpuscaler() -> None:
    assert turn(going(), machine(provider_id="i-other"), ledger=Ledger()).acts == ()


@pytest.mark.parametrize("step", [WAITING, DRAINING])
def test_a_removal_is_abandoned_if_something_else_removes_the_leaving_taint(step: str) -> None:
    departure = turn(going(step, pods=(P,)), machine(marked=False), resident())

    assert departure.kept == (("n", "the leaving taint was removed by someone else"),)
    assert step_of(departure) == ""
    assert departure.acts == ()


# Machines that go regardless of objections


def test_an_interrupted_machine_is_drained_even_if_its_pods_are_protected() -> None:
    forced = {"forced": True, "pods": (P,), "ends": NOW + 60.0}
    protected = resident(options={"do_not_disrupt": True}), resident("new")

    assert len(turn(going(WAITING, **forced), machine(do_not_disrupt=True), *protected).acts) == 2
    late = turn(going(DRAINING, since=NOW - DRAIN_SECONDS, **forced), machine(), *protected)
    assert (late.kept, len(late.acts)) == ((), 2)
    assert turn(going(WAITING, **forced), machine(), aside=(Skipped("Pod n/odd", "odd"),)).kept == ()


def test_an_interrupted_machine_does_not_wait_long_for_the_taint() -> None:
    slow = going(MARKING, forced=True, ends=NOW + 60.0, pods=(P,), tried=NOW - 3.0)

    assert Evict(P, "uid-p", "n") in turn(slow, machine(marked=False), resident()).acts
    assert turn(going(MARKING, forced=True, ends=NOW + 60.0, tried=NOW - 1.0), machine(marked=False), resident()) == RemovalFindings()


def test_the_node_is_deleted_after_its_machine_ended_as_announced() -> None:
    assert step_of(turn(going(DRAINING, forced=True, ends=NOW - 1.0), machine(), resident(), is_gone=True)) == ENDING


# Beginning


def removal(**more: Any) -> PlannedRemoval:
    return PlannedRemoval(**{"node": "n", "reason": "dear", "moves": (Move(P, "new-1"),), "needs": ("new-1", "new-2"), **more})


def begun(*items: Item, ledger: Ledger | None = None) -> list[ledger.Event]:
    return begin_removals(
        ledger or Ledger(), Cluster.of(items), POLICY, (removal(),), names={"new-1": "o-0"}, unlisted=frozenset(), now=NOW
    )


def test_a_planned_removal_is_saved_with_the_names_of_the_ledger() -> None:
    (left,) = begun(machine(marked=False))

    assert left == ledger.RemovalUpdated(Removal("n", "i-1", KIND.key, "dear", NOW, NOW, pods=(P,), needs=("o-0",), to=("",)))


@pytest.mark.parametrize(
    ("items", "ledger"),
    [
        ((), Ledger()),
        ((machine(provider_id=""),), Ledger()),
        ((machine(labels={"gpuscaler.io/pool": "theirs"}),), Ledger()),
        ((machine(),), Ledger(leaving=(going(DRAINING),))),
        ((machine(),), Ledger(coming=(OrderedMachine("o-0", "o", (KIND.key,), 1.0, NOW, node="n"),))),
    ],
    ids=["gone", "no machine is known", "not ours", "under way", "arriving"],
)
def test_no_removal_begins_if_the_machine_of_the_node_is_ambiguous(items: tuple[Item, ...], ledger: Ledger) -> None:
    assert begun(*items, ledger=ledger) == []


def test_an_ordered_machine_that_never_registered_is_ended_at_once() -> None:
    late = OrderedMachine("o-0", "o", (KIND.key,), 1.0, NOW, instance="i-1")

    assert remove_overdue(Overdue(late, "too late"), NOW).removal == Removal("i-1", "i-1", KIND.key, "too late", NOW, NOW, ENDING)


# Random cases


@st.composite
def removals_and_nodes(draw: st.DrawFn) -> tuple[Removal, list[Item]]:
    """A removal at any step, and a possible view of its node and its pods."""
    removal = going(
        draw(st.sampled_from(STEPS)),
        needs=draw(st.sampled_from(((), ("o-0",)))),
        pods=(P,),
        since=NOW - draw(st.sampled_from((1.0, 700.0, 3000.0))),
        tried=NOW - draw(st.sampled_from((1.0, 100.0))),
    )
    if draw(st.integers(0, 4)) == 0:
        return removal, []
    pods = [
        resident(name, deleted=NOW * draw(st.booleans()), options={"do_not_disrupt": draw(st.booleans())})
        for name in draw(st.lists(st.sampled_from("pqr"), max_size=3, unique=True))
    ]
    return removal, [machine(marked=draw(st.booleans())), *pods]


@given(removals_and_nodes(), st.booleans())
def test_machines_with_pods_are_not_ended_and_open_nodes_not_drained(sight: tuple[Removal, list[Item]], is_gone: bool) -> None:
    removal, items = sight
    departure = turn(removal, *items, is_gone=is_gone)
    acts = {type(act) for act in departure.acts}

    if len(items) > 1 and removal.step != ENDING:
        assert End not in acts
    if Evict in acts:
        assert isinstance(items[0], Node)
        assert items[0].taints == LEAVING
        assert removal.step == DRAINING or not removal.needs
    if departure.kept:
        assert acts <= {Unmark}


def test_an_interrupted_machine_that_lost_its_taint_is_tainted_again_during_the_drain() -> None:
    """Without the taint an evicted pod may return to the same machine and be evicted repeatedly."""
    removal = going(DRAINING, forced=True, ends=NOW + 60.0, tried=NOW - REPEAT_SECONDS)
    acts = turn(removal, machine(marked=False), resident()).acts

    assert Mark("n", "idle") in acts
    assert [type(act) for act in acts if not isinstance(act, Mark)] == [Evict]
    again = going(DRAINING, forced=True, ends=NOW + 60.0, tried=NOW - 1.0)
    assert not any(isinstance(act, Mark) for act in turn(again, machine(marked=False), resident()).acts)
