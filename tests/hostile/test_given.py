"""Workloads with which a tenant could once stop the controller, from ``../shared/cases/hostile``."""

import gzip
from collections import Counter
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec
import pytest
from tests.hostile.workloads import HUGE, NOW, POOLS, Object, cluster_of, containers, gangs, node, ordinary, pod, policy
from tests.planning.demand.test_rationing import demand_of

from gpuscaler.model.aside import Skipped
from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.decoding.interning import Interner
from gpuscaler.model.decoding.objects import decode_object
from gpuscaler.model.pools import Policy
from gpuscaler.planning.demand.rationing import TOTAL, planning_units, ration
from gpuscaler.planning.planner import plan
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.state import State

FOLDER = Path(__file__).parents[3] / "shared" / "cases" / "hostile"
#: Each file with its number of pods, and how many of them a plan must at least get machines for; for simple pods that is all of them.
FILES = {
    "g4": (300, 300),
    "gang1": (600, 100),
    "gangs": (980, 150),
    "manyterms": (200, 0),
    "mixall": (1900, 100),
    "ports": (400, 400),
}
ORDINARY = 200


class Listing(msgspec.Struct):
    """A Kubernetes List with each object as raw text."""

    items: list[msgspec.Raw]


def cluster_from_file(name: str, *more: Object) -> Cluster:
    """The cluster of a file and ``more``, read one object at a time like by a watch."""
    interner, items, aside = items_of_file(name)
    more_items, more_aside = decode_each(map(msgspec.json.encode, more), interner)
    return Cluster.of([*items, *more_items], [*aside, *more_aside])


@cache
def items_of_file(name: str) -> tuple[Interner, list[Item], list[Skipped]]:
    """The objects of a file and those that are skipped; decoding them takes longer than planning them."""
    interner = Interner()
    return interner, *decode_each(texts_of_file(name), interner)


def decode_each(texts: Iterable[bytes], interner: Interner) -> tuple[list[Item], list[Skipped]]:
    items, aside = list[Item](), list[Skipped]()
    for body in texts:
        decoded = decode_object(body, interner)
        if isinstance(decoded, Skipped):
            aside.append(decoded)
        elif decoded is not None:
            items.append(decoded)  # type: ignore[arg-type]  # one pod each
    return items, aside


def texts_of_file(name: str) -> tuple[bytes, ...]:
    path = FOLDER / f"{name}.json.gz"
    if not path.exists():
        pytest.skip(f"../shared/cases/hostile/{path.name} is not there")
    with gzip.open(path) as file:
        return tuple(bytes(raw) for raw in msgspec.json.decode(file.read(), type=Listing).items)


@cache
def plan_for_ordinary_pods() -> Plan:
    return plan(cluster_of(ordinary(ORDINARY)), State(), tenants(), NOW)


@cache
def tenants() -> Policy:
    """The pools with which the files were planned."""
    path = FOLDER / "pools.yaml"
    if not path.exists():
        pytest.skip("../shared/cases/hostile/pools.yaml is not there")
    return policy(path.read_text())


def types_bought_for(made: Plan, namespace: str) -> dict[str, str]:
    """The type of machine that is bought for each pod of a namespace."""
    return {key: machine.instance_type for machine in made.machines for key in machine.pods if key.startswith(f"{namespace}/")}


def within_bounds(cluster: Cluster, made: Plan, count: int) -> None:
    """Check that the plan stays within its budget, and that each pod of the tenant has a machine or its own reason."""
    admitted, _ = ration(demand_of(cluster), cluster, NOW)
    assert sum(map(planning_units, admitted.gangs)) + sum(map(planning_units, admitted.classes)) <= TOTAL

    beyond = {unplaced.pod: unplaced.reasons[0] for unplaced in made.unplaced}
    aside = {skipped.object.removeprefix("Pod ") for skipped in made.set_aside}
    assert len(types_bought_for(made, "tenant")) + len(beyond) + len(aside) == count
    assert all(key.startswith("tenant/") for key in (*beyond, *aside))
    assert Counter(reason.excluded_by for reason in beyond.values()).keys() <= {"budget", "topology"}
    assert all("of namespace tenant used up" in reason.detail for reason in beyond.values() if reason.excluded_by == "budget")


@pytest.mark.parametrize("name", FILES)
def test_planning_a_hostile_workload_stays_within_the_work_budget_of_a_plan(name: str) -> None:
    count, at_least = FILES[name]
    cluster = cluster_from_file(name)
    made = plan(cluster, State(), tenants(), NOW)

    within_bounds(cluster, made, count)
    assert len(types_bought_for(made, "tenant")) >= at_least


@pytest.mark.parametrize("name", FILES)
def test_ordinary_pods_get_the_same_places_with_and_without_a_hostile_workload(name: str) -> None:
    count, at_least = FILES[name]
    cluster = cluster_from_file(name, *ordinary(ORDINARY))
    made = plan(cluster, State(), tenants(), NOW)
    alone = plan_for_ordinary_pods()

    within_bounds(cluster, made, count)
    assert types_bought_for(made, "others") == types_bought_for(alone, "others")
    assert len(types_bought_for(alone, "others")) == ORDINARY
    assert len(types_bought_for(made, "tenant")) >= at_least


def test_every_recorded_hostile_workload_is_tested() -> None:
    if not FOLDER.exists():
        pytest.skip("../shared/cases/hostile is not there")
    assert {path.name.partition(".")[0] for path in FOLDER.glob("*.json.gz")} == set(FILES)


def test_an_ordinary_pod_gets_a_machine_beside_hundreds_of_gangs_of_higher_priority() -> None:
    """``gen2.py``: gangs are placed before the pod of another namespace, and none of them costs it its place in the plan."""
    crowd = gangs(980, 2, alike=True)
    for gang_pod in crowd:
        gang_pod["spec"]["priority"] = 5
    victim = pod("other", {"priority": 0}, cpu="3", namespace="victim")
    made = plan(cluster_of([*crowd, victim]), State(), policy(POOLS), NOW)

    assert "victim/other" in types_bought_for(made, "victim")


@pytest.mark.parametrize("where", [{}, {"nodeName": "n1"}])
def test_other_pods_get_machines_beside_a_pod_with_a_thousand_containers(where: Object) -> None:
    """``fz4.py``: 1,024 containers of 2^53 bytes each."""
    made = plan(cluster_of([pod(1, {**where, **containers(1024, memory=HUGE)}), node("n1"), *ordinary(2)]), State(), policy(), NOW)

    assert [skipped.object for skipped in made.set_aside] == ["Pod tenant/p1"]
    placed = {placement.pod for placement in made.placements} | set(types_bought_for(made, "others"))
    assert placed == {"others/o0", "others/o1"}
