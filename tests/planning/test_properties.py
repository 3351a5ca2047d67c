"""Properties of every plan, over random clusters, policies and states."""

import math
from collections import Counter
from random import Random

import msgspec
import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.planning.building import ARCH, HOST, NOW, PRODUCT, ZONE
from tests.planning.drawing import cases, pods_without_rules
from tests.planning.replaying import Case, assert_comes_true, carry_out, existing_room, offerings_of, planned_nodes
from tests.soaking import examples

from gpuscaler.model.accelerators import count_accelerators
from gpuscaler.model.cluster import Cluster, Delta
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Policy
from gpuscaler.planning.feasibility.snapshot import Room
from gpuscaler.planning.planner import plan
from gpuscaler.planning.plans import Plan, PlannedMachine
from gpuscaler.planning.state import State

#: One fixed draw, so that a run fails because of a change and not by chance; for a longer search set `derandomize=False` and more examples.
SEARCH = settings(max_examples=examples(40), derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))


def bought(made: Plan) -> list[PlannedMachine]:
    """Machines for pods and headroom; replacements come with a removal and enlarge the fleet only for a short time."""
    return [machine for machine in made.machines if machine.purpose != "replacement"]


def is_open(case: Case, name: str) -> bool:
    node = case.cluster.nodes.get(name)
    return node is None or (node.ready and not node.deleted and name not in case.state.disrupting)


def is_unconstrained(pod: Pod, policy: Policy) -> bool:
    """Whether neither preferences nor other pods restrict the place of a pod, apart from topology spread."""
    spec = pod.spec
    wishes = policy.preferences == "respect" and (spec.preferred_nodes or any(not constraint.hard for constraint in spec.spread))
    return not (wishes or spec.affinity or spec.anti_affinity or pod.options.gang)


def fitting(room: Room, pod: Pod) -> set[str]:
    return {room.table.names[row] for row in np.flatnonzero(room.capacity(pod.spec, pod.labels))}


def uncertain(case: Case) -> set[str]:
    """Ordered machines whose type and zone the cloud has not chosen yet."""
    return {machine.id for machine in case.state.upcoming if len(machine.choices) > 1}


def is_counted(case: Case, pod: Pod) -> bool:
    """Whether pods that spread over more than hosts count a pod, so that it must be where its domain is certain."""
    return any(
        constraint.hard and constraint.topology_key != HOST and constraint.selector and constraint.selector.matches(pod.labels)
        for other in case.cluster.pods.values()
        if other.namespace == pod.namespace and not other.node_name
        for constraint in other.spec.spread
    )


def rows_not_repelled(room: Room, pod: Pod) -> set[str]:
    """Rows from which no other pod's anti-affinity keeps a pod away."""
    passes = room.verdict(pod.spec, pod.labels).passes.get("InterPodAffinity")
    return set(room.table.names) if passes is None else {room.table.names[row] for row in np.flatnonzero(passes)}


def before_machines(case: Case, made: Plan) -> list[Room]:
    """The existing nodes twice: with every pod that the plan places there, and with those that bind before any machine is ready."""
    room = existing_room(case)
    where = {pod: name for pod, name in planned_nodes(case, made).items() if name in room.table.row}
    full = room.copy()
    for key, name in where.items():
        full.place(case.cluster.pods[key].spec, case.cluster.pods[key].labels, full.table.row[name])
    return [full, carry_out(room, case, where)[0]]


@SEARCH
@given(cases())
def test_every_plan_can_be_carried_out_and_wastes_no_existing_capacity(case: Case) -> None:
    made = case.plan()
    rooms = assert_comes_true(case, made)
    left = {entry.pod for entry in made.unplaced}
    for machine in bought(made):
        left.update(machine.pods)
    for pod in (case.cluster.pods[key] for key in left):
        if is_unconstrained(pod, case.policy):
            spreads = any(constraint.hard for constraint in pod.spec.spread)
            fits = [fitting(room, pod) for room in (before_machines(case, made) if spreads else rooms)]
            # A pod must not go where a pod of the plan keeps it away, even if that pod arrives later.
            fits += [rows_not_repelled(room, pod) for room in rooms]
            there = {name for name in set.intersection(*fits) if not name.startswith("new-") and is_open(case, name)}
            there -= uncertain(case) if is_counted(case, pod) else set()
            assert not there, f"{pod.key} fits {there}"


