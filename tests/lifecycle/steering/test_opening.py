"""How arriving machines open: binding, nomination, removed taints, kept and broken promises."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.planning.building import NOW, near, node, offering, pod, pool, spec

from gpuscaler.lifecycle.actions import Bind, Close, Lift, Nominate
from gpuscaler.lifecycle.observed.promised_pods import find_overtaken, pending_by_kind
from gpuscaler.lifecycle.steering.binding import MARGIN_SECONDS, NOMINATED_SECONDS, PATIENCE_SECONDS, UNWANTED_SECONDS
from gpuscaler.lifecycle.steering.opening import REPEAT_SECONDS, Steering, promised_on, steer, still_closed
from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.labels import LabelSet
from gpuscaler.model.nodes import Node
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pods import Pod, PodSpec, SpreadConstraint, VolumeUse
from gpuscaler.model.pools import NOMINATE, OFF, Policy, Pool
from gpuscaler.model.selectors import LabelSelector
from gpuscaler.model.taints import Taint
from gpuscaler.model.well_known import HOSTNAME, ZONE_LABELS
from gpuscaler.planning.plans import Placement
from gpuscaler.planning.state import node_refusals, promises
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.entries import Removal
from gpuscaler.planning.state.ledger.ledger import CLOSING, NOMINATING, OPEN, Ledger, OrderedMachine, Promise

KIND = offering("g.4", gpus=4)
POLICY = Policy((pool(KIND),))
NOMINATING_POLICY = Policy((pool(KIND),), steering=NOMINATE)
KEEPING = Policy((pool(KIND, min_gpus_per_pod=2),))
THREE = replace(KIND, instance_type="s.3", allocatable={**KIND.allocatable, "nvidia.com/gpu": 3})
GPUS = {"nvidia.com/gpu": 4}
ARRIVING = (Taint("gpuscaler.io/arriving"),)
P, Q = "default/p", "default/q"


def machine(name: str = "a", *pods: str, **more: Any) -> OrderedMachine:
    """A machine of the ledger whose node of the same name is ready."""
    fields: dict[str, Any] = {"offering": KIND.key, "instance": f"i-{name}", "granted": 2.0, "node": name, "registered": 3.0, "ready": 4.0}
    return OrderedMachine(f"o-{name}", "o", (KIND.key,), 1.0, 1.0, pods=pods, **(fields | more))


def closed(name: str = "a", **more: Any) -> Node:
    return node(name, KIND, **{"taints": ARRIVING, "provider_id": f"i-{name}", **more})


def waiting(name: str = "p", of: PodSpec | None = None, **more: Any) -> Pod:
    return pod(name, of, **{"uid": f"uid-{name}", "unschedulable": True, **more})


def turn(ledger: Ledger, *items: Item, policy: Policy = POLICY, tried: float | None = None, message: str = "") -> Steering:
    attempts = {} if tried is None else {P: tried}
    return steer(ledger, Cluster.of(items), policy, attempts=attempts, messages={P: message}, now=NOW)


def why(ledger: Ledger, *items: Item, policy: Policy = POLICY) -> str:
    return still_closed(ledger, Cluster.of(items), policy, nominating=frozenset(), now=NOW).get("a", "")


def bind(name: str, node: str = "a") -> Bind:
    return Bind(f"default/{name}", f"uid-{name}", node, GPUS)


def after(current: Ledger, steering: Steering) -> Ledger:
    return ledger.fold_events(current, steering.steps)


def promise(step: str = NOMINATING, **more: Any) -> Promise:
    return Promise(**{"node": "a", "offering": KIND.key, "pods": (P,), "since": NOW - 1.0, "step": step, **more})


# Binding


def test_the_promised_pods_are_bound_while_their_ready_machine_is_closed() -> None:
    ledger = Ledger(coming=(machine("a", P),))
    steering = turn(ledger, closed(), waiting())

    assert steering.acts == (bind("p"),)
    (kept,) = after(ledger, steering).promises
    assert (kept.step, kept.pods, kept.sent, kept.nominated) == (NOMINATING, (P,), (P,), NOW)


def test_all_ready_machines_get_their_pods_in_one_pass() -> None:
    ledger = Ledger(coming=tuple(machine(name, f"default/p{name}") for name in "abc"))
    steering = turn(ledger, *map(closed, "abc"), *(waiting(f"p{name}", spec(gpus=4)) for name in "abc"))

    assert steering.acts == tuple(bind(f"p{name}", name) for name in "abc")


@pytest.mark.parametrize(("sent", "acts"), [(1.0, ()), (REPEAT_SECONDS, (bind("p"),))])
def test_a_binding_missing_from_the_cluster_is_sent_again(sent: float, acts: tuple[Bind, ...]) -> None:
    ledger = Ledger(coming=(machine("a", P),), promises=(promise(sent=(P,), nominated=NOW - sent),))

    assert turn(ledger, closed(), waiting()).acts == acts
    assert why(ledger, closed(), waiting()) == "the binding of pod default/p was sent but is not visible yet"


@pytest.mark.parametrize(("stood", "opens"), [(MARGIN_SECONDS / 2, False), (MARGIN_SECONDS, True)])
def test_a_machine_opens_shortly_after_its_bindings_show(stood: float, opens: bool) -> None:
    ledger = Ledger(coming=(machine("a", P),), promises=(promise(sent=(P,), pods=(), nominated=NOW - 3.0, pods_ready_at=NOW - stood),))
    steering = turn(ledger, closed(), waiting(on="a"))

    assert steering.acts == ((Lift("a", "it is ready, and its pods are bound"),) if opens else ())
    assert bool(why(ledger, closed(), waiting(on="a"))) != opens


ZONE = ZONE_LABELS[0]
SPREAD = SpreadConstraint(ZONE, selector=LabelSelector())


@pytest.mark.parametrize(
    ("other", "opens"),
    [
        (spec(gpus=1, spread=(SPREAD,)), False),
        (spec(gpus=1, affinity=(near(ZONE),)), False),
        (spec(gpus=1, spread=(replace(SPREAD, hard=False),)), True),
        (spec(gpus=1), True),
        (spec(gpus=4, spread=(SPREAD,)), True),
    ],
    ids=["spread", "near another", "spread as a wish", "plain", "too large for what is left"],
)
def test_a_machine_stays_closed_to_a_pod_that_would_invalidate_the_plan_for_others(other: PodSpec, *, opens: bool) -> None:
    """If the machine were open, kube-scheduler would bind the pod in a zone planned for another pod, which would need one more machine."""
    opening = promise(sent=(P,), pods=(), nominated=NOW - 3.0, pods_ready_at=NOW - MARGIN_SECONDS)
    ledger = Ledger(coming=(machine("a", P), machine("b", Q, node="", registered=0.0, ready=0.0)), promises=(opening,))
    items = closed(), waiting(on="a"), waiting("q", other)

    assert bool(turn(ledger, *items).acts) == opens
    assert ("default/q is planned on another node" in why(ledger, *items)) != opens
    bound = node("b", KIND), waiting("q", other, on="b")
    assert turn(ledger, closed(), waiting(on="a"), *bound).acts == (Lift("a", "it is ready, and its pods are bound"),)


def test_a_promise_counts_as_kept_once_its_pod_is_bound_even_before_the_machine_opens() -> None:
    ledger = Ledger(coming=(machine("a", P),), promises=(promise(sent=(P,), nominated=NOW - 1.0),))
    steering = turn(ledger, closed(), waiting(on="a"))

    assert steering.outcomes == (promises.Kept(KIND.key, spec(gpus=1).digest, NOW),)
    assert steering.acts == ()
    assert [(promise.pods, promise.pods_ready_at) for promise in after(ledger, steering).promises] == [((), NOW)]


def test_nothing_is_bound_to_a_machine_whose_device_plugin_restarts() -> None:
    ledger = Ledger(coming=(machine("a", P),))
    bare = closed(allocatable={**KIND.allocatable, "nvidia.com/gpu": 0})

    assert turn(ledger, bare, waiting()).acts == ()
    assert why(ledger, bare, waiting()) == "it shows no nvidia.com/gpu: is its device plugin running?"


def test_a_promised_pod_that_no_longer_fits_a_closed_machine_is_planned_again() -> None:
    ledger = Ledger(coming=(machine("a", P),))
    steering = turn(ledger, closed(), waiting(of=spec(gpus=2)), pod("thief", spec(gpus=3), on="a"))

    assert (steering.acts, steering.stray) == ((), (P,))
    (left,) = after(ledger, steering).promises
    assert (left.pods, left.abandoned_at) == ((), NOW)
    assert turn(after(ledger, steering), closed()).acts == (Lift("a", "no pod waits for it"),)


@pytest.mark.parametrize(("priority", "first"), [(0, "p"), (10, "urgent")])
def test_a_pending_pod_of_higher_priority_is_bound_before_the_promised_pods(priority: int, first: str) -> None:
    ledger = Ledger(coming=(machine("a", P),))
    steering = turn(ledger, closed(), waiting(of=spec(gpus=4)), waiting("urgent", spec(gpus=4, priority=priority)))

    assert steering.acts == (bind(first),)


def test_two_promised_pods_with_affinity_to_each_other_are_bound_in_one_pass() -> None:
    """A binding counts for the affinity of the pods that are bound after it in the same turn."""
    lead = waiting("p", spec(gpus=1), labels={"app": "lead"})
    beside = waiting("q", spec(gpus=1, affinity=(near(HOSTNAME, app="lead"),)))
    ledger = Ledger(coming=(machine("a", Q, P),))

    assert turn(ledger, closed(), lead, beside).acts == (bind("p"), bind("q"))


def test_a_pod_that_needs_another_pod_keeps_its_promise_for_a_limited_time() -> None:
    beside = waiting("q", spec(gpus=1, affinity=(near(HOSTNAME, app="lead"),)))
    ledger = Ledger(coming=(machine("a", Q),), promises=(promise(pods=(Q,)),))
    late = Ledger(coming=(machine("a", Q),), promises=(promise(pods=(Q,), since=NOW - PATIENCE_SECONDS),))

    assert turn(ledger, closed(), beside) == Steering()
    assert (
        why(ledger, closed(), beside)
        == "pod default/q is not admitted yet: no pod matching the pod affinity is in the same kubernetes.io/hostname (InterPodAffinity)"
    )
    assert turn(late, closed(), beside).stray == (Q,)


def test_a_closed_machine_that_stops_being_ready_opens_and_its_pods_are_planned_again() -> None:
    ill = closed(ready=False)
    ledger = Ledger(coming=(machine("a", P),), promises=(promise(pods=(P,)),))
    late = Ledger(coming=(machine("a", P),), promises=(promise(pods=(P,), since=NOW - PATIENCE_SECONDS),))

    assert turn(ledger, ill, waiting()) == Steering()
    steering = turn(late, ill, waiting())
    assert steering.stray == (P,)
    assert turn(after(late, steering), ill).acts == (Lift("a", "no pod waits for it"),)


@pytest.mark.parametrize(
    ("pool_", "spec_"),
    [
        (pool(KIND, min_gpus_per_pod=4), spec(gpus=3, priority=10)),
        (pool(KIND, THREE, closed=True), spec(gpus=3, priority=10)),
        (pool(KIND), spec(gpus=4, priority=5)),
    ],
    ids=["too small for a kept machine", "too small for a machine of a closed pool", "less important than one of those that wait"],
)
def test_a_pod_that_cannot_go_first_takes_no_place_of_a_promised_pod(pool_: Pool, spec_: PodSpec) -> None:
    ledger = Ledger(coming=(machine("a", P, Q),))
    first, last = waiting("p", spec(gpus=4, priority=7)), waiting("q", spec(gpus=0, cpu=1))
    steering = turn(ledger, closed(), first, last, waiting("stranger", spec_), policy=Policy((pool_,)))

    assert steering.acts == (bind("p"), bind("q"))


def test_nothing_is_bound_to_a_machine_that_is_being_removed() -> None:
    leaving = (Removal("a", "i-a", KIND.key, "", NOW, NOW),)
    ledger = Ledger(coming=(machine("a", P),), leaving=leaving)

    assert turn(ledger, closed(), waiting()).acts == ()
    assert turn(Ledger(coming=(machine("a", P),)), closed(taints=(*ARRIVING, Taint("gpuscaler.io/leaving"))), waiting()).acts == ()


def test_an_untolerated_taint_breaks_the_promise_after_a_while() -> None:
    tainted = closed(taints=(*ARRIVING, Taint("agent")))
    late = Ledger(coming=(machine("a", P),), promises=(promise(pods=(P,), since=NOW - PATIENCE_SECONDS),))

    assert "agent" in why(Ledger(coming=(machine("a", P),)), tainted, waiting())
    (outcome,) = turn(late, tainted, waiting()).outcomes
    assert isinstance(outcome, promises.Broken)
    assert "agent" in outcome.why


def test_a_gang_is_not_bound_while_it_lacks_machines() -> None:
    gang: dict[str, Any] = {"options": {"gang": "g", "gang_size": 3}}
    ledger = Ledger(coming=(machine("a", P), machine("b", Q)))
    items = closed(), closed("b"), waiting("p", **gang), waiting("q", **gang)

    assert turn(ledger, *items).acts == ()
    assert turn(ledger, *items, waiting("third", **gang)).acts == ()
    assert turn(ledger, *items, node("c", KIND), pod("third", on="c", **gang)).acts == (bind("p"), bind("q", "b"))
    failed = pod("third", on="c", phase="Failed", **gang)
    assert turn(ledger, *items, node("c", KIND), failed).acts == (), "a pod of an earlier try"


def test_gang_members_with_affinity_to_another_member_are_bound_together() -> None:
    gang: dict[str, Any] = {"options": {"gang": "g", "gang_size": 2}}
    ledger = Ledger(coming=(machine("a", P), machine("b", Q)))
    beside = waiting("p", spec(affinity=(near("zone", app="lead"),)), **gang)
    zoned: dict[str, Any] = {"labels": {"zone": "z"}}

    steering = turn(ledger, closed(**zoned), closed("b", **zoned), beside, waiting("q", labels={"app": "lead"}, **gang))
    assert steering.acts == (bind("p"), bind("q", "b"))


def test_a_machine_with_running_gang_members_opens_although_more_are_pending() -> None:
    gang: dict[str, Any] = {"options": {"gang": "g", "gang_size": 1}}
    sent = promise(sent=(P,), nominated=NOW - 9.0, pods_ready_at=NOW - 9.0)
    ledger = Ledger(coming=(machine("a", P, gang="default/g"),), promises=(sent,))

    assert turn(ledger, closed(), pod("p", on="a", **gang), waiting("q", **gang)).acts == (
        Lift("a", "it is ready, and its pods are bound"),
    )


def test_a_machine_stays_closed_while_other_gang_members_lack_a_machine() -> None:
    """If it opened, one pod of the gang would run there without the others."""
    gang: dict[str, Any] = {"options": {"gang": "g", "gang_size": 2}}
    ledger = Ledger(coming=(machine("a", gang="default/g"),), promises=(promise(pods=(), abandoned_at=NOW - 9.0, pods_ready_at=NOW - 9.0),))
    assert turn(ledger, closed(), waiting("q", **gang)).acts == ()
    late = (promise(pods=(), abandoned_at=NOW - 9.0, pods_ready_at=NOW - 9.0, since=NOW - PATIENCE_SECONDS),)
    ledger = replace(ledger, promises=late)
    steering = turn(ledger, closed(), waiting("q", **gang))

    assert (steering.acts, after(ledger, steering).promises) == ((), ())
    assert turn(after(ledger, steering), closed(), waiting("q", **gang)).acts == ()
    assert why(after(ledger, steering), closed(), waiting("q", **gang)) == "there is no room for the other pods of gang default/g"


@pytest.mark.parametrize(("ready", "acts"), [(0.0, ()), (4.0, (bind("p"), bind("q", "b")))])
def test_a_gang_is_bound_when_all_its_machines_are_ready(ready: float, acts: tuple[Bind, ...]) -> None:
    ledger = Ledger(coming=(machine("a", P), machine("b", Q, ready=ready)))
    gang: dict[str, Any] = {"options": {"gang": "g"}}
    items = closed(), closed("b"), waiting("p", **gang), waiting("q", **gang)

    assert turn(ledger, *items).acts == acts
    assert ready or why(ledger, *items) == "other machines of gang default/g are not ready"


def test_no_gang_member_is_bound_if_one_does_not_fit() -> None:
    gang: dict[str, Any] = {"options": {"gang": "g"}}
    ledger = Ledger(coming=(machine("a", P), machine("b", Q)))
    items = closed(), closed("b"), waiting("p", **gang), waiting("q", spec(gpus=4), **gang), pod("thief", spec(gpus=1), on="b")
    steering = turn(ledger, *items)

    assert (steering.acts, steering.stray) == ((), (Q,))


# Leaving pods to their scheduler


def test_pods_of_other_schedulers_are_nominated_once_before_their_machine_opens() -> None:
    ledger = Ledger(coming=(machine("a", P),))
    steering = turn(ledger, closed(), waiting(), policy=NOMINATING_POLICY)
    named = after(ledger, steering)

    assert steering.acts == (Nominate(P, "uid-p", "a"),)
    assert turn(named, closed(), waiting(), policy=NOMINATING_POLICY).acts == ()
    assert why(named, closed(), waiting(), policy=NOMINATING_POLICY) == "the nomination of pod default/p was written but is not visible yet"
    opened = turn(named, closed(), waiting(nominated_node="a"), policy=NOMINATING_POLICY)
    assert opened.acts == (Lift("a", "it is ready, and 1 pod is left to the scheduler"),)
    late = replace(
        named,
        promises=tuple(
            replace(promise, nominated=NOW - NOMINATED_SECONDS, pods_ready_at=NOW - NOMINATED_SECONDS) for promise in named.promises
        ),
    )
    assert [type(act) for act in turn(late, closed(), waiting(), policy=NOMINATING_POLICY).acts] == [Lift]


def test_a_machine_without_its_devices_stays_closed_for_pods_of_other_schedulers_too() -> None:
    bare = closed(allocatable={**KIND.allocatable, "nvidia.com/gpu": 0})
    ledger = Ledger(coming=(machine("a", P),), promises=(promise(pods=(P,), pods_ready_at=NOW - 9.0),))

    assert turn(ledger, bare, waiting(), policy=NOMINATING_POLICY).acts == ()
    assert why(ledger, bare, waiting(), policy=NOMINATING_POLICY) == "it shows no nvidia.com/gpu: is its device plugin running?"


def test_pods_are_nominated_after_the_bindings_show() -> None:
    left = waiting("q", options={"steering": NOMINATE})
    ledger = Ledger(coming=(machine("a", P, Q),))
    sent = after(ledger, (steering := turn(ledger, closed(), waiting(), left)))
    assert steering.acts == (bind("p"),)
    shown = after(sent, turn(sent, closed(), waiting(on="a"), left))
    later = replace(
        shown, promises=tuple(replace(promise, nominated=NOW - 3.0, pods_ready_at=NOW - MARGIN_SECONDS) for promise in shown.promises)
    )

    assert turn(shown, closed(), waiting(on="a"), left).acts == ()
    assert turn(later, closed(), waiting(on="a"), left).acts == (Nominate(Q, "uid-q", "a"),)


def test_with_steering_off_the_machine_opens_and_no_pod_is_nominated() -> None:
    ledger = Ledger(coming=(machine("a", P),))
    steering = turn(ledger, closed(), waiting(), policy=Policy((pool(KIND),), steering=OFF))

    assert steering.acts == (Lift("a", "it is ready, and 1 pod is left to the scheduler"),)


def test_machines_of_a_gang_that_its_own_scheduler_binds_open_together() -> None:
    gang: dict[str, Any] = {"options": {"gang": "g", "gang_source": "coscheduling"}}
    nominated = promise(nominated=NOW - 1.0, pods_ready_at=NOW - 1.5)
    ledger = Ledger(coming=(machine("a", P), machine("b", Q)), promises=(nominated, replace(nominated, node="b", pods=(Q,))))
    p, q = waiting("p", nominated_node="a", **gang), waiting("q", **gang)

    assert turn(ledger, closed(), closed("b"), p, q).acts == ()
    assert why(ledger, closed(), closed("b"), p, q).startswith(
        "it opens together with all of gang default/g: the nomination of pod default/q"
    )
    steering = turn(ledger, closed(), closed("b"), p, replace(q, nominated_node="b"))
    assert [(type(act), act.node) for act in steering.acts] == [(Lift, "a"), (Lift, "b")]


@pytest.mark.parametrize("others", [(), (waiting(deleted=NOW),), (pod("p", on="b"),)], ids=["gone", "deleted", "elsewhere"])
def test_an_unneeded_machine_opens_after_the_next_plan_had_a_chance_to_use_it(others: tuple[Pod, ...]) -> None:
    ledger = Ledger(coming=(machine("a", P),))
    ledger = after(ledger, (steering := turn(ledger, closed(), *others)))
    assert steering.acts == ()
    later = replace(ledger, promises=tuple(replace(promise, pods_ready_at=NOW - UNWANTED_SECONDS) for promise in ledger.promises))

    assert turn(later, closed(), *others).acts == (Lift("a", "no pod waits for it"),)
    assert turn(replace(later, coming=(machine("a", Q),)), closed(), *others, waiting("q")).acts == (bind("q"),)


def test_a_machine_that_is_not_ready_stays_closed() -> None:
    assert turn(Ledger(coming=(machine("a", P, ready=0.0),)), closed(), waiting()) == Steering()


def test_a_machine_without_our_taint_is_open_and_its_pods_are_nominated_once() -> None:
    ledger = Ledger(coming=(machine("a", P),))
    steering = turn(ledger, closed(taints=()), waiting())
    left = after(ledger, steering)

    assert (left.coming, steering.acts) == ((), (Nominate(P, "uid-p", "a"),))
    assert [(promise.step, promise.pods) for promise in left.promises] == [(OPEN, (P,))]
    assert turn(left, closed(taints=()), waiting()).acts == ()


def test_a_machine_without_the_arriving_taint_is_an_ordinary_node() -> None:
    ledger = Ledger(coming=(machine("a", P),), promises=(promise(nominated=NOW - 0.5),))
    left = after(ledger, turn(ledger, closed(taints=()), waiting(nominated_node="a")))

    assert left.coming == ()
    assert [(promise.step, promise.since) for promise in left.promises] == [(OPEN, NOW)]


def test_only_pods_planned_onto_a_closed_machine_are_bound_to_it() -> None:
    ledger = Ledger(coming=(machine("a", P, Q), machine("b", P, ready=0.0)), promises=(promise(),))
    moved = replace(ledger, coming=(machine("a", Q), machine("b", P, ready=0.0)))

    assert turn(ledger, closed(), waiting("p"), waiting("q")).acts == (bind("p"), bind("q"))
    assert turn(moved, closed(), waiting("p"), waiting("q")).acts == (bind("q"),)


# Keeping promises


def test_a_promise_is_kept_if_the_pod_is_bound_to_the_promised_machine() -> None:
    steering = turn(Ledger(promises=(promise(OPEN),)), closed(taints=()), waiting(on="a"))

    assert steering.outcomes == (promises.Kept(KIND.key, spec(gpus=1).digest, NOW),)
    assert steering.steps == (ledger.PromiseFulfilled("a"),)


def test_a_promised_pod_that_is_bound_elsewhere_counts_as_a_stray() -> None:
    steering = turn(Ledger(promises=(promise(OPEN),)), closed(taints=()), waiting(on="b"))

    assert (steering.outcomes, steering.stray) == ((), (P,))


def test_a_nomination_is_not_written_again_on_an_open_machine() -> None:
    assert turn(Ledger(promises=(promise(OPEN, nominated=NOW - 50.0),)), closed(taints=()), waiting()) == Steering()


def test_a_promised_pod_that_no_longer_fits_is_not_nominated_again() -> None:
    ledger = Ledger(promises=(promise(OPEN, nominated=NOW - 1.0),))
    thief = pod("thief", spec(gpus=4), on="a")
    steering = turn(ledger, closed(taints=()), waiting(), thief)

    assert (steering.acts, steering.outcomes, steering.stray) == ((), (), (P,))
    assert after(ledger, steering).promises == ()
    # A nomination is no proof of room: the scheduler has not tried yet.
    assert turn(ledger, closed(taints=()), waiting(nominated_node="a"), replace(thief, deleted=NOW)).stray == ()


def test_a_pod_promised_another_machine_is_no_longer_expected_on_the_first() -> None:
    ledger = Ledger(promises=(promise(OPEN), promise(node="b")))
    steering = turn(ledger, closed(taints=()), closed("b"), waiting())

    assert [promise.node for promise in after(ledger, steering).promises] == ["b"]


def test_a_promise_is_broken_after_a_minute_and_a_newer_failed_scheduling_attempt() -> None:
    ledger = Ledger(promises=(promise(OPEN, since=NOW - 60.0, nominated=NOW - 60.0),))
    steering = turn(ledger, closed(taints=()), waiting(nominated_node="a"), tried=NOW - 5.0, message="0/1 nodes: Insufficient cpu.")

    (broken,) = steering.outcomes
    assert isinstance(broken, promises.Broken)
    assert (broken.pod, broken.node, broken.why) == (P, "a", "0/1 nodes: Insufficient cpu.")
    assert steering.suspected == (node_refusals.Suspected(P, "a", NOW - 60.0),)
    assert after(ledger, steering).broken == ((P, "a"),)
    # It would reserve room for a pod that does not come.
    assert steering.acts == (Nominate(P, "uid-p", ""),)


def test_a_pod_that_needs_absent_pods_is_planned_again_without_a_broken_promise() -> None:
    ledger = Ledger(promises=(promise(OPEN, since=NOW - 60.0, nominated=NOW - 60.0),))
    steering = turn(ledger, closed(taints=()), waiting(of=spec(gpus=1, affinity=(near(HOSTNAME, app="lead"),))), tried=NOW - 5.0)

    assert (steering.outcomes, steering.suspected, steering.stray) == ((), (), (P,))


@pytest.mark.parametrize(("since", "tried"), [(59.0, 1.0), (100.0, 101.0), (100.0, None)])
def test_a_promise_stands_before_a_minute_and_a_newer_failed_scheduling_attempt(since: float, tried: float | None) -> None:
    ledger = Ledger(promises=(promise(OPEN, since=NOW - since, nominated=NOW - since),))
    steering = turn(ledger, closed(taints=()), waiting(nominated_node="a"), tried=None if tried is None else NOW - tried)

    assert steering == Steering()


@pytest.mark.parametrize("items", [(), (closed(deleted=NOW),)], ids=["gone", "being deleted"])
def test_promises_of_a_deleted_node_end(items: tuple[Node, ...]) -> None:
    assert turn(Ledger(promises=(promise(OPEN),)), *items, waiting()).steps == (ledger.PromiseFulfilled("a"),)


def test_a_broken_promise_is_forgotten_once_the_nomination_of_its_pod_is_gone() -> None:
    current = Ledger(broken=((P, "a"), (Q, "a")))
    steering = turn(current, closed(taints=()), waiting("p"), waiting("q", nominated_node="a"))

    assert steering.steps == (ledger.BrokenPromiseCleared(P),)
    assert steering.acts == (Nominate(Q, "uid-q", ""),)


# Machines kept for large pods, and machines of others


def test_a_kept_machine_is_closed_again_once_its_large_pods_are_bound() -> None:
    current = Ledger(promises=(promise(OPEN, closes_again=True),))
    steering = turn(current, closed(taints=()), waiting(on="a"), policy=KEEPING)

    assert [type(act) for act in steering.acts] == [Close]
    assert [promise.step for promise in after(current, steering).promises] == [CLOSING]
    assert turn(after(current, steering), closed(), waiting(on="a"), policy=KEEPING).steps == (ledger.PromiseFulfilled("a"),)


def test_a_closed_kept_machine_is_promised_to_pods_planned_onto_it() -> None:
    cluster = Cluster.of([closed("a"), closed("b")])
    placements = (Placement(P, "a"), Placement(Q, "b"))
    busy = Ledger(promises=(promise(OPEN, node="b"),))

    assert promised_on(busy, cluster, POLICY, placements, unlisted=frozenset(), now=NOW) == ()
    (made,) = promised_on(busy, cluster, KEEPING, placements, unlisted=frozenset(), now=NOW)
    assert isinstance(made, ledger.Promised)
    assert (made.promise.node, made.promise.pods, made.promise.closes_again) == ("a", (P,), True)


def test_pods_are_bound_to_a_kept_machine_of_a_type_that_its_pool_no_longer_lists() -> None:
    other = replace(KIND, instance_type="other.4", labels={**KIND.labels, "node.kubernetes.io/instance-type": "other.4"})
    kept = node("a", other, taints=(Taint("gpuscaler.io/kept"),), provider_id="i-a")
    pending = waiting("p", spec(gpus=4))
    cluster = Cluster.of([kept, pending])

    (made,) = promised_on(Ledger(), cluster, KEEPING, (Placement(P, "a"),), unlisted=frozenset(), now=NOW)

    assert isinstance(made, ledger.Promised)
    assert made.promise.offering == OfferingKey(KIND.pool, "on-demand", "other.4", KIND.zone)
    assert turn(Ledger(promises=(made.promise,)), kept, pending, policy=KEEPING).acts == (bind("p"),)


def test_a_ready_machine_that_is_not_in_the_ledger_is_not_opened() -> None:
    assert turn(Ledger(), closed()).acts == ()


# The oldest of identical pods


def test_the_oldest_of_identical_pods_is_bound_in_place_of_a_promised_younger_one() -> None:
    ledger = Ledger(coming=(machine("a", P), machine("b", Q, ready=0.0)))
    steering = turn(ledger, closed("a"), closed("b"), waiting("p", created=NOW - 10.0), waiting("q", created=NOW - 20.0))

    assert steering.acts == (bind("q"),)
    assert [machine.pods for machine in after(ledger, steering).coming] == [(Q,), (P,)]


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
def test_only_an_older_identical_pod_takes_the_place_of_a_promised_one(other: dict[str, Any]) -> None:
    pods = [waiting("p", created=NOW - 10.0), waiting("q", **{"created": NOW - 20.0, **other})]

    assert find_overtaken(pods[:1], pending_by_kind(Cluster.of(pods)), busy=frozenset()) == ()


def test_a_pod_that_already_has_a_place_or_its_own_volume_is_not_exchanged() -> None:
    pods = [waiting("p", created=NOW - 10.0), waiting("q", created=NOW - 20.0)]
    assert find_overtaken(pods[:1], pending_by_kind(Cluster.of(pods)), busy=frozenset({Q})) == ()

    own = spec(gpus=1, volumes=(VolumeUse(claim="data", ephemeral=True),))
    bound = [waiting("p", own, created=NOW - 10.0), waiting("q", own, created=NOW - 20.0)]
    assert find_overtaken(bound[:1], pending_by_kind(Cluster.of(bound)), busy=frozenset()) == ()


@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from("ab")), max_size=12), st.integers(0, 12))
def test_a_pod_is_exchanged_only_for_an_older_identical_one(ages: list[tuple[int, str]], many: int) -> None:
    pods = [waiting(f"p{n}", labels={"app": app}, created=NOW - age) for n, (age, app) in enumerate(ages)]
    by_key = {pod.key: pod for pod in pods}
    mine = pods[:many]
    pairs = find_overtaken(mine, pending_by_kind(Cluster.of(pods)), busy=frozenset())

    assert len({key for pair in pairs for key in pair}) == 2 * len(pairs)
    assert all(old in {pod.key for pod in mine} and new not in {pod.key for pod in mine} for old, new in pairs)
    assert all(by_key[old].labels == by_key[new].labels for old, new in pairs)
    seated = ({pod.key for pod in mine} - {old for old, _ in pairs}) | {new for _, new in pairs}
    for app in ("a", "b"):
        same = [pod for pod in pods if pod.labels == LabelSet({"app": app})]
        youngest = max((pod.created for pod in same if pod.key in seated), default=0.0)
        assert all(pod.created >= youngest for pod in same if pod.key not in seated)


def test_pods_of_the_same_age_are_not_exchanged() -> None:
    pods = [waiting("q"), waiting("p")]

    assert find_overtaken(pods[:1], pending_by_kind(Cluster.of(pods)), busy=frozenset()) == ()
