"""An autoscaler's view of the world: nothing that a real one could not know."""

from collections.abc import Iterable, Iterator

from gpuscaler.model.cluster import Cluster, Delta, Item
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Offering
from gpuscaler.planning.state import State
from gpuscaler.simulation.world.autoscaler import ObservedMachine, Pending
from gpuscaler.simulation.world.ledger import ARRIVING, PROMISE_BROKEN, node_of
from gpuscaler.simulation.world.queue import Task
from gpuscaler.simulation.world.scheduler import Scheduler
from gpuscaler.simulation.world.world import World

#: Length of the period of ``State.bought_last_minute`` in seconds.
MINUTE = 60.0


class WorldView:
    """A :class:`~gpuscaler.simulation.world.autoscaler.View` of a world. Its snapshots share everything unchanged since the last one.

    ``moves`` says whether any pod of the run may be moved; otherwise the search for movable pods is skipped.
    """

    def __init__(self, world: World, *, moves: bool = True) -> None:
        self._world = world
        self._moves = moves
        self._cluster = Cluster()

    @property
    def has_servable_pods(self) -> bool:
        return self._world.waiting.has_servable_pods

    @property
    def has_fresh_demand(self) -> bool:
        return self._world.waiting.has_fresh_demand

    def snapshot(self, now: float) -> tuple[Cluster, State]:
        world = self._world
        upserts: list[Item] = []
        deletes: list[tuple[type, str]] = []
        # Sorted, since the order of a set varies: a run must be repeatable exactly.
        for name in sorted(world.nodes_changed):
            node = self._node(name)
            if node is None:
                deletes.append((Node, name))
            else:
                upserts.append(node)
        for key in sorted(world.pods_changed):
            task = world.tasks.get(key)
            if task is None:
                deletes.append((Pod, key))
            else:
                upserts.append(_pod(task))
        world.nodes_changed.clear()
        world.pods_changed.clear()
        if upserts or deletes:
            self._cluster = self._cluster.apply(Delta(tuple(upserts), tuple(deletes)))
        return self._cluster, self._state(now)

    def pending(self) -> list[Pending]:
        waiting = self._world.waiting
        return [_pending(list(tasks.values())) for tasks in waiting.by_spec()] + [
            _pending(list(tasks.values())) for tasks in waiting.gangs.values()
        ]

    def machines(self) -> Iterator[ObservedMachine]:
        for machine in self._world.cloud.list():
            yield self._seen(machine.id)

    def node(self, name: str) -> ObservedMachine | None:
        entry = self._world.entries.get(name)
        if name in self._world.on_node or (entry is not None and entry.upcoming.node):
            return self._seen(name)
        return None

    def is_unregistered(self, name: str) -> bool:
        entry = self._world.entries.get(name)
        return entry is not None and not entry.upcoming.node

    def idle(self) -> Iterable[str]:
        return self._world.idle_since

    def idle_since(self, name: str) -> float | None:
        return self._world.idle_since.get(name)

    def movable(self) -> Iterator[str]:
        world = self._world
        for name, tasks in world.on_node.items() if self._moves else ():
            if tasks and name not in world.drains and all(task.member.movable for task in tasks.values()):
                yield name

    def offering_of(self, name: str) -> Offering:
        return self._world.cloud.machine(name).offering

    def room(self) -> Scheduler:
        return self._world.scheduler.copy()

    def _seen(self, name: str) -> ObservedMachine:
        world = self._world
        machine = world.cloud.machine(name)
        entry = world.entries.get(name)
        joined = entry is None or bool(entry.upcoming.node)
        return ObservedMachine(
            machine=machine,
            intent=entry.id if entry is not None else "",
            offering=machine.offering,
            bought=machine.bought_at,
            node=name if joined else "",
            registered=machine.registered_at if joined else None,
            ready=machine.visible_at if entry is None or entry.ready else None,
            idle_since=world.idle_since.get(name),
            pods={key: task.member.spec for key, task in world.on_node.get(name, {}).items()},
            closed=name in world.drains or (world.steers and entry is not None),
        )

    def _node(self, name: str) -> Node | None:
        world = self._world
        entry = world.entries.get(name)
        if entry is None:
            if name not in world.on_node:
                return None
            machine = world.cloud.machine(name)
            taints = (ARRIVING,) if machine.offering.pool in world.kept else ()
            return node_of(machine, gpus=True, taints=(*taints, PROMISE_BROKEN) if name in world.distrusted else taints)
        if not entry.upcoming.node:
            return None
        return node_of(world.cloud.machine(name), gpus=entry.ready, taints=(ARRIVING,) if world.steers else ())

    def _state(self, now: float) -> State:
        world = self._world
        while world.bought and world.bought[0] <= now - MINUTE:
            world.bought.popleft()
        return State(
            upcoming=tuple(entry.upcoming for entry in world.ledger.values()),
            idle_seconds={name: now - world.idle_since[name] if name in world.idle_since else 0.0 for name in world.on_node},
            bought_last_minute=len(world.bought),
            disrupting=frozenset(world.drains),
        )


def _pending(tasks: list[Task]) -> Pending:
    return Pending(
        spec=tasks[0].member.spec,
        gang=tasks[0].gang,
        pods=tuple(task.key for task in tasks),
        oldest=min(task.since for task in tasks),
        newest=max(task.since for task in tasks),
    )


def _pod(task: Task) -> Pod:
    node = task.seat.node if task.seat is not None else ""
    if task.nominated:
        return task.member.pod(created=task.since, nominated=node, unschedulable_since=task.waits_since)
    return task.member.pod(created=task.since, node=node, started=task.started or 0.0, unschedulable_since=task.waits_since)