@SEARCH
@given(cases())
def test_every_pod_is_reported_once_and_the_costs_add_up(case: Case) -> None:
    made = case.plan()
    assert_pods_add_up(case, made)
    assert_money_adds_up(made)
    assert_machines_can_open(made)


def assert_pods_add_up(case: Case, made: Plan) -> None:
    planned_pods = Counter([pod for machine in bought(made) for pod in machine.pods])
    planned_pods.update(placement.pod for placement in made.placements)
    planned_pods.update(entry.pod for entry in made.unplaced)
    planned_pods.update(entry.pod for entry in made.ignored)
    assert planned_pods == Counter(pod.key for pod in case.cluster.pods.values() if not pod.node_name or pod.finished)


@SEARCH
@given(cases())
def test_no_plan_exceeds_limits_or_buys_a_wrong_market_or_splits_a_gang(case: Case) -> None:
    made = case.plan()
    assert_within_limits(case, made)
    assert_machines_suit_their_pods(case, made)
    assert_gangs_are_whole(case, made)


def assert_within_limits(case: Case, made: Plan) -> None:
    policy, limits = case.policy, case.policy.limits
    prices = {offering.key: offering for pool in policy.pools for offering in pool.offerings}
    had = Counter(item.labels["gpuscaler.io/pool"] for item in case.items if isinstance(item, Node))
    had.update(machine.pool for machine in case.state.upcoming)
    new = Counter(machine.pool for machine in bought(made))
    for pool in policy.pools:
        assert not new[pool.name] or pool.max is None or had[pool.name] + new[pool.name] <= pool.max
    if new:
        assert limits.machines is None or had.total() + new.total() <= limits.machines
        assert limits.machines_per_minute is None or case.state.bought_last_minute + new.total() <= limits.machines_per_minute
    # The limits hold for anything that may be granted, including fallbacks.
    gpus = sum(max(count_accelerators(prices[key].allocatable) for key in machine.requested) for machine in bought(made))
    assert limits.gpus is None or not gpus or gpus <= limits.gpus
    spent = math.fsum(max(prices[key].price for key in machine.requested) for machine in bought(made))
    assert limits.dollars_per_hour is None or spent <= limits.dollars_per_hour + 1e-6
    requested = Counter(m.key for m in made.machines if not m.choices)
    for key, times in requested.items():
        count = prices[key].count
        assert count is None or times <= count
        assert key not in case.state.blocked_offerings


def assert_machines_suit_their_pods(case: Case, made: Plan) -> None:
    pools = {pool.name: pool for pool in case.policy.pools}
    for machine in bought(made):
        for pod in (case.cluster.pods[key] for key in machine.pods):
            for offering in offerings_of(machine, case.policy):
                assert not pod.options.market or offering.market in pod.options.market
                foreign = offering.labels[ARCH] not in ("amd64", pools[machine.pool].arch)
                names_it = pod.spec.node_affinity is not None and any(
                    r.key == ARCH for t in pod.spec.node_affinity.terms for r in t.expressions
                )
                assert not foreign or names_it


