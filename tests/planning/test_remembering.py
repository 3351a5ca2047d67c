"""The cache of a planner: repeated plans equal those of a fresh planner."""

from random import Random

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.planning.building import NOW, daemon, node, offering, pods, pool, spec
from tests.planning.changing import POLICIES, World
from tests.soaking import examples

from gpuscaler.model.cluster import Cluster, Delta, Item
from gpuscaler.model.pools import Policy
from gpuscaler.planning.planner import Planner, plan
from gpuscaler.planning.state import State

POLICY = Policy((pool(offering("g.1", 1.0, gpus=1, cpu=4), offering("g.8", 6.0, gpus=8, cpu=32)),))


@settings(max_examples=examples(60), derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.sampled_from(POLICIES), st.integers(0, 2**32))
def test_the_cache_of_a_planner_changes_no_plan(policy: Policy, seed: int) -> None:
    world, planner = World(Random(seed)), Planner(policy)
    for _ in range(10):
        made = planner.plan(world.cluster, world.state, world.now)
        assert msgspec.json.encode(made) == msgspec.json.encode(plan(world.cluster, world.state, policy, world.now))
        world.step()


def test_a_planner_can_plan_for_one_cluster_after_another() -> None:
    worlds, planner = [World(Random(seed)) for seed in range(3)], Planner(POLICIES[0])
    for world in worlds * 2:
        assert planner.plan(world.cluster, world.state, world.now) == plan(world.cluster, world.state, POLICIES[0], world.now)
        world.step()


def test_a_planner_examines_only_changed_nodes_again() -> None:
    planner, of = Planner(POLICY), offering("g.8", 6.0, gpus=8, cpu=32)
    cluster = Cluster.of([node("n1", of), node("n2", of), *pods("a", 2, on="n1"), *pods("b", 2, on="n2")])
    planner.plan(cluster, State(), NOW)
    before = {name: inspection.residents for name, inspection in planner._surveys.inspections.items()}
    planner.plan(cluster.apply(Delta(upserts=tuple(pods("c", 1, on="n2")))), State(), NOW)
    after = {name: look.residents for name, look in planner._surveys.inspections.items()}
    assert (after["n1"] is before["n1"], after["n2"] is before["n2"]) == (True, False)


def test_deleted_nodes_and_pods_are_removed_from_the_cache() -> None:
    planner = Planner(POLICY)
    planner.plan(Cluster.of([node("n1"), *pods("a", 2, on="n1")]), State(), NOW)
    assert (len(planner._surveys.inspections), len(planner._surveys.classes)) == (1, 1)
    planner.plan(Cluster.of([node("n2")]), State(), NOW)
    assert (list(planner._surveys.inspections), len(planner._surveys.classes)) == (["n2"], 0)


def test_new_daemon_sets_and_blocked_offerings_lead_to_new_templates() -> None:
    planner = Planner(POLICY)
    cluster = Cluster.of(pods("web", 3, spec(gpus=1, cpu=3)))
    agent: Item = daemon("agent", spec(cpu=2))
    dry = State(blocked_offerings=frozenset({offering("g.1").key}))
    seen = []
    for changed, state in ((Delta(), State()), (Delta(upserts=(agent,)), State()), (Delta(), dry), (Delta(), State())):
        cluster = cluster.apply(changed)
        made = planner.plan(cluster, state, NOW)
        assert made == plan(cluster, state, POLICY, NOW)
        seen.append([machine.instance_type for machine in made.machines])
    assert seen == [["g.1"] * 3, ["g.8"], ["g.8"], ["g.8"]]


def test_templates_are_reused_while_their_inputs_stay_the_same() -> None:
    planner = Planner(POLICY)
    cluster = Cluster.of([daemon("agent", spec(cpu=1)), *pods("web", 3)])
    planner.plan(cluster, State(), NOW)
    kept = planner._templates
    planner.plan(cluster.apply(Delta(upserts=tuple(pods("more", 2)))), State(), NOW)
    assert planner._templates is kept


def test_pods_like_earlier_ones_get_the_same_plan_as_from_a_fresh_planner() -> None:
    planner = Planner(POLICY)
    for number, (gpus, count) in enumerate([(1, 1), (1, 2), (1, 1), (8, 1), (1, 2), (1, 9), (8, 1)]):
        cluster = Cluster.of(pods(f"job{number}", count, spec(gpus=gpus, cpu=1)))
        assert planner.plan_and_proof(cluster, State(), NOW) == Planner(POLICY).plan_and_proof(cluster, State(), NOW)
