"""A planner that is asked again and again answers as one that is asked for the first time."""

from tests.planning.building import NOW, daemon, offering, pods, pool, spec

from gpuscaler.model.cluster import Cluster, Delta, Item
from gpuscaler.model.pools import Policy
from gpuscaler.planning.planner import Planner, plan
from gpuscaler.planning.state import State

POLICY = Policy((pool(offering("g.1", 1.0, gpus=1, cpu=4), offering("g.8", 6.0, gpus=8, cpu=32)),))


def test_what_a_planner_keeps_changes_no_plan() -> None:
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


def test_the_same_templates_serve_while_nothing_about_them_changes() -> None:
    planner = Planner(POLICY)
    cluster = Cluster.of([daemon("agent", spec(cpu=1)), *pods("web", 3)])
    planner.plan(cluster, State(), NOW)
    kept = planner._templates
    planner.plan(cluster.apply(Delta(upserts=tuple(pods("more", 2)))), State(), NOW)
    assert planner._templates is kept
