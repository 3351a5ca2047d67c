"""In which order machines open that are ready."""

from typing import Any

import pytest
from msgspec.structs import replace
from tests.planning.building import NOW, ZONE, offering, pool, spec, spread
from tests.planning.test_steering import KIND, P, Q, after, closed, machine, promise, turn, waiting

from gpuscaler.model.cluster import Item
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Policy
from gpuscaler.planning.acts import Lift, Nominate
from gpuscaler.planning.opening import CALM_SECONDS, GROUPS, HOLD_SECONDS, LONG, OVERTAKEN_SECONDS, RESTLESS_SECONDS, YIELD_SECONDS
from gpuscaler.planning.state.ledger import OPEN, Coming, Ledger, Promise
from gpuscaler.planning.steering import LONGEST_SECONDS, PATIENCE_SECONDS


def test_machines_that_are_ready_at_the_same_time_open_one_after_the_other() -> None:
    two = (machine("a", P), machine("b", Q))
    first, second = promise(nominated=NOW - 1.0, stood=NOW - 0.5), promise(node="b", pods=(Q,))
    p, q = waiting("p", nominated_node="a"), waiting("q")

    def acts(*promises: Promise, items: tuple[Item, ...] = (closed(), closed("b"), p, q)) -> list[tuple[str, str]]:
        return [(type(act).__name__, act.node) for act in turn(Ledger(coming=two, promises=promises), *items).acts]

    assert acts(first, second) == [("Lift", "a")]
    assert acts(replace(first, lifted=NOW - 1.0), second) == []
    landing = replace(first, step=OPEN, since=NOW - 1.0)
    assert acts(landing, second, items=(closed(taints=()), closed("b"), p, q)) == []
    assert acts(landing, second, items=(closed(taints=()), closed("b"), replace(p, node_name="a"), q)) == [("Nominate", "b")]
    assert acts(replace(landing, since=NOW - HOLD_SECONDS), second, items=(closed(taints=()), closed("b"), p, q)) == [("Nominate", "b")]


@pytest.mark.parametrize(("since", "first"), [(1.0, "b"), (OVERTAKEN_SECONDS, "a")])
def test_machines_of_small_pods_open_before_those_of_large_ones_but_overtake_nobody_for_long(since: float, first: str) -> None:
    large, small = promise(since=NOW - since), promise(node="b", pods=(Q,), since=NOW - 0.5)
    items = closed(), closed("b"), waiting("p", spec(gpus=4)), waiting("q", spec(gpus=1))

    found = turn(Ledger(promises=(large, small)), *items)
    assert [act.node for act in found.acts] == [first]


def test_machines_of_pools_that_no_pod_may_choose_between_open_in_one_moment_and_then_the_next() -> None:
    names = [f"n{number:02}" for number in range(GROUPS + 2)]
    kinds = {name: offering(f"g.{name}", pool=name, gpus=4) for name in names}
    selector = {name: (("gpuscaler.io/pool", name),) for name in names}
    pods = [waiting(name, spec(gpus=1, node_selector=selector[name])) for name in names]
    nodes = [closed(name, labels={"gpuscaler.io/pool": name}) for name in names]
    book = Ledger(promises=tuple(promise(node=name, offering=kinds[name].key, pods=(f"default/{name}",)) for name in names))
    policy = Policy(tuple(pool(kinds[name], name=name) for name in names))

    found = turn(book, *nodes, *pods, policy=policy)
    assert [act.node for act in found.acts] == names[:GROUPS]
    first, *others = (replace(one, called=NOW - 1.0, nominated=NOW - 1.0, stood=NOW - 0.5) for one in book.promises[:GROUPS])
    named = [replace(pod, nominated_node=name) for name, pod in zip(names, pods, strict=True)]
    called = replace(book, promises=(first, *others, *book.promises[GROUPS:]))
    assert turn(called, *nodes, pods[0], *named[1:], policy=policy).acts == (Nominate(pods[0].key, pods[0].uid, names[0]),)
    found = turn(called, *nodes, *named[:GROUPS], *pods[GROUPS:], policy=policy)
    assert [(type(act), act.node) for act in found.acts] == [(Lift, name) for name in names[:GROUPS]]
    landing = replace(
        called, promises=tuple(replace(one, step=OPEN, lifted=NOW - 1.0) for one in (first, *others)) + book.promises[GROUPS:]
    )
    opened = [closed(name, taints=(), labels={"gpuscaler.io/pool": name}) for name in names[:GROUPS]]
    found = turn(landing, *opened, *nodes[GROUPS:], *named[:GROUPS], *pods[GROUPS:], policy=policy)
    assert [act.node for act in found.acts] == names[GROUPS:]


