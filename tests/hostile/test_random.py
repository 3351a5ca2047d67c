"""Random objects of a tenant: reading and planning do not fail, the plan is deterministic, and other pods are served within limits."""

from random import Random

import pytest
from tests.hostile.drawing import workload
from tests.hostile.workloads import LIMITED, NOW, POOLS, cluster_of, ordinary, policy
from tests.soaking import RUNS, SEED

from gpuscaler.lifecycle.quarantine import digest
from gpuscaler.planning.planner import plan
from gpuscaler.planning.state import State

#: A hundredth of the number of other schedules of a soak: each has hundreds of pods.
DRAWS = max(8, RUNS // 100)


@pytest.mark.parametrize("number", range(DRAWS))
def test_random_objects_of_one_tenant_do_not_keep_other_pods_from_being_planned(number: int) -> None:
    luck = Random(f"hostile/{SEED}/{number}")
    objects = workload(luck, luck.choice([20, 100, 300]))
    others = ordinary(20)
    cluster = cluster_of([*objects, *others])

    made = plan(cluster, State(consolidating=True), policy(POOLS), NOW)
    bounded = plan(cluster, State(), policy(LIMITED), NOW, live=True)

    served = {key for machine in made.machines for key in machine.pods} | {placement.pod for placement in made.placements}
    assert {f"others/{each['metadata']['name']}" for each in others} <= served
    assert sum(machine.price_per_hour for machine in bounded.machines) <= 120.0
    assert bounded == plan(cluster, State(), policy(LIMITED), NOW, live=True)
    assert all(digest(pod) for pod in cluster.pods.values())
