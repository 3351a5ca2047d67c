"""The cluster of a run: pods that wait and run, machines that come and go, and the picture of it that a policy is shown."""

from collections import deque
from collections.abc import Iterable

from gpuscaler.clouds.simulated import CloudMachine, SimulatedCloud
from gpuscaler.model.cluster import Cluster, Delta, Item
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Policy
from gpuscaler.planning.plans import Ignored, Unplaced
from gpuscaler.planning.state import State
from gpuscaler.simulation.ledger import ARRIVING, PROMISE_BROKEN, Drain, Entry, node_of
from gpuscaler.simulation.meter import Meter
from gpuscaler.simulation.queue import Task, Waiting
from gpuscaler.simulation.scheduler import Scheduler
from gpuscaler.simulation.workload import Member


class World:
    """Everything that is true at a moment of virtual time. ``started`` collects pods whose end has to be put on the calendar."""

    def __init__(self, policy: Policy, cloud: SimulatedCloud, *, scoring: str) -> None:
        self.cloud = cloud
        self.scheduler = Scheduler([offering for pool in policy.pools for offering in pool.offerings], scoring=scoring)
        self.meter = Meter()
        self.waiting = Waiting()
        self.tasks: dict[str, Task] = {}
        self.on_node: dict[str, dict[str, Task]] = {}
        self.idle_since: dict[str, float] = {}
        self.ledger: dict[str, Entry] = {}
        self.promises: dict[str, dict[str, Task]] = {}
        self.drains: dict[str, Drain] = {}
        self.blocked: dict[tuple[str, str, str, str], float] = {}
        self.given_back = 0
        #: What the last plan left without a place, and what it took for no demand.
        self.refusals: tuple[Unplaced, ...] = ()
        self.ignored: tuple[Ignored, ...] = ()
        self.started: list[Task] = []
        self._gangs: dict[str, dict[str, Task]] = {}
        self._bought: deque[float] = deque()
        self._cluster = Cluster()
        self._nodes_changed: dict[str, Node | None] = {}
        self._pods_changed: set[str] = set()
        self._distrusted: set[str] = set()

    # Pods

    def arrive(self, member: Member, now: float) -> Task:
        """A pod is created and waits."""
        task = self.tasks[member.key] = Task(member, now)
        if task.gang:
            self._gangs.setdefault(task.gang, {})[task.key] = task
        self.waiting.add(task)
        self.meter.arrived(task)
        self._pods_changed.add(task.key)
        return task

    def schedule(self, tasks: Iterable[Task] | None, now: float) -> None:
        """One pass of the scheduler over ``tasks``, or over every pod that waits without a promise. Gangs are left to the policy."""
        if tasks is not None:
            for task in tasks:
                self._try(task, now)
            return
        blocked: set[str] = set()
        while True:
            heads = [task for task in self.waiting.heads() if task.member.spec.digest not in blocked]
            if not heads:
                return
            for task in heads:
                if self._try(task, now):
                    break
                blocked.add(task.member.spec.digest)

    def _try(self, task: Task, now: float) -> bool:
        node = None if task.gang else self.scheduler.best(task.member.spec)
        if node is None:
            return False
        self.waiting.remove(task)
        self._sit(task, node)
        self._start(task, now)
        return True

    def place(self, task: Task, node: str, now: float) -> bool:
        """Bind a waiting pod to an open node, or hold its seat there until its gang is complete; False where it does not fit."""
        if not self.scheduler.fits(task.member.spec, node):
            self._break_promise(node)
            return False
        self.waiting.remove(task)
        self._sit(task, node)
        if task.gang:
            task.nominated = True
        else:
            self._start(task, now)
        return True

    def _break_promise(self, node: str) -> None:
        """A policy promised room that is not there: pods that share GPUs sit on devices that the API does not show.

        Until a pod leaves it the node is shown with a taint, so that the pod becomes demand again and is not sent there for ever.
        """
        self.meter.broken += 1
        self._distrusted.add(node)
        self._show(node)

    def promise(self, task: Task, machine_id: str) -> None:
        """A waiting pod now waits for a machine that is coming."""
        self.waiting.remove(task)
        task.promised = machine_id
        self.promises.setdefault(machine_id, {})[task.key] = task

    def finish(self, task: Task, now: float) -> None:
        """A pod has done its work."""
        assert task.started is not None, "only running pods finish"
        self._leave(task, now)
        self.meter.finished(task, (now - task.started) / 3600.0)
        del self.tasks[task.key]
        if task.gang:
            del self._gangs[task.gang][task.key]
        self._pods_changed.add(task.key)

    def evict(self, task: Task, now: float) -> None:
        """A pod loses its seat and its work, and waits again."""
        self._leave(task, now)
        if task.started is not None:
            self.meter.evicted(task, (now - task.started) / 3600.0)
        task.started = None
        task.nominated = False
        self.waiting.add(task)
        self._pods_changed.add(task.key)

    def _sit(self, task: Task, node: str) -> None:
        task.seat = self.scheduler.place(task.member.spec, node)
        self.on_node[node][task.key] = task
        self.idle_since.pop(node, None)
        self._pods_changed.add(task.key)

    def _start(self, task: Task, now: float) -> None:
        self.meter.began(task, now)
        if task.first_start is None:
            task.first_start = now
        task.started = now
        task.nominated = False
        task.attempt += 1
        self.started.append(task)
        self._pods_changed.add(task.key)

    def _leave(self, task: Task, now: float) -> None:
        seat = task.seat
        assert seat is not None, "only seated pods leave"
        self.scheduler.leave(task.member.spec, seat)
        task.seat = None
        del self.on_node[seat.node][task.key]
        if not self.on_node[seat.node]:
            self.idle_since[seat.node] = now
        if seat.node in self._distrusted:
            self._distrusted.discard(seat.node)
            self._show(seat.node)

    # Machines

    def bought(self, entry: Entry, now: float) -> None:
        """A machine was bought; the pods it was bought for wait for it."""
        self.ledger[entry.machine.id] = entry
        self._bought.append(now)
        self.meter.bought(entry.machine)
        for key in entry.upcoming.pods:
            task = self.tasks.get(key)
            if task is not None and task.seat is None and not task.promised:
                self.promise(task, entry.machine.id)

    def registered(self, machine: CloudMachine) -> None:
        entry = self.ledger[machine.id]
        entry.name_node()
        self._nodes_changed[machine.id] = node_of(machine, gpus=False, taints=(ARRIVING,))

    def visible(self, machine: CloudMachine) -> None:
        self.ledger[machine.id].ready = True
        self._nodes_changed[machine.id] = node_of(machine, gpus=True, taints=(ARRIVING,))

    def open_ready(self, now: float) -> tuple[str, ...]:
        """Open every machine that may open now, seat its pods, start the gangs that are complete; returns what opened."""
        opened: list[str] = []
        while True:
            able = [entry for entry in self.ledger.values() if entry.ready and self._may_open(entry)]
            if not able:
                break
            for entry in able:
                self._open(entry, now)
                opened.append(entry.machine.id)
        for gang in {task.gang for name in opened for task in self.on_node[name].values() if task.gang}:
            self.start_gang(gang, now)
        return tuple(opened)

    def start_gang(self, gang: str, now: float) -> None:
        """Start a gang's pods together once each has its seat on an open node."""
        tasks = self._gangs[gang].values()
        if all(task.seat is not None for task in tasks):
            for task in tasks:
                if task.started is None:
                    self._start(task, now)

    def _may_open(self, entry: Entry) -> bool:
        if any(machine_id in self.ledger for machine_id in entry.opens_after):
            return False
        # The machines of a gang open together: none is eaten by other pods while another still boots.
        gangs = {task.gang for task in self.promises.get(entry.machine.id, {}).values()} - {""}
        return all(self._has_room(task) for gang in gangs for task in self._gangs[gang].values())

    def _has_room(self, task: Task) -> bool:
        return task.seat is not None or (bool(task.promised) and self.ledger[task.promised].ready)

    def _open(self, entry: Entry, now: float) -> None:
        machine = entry.machine
        del self.ledger[machine.id]
        self.scheduler.add(machine.id, machine.offering)
        self.on_node[machine.id] = {}
        self.idle_since[machine.id] = now
        self._show(machine.id)
        for task in self.promises.pop(machine.id, {}).values():
            task.promised = ""
            self.waiting.add(task)
            if self.place(task, machine.id, now):
                self.meter.kept += 1

    def _show(self, node: str) -> None:
        """The next picture shows an open node as it is now."""
        taints = (PROMISE_BROKEN,) if node in self._distrusted else ()
        self._nodes_changed[node] = node_of(self.cloud.machine(node), gpus=True, taints=taints)

    def close(self, drain: Drain) -> None:
        """Take no more pods on a node that is going away."""
        self.scheduler.close(drain.node)
        self.drains[drain.node] = drain

    def end(self, node: str, now: float) -> None:
        """Give a machine back; pods that are still there are evicted."""
        for task in list(self.on_node[node].values()):
            self.evict(task, now)
        self.drains.pop(node, None)
        self.scheduler.remove(node)
        del self.on_node[node]
        del self.idle_since[node]
        self.meter.gave_back(self.cloud.terminate(node, now))
        self._distrusted.discard(node)
        self.given_back += 1
        self._nodes_changed[node] = None

    # The picture

    def picture(self, now: float) -> tuple[Cluster, State]:
        """What a policy is shown: the cluster as its watches would have it, and what is remembered."""
        upserts: list[Item] = [node for node in self._nodes_changed.values() if node is not None]
        deletes: list[tuple[type, str]] = [(Node, name) for name, node in self._nodes_changed.items() if node is None]
        # In order, not as a set has them: a run is repeated exactly.
        for key in sorted(self._pods_changed):
            task = self.tasks.get(key)
            if task is None:
                deletes.append((Pod, key))
            else:
                upserts.append(_pod(task))
        self._nodes_changed.clear()
        self._pods_changed.clear()
        if upserts or deletes:
            self._cluster = self._cluster.apply(Delta(tuple(upserts), tuple(deletes)))
        return self._cluster, self._state(now)

    def _state(self, now: float) -> State:
        while self._bought and self._bought[0] <= now - 60.0:
            self._bought.popleft()
        self.blocked = {key: until for key, until in self.blocked.items() if until > now}
        return State(
            upcoming=tuple(entry.upcoming for entry in self.ledger.values()),
            idle_seconds={name: now - self.idle_since[name] if name in self.idle_since else 0.0 for name in self.on_node},
            blocked_offerings=frozenset(self.blocked),
            bought_last_minute=len(self._bought),
            disrupting=frozenset(self.drains),
        )


def _pod(task: Task) -> Pod:
    node = task.seat.node if task.seat is not None else ""
    if task.nominated:
        return task.member.pod(created=task.since, nominated=node)
    return task.member.pod(created=task.since, node=node, started=task.started or 0.0)