def test_a_machine_whose_room_others_might_take_opens_alone() -> None:
    """Whatever opens beside it has all pods tried, and its own lose their nominations as it opens."""
    one, two = closed(labels={"gpuscaler.io/pool": "main"}), closed("b", labels={"gpuscaler.io/pool": "other"})
    mine, theirs = ((("gpuscaler.io/pool", name),) for name in ("main", "other"))
    p, q = waiting("p", spec(gpus=4, node_selector=mine)), waiting("q", spec(gpus=4, node_selector=theirs))
    small = waiting("small", spec(gpus=1, node_selector=mine))
    pools = Policy((pool(KIND), pool(offering("g.4", pool="other", gpus=4), name="other")))
    far = machine("c", small.key, node="", registered=0.0, ready=0.0)

    def acts(*more: Item, coming: tuple[Coming, ...] = (), first: float = 2.0, then: float = 1.0) -> list[str]:
        promises = promise(since=NOW - first), promise(node="b", offering=pools.pools[1].offerings[0].key, pods=(Q,), since=NOW - then)
        return [act.node for act in turn(Ledger(coming=coming, promises=promises), one, two, p, q, *more, policy=pools).acts]

    assert acts() == ["a", "b"]
    assert acts(small, coming=(far,)) == ["a"]
    assert acts(small, coming=(far,), first=1.0, then=2.0) == ["b"], "the oldest is first, but not beside it"
    assert acts(replace(p, name="alike", uid="uid-alike"), coming=(replace(far, pods=("default/alike",)),)) == ["a", "b"]


def test_in_a_long_line_some_of_those_open_at_once_that_should_open_alone() -> None:
    names = [f"n{number:02}" for number in range(2 * LONG)]
    kinds = {name: offering(f"g.{name}", pool=name, gpus=4) for name in names}
    chosen = {name: (("gpuscaler.io/pool", name),) for name in names}
    nodes = [closed(name, labels={"gpuscaler.io/pool": name}) for name in names]
    large = [waiting(name, spec(gpus=4, node_selector=chosen[name])) for name in names]
    small = [waiting(f"{name}-small", spec(gpus=1, node_selector=chosen[name])) for name in names]
    coming = tuple(machine(f"{pod.name}-far", pod.key, node="", registered=0.0, ready=0.0) for pod in small)
    promises = tuple(promise(node=name, offering=kinds[name].key, pods=(f"default/{name}",)) for name in names)
    policy = Policy(tuple(pool(kinds[name], name=name) for name in names))

    found = turn(Ledger(coming=coming, promises=promises), *nodes, *large, *small, policy=policy)
    assert [act.node for act in found.acts] == names[:2]


URGENT = spec(gpus=3, priority=10)


def ranked(*more: Coming, since: float = NOW - 1.0) -> Ledger:
    """Machine a is closed and has its turn, for a pod of three GPUs."""
    return Ledger(coming=(machine("a", P), *more), promises=(promise(since=since),))


def test_a_machine_stays_closed_while_pods_of_higher_priority_that_would_take_its_room_wait_for_theirs() -> None:
    items = closed(), waiting("p", spec(gpus=3)), waiting("q", URGENT)
    late = machine("b", Q, ready=0.0)

    assert turn(ranked(late), *items).acts == ()
    assert turn(ranked(late, since=NOW - YIELD_SECONDS), *items).acts == (Nominate(P, "uid-p", "a"),)
    assert turn(ranked(), *items).acts == (Nominate(P, "uid-p", "a"),)