def assert_gangs_are_whole(case: Case, made: Plan) -> None:
    where = planned_nodes(case, made)
    gangs: dict[tuple[str, str, str], list[Pod]] = {}
    ignored = {entry.pod for entry in made.ignored}
    for pod in case.cluster.pods.values():
        if pod.options.gang and not pod.node_name and pod.key not in ignored:
            gangs.setdefault((pod.namespace, pod.options.gang, pod.options.gang_topology), []).append(pod)
    promised = {key for machine in case.state.upcoming for key in machine.pods}
    for (_, _, topology), members in gangs.items():
        placed = [pod.key for pod in members if pod.key in where]
        kept = [key for key in placed if key in promised]
        assert len(placed) in (len(kept), len(members))
        if placed and topology != "any" and not kept and len(placed) == len(members):
            assert len(labels_of(case, made, [where[key] for key in placed], ZONE)) == 1
            if any(name.endswith("/gpu") for pod in members for name in pod.spec.requests):
                assert len(labels_of(case, made, [where[key] for key in placed], PRODUCT)) == 1


def labels_of(case: Case, made: Plan, names: list[str], key: str) -> set[str]:
    """The values of a label over existing, ordered and bought machines."""
    coming = {machine.node or machine.id: machine for machine in case.state.upcoming}
    machines = {machine.id: machine for machine in made.machines}
    values = set()
    for name in names:
        machine = coming.get(name) or machines.get(name)
        if machine is None:
            values.add(case.cluster.nodes[name].labels.get(key, ""))
        else:
            values.update(offering.labels.get(key, "") for offering in offerings_of(machine, case.policy))
    return values


@SEARCH
@given(cases(), st.randoms(use_true_random=False))
def test_the_order_of_objects_does_not_change_the_plan(case: Case, draw: Random) -> None:
    items = list(case.items)
    draw.shuffle(items)
    other = plan(Cluster.of(items), case.state, case.policy, NOW)
    assert msgspec.json.encode(case.plan()) == msgspec.json.encode(other)


@SEARCH
@given(cases(), cases(), st.data())
def test_a_plan_after_changes_equals_a_fresh_plan(case: Case, before: Case, data: st.DataObject) -> None:
    """The cluster is reached from a different one in several steps."""
    items = [*before.items, *(item for item in case.items if data.draw(st.booleans()))]
    removed_items = {(type(item), item.key if isinstance(item, Pod) else item.name) for item in items if isinstance(item, Pod | Node)}
    stay = {(type(item), item.key if isinstance(item, Pod) else item.name) for item in case.items if isinstance(item, Pod | Node)}
    start = Cluster.of(item for item in items if isinstance(item, Pod | Node))
    plan(start, case.state, case.policy, NOW)
    grown = start.apply(Delta(deletes=tuple(sorted(removed_items - stay, key=str))))
    for part in (case.items[::2], case.items[1::2]):
        grown = grown.apply(Delta(upserts=part))
    assert msgspec.json.encode(plan(grown, case.state, case.policy, NOW)) == msgspec.json.encode(case.plan())


def assert_money_adds_up(made: Plan) -> None:
    cost = math.fsum(machine.price_per_hour for machine in made.machines if machine.purpose == "demand")
    assert math.isclose(made.cost_per_hour, cost, abs_tol=1e-9)
    assert made.lower_bound_per_hour <= cost + 1e-9
    assert made.gap >= -1e-9


def assert_machines_can_open(made: Plan) -> None:
    """Assert that every machine can open: none waits for itself in a circle."""
    after = {machine.id: set(machine.opens_after) for machine in made.machines}
    while after:
        ready = [name for name, names in after.items() if not names & after.keys()]
        assert ready, f"a circle: {after}"
        for name in ready:
            del after[name]


@settings(SEARCH, max_examples=examples(60))
@given(pods_without_rules())
def test_pods_without_rules_cost_no_more_together_than_apart_and_no_bound_says_so(drawn: tuple[list[Pod], Policy]) -> None:
    drawn_pods, policy = drawn
    alone = sum(plan(Cluster.of([each]), State(), policy, NOW).cost_per_hour for each in drawn_pods)

    together = plan(Cluster.of(drawn_pods), State(), policy, NOW)

    assert not together.unplaced
    assert together.cost_per_hour <= alone + 1e-6
    assert together.lower_bound_per_hour <= alone + 1e-6
