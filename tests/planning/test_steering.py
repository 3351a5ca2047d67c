"""How arriving machines open: who is nominated, what is lifted, whose promise is kept or broken."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.planning.building import NOW, ZONE, node, offering, pod, pool, spec, spread

from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod, PodSpec, VolumeUse
from gpuscaler.model.pools import Policy
from gpuscaler.model.taints import Taint
from gpuscaler.planning.acts import Close, Lift, Nominate
from gpuscaler.planning.opening import CALM_SECONDS, UNWANTED_SECONDS
from gpuscaler.planning.plans import Placement
from gpuscaler.planning.state import ledger, promises, refusals
from gpuscaler.planning.state.ledger import CLOSING, NOMINATING, OPEN, Coming, Ledger, Promise
from gpuscaler.planning.steering import (
    PATIENCE_SECONDS,
    REPEAT_SECONDS,
    Steering,
    promised_on,
    steer,
)
from gpuscaler.planning.yielding import overtaken

KIND = offering("g.4", gpus=4)
POLICY = Policy((pool(KIND),))
KEEPING = Policy((pool(KIND, min_gpus_per_pod=2),))
ARRIVING = (Taint("gpuscaler.io/arriving"),)
P, Q = "default/p", "default/q"


def machine(name: str = "a", *pods: str, **more: Any) -> Coming:
    """A machine of the ledger whose node of the same name is ready."""
    fields: dict[str, Any] = {"offering": KIND.key, "instance": f"i-{name}", "granted": 2.0, "node": name, "registered": 3.0, "ready": 4.0}
    return Coming(f"o-{name}", "o", (KIND.key,), 1.0, 1.0, pods=pods, **(fields | more))


def closed(name: str = "a", **more: Any) -> Node:
    return node(name, KIND, **{"taints": ARRIVING, "provider_id": f"i-{name}", **more})


def waiting(name: str = "p", of: PodSpec | None = None, **more: Any) -> Pod:
    return pod(name, of, **{"uid": f"uid-{name}", "unschedulable": True, **more})


def turn(book: Ledger, *items: Item, policy: Policy = POLICY, tried: float | None = None, said: str = "", anybody: float = 0.0) -> Steering:
    attempts = {} if tried is None else {P: tried}
    return steer(book, Cluster.of(items), policy, attempts=attempts, said={P: said}, tried=anybody, now=NOW)


def after(book: Ledger, found: Steering) -> Ledger:
    return ledger.folded(book, found.steps)


def promise(step: str = NOMINATING, **more: Any) -> Promise:
    return Promise(**{"node": "a", "offering": KIND.key, "pods": (P,), "since": NOW - 1.0, "step": step, **more})


# Nominating


def test_pods_of_a_ready_machine_are_nominated_before_its_taint_is_lifted() -> None:
    found = turn(Ledger(coming=(machine("a", P),)), closed(), waiting())

    assert found.acts == (Nominate(P, "uid-p", "a"),)
    (kept,) = after(Ledger(coming=(machine("a", P),)), found).promises
    assert (kept.step, kept.pods) == (NOMINATING, (P,))


def test_the_taint_is_lifted_once_every_nomination_shows() -> None:
    book = Ledger(coming=(machine("a", P, Q),), promises=(promise(pods=(P, Q), nominated=NOW - 0.5, stood=NOW - CALM_SECONDS),))
    fresh = replace(book, promises=(promise(pods=(P, Q), nominated=NOW - 0.1),))
    one, both = waiting("p", nominated_node="a"), waiting("q", nominated_node="a")

    assert turn(fresh, closed(), one, waiting("q")).acts == ()
    seen = turn(fresh, closed(), one, both)
    assert seen.acts == ()
    assert after(fresh, seen).promises[0].stood == NOW, "it is from now on that they stand"
    again = (Nominate(P, "uid-p", "a"), Nominate(Q, "uid-q", "a"))
    assert turn(book, closed(), one, both).acts == (Lift("a", "it is ready, and 2 pods are nominated to it", again),)


def test_a_nomination_that_does_not_show_is_written_again_soon_and_later_where_many_are_missing() -> None:
    book = Ledger(coming=(machine("a", P),), promises=(promise(nominated=NOW - 0.5),))
    others = [waiting(f"other-{number}") for number in range(20)]
    busy = replace(book, promises=(*book.promises, promise(node="b", pods=tuple(one.key for one in others), nominated=NOW)))

    assert turn(book, closed(), waiting()).acts == (Nominate(P, "uid-p", "a"),)
    assert turn(busy, closed(), closed("b"), waiting(), *others).acts == ()


@pytest.mark.parametrize("space", ["default", "elsewhere"])
def test_who_waits_on_an_open_machine_for_those_of_another_to_come_is_nominated_again_before_that_opens(space: str) -> None:
    """Once they have, whoever of those that spread with them is tried first would take his room."""
    left = waiting("left", spec(gpus=1, spread=(spread(ZONE, app="x"),), namespace=space), labels={"app": "x"})
    plain = waiting("plain", spec(gpus=1))
    ahead = promise(OPEN, node="n", pods=(left.key, plain.key), since=NOW - 30.0, nominated=NOW - 1.0)
    book = Ledger(coming=(machine("a", P),), promises=(ahead, promise(nominated=NOW - 9.0, stood=NOW - 9.0, called=NOW - 1.0)))
    items = (node("n", KIND), closed(), left, plain)
    mine = [Nominate(left.key, "uid-left", "n")] if space == "default" else []

    assert turn(book, *items, waiting()).acts == (*[Nominate(P, "uid-p", "a")], *mine)
    (lift,) = turn(book, *items, waiting(nominated_node="a")).acts
    assert isinstance(lift, Lift)
    assert lift.nominations == (Nominate(P, "uid-p", "a"), *mine)
    full = pod("full", spec(gpus=4), on="n")
    (lift,) = turn(book, *items, full, waiting(nominated_node="a")).acts
    assert isinstance(lift, Lift)
    assert lift.nominations == (Nominate(P, "uid-p", "a"),)


def test_nominations_that_do_not_show_are_written_again_and_not_for_ever() -> None:
    late = Ledger(coming=(machine("a", P),), promises=(promise(nominated=NOW - REPEAT_SECONDS),))
    too_late = Ledger(coming=(machine("a", P),), promises=(promise(called=NOW - PATIENCE_SECONDS, nominated=NOW - 1.0),))

    assert turn(late, closed(), waiting()).acts == (Nominate(P, "uid-p", "a"),)
    assert [type(act) for act in turn(too_late, closed(), waiting()).acts] == [Lift]


@pytest.mark.parametrize("others", [(), (waiting(deleted=NOW),), (pod("p", on="b"),)], ids=["gone", "deleted", "elsewhere"])
def test_a_machine_for_which_nobody_waits_any_more_opens_once_a_plan_could_have_had_others_for_it(others: tuple[Pod, ...]) -> None:
    book = Ledger(coming=(machine("a", P),))
    book = after(book, (found := turn(book, closed(), *others)))
    assert found.acts == ()
    later = replace(book, promises=tuple(replace(one, since=NOW - UNWANTED_SECONDS) for one in book.promises))

    assert turn(later, closed(), *others).acts == (Lift("a", "it is ready, and nobody waits for it"),)
    assert turn(replace(later, coming=(machine("a", Q),)), closed(), *others, waiting("q")).acts == (Nominate(Q, "uid-q", "a"),)


def test_a_machine_that_is_not_ready_stays_closed() -> None:
    assert turn(Ledger(coming=(machine("a", P, ready=0.0),)), closed(), waiting()) == Steering()


def test_a_machine_without_our_taint_is_open_and_its_pods_are_awaited_all_the_same() -> None:
    book = Ledger(coming=(machine("a", P),))
    left = after(book, turn(book, closed(taints=()), waiting()))

    assert left.coming == ()
    assert [(one.step, one.pods) for one in left.promises] == [(OPEN, (P,))]


def test_when_the_taint_is_seen_gone_the_machine_is_a_node_like_others() -> None:
    book = Ledger(coming=(machine("a", P),), promises=(promise(),))
    left = after(book, turn(book, closed(taints=()), waiting(nominated_node="a")))

    assert left.coming == ()
    assert [(one.step, one.since) for one in left.promises] == [(OPEN, NOW)]


def test_who_is_planned_onto_a_machine_while_it_is_closed_is_nominated_to_it_and_who_is_planned_elsewhere_is_not() -> None:
    book = Ledger(coming=(machine("a", P, Q), machine("b", P, ready=0.0)), promises=(promise(),))
    moved = replace(book, coming=(machine("a", Q), machine("b", P, ready=0.0)))

    assert turn(book, closed(), waiting("p"), waiting("q")).acts == (Nominate(P, "uid-p", "a"), Nominate(Q, "uid-q", "a"))
    assert turn(moved, closed(), waiting("p"), waiting("q")).acts == (Nominate(Q, "uid-q", "a"),)


# Keeping promises


def test_a_pod_that_is_bound_where_it_was_promised_is_a_promise_kept() -> None:
    found = turn(Ledger(promises=(promise(OPEN),)), closed(taints=()), waiting(on="a"))

    assert found.outcomes == (promises.Kept(KIND.key, spec(gpus=1).digest, NOW),)
    assert found.steps == (ledger.Redeemed("a"),)


def test_a_pod_that_is_bound_elsewhere_is_a_stray() -> None:
    found = turn(Ledger(promises=(promise(OPEN),)), closed(taints=()), waiting(on="b"))

    assert (found.outcomes, found.stray) == ((), (P,))


def test_a_nomination_that_a_failed_attempt_has_cleared_is_written_again() -> None:
    found = turn(Ledger(promises=(promise(OPEN, nominated=NOW - REPEAT_SECONDS),)), closed(taints=()), waiting())

    assert found.acts == (Nominate(P, "uid-p", "a"),)


def test_it_is_written_again_the_rarer_the_longer_the_pod_could_have_been_bound() -> None:
    fresh, old = promise(OPEN, since=NOW - 1.0, nominated=NOW - 0.5), promise(OPEN, since=NOW - 20.0, nominated=NOW - 0.5)

    assert turn(Ledger(promises=(fresh,)), closed(taints=()), waiting()).acts == (Nominate(P, "uid-p", "a"),)
    assert turn(Ledger(promises=(old,)), closed(taints=()), waiting()).acts == ()


def test_who_has_lost_his_room_to_others_is_awaited_no_more_and_his_nomination_is_not_written_again() -> None:
    book = Ledger(promises=(promise(OPEN, nominated=NOW - REPEAT_SECONDS),))
    thief = pod("thief", spec(gpus=4), on="a")
    found = turn(book, closed(taints=()), waiting(), thief)

    assert (found.acts, found.outcomes, found.stray) == ((), (), (P,))
    assert after(book, found).promises == ()
    # A nomination that stands is no proof of room: the scheduler has not tried yet.
    assert turn(book, closed(taints=()), waiting(nominated_node="a"), replace(thief, deleted=NOW)).stray == ()


def test_a_pod_that_is_promised_another_machine_by_now_is_not_awaited_on_the_first() -> None:
    book = Ledger(promises=(promise(OPEN), promise(node="b")))
    found = turn(book, closed(taints=()), closed("b"), waiting())

    assert [one.node for one in after(book, found).promises] == ["b"]


def test_a_minute_and_a_newer_attempt_later_the_promise_is_broken_in_the_schedulers_words() -> None:
    book = Ledger(promises=(promise(OPEN, since=NOW - 60.0),))
    found = turn(book, closed(taints=()), waiting(nominated_node="a"), tried=NOW - 5.0, said="0/1 nodes: Insufficient cpu.")

    (broken,) = found.outcomes
    assert isinstance(broken, promises.Broken)
    assert (broken.pod, broken.node, broken.why) == (P, "a", "0/1 nodes: Insufficient cpu.")
    assert found.suspected == (refusals.Suspected(P, "a", NOW - 60.0),)
    assert after(book, found).broken == ((P, "a"),)
    # It would hold room for a pod that does not come.
    assert found.acts == (Nominate(P, "uid-p", ""),)


@pytest.mark.parametrize(("since", "tried"), [(59.0, 1.0), (100.0, 101.0), (100.0, None)])
def test_before_that_the_promise_stands(since: float, tried: float | None) -> None:
    book = Ledger(promises=(promise(OPEN, since=NOW - since),))
    found = turn(book, closed(taints=()), waiting(nominated_node="a"), tried=None if tried is None else NOW - tried)

    assert found == Steering()


@pytest.mark.parametrize("items", [(), (closed(deleted=NOW),)], ids=["gone", "being deleted"])
def test_a_node_that_goes_owes_nothing(items: tuple[Node, ...]) -> None:
    assert turn(Ledger(promises=(promise(OPEN),)), *items, waiting()).steps == (ledger.Redeemed("a"),)


def test_a_broken_promise_is_of_no_consequence_once_its_nomination_is_gone() -> None:
    book = Ledger(broken=((P, "a"), (Q, "a")))
    found = turn(book, closed(taints=()), waiting("p"), waiting("q", nominated_node="a"))

    assert found.steps == (ledger.Mended(P),)
    assert found.acts == (Nominate(Q, "uid-q", ""),)


# Machines kept for large pods, and machines of others


def test_a_machine_kept_for_large_pods_is_closed_again_once_they_have_come() -> None:
    book = Ledger(promises=(promise(OPEN, closes=True),))
    found = turn(book, closed(taints=()), waiting(on="a"), policy=KEEPING)

    assert [type(act) for act in found.acts] == [Close]
    assert [one.step for one in after(book, found).promises] == [CLOSING]
    assert turn(after(book, found), closed(), waiting(on="a"), policy=KEEPING).steps == (ledger.Redeemed("a"),)


def test_pods_planned_onto_a_closed_machine_of_such_a_pool_are_promised_it() -> None:
    cluster = Cluster.of([closed("a"), closed("b")])
    placements = (Placement(P, "a"), Placement(Q, "b"))
    busy = Ledger(promises=(promise(OPEN, node="b"),))

    assert promised_on(busy, cluster, POLICY, placements, NOW) == ()
    (made,) = promised_on(busy, cluster, KEEPING, placements, NOW)
    assert isinstance(made, ledger.Promised)
    assert (made.promise.node, made.promise.pods, made.promise.closes) == ("a", (P,), True)


def test_a_ready_machine_that_nobody_here_bought_is_opened_unless_its_pool_keeps_it() -> None:
    assert turn(Ledger(), closed()).acts == (Lift("a", "it is ready, and no plan waits for it"),)
    assert turn(Ledger(), closed(ready=False)).acts == ()
    assert turn(Ledger(), closed(), policy=KEEPING).acts == ()


def test_a_machine_of_the_ledger_is_nobody_elses_though_its_node_is_not_noted_yet() -> None:
    coming = machine("a", P, node="", registered=0.0, ready=0.0)

    assert turn(Ledger(coming=(coming,)), closed(), waiting()).acts == ()


# The oldest of equal pods


def test_the_oldest_of_equal_pods_takes_the_seat_and_the_younger_waits_for_the_other_machine() -> None:
    book = Ledger(coming=(machine("a", P), machine("b", Q, ready=0.0)))
    found = turn(book, closed("a"), closed("b"), waiting("p", created=NOW - 10.0), waiting("q", created=NOW - 20.0))

    assert found.acts == (Nominate(Q, "uid-q", "a"),)
    assert [one.pods for one in after(book, found).coming] == [(Q,), (P,)]


@pytest.mark.parametrize(
    "other",
    [
        {"of": spec(gpus=2)},
        {"labels": {"app": "x"}},
        {"options": {"market": ("spot",)}},
        {"options": {"gang": "g"}},
        {"created": NOW - 5.0},
        {"deleted": NOW},
        {"phase": "Failed"},
        {"on": "c"},
        {"unschedulable": None},
        {"nominated_node": "c"},
    ],
    ids=["size", "labels", "options", "gang", "younger", "deleted", "finished", "bound", "not tried yet", "nominated"],
)
def test_no_other_pod_takes_the_seat(other: dict[str, Any]) -> None:
    pods = [waiting("p", created=NOW - 10.0), waiting("q", **{"created": NOW - 20.0, **other})]

    assert overtaken(pods[:1], Cluster.of(pods), busy=frozenset()) == ()


def test_a_pod_that_has_its_place_or_a_volume_of_its_own_changes_with_nobody() -> None:
    pods = [waiting("p", created=NOW - 10.0), waiting("q", created=NOW - 20.0)]
    assert overtaken(pods[:1], Cluster.of(pods), busy=frozenset({Q})) == ()

    own = spec(gpus=1, volumes=(VolumeUse(claim="data", ephemeral=True),))
    bound = [waiting("p", own, created=NOW - 10.0), waiting("q", own, created=NOW - 20.0)]
    assert overtaken(bound[:1], Cluster.of(bound), busy=frozenset()) == ()


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab")), max_size=12), st.integers(0, 12))
def test_whoever_is_exchanged_is_younger_and_alike(ages: list[tuple[int, str]], many: int) -> None:
    pods = [waiting(f"p{n}", labels={"app": app}, created=NOW - age) for n, (age, app) in enumerate(ages)]
    by_key = {one.key: one for one in pods}
    mine = pods[:many]
    pairs = overtaken(mine, Cluster.of(pods), busy=frozenset())

    assert len({key for pair in pairs for key in pair}) == 2 * len(pairs)
    assert all(old in {one.key for one in mine} and new not in {one.key for one in mine} for old, new in pairs)
    assert all(by_key[old].labels == by_key[new].labels for old, new in pairs)
    seated = ({one.key for one in mine} - {old for old, _ in pairs}) | {new for _, new in pairs}
    for app in ("a", "b"):
        same = [one for one in pods if one.labels == LabelSet({"app": app})]
        youngest = max((one.created for one in same if one.key in seated), default=0.0)
        assert all(one.created >= youngest for one in same if one.key not in seated)


def test_of_one_age_nobody_changes() -> None:
    pods = [waiting("q"), waiting("p")]

    assert overtaken(pods[:1], Cluster.of(pods), busy=frozenset()) == ()
