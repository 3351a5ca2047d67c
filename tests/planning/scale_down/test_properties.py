"""Properties of scale-down on any cluster: the moves of a plan can be made one after the other, and no allowance is exceeded."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.planning.building import DAEMON, HOST, JOB, NOW, REPLICAS, ZONE, near, node, offering, pool, selector, spec, spread
from tests.planning.scale_down.kit import BIG, movable, situation
from tests.soaking import examples

from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import HostPort, Pod, PodSpec, SpreadConstraint
from gpuscaler.model.pools import Budget, Pool, Spare
from gpuscaler.model.taints import Taint, Toleration
from gpuscaler.model.workloads import PodDisruptionBudget
from gpuscaler.planning.capacity.idle import leaves_with_machine
from gpuscaler.planning.feasibility.snapshot import Room
from gpuscaler.planning.plans import PlannedMachine
from gpuscaler.planning.scale_down import ScaleDownResult, Situation, scale_down
from gpuscaler.planning.state import State

SMALL: dict[str, Any] = {"gpus": 0, "cpu": 4, "memory": 16, "pods": 6}
OFFERS = (
    BIG,
    offering("m.big", 0.9, zone="z2", gpus=0, pods=20),
    offering("m.small", 0.4, **SMALL),
    offering("m.small", 0.15, market="spot", zone="z2", **SMALL, taints=(Taint("spot", "yes"),)),
)
ANY_SPOT = (Toleration("spot", "Exists"),)
APPS = ("a", "b", "c")
OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {},
    {},
    {"restart_cost": 600.0},
    {"market": ("on-demand",)},
    {"gang": "g", "gang_size": 2, "restart_cost": 60.0},
)


def rules_for(app: str) -> tuple[dict[str, Any], ...]:
    return (
        {"tolerations": ANY_SPOT},
        {"anti_affinity": (near(HOST, app=app),)},
        {"anti_affinity": (near(HOST, tier="x"),)},
        {"anti_affinity": (near(ZONE, app="a"),)},
        {"affinity": (near(ZONE, app="b"),)},
        {"affinity": (near(HOST, tier="y"),)},
        {"spread": (spread(ZONE, app=app),)},
        {"spread": (SpreadConstraint(ZONE, 2, selector=selector(tier="x"), honor_taints=True),)},
        {"spread": (spread(HOST, skew=2, app=app),)},
        {"host_ports": (HostPort(80),)},
        {"node_selector": ((ZONE, "z1"),)},
        {"priority": -50},
    )


@st.composite
def specs(draw: st.DrawFn, app: str) -> PodSpec:
    """Often a plain pod, sometimes one with one or two rules."""
    fields: dict[str, Any] = {}
    for rule in draw(st.lists(st.sampled_from(rules_for(app)), max_size=2)):
        fields |= rule
    return spec(cpu=draw(st.sampled_from([0.25, 0.5, 1, 2.5])), **fields)


@st.composite
def pods_on(draw: st.DrawFn, names: Sequence[str]) -> list[Pod]:
    pods = []
    for app in APPS:
        body = draw(specs(app))
        owner = draw(st.sampled_from([REPLICAS, REPLICAS, REPLICAS, JOB, DAEMON]))
        options = draw(st.sampled_from(OPTIONS))
        tier = draw(st.sampled_from("xy"))
        for number, name in enumerate(draw(st.lists(st.sampled_from(names), max_size=8))):
            pods.append(movable(f"{app}-{number}", name, body, owner=owner, labels={"app": app, "tier": tier}, options=options))
    return pods


@st.composite
def pools(draw: st.DrawFn) -> Pool:
    budgets = draw(st.sampled_from([(), (), (Budget("1"),), (Budget("50%", reasons=("consolidation",)),)]))
    spare = draw(st.sampled_from([Spare(), Spare(), Spare(machines=1)]))
    return pool(*OFFERS, min=draw(st.integers(0, 3)), budgets=budgets, spare=spare)


@st.composite
def clusters(draw: st.DrawFn) -> tuple[list[Item], Pool, State]:
    nodes = [
        node(f"n{number}", draw(st.sampled_from(OFFERS)), ready=draw(st.integers(0, 9)) > 0) for number in range(draw(st.integers(1, 7)))
    ]
    names = [node.name for node in nodes]
    app = draw(st.sampled_from(APPS))
    pending = [movable("pending", of=draw(specs(app)), labels={"app": app, "tier": "x"})] if draw(st.integers(0, 3)) == 0 else []
    limits = [
        PodDisruptionBudget("default", f"pdb-{app}", selector(app=app), draw(st.integers(0, 3)))
        for app in draw(st.sets(st.sampled_from(APPS)))
    ]
    idle = {name: draw(st.sampled_from([0.0, 700.0])) for name in names if draw(st.booleans())}
    items: list[Item] = [*nodes, *draw(pods_on(names)), *pending, *limits]
    under_way = draw(st.sets(st.sampled_from(names), max_size=2)) if draw(st.integers(0, 3)) == 0 else set()
    return items, draw(pools()), State(idle_seconds=idle, disrupting=frozenset(under_way))


@settings(max_examples=examples(200), deadline=None)
@given(clusters(), st.randoms(use_true_random=False))
def test_every_scale_down_can_be_executed_within_its_budgets(made: tuple[list[Item], Pool, State], shuffle: Any) -> None:
    items, rules, state = made
    places = place_of_waiting(items)
    request = situation(items, rules, state=state, places=places)
    result = scale_down(request)
    assert_every_node_is_answered_for(request, result)
    assert_moves_can_be_made(request, result)
    assert_budgets_hold(request, result, rules)
    assert_savings_add_up(request, result)
    other = list(items)
    shuffle.shuffle(other)
    assert scale_down(situation(other, rules, state=state, places=places)) == result


def place_of_waiting(items: Sequence[Item]) -> dict[str, str]:
    """The first node by name that admits the pending pod, if any does."""
    cluster = Cluster.of(items)
    room = Room.of(cluster)
    waiting = [pod for pod in cluster.pods.values() if not pod.node_name]
    admitted = {pod.key: room.table.names[row] for pod in waiting for row in np.flatnonzero(room.verdict(pod.spec, pod.labels).mask)[:1]}
    return {key: name for key, name in admitted.items() if cluster.nodes[name].ready}


def assert_every_node_is_answered_for(request: Situation, result: ScaleDownResult) -> None:
    named = [removal.node for removal in result.removals] + [blocked.node for blocked in result.blocked]
    assert sorted(named) == sorted(request.cluster.nodes)
    assert all(blocked.blocker and blocked.detail for blocked in result.blocked)
    assert all(removal.reason for removal in result.removals)


def assert_moves_can_be_made(request: Situation, result: ScaleDownResult) -> None:
    """Every pod that must move does so once, to a machine that stays or is bought, and passes every filter there at that moment.

    This holds whether or not pending pods have arrived, and whether or not pods that leave with their machines are already gone.
    """
    cluster = request.cluster
    new = {machine.id: machine for machine in result.machines}
    fresh = [template(machine) for machine in result.machines]
    before, later = (request.present or request.room).extended(fresh), request.room.extended(fresh)
    after = later.copy()
    removed_nodes = {removal.node for removal in result.removals}
    for removal in result.removals:
        here = cluster.on_node.get(removal.node, {}).values()
        staying = [pod for pod in here if not leaves_with_machine(pod, NOW)]
        expected = [pod.key for pod in staying if pod.spec.priority >= request.policy.priority_cutoff]
        assert sorted(move.pod for move in removal.moves) == sorted(expected)
        assert {move.to for move in removal.moves if move.to in new} == set(removal.needs)
        for lost in here:
            if lost.key not in expected:
                after.remove(lost.spec, lost.labels, after.table.row[removal.node])
        for move in removal.moves:
            mine = cluster.pods[move.pod]
            assert move.to not in removed_nodes | request.state.disrupting
            assert move.to in new or cluster.nodes[move.to].ready
            for room in (before, later, after):
                room.remove(mine.spec, mine.labels, room.table.row[removal.node])
                target = room.table.row[move.to]
                assert room.verdict(mine.spec, mine.labels).mask[target], (move, room.reason(mine.spec, mine.labels, target))
                room.place(mine.spec, mine.labels, target)


def template(machine: PlannedMachine) -> Node:
    key = (machine.pool, machine.market, machine.instance_type, machine.zone)
    return node(machine.id, next(offering for offering in OFFERS if offering.key == key))


def assert_savings_add_up(request: Situation, result: ScaleDownResult) -> None:
    """The savings of removals equal the price of removed machines less the price of new ones, and each is positive."""
    price = {name: member.offering.price for name, member in request.members.items() if member.offering is not None}
    left = sum(price[removal.node] for removal in result.removals)
    cost_of_new = sum(machine.price_per_hour for machine in result.machines)
    saved = sum(removal.saving_per_hour for removal in result.removals)
    assert abs(saved - (left - cost_of_new)) < 1e-6
    assert all(removal.saving_per_hour > 0 for removal in result.removals)
    moved = {machine.id: sorted(m.pod for r in result.removals for m in r.moves if m.to == machine.id) for machine in result.machines}
    assert {machine.id: list(machine.pods) for machine in result.machines} == moved
    assert all(moved.values())


def assert_budgets_hold(request: Situation, result: ScaleDownResult, rules: Pool) -> None:
    cluster = request.cluster
    if result.removals:
        assert len(cluster.nodes) - len(request.state.disrupting) - len(result.removals) >= rules.min
    evicted: Counter[str] = Counter()
    for removal in result.removals:
        for mine in cluster.on_node.get(removal.node, {}).values():
            over = [budget for budget in cluster.budgets.values() if budget.selector is not None and budget.selector.matches(mine.labels)]
            if not leaves_with_machine(mine, NOW):
                evicted.update(budget.key for budget in over)
    assert all(count <= cluster.budgets[key].disruptions_allowed for key, count in evicted.items())
    if any(budget.nodes == "1" for budget in rules.budgets):
        assert len(result.removals) <= 1
    idle = [node for node in cluster.nodes.values() if is_empty(cluster.on_node.get(node.name, {}).values(), node)]
    removed_idle = [node for node in idle if node.name in {removal.node for removal in result.removals}]
    if removed_idle:
        assert len(idle) - len(removed_idle) >= rules.spare.machines


def is_empty(pods: Any, node: Node) -> bool:
    return node.ready and all(leaves_with_machine(pod, NOW) for pod in pods)
