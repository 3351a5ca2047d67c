"""Quality and bounded work with many machines."""

from collections import Counter

from benchmarks.scale_down import NOW, generate_cluster, saving_bound
from tests.planning.building import spec
from tests.planning.scale_down.kit import big, blockers, detail, movable, removed, scale_down_of

from gpuscaler.model.pods import HostPort
from gpuscaler.planning.planner import plan
from gpuscaler.planning.state import State


def test_consolidating_a_fleet_that_is_one_third_full_saves_nearly_as_much_as_repacking() -> None:
    cluster, policy = generate_cluster(150, 4_500, 40, utilised=0.35, seed=7)
    made = plan(cluster, State(), policy, NOW)
    assert sum(removal.saving_per_hour for removal in made.removals) >= 0.95 * saving_bound(cluster)
    removed_nodes = {removal.node for removal in made.removals}
    used: dict[str, Counter[str]] = {name: Counter() for name in cluster.nodes if name not in removed_nodes}
    home = {move.pod: move.to for removal in made.removals for move in removal.moves}
    for key, pod in cluster.pods.items():
        used[home.get(key, pod.node_name)].update({**pod.spec.requests, "pods": 1})
    assert all(amount <= cluster.nodes[name].allocatable[resource] for name, sums in used.items() for resource, amount in sums.items())


def test_machines_beyond_the_work_budget_are_reported_as_not_examined() -> None:
    names = [f"n{number}" for number in range(8)]
    ported = [spec(host_ports=(HostPort(80 + number),)) for number in range(8)]
    items = [*map(big, names), *(movable(f"p-{name}", name, of) for name, of in zip(names, ported, strict=True))]
    assert len(removed(scale_down_of(items))) == 7
    result = scale_down_of(items, work_budget=8)
    assert removed(result) == ["n0", "n1"]
    assert Counter(blockers(result).values()) == {"in-use": 6}
    assert detail(result, "n2") == "not examined: this plan has spent its work budget on better candidates for removal"
