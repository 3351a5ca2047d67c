"""Replicas that an owner has announced but not created yet."""

from tests.planning.building import NOW, REPLICAS, offering, pods, pool

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pools import Limits, Policy
from gpuscaler.model.workloads import Workload
from gpuscaler.planning.planner import plan
from gpuscaler.planning.state import State

SMALL_AND_LARGE = pool(offering("g.1", 1.0, gpus=1), offering("g.8", 4.0, gpus=8, cpu=64, memory=256))


def waiting(count: int, *, replicas: int, observed: int) -> Cluster:
    web = pods("web", count, owner=REPLICAS)
    return Cluster.of([*web, Workload("ReplicaSet", "default", "web-1", uid=REPLICAS.uid, replicas=replicas, observed=observed)])


def test_one_large_machine_is_bought_if_more_replicas_are_announced() -> None:
    policy = Policy((SMALL_AND_LARGE,))
    alone = plan(waiting(2, replicas=2, observed=2), State(), policy, NOW)
    with_more = plan(waiting(2, replicas=8, observed=2), State(), policy, NOW)
    assert [machine.instance_type for machine in alone.machines] == ["g.1", "g.1"]
    assert [(machine.instance_type, len(machine.pods)) for machine in with_more.machines] == [("g.8", 2)]
    assert with_more.cost_per_hour >= with_more.lower_bound_per_hour


def test_no_machine_is_bought_for_announced_replicas_only() -> None:
    made = plan(waiting(2, replicas=40, observed=2), State(), Policy((SMALL_AND_LARGE,)), NOW)
    assert len(made.machines) == 1
    assert not made.unplaced


def test_a_status_that_counts_fewer_pods_than_are_pending_announces_nothing() -> None:
    made = plan(waiting(2, replicas=8, observed=0), State(), Policy((SMALL_AND_LARGE,)), NOW)
    assert [machine.instance_type for machine in made.machines] == ["g.1", "g.1"]


def test_existing_pods_are_placed_before_announced_ones_under_a_limit() -> None:
    made = plan(waiting(3, replicas=50, observed=3), State(), Policy((SMALL_AND_LARGE,), limits=Limits(gpus=3)), NOW)
    assert sorted(key for machine in made.machines for key in machine.pods) == [f"default/web-{number}" for number in range(3)]
