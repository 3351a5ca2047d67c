"""Return to spot: one machine of a pool at a time, only to trusted spot, and only if it pays and the pods may be moved."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planning.building import JOB, NOW, node, offering, pool, spec
from tests.planning.scale_down.kit import blockers, detail, movable, removed, scale_down_of, situation
from tests.soaking import examples

from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Pool
from gpuscaler.model.well_known import POOL_LABEL
from gpuscaler.planning.scale_down import ScaleDownResult, scale_down
from gpuscaler.planning.state import State
from gpuscaler.planning.state.askable_offerings import with_breakers
from gpuscaler.planning.state.breakers import RETURN_SECONDS, SETTLE_SECONDS, Breakers, step
from gpuscaler.planning.state.offering_events import Granted, Reclaimed, Refused

ROOM: dict[str, Any] = {"gpus": 1, "cpu": 8, "memory": 60, "pods": 50}
DEAR = offering("g.1", 4.0, **ROOM)
SPOT = offering("g.1", 1.0, market="spot", **ROOM)
BOTH = pool(DEAR, SPOT)
GPU = spec(gpus=1, cpu=2, memory=8)


def expensive_machines(*names: str, **fields: Any) -> list[Node | Pod]:
    """Expensive machines with a pod each."""
    return [item for name in names for item in (node(name, DEAR), movable(f"p-{name}", name, GPU, **fields))]


def markets(result: ScaleDownResult) -> list[str]:
    return [machine.market for machine in result.machines]


def state(*events: Any, pools: tuple[Pool, ...] = (BOTH,), now: float = NOW, **more: Any) -> State:
    """The state after ``events``."""
    breakers = Breakers()
    for event in events:
        breakers = step(breakers, event)
    return with_breakers(State(**more), breakers, [offering.key for each in pools for offering in each.offerings], now)


def test_one_machine_at_a_time_returns_to_spot_and_the_others_report_why_they_wait() -> None:
    result = scale_down_of(expensive_machines("a", "b", "c"), BOTH)

    assert (len(removed(result)), markets(result)) == (1, ["spot"])
    (removal,) = result.removals
    assert removal.reason == "its pod runs cheaper on 1 x g.1 (spot, z1), which saves $3.0000 per hour"
    (first, second) = sorted({"a", "b", "c"} - {removal.node})
    assert blockers(result) == {first: "going-back", second: "going-back"}
    assert detail(result, first) == "it could run cheaper on spot; machines of pool main return to spot one at a time"


def test_no_machine_returns_to_spot_while_another_busy_one_of_its_pool_is_being_removed() -> None:
    result = scale_down_of(expensive_machines("a", "b"), BOTH, state=State(disrupting=frozenset({"a"})))

    assert (removed(result), blockers(result)["b"]) == ([], "going-back")


def test_removal_of_an_idle_machine_does_not_delay_returns_to_spot() -> None:
    assert removed(scale_down_of([node("a", DEAR), *expensive_machines("b")], BOTH, state=State(disrupting=frozenset({"a"})))) == ["b"]


@pytest.mark.parametrize(("bound", "gone"), [(False, 1), (True, 2)])
def test_machines_return_to_spot_in_parallel_but_only_one_per_target_pool(bound: bool, gone: int) -> None:
    dear, cheap = offering("g.1", 4.0, pool="other", **ROOM), offering("g.1", 1.2, pool="other", market="spot", **ROOM)
    own = spec(requests=dict(GPU.requests), node_selector=((POOL_LABEL, "other"),)) if bound else GPU
    pools = (BOTH, pool(dear, cheap, name="other") if bound else pool(dear, name="other"))

    assert len(removed(scale_down_of([*expensive_machines("a"), node("b", dear), movable("p-b", "b", own)], *pools))) == gone


def test_a_machine_is_split_onto_several_spot_machines_in_one_step() -> None:
    big = offering("g.8", 16.0, gpus=8, cpu=96, memory=768)
    result = scale_down_of([node("a", big), *(movable(f"p-{number}", "a", GPU) for number in range(3))], pool(big, SPOT))

    assert (removed(result), markets(result)) == (["a"], ["spot"] * 3)


def test_several_on_demand_machines_are_replaced_at_once_by_cheaper_on_demand_ones() -> None:
    cheap = offering("g.1x", 1.0, **ROOM)

    assert removed(scale_down_of(expensive_machines("a", "b", "c"), pool(DEAR, cheap))) == ["a", "b", "c"]


def test_several_spot_machines_are_replaced_at_once_by_cheaper_spot_ones() -> None:
    dear = offering("g.1", 3.0, market="spot", **ROOM)
    cheap = offering("g.1", 1.0, market="spot", zone="z2", **ROOM)
    items = [item for name in "abc" for item in (node(name, dear), movable(f"p-{name}", name, GPU))]

    assert removed(scale_down_of(items, pool(dear, cheap))) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "more",
    [
        {"options": {"market": ("on-demand",)}},
        {"options": {"deadline": NOW + 9e4, "expected_duration": 60.0}},
        {"options": {"do_not_disrupt": True}},
        {"options": {"safe_to_evict": False}},
        {"options": {"restart_cost": 4 * 3600.0}},
        {"owner": JOB},
    ],
    ids=["only on-demand", "a deadline", "do-not-disrupt", "safe-to-evict", "loses more than it saves", "a job without a restart cost"],
)
def test_a_machine_with_pods_that_must_not_move_does_not_return_to_spot(more: dict[str, Any]) -> None:
    assert scale_down_of(expensive_machines("a", **more), BOTH).removals == ()


# Trusted spot

REFUSED, GRANTED = Refused(SPOT.key, NOW - 2000.0), Granted(SPOT.key, NOW - 1500.0)


@pytest.mark.parametrize(
    ("events", "goes"),
    [
        ((Refused(SPOT.key, NOW - 10.0),), False),
        ((Refused(SPOT.key, NOW - SETTLE_SECONDS + 1.0),), False),
        ((Refused(SPOT.key, NOW - SETTLE_SECONDS),), True),
        ((REFUSED, Granted(SPOT.key, NOW - SETTLE_SECONDS + 1.0)), False),
        ((REFUSED, Granted(SPOT.key, NOW - SETTLE_SECONDS)), True),
    ],
    ids=["refused", "probe too early", "probe due", "proven too recently", "proven"],
)
def test_a_machine_returns_only_to_spot_that_is_proven_or_due_for_a_probe(events: tuple[Any, ...], goes: bool) -> None:
    assert removed(scale_down_of(expensive_machines("a"), BOTH, state=state(*events))) == (["a"] if goes else [])


@pytest.mark.parametrize(("dry", "goes"), [(1, True), (2, False)])
def test_an_offering_set_is_trusted_for_a_return_to_spot_while_one_member_is(dry: int, goes: bool) -> None:
    chosen_from = [offering(kind, 1.0, pool="spot", market="spot", **ROOM) for kind in ("g.1", "g.2")]
    pools = (pool(DEAR), pool(*chosen_from, name="spot", chooser="cloud"))
    after = state(*(Refused(offering.key, NOW - 10.0) for offering in chosen_from[:dry]), pools=pools)

    assert removed(scale_down_of(expensive_machines("a"), *pools, state=after)) == (["a"] if goes else [])


def test_the_blocker_names_the_cheaper_spot_offering_and_why_it_is_not_trusted() -> None:
    result = scale_down_of(expensive_machines("a"), BOTH, state=state(Refused(SPOT.key, NOW - 10.0, detail="no g.1")))

    assert blockers(result) == {"a": "in-use"}
    note = "; g.1 on spot in z1 would cost $1.0000 per hour (spot g.1 z1: no capacity since 22:13:10 UTC (no g.1); retried at"
    assert note in detail(result, "a")


def test_machines_of_pods_that_exclude_spot_report_nothing_about_spot() -> None:
    result = scale_down_of(expensive_machines("a", options={"market": ("on-demand",)}), BOTH, state=state(Refused(SPOT.key, NOW - 10.0)))

    assert "on spot" not in detail(result, "a")


@pytest.mark.parametrize(("ago", "goes"), [(RETURN_SECONDS - 1.0, False), (RETURN_SECONDS, True)])
def test_after_a_spot_reclaim_no_machine_returns_to_the_pool_for_an_hour_despite_grants(ago: float, goes: bool) -> None:
    other = offering("g.2", 1.5, market="spot", zone="z2", **ROOM)
    taken = Reclaimed(other.key, NOW - ago)
    after = state(taken, Granted(other.key, NOW - ago + 300.0), pools=(pool(DEAR, SPOT, other),))
    result = scale_down_of(expensive_machines("a"), pool(DEAR, SPOT, other), state=after)

    assert removed(result) == (["a"] if goes else [])
    if not goes:
        note = "a spot machine of pool main was reclaimed a short while ago, so no machine returns to it before 22:13:21 UTC"
        assert detail(result, "a") == f"it could run cheaper on spot; {note}"


CHOSEN: tuple[Mapping[str, Any], ...] = ({}, {}, {"restart_cost": 60.0}, {"market": ("on-demand",)})


@st.composite
def spot_cases(draw: st.DrawFn) -> tuple[list[Node | Pod], tuple[Pool, ...], State]:
    """Pools of spot and on-demand, machines of them with pods, and recent spot events."""
    pools = []
    for name in ("one", "two"):
        dear = offering("g.1", draw(st.sampled_from((2.0, 4.0))), pool=name, **ROOM)
        price = draw(st.sampled_from((0.5, 1.0)))
        spots = [offering("g.1", price, pool=name, market="spot", zone=zone, **ROOM) for zone in ("z1", "z2")]
        pools.append(pool(dear, *spots[: draw(st.integers(0, 2))], name=name))
    items: list[Node | Pod] = []
    for number in range(draw(st.integers(1, 8))):
        of = draw(st.sampled_from([offering for each in pools for offering in each.offerings]))
        options: Mapping[str, Any] = draw(st.sampled_from(CHOSEN))
        items.append(node(f"n{number}", of))
        items += [movable(f"p{number}", f"n{number}", GPU, options=options)] * draw(st.integers(0, 1))
    keys = [offering.key for each in pools for offering in each.offerings if offering.market == "spot"]
    events: list[Any] = []
    for key in keys:
        at = NOW - draw(st.sampled_from((10.0, 1000.0, 2000.0, 5000.0)))
        events += draw(st.sampled_from(([], [Refused(key, at)], [Refused(key, at), Granted(key, at + 5.0)], [Reclaimed(key, at)])))
    leaving = frozenset(name for name in ("n0", "n1") if draw(st.booleans()))
    return items, tuple(pools), state(*events, pools=tuple(pools), disrupting=leaving)


@settings(max_examples=examples(150), derandomize=True, deadline=None)
@given(spot_cases())
def test_at_most_one_machine_of_a_pool_returns_at_once_and_only_to_trusted_spot(
    case: tuple[list[Node | Pod], tuple[Pool, ...], State],
) -> None:
    items, pools, state = case
    result = scale_down(where := situation(items, *pools, state=state))
    new = {machine.id: machine for machine in result.machines}
    back: Counter[str] = Counter()
    for removal in result.removals:
        member = where.members[removal.node]
        assert member.offering is not None
        targets = [new[need] for need in removal.needs if new[need].market == "spot"]
        if member.offering.market == "spot" or not targets:
            continue
        back[member.pool.name] += 1
        for machine in targets:
            key = (machine.pool, machine.market, machine.instance_type, machine.zone)
            assert key not in state.blocked_offerings | state.no_moves_to
            assert state.spot_return_blocked_until.get(machine.pool, 0.0) <= NOW
        busy = {where.members[name].pool.name for name in state.disrupting if name in where.members and dear_and_busy(where.cluster, name)}
        assert member.pool.name not in busy
    assert all(count == 1 for count in back.values())


def dear_and_busy(cluster: Any, name: str) -> bool:
    return cluster.nodes[name].labels["karpenter.sh/capacity-type"] != "spot" and bool(cluster.on_node.get(name))