def test_of_machines_that_are_ready_those_of_higher_priority_open_first() -> None:
    found = turn(ranked(machine("b", Q)), closed(), closed("b"), waiting("p", spec(gpus=3)), waiting("q", URGENT))

    assert found.acts == (Nominate(Q, "uid-q", "b"),)


def spreading(name: str, **more: Any) -> Pod:
    """A pod of an application that spreads over zones."""
    return waiting(name, spec(gpus=1, spread=(spread(ZONE, app="x"),)), labels={"app": "x"}, **more)


def in_zone(name: str, zone: str, **more: Any) -> Node:
    return closed(name, labels={ZONE: zone}, **more)


def test_a_machine_whose_pods_would_not_be_spread_yet_opens_after_those_that_they_spread_with() -> None:
    there = in_zone("c", "z1", taints=()), spreading("there", on="c")
    first, second = in_zone("a", "z1"), in_zone("b", "z2")
    pods = spreading("p"), spreading("q")
    book = ranked(machine("b", Q))
    far = Ledger(coming=(machine("a", P), machine("b", Q, ready=0.0)), promises=book.promises)
    long = replace(far, promises=(promise(since=NOW - YIELD_SECONDS),))

    assert turn(book, *there, first, second, *pods).acts == (Nominate(Q, "uid-q", "b"),)
    assert turn(book, first, second, *pods).acts == (Nominate(P, "uid-p", "a"),), "nobody is there yet: any zone is as good"
    assert turn(far, *there, first, second, *pods).acts == ()
    assert turn(long, *there, first, second, *pods).acts == (Nominate(P, "uid-p", "a"),)
    # Nobody is awaited who would change anything.
    assert turn(ranked(), *there, first, pods[0]).acts == (Nominate(P, "uid-p", "a"),)


def test_a_machine_that_was_called_is_sent_back_when_a_zone_comes_to_count_that_its_pods_must_wait_for() -> None:
    there = in_zone("c", "z1", taints=()), spreading("there", on="c")
    first, second = in_zone("a", "z1"), in_zone("b", "z2", ready=False)
    called = promise(nominated=NOW - 0.5, called=NOW - 0.5, stood=NOW - CALM_SECONDS)
    book = Ledger(coming=(machine("a", P), machine("b", Q, ready=0.0)), promises=(called,))
    items = (*there, first, spreading("p", nominated_node="a"), spreading("q"))

    assert [type(act) for act in turn(book, *items).acts] == [Lift], "there is one zone only"
    found = turn(book, *items, second)
    assert found.acts == ()
    assert after(book, found).promises == (replace(called, called=0.0, stood=0.0),)
    # Then those of the other zone open, and after them it does.
    ready = replace(after(book, found), coming=(machine("a", P), machine("b", Q)))
    assert turn(ready, *items, replace(second, ready=True)).acts == (Nominate(Q, "uid-q", "b"),)


def test_a_machine_with_room_to_spare_waits_for_zones_that_the_scheduler_does_not_know_where_others_would_not_be_spread_there() -> None:
    """With nodes in one zone only, as many pods as there is room for are even enough for it."""
    first, second = in_zone("a", "z1"), in_zone("b", "z2", ready=False)
    pods = spreading("p"), spreading("q")
    coming = machine("b", Q, offering=(*KIND.key[:3], "z2"), node="", registered=0.0, ready=0.0)
    opens = (Nominate(P, "uid-p", "a"),)

    assert turn(ranked(coming), first, *pods).acts == ()
    assert turn(ranked(coming, since=NOW - YIELD_SECONDS), first, *pods).acts == opens
    assert turn(ranked(replace(coming, node="b", registered=3.0)), first, second, *pods).acts == opens, "its node is counted, though closed"
    assert turn(ranked(replace(coming, offering=KIND.key)), first, *pods).acts == opens, "they are to be in one zone"
    full = replace(first, allocatable={**first.allocatable, "nvidia.com/gpu": 1})
    assert turn(ranked(coming), full, *pods).acts == opens
    assert turn(ranked(coming), first, pods[0], waiting("q")).acts == opens, "it may be anywhere"


