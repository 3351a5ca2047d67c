"""Carries out a plan, pod by pod, in a room in which every machine of the plan is a node."""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from tests.planning.building import NOW, node

from gpuscaler.model.cluster import Cluster, Delta, Item
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Offering, Policy
from gpuscaler.planning.feasibility.snapshot import Room
from gpuscaler.planning.planner import plan
from gpuscaler.planning.plans import Plan, PlannedMachine
from gpuscaler.planning.state import State, Upcoming

#: The number of random orders that are tried before a plan is considered impossible to carry out.
ORDERS = 12


@dataclass(frozen=True)
class Case:
    """The input of a plan. ``daemons`` are the resources that the DaemonSets among ``items`` use on every machine."""

    items: tuple[Item, ...]
    policy: Policy
    state: State = field(default_factory=State)
    daemons: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def cluster(self) -> Cluster:
        return Cluster.of(self.items)

    def plan(self) -> Plan:
        return plan(self.cluster, self.state, self.policy, NOW)


def offerings_of(machine: PlannedMachine | Upcoming, policy: Policy) -> list[Offering]:
    """All offerings that a machine may turn out to be."""
    named = [(c.instance_type, c.market, c.zone) for c in machine.choices] if isinstance(machine, PlannedMachine) else list(machine.choices)
    named = named or [(machine.instance_type, machine.market, machine.zone)]
    (pool,) = (pool for pool in policy.pools if pool.name == machine.pool)
    return [offering for offering in pool.offerings if (offering.instance_type, offering.market, offering.zone) in named]


def arrived_node(case: Case, machine: PlannedMachine | Upcoming, turn: int) -> Node:
    """The node of a machine that turned out to be the ``turn``-th of its offerings (modulo their number)."""
    offerings = offerings_of(machine, case.policy)
    offering = offerings[turn % len(offerings)]
    name = machine.node if isinstance(machine, Upcoming) and machine.node else machine.id
    left = {resource: amount - case.daemons.get(resource, 0) for resource, amount in offering.allocatable.items()}
    return node(name, offering, allocatable=left)


def rooms(case: Case, made: Plan) -> Iterator[Room]:
    """The room with all machines present, once for each offering that they may turn out to be."""
    coming: list[PlannedMachine | Upcoming] = [*case.state.upcoming, *(machine for machine in made.machines if machine.purpose == "demand")]
    for turn in range(max([len(offerings_of(machine, case.policy)) for machine in coming], default=1)):
        yield Room.of(case.cluster.apply(Delta(upserts=tuple(arrived_node(case, machine, turn) for machine in coming))))


def planned_nodes(case: Case, made: Plan) -> dict[str, str]:
    """The node of every pending pod that the plan places."""
    names = {machine.id: machine.node or machine.id for machine in case.state.upcoming}
    nodes = {placement.pod: names.get(placement.node, placement.node) for placement in made.placements}
    return nodes | {pod: machine.id for machine in made.machines if machine.purpose == "demand" for pod in machine.pods}


def carry_out(room: Room, case: Case, where: Mapping[str, str]) -> tuple[Room, list[str]]:
    """Bind pods one by one, as the filters admit them, in several orders; return the room and the unbound pods of the best order.

    Pods placed on existing nodes bind before new machines arrive, if the filters admit them then.
    """
    pods = [case.cluster.pods[key] for key in where]
    nodes = existing_room(case)
    waits = {gang_of(pod) for pod in pods if pod.options.gang and where[pod.key] not in nodes.table.row}
    best: tuple[Room, list[str]] | None = None
    for order in orders(pods):
        trial, first = room.copy(), nodes.copy()
        early = [pod for pod in order if where[pod.key] in nodes.table.row and gang_of(pod) not in waits]
        later = set(bind(first, early, where))
        for pod in (pod for pod in early if pod.key not in later):
            trial.place(pod.spec, pod.labels, trial.table.row[where[pod.key]])
        left = bind(trial, [pod for pod in order if pod not in early or pod.key in later], where)
        if best is None or len(left) < len(best[1]):
            best = trial, left
        if not left:
            break
    assert best is not None
    return best


def gang_of(pod: Pod) -> tuple[str, str]:
    return pod.namespace, pod.options.gang


def orders(pods: Sequence[Pod]) -> Iterator[list[Pod]]:
    """Yield pods with rules about others first, as a planned order would; then random orders."""
    yield sorted(pods, key=lambda pod: (-len(pod.spec.affinity) - len(pod.spec.spread), pod.key))
    yield sorted(pods, key=lambda pod: (len(pod.spec.affinity), -len(pod.spec.spread), pod.key))
    draw = random.Random(1)
    for _ in range(ORDERS):
        yield draw.sample(pods, len(pods))


def bind(room: Room, pods: Sequence[Pod], where: Mapping[str, str]) -> list[str]:
    """Bind pods to their planned node as the filters admit them, repeatedly; return the pods that are never admitted."""
    waiting = list(pods)
    while waiting:
        refused = []
        for pod in waiting:
            row = room.table.row[where[pod.key]]
            if room.verdict(pod.spec, pod.labels).mask[row]:
                room.place(pod.spec, pod.labels, row)
            else:
                refused.append(pod)
        if len(refused) == len(waiting):
            break
        waiting = refused
    return [pod.key for pod in waiting]


def existing_room(case: Case) -> Room:
    """The existing nodes, without pods of the plan."""
    room = Room.of(case.cluster)
    place_nominated(room, case)
    return room


def place_nominated(room: Room, case: Case) -> None:
    """Place nominated pods on their nodes before any other pods."""
    for pod in case.cluster.pods.values():
        if not pod.node_name and not pod.finished and not pod.deleted and not pod.spec.gates and pod.nominated_node in room.table.row:
            room.place(pod.spec, pod.labels, room.table.row[pod.nominated_node])


def assert_comes_true(case: Case, made: Plan) -> list[Room]:
    """Assert that every pod is admitted at its planned place, whatever the machines turn out to be; return the rooms with all pods."""
    where = planned_nodes(case, made)
    done = []
    for room in rooms(case, made):
        place_nominated(room, case)
        after, left = carry_out(room, case, where)
        assert not left, f"refused: {[(key, where[key]) for key in left]}"
        done.append(after)
    return done
