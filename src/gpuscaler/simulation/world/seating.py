"""Pods of a run: pending pods, promises of machines, and seats on nodes with their times."""

from collections.abc import Iterable, Sequence

from gpuscaler.simulation.cloud.core import SimulatedCloud
from gpuscaler.simulation.traces.workload import Member
from gpuscaler.simulation.world.autoscaler import Moment
from gpuscaler.simulation.world.ledger import LedgerEntry
from gpuscaler.simulation.world.meter import Meter
from gpuscaler.simulation.world.queue import Task, Waiting
from gpuscaler.simulation.world.scheduler import Scheduler


class Seating:
    """Pods and the nodes they sit on; see :class:`~gpuscaler.simulation.world.world.World`, which adds the machines.

    ``started`` collects pods with an end to put on the calendar, ``moment`` the current events.
    """

    def __init__(self, cloud: SimulatedCloud, scheduler: Scheduler, *, steers: bool, kept: frozenset[str], checkpoint: float) -> None:
        self.cloud = cloud
        self.scheduler = scheduler
        self.steers = steers
        #: Pools whose machines stay closed: only a steering autoscaler can keep them closed.
        self.kept = kept
        self.meter = Meter()
        self.waiting = Waiting()
        self.tasks: dict[str, Task] = {}
        self.on_node: dict[str, dict[str, Task]] = {}
        self.idle_since: dict[str, float] = {}
        self.ledger: dict[str, LedgerEntry] = {}
        self.started: list[Task] = []
        self.running = 0
        self.moment = Moment(0.0)
        #: Nodes and pods that snapshots have to rebuild.
        self.nodes_changed: set[str] = set()
        self.pods_changed: set[str] = set()
        self.distrusted: set[str] = set()
        self._checkpoint = checkpoint
        self._gangs: dict[str, dict[str, Task]] = {}
        self._promises: dict[str, dict[str, Task]] = {}

    def arrive(self, member: Member, now: float) -> Task:
        """Create a pending pod."""
        task = self.tasks[member.key] = Task(member, now)
        if task.gang:
            self._gangs.setdefault(task.gang, {})[task.key] = task
        self.waiting.add(task)
        self.meter.record_arrival(task)
        self.pods_changed.add(task.key)
        self.moment.arrived.append(task.key)
        return task

    def schedule(self, tasks: Iterable[Task] | None, now: float) -> None:
        """Run one pass of the scheduler over ``tasks``, or over every pending pod.

        A steering autoscaler places gangs itself; without one, a gang is bound only when all of it fits.
        """
        if tasks is not None:
            for task in tasks:
                self._bind(task, now)
        else:
            self._bind_all(now)
        if not self.steers:
            for gang in [name for name in self.waiting.gangs if len(self.waiting.gangs[name]) == len(self._gangs[name])]:
                self._bind_gang(list(self._gangs[gang].values()), now)

    def _bind_all(self, now: float) -> None:
        blocked: set[str] = set()
        while heads := [task for task in self.waiting.heads() if task.digest not in blocked]:
            for task in heads:
                if self._bind(task, now):
                    break
                blocked.add(task.digest)

    def _bind(self, task: Task, now: float) -> bool:
        node = None if task.gang else self.scheduler.best(task.member.spec)
        if node is None:
            return False
        self._take_seat(task, node)
        self._start([task], now)
        return True

    def _bind_gang(self, tasks: list[Task], now: float) -> None:
        if len(tasks) < tasks[0].member.options.gang_size:
            return
        nodes = self.scheduler.best_for_all([task.member.spec for task in tasks])
        if nodes is None:
            return
        for task, node in zip(tasks, nodes, strict=True):
            self._take_seat(task, node)
        self._start(tasks, now)

    def place(self, task: Task, node: str, now: float) -> bool:
        """Bind a pending pod to an open node, or hold its seat there until its gang is complete; False if it does not fit."""
        if not self.scheduler.fits(task.member.spec, node):
            self._break_promise(task, node)
            return False
        self._take_seat(task, node)
        if task.gang:
            task.nominated = True
        else:
            self._start([task], now)
        return True

    def _break_promise(self, task: Task, node: str) -> None:
        """Record that promised room does not exist: pods that share GPUs sit on devices that the API does not show.

        Until a pod leaves the node, it is shown with a taint, so that the pod becomes demand again and is not sent there repeatedly.
        """
        self.meter.broken += 1
        self.moment.broken.append(task.key)
        self.distrusted.add(node)
        self.nodes_changed.add(node)

    def promise(self, task: Task, intent: str) -> None:
        """Record a machine on its way for a pending pod; if room appears elsewhere before, the scheduler binds the pod there.

        A gang that lacks a machine may be planned for another zone as a whole: machines on their way for its members are then for no pod.
        """
        if task.promised:
            self.ledger[task.promised].drop_pod(task.key)
            self._release(task)
        self.waiting.promise(task, intent)
        self._promises.setdefault(intent, {})[task.key] = task

    def _release(self, task: Task) -> None:
        if task.promised:
            self._promises.get(task.promised, {}).pop(task.key, None)
            self.waiting.release(task)

    def finish(self, task: Task, now: float) -> None:
        """End a pod that has done its work, or is no longer wanted."""
        if task.seat is not None:
            self._free_seat(task, now)
        else:
            self._release(task)
            self.waiting.remove(task)
        self.meter.record_end(task, now)
        if task.started is not None:
            self.running -= 1
        del self.tasks[task.key]
        if task.gang:
            del self._gangs[task.gang][task.key]
        self.pods_changed.add(task.key)
        self.moment.finished += 1

    def evict(self, task: Task, now: float) -> None:
        """Take a pod's seat and the work since its last checkpoint; it is pending again. A gang is evicted together."""
        mates = self._gangs[task.gang].values() if task.gang else (task,)
        for mate in mates:
            if mate.seat is not None:
                self._evict(mate, now)

    def _evict(self, task: Task, now: float) -> None:
        self._free_seat(task, now)
        if task.started is not None:
            self.running -= 1
            self.meter.record_eviction(task, lost_seconds=task.restore_checkpoint(now, self._checkpoint))
        task.started = None
        task.nominated = False
        task.waits_since = now
        self.waiting.add(task)
        self.pods_changed.add(task.key)
        self.moment.evicted.append(task.key)

    def _take_seat(self, task: Task, node: str) -> None:
        self._release(task)
        task.refused = None
        self.waiting.remove(task)
        task.seat = self.scheduler.place(task.member.spec, node)
        self.on_node[node][task.key] = task
        self.idle_since.pop(node, None)
        self.pods_changed.add(task.key)

    def _start(self, tasks: Sequence[Task], now: float) -> None:
        """Start pods that work together, as soon as the last of them has its image."""
        working_from = now + max((self.cloud.image_pull(task.seat.node, now) for task in tasks if task.seat is not None), default=0.0)
        for task in tasks:
            task.started = now
            task.working_from = working_from
            task.nominated = False
            task.attempt += 1
            self.running += 1
            self.meter.record_start(task)
            if task.first_start is None:
                task.first_start = task.working_from
            self.started.append(task)
            self.pods_changed.add(task.key)

    def _free_seat(self, task: Task, now: float) -> None:
        seat = task.seat
        assert seat is not None, "only seated pods leave"
        self.scheduler.leave(task.member.spec, seat)
        if task.started is not None:
            offering = self.cloud.machine(seat.node).offering
            self.meter.record_unbinding(task, offering, cost=self.cloud.markets.cost(offering, task.started, now), now=now)
        task.seat = None
        del self.on_node[seat.node][task.key]
        if not self.on_node[seat.node]:
            self._mark_idle(seat.node, now)
        if seat.node in self.distrusted:
            self.distrusted.discard(seat.node)
            self.nodes_changed.add(seat.node)
        self._note_room(seat.node)

    def _note_room(self, node: str) -> None:
        """Record that a node has room. The scheduler does not fill the room of closed machines; a plan may."""
        if self.kept and self.cloud.machine(node).offering.pool in self.kept:
            self.waiting.forget_refusals()
            self.moment.vacated |= self.waiting.any_spec(lambda spec: self.scheduler.fits(spec, node))

    def _mark_idle(self, node: str, now: float) -> None:
        self.idle_since[node] = now
        self.moment.idled.append(node)

    def start_gang(self, gang: str, now: float) -> None:
        """Start a gang's pods together once each has its seat on an open node."""
        tasks = self._gangs[gang].values()
        if all(task.seat is not None for task in tasks):
            self._start([task for task in tasks if task.started is None], now)