def test_a_machine_with_room_for_pods_that_wait_in_another_zone_opens_after_those_of_its_own_without() -> None:
    """Q would go to "a" when anybody is in z1, and then R, whose machine is there, would make z1 too crowded."""
    there = in_zone("there", "z2", taints=(), allocatable={}), spreading("sits", on="there")
    large = replace(spreading("r"), spec=spec(gpus=4, spread=(spread(ZONE, app="x"),)))
    pods = spreading("p"), spreading("q"), large
    nodes = in_zone("a", "z1"), in_zone("b", "z2", allocatable={**KIND.allocatable, "nvidia.com/gpu": 1})
    z1, z2 = (*KIND.key[:3], "z1"), (*KIND.key[:3], "z2")
    ours, theirs = promise(offering=z1, since=NOW - 9.0), promise(node="b", pods=(Q,), offering=z2)
    coming = machine("c", large.key, offering=z1, ready=0.0, node="", registered=0.0)
    book = Ledger(coming=(coming,), promises=(ours, theirs))
    opens = (Nominate(P, "uid-p", "a"),)

    assert turn(book, *there, *nodes, *pods).acts == ()
    long = replace(book, promises=(replace(ours, since=NOW - YIELD_SECONDS), theirs))
    assert turn(long, *there, *nodes, *pods).acts == opens
    ready = replace(coming, node="c", registered=3.0, ready=4.0)
    first = turn(replace(book, coming=(ready,)), *there, *nodes, in_zone("c", "z1"), *pods)
    assert first.acts == (Nominate(large.key, "uid-r", "c"),)
    # Then there is one in each zone.
    come = replace(book, coming=())
    sits = in_zone("c", "z1", taints=()), replace(large, node_name="c")
    assert turn(come, *there, *nodes, *sits, *pods[:2]).acts == (Nominate(Q, "uid-q", "b"),)
    # Who is alike may have the room: the other takes theirs. Nobody waits for a machine that was not even granted.
    alike = replace(large, spec=pods[1].spec)
    assert turn(book, *there, *nodes, *pods[:2], alike).acts == opens
    assert turn(replace(book, coming=(replace(coming, granted=0.0),)), *there, *nodes, *pods).acts == opens
    full = in_zone("a", "z1", allocatable={**nodes[0].allocatable, "nvidia.com/gpu": 1})
    assert turn(book, *there, full, nodes[1], *pods).acts == opens


def test_machines_whose_pods_would_fill_each_other_open_together_once_all_nominations_stand() -> None:
    low = spec(gpus=3)
    urgent = spec(gpus=1, priority=10)
    names = {"a": ("p", "u"), "b": ("q", "v")}
    book = Ledger(
        promises=tuple(
            promise(node=node, pods=tuple(f"default/{pod}" for pod in pods), stood=NOW - CALM_SECONDS) for node, pods in names.items()
        )
    )
    pods = [waiting(pod, urgent if pod in "uv" else low, nominated_node=node) for node, those in names.items() for pod in those]
    nodes = closed(), closed("b")

    assert [(type(act), act.node) for act in turn(book, *nodes, *pods).acts] == [(Lift, "a"), (Lift, "b")]
    missing = turn(book, *nodes, *pods[:-1], replace(pods[-1], nominated_node="")).acts
    assert missing == (Nominate("default/v", "uid-v", "b"),)


def test_a_machine_opens_when_no_other_has_had_pods_tried_for_a_moment_and_waits_for_that_only_so_long() -> None:
    pools = pool(KIND), pool(offering("g.4", pool="other", gpus=4), name="other")
    mine, theirs = (waiting(name, spec(gpus=1, node_selector=(("gpuscaler.io/pool", of),))) for name, of in (("p", "main"), ("q", "other")))
    at = {"gpuscaler.io/pool": "other"}

    def acts(other: Promise, *items: Item, since: float = 1.0) -> list[str]:
        book = Ledger(
            promises=(
                promise(since=NOW - since, called=NOW - since, stood=NOW - since),
                replace(other, offering=pools[1].offerings[0].key),
            )
        )
        found = turn(book, closed(), replace(mine, nominated_node="a"), *items, policy=Policy(pools))
        return [act.node for act in found.acts if isinstance(act, Lift)]

    opened = promise(OPEN, node="b", pods=(Q,), since=NOW - 0.1)
    nodes = closed("b", taints=(), labels=at), replace(theirs, nominated_node="b")
    assert acts(opened, *nodes) == []
    assert acts(replace(opened, since=NOW - CALM_SECONDS), *nodes) == ["a"]
    assert acts(replace(opened, since=NOW - 1.0, nominated=NOW - 0.1), *nodes) == [], "one of its pods was tried in vain"
    assert acts(opened, *nodes, since=RESTLESS_SECONDS) == ["a"]
    late = promise(node="b", pods=(Q,), stood=NOW - 1.0)
    assert acts(late, closed("b", labels=at), replace(theirs, nominated_node="b")) == ["a"], "it was called already"


@pytest.mark.parametrize(
    ("shown", "stands", "called", "opens"), [(2.0, 1.9, 5.0, 0), (2.0, 2.0, 5.0, 1), (0.1, CALM_SECONDS, 1.0, 1), (2.0, 1.9, 8.0, 0)]
)
def test_where_writes_take_long_to_show_nominations_must_stand_for_as_long(shown: float, stands: float, called: float, opens: int) -> None:
    """What is seen is that old: they may have been cleared since."""
    stood = NOW - stands
    book = Ledger(promises=(promise(since=NOW - 9.0, called=NOW - called, nominated=stood - shown, stood=stood),))

    assert len(turn(book, closed(), waiting("p", nominated_node="a")).acts) == opens


def test_a_machine_waits_for_its_turn_as_long_as_it_takes_and_not_for_ever() -> None:
    landing = promise(OPEN, node="b", pods=(Q,))
    items = closed(), closed("b", taints=()), waiting("p"), waiting("q", nominated_node="b")
    waits, forever = (ranked(since=NOW - since).promises[0] for since in (PATIENCE_SECONDS, LONGEST_SECONDS))

    assert turn(Ledger(coming=(machine("a", P),), promises=(waits, landing)), *items).acts == ()
    assert [type(act) for act in turn(Ledger(coming=(machine("a", P),), promises=(forever, landing)), *items).acts] == [Lift]


def test_a_machine_opens_after_those_that_a_plan_wants_open_before_it() -> None:
    book = Ledger(coming=(machine("a", P, after=("o-b",)), machine("b", Q)))

    found = turn(book, closed("a"), closed("b"), waiting("p"), waiting("q"))
    assert found.acts == (Nominate(Q, "uid-q", "b"),)
    opened = Ledger(coming=book.coming, promises=(promise(OPEN, node="b", pods=(Q,), since=NOW - HOLD_SECONDS),))
    assert Nominate(P, "uid-p", "a") in turn(opened, closed("a"), closed("b", taints=()), waiting("p"), waiting("q")).acts


@pytest.mark.parametrize(("source", "at_once"), [("", 1), ("jobset", 1), ("volcano", 2), ("workload", 2)])
def test_machines_of_a_gang_open_when_all_are_ready_and_at_once_where_a_scheduler_binds_it_as_a_whole(source: str, at_once: int) -> None:
    gang: dict[str, Any] = {"options": {"gang": "g", "gang_source": source}}
    members = waiting("p", **gang), waiting("q", **gang)
    unready = Ledger(coming=(machine("a", P), machine("b", Q, ready=0.0)))
    ready = Ledger(coming=(machine("a", P), machine("b", Q)))

    assert turn(unready, closed("a"), closed("b"), *members).acts == ()
    assert len(turn(ready, closed("a"), closed("b"), *members).acts) == at_once


def test_a_gang_does_not_wait_for_the_machine_of_a_member_that_runs() -> None:
    gang: dict[str, Any] = {"options": {"gang": "g"}}
    book = Ledger(coming=(machine("a", P), machine("b", Q, ready=0.0)))

    assert turn(book, closed("a"), closed("b"), waiting("p", **gang), waiting("q", on="c", **gang)).acts != ()
