"""The cluster of a run: pods that wait and run, machines that come and go."""

from collections import deque
from collections.abc import Iterable, Sequence

from gpuscaler.clouds.machines import Answer, CloudMachine
from gpuscaler.clouds.markets import Key
from gpuscaler.clouds.simulated import SimulatedCloud
from gpuscaler.model.pools import Policy
from gpuscaler.planning.plans import Ignored, Unplaced
from gpuscaler.simulation.autoscaler import Lost, Moment, Purchase
from gpuscaler.simulation.ledger import Drain, Entry, entry_of
from gpuscaler.simulation.meter import Meter
from gpuscaler.simulation.queue import Task, Waiting
from gpuscaler.simulation.scheduler import Scheduler
from gpuscaler.simulation.workload import Member


class World:
    """Everything that is true at a moment of virtual time.

    ``steers`` says whether machines arrive closed and seat the pods they were bought for first, ``discourages`` at which
    shares of use they bear soft taints. A pod saves its work every ``checkpoint`` seconds, never where that is 0. ``started`` collects
    pods whose end has to be put on the calendar, ``moment`` what happens now.
    """

    def __init__(
        self,
        policy: Policy,
        cloud: SimulatedCloud,
        *,
        scoring: str,
        steers: bool = True,
        discourages: Sequence[float] = (),
        checkpoint: float = 0.0,
    ) -> None:
        self.cloud = cloud
        self.steers = steers
        #: Pools whose machines stay closed: only who steers can keep them so.
        self.kept = frozenset(pool.name for pool in policy.pools if pool.min_gpus_per_pod and steers)
        offerings = [offering for pool in policy.pools for offering in pool.offerings]
        self.scheduler = Scheduler(offerings, scoring=scoring, kept=self.kept, discourages=discourages)
        self.meter = Meter()
        self.waiting = Waiting()
        self.tasks: dict[str, Task] = {}
        self.on_node: dict[str, dict[str, Task]] = {}
        self.idle_since: dict[str, float] = {}
        self.ledger: dict[str, Entry] = {}
        self.entries: dict[str, Entry] = {}
        self.node_of_intent: dict[str, str] = {}
        self.drains: dict[str, Drain] = {}
        self.bought: deque[float] = deque()
        #: What the last plan left without a place, and what it took for no demand.
        self.refusals: tuple[Unplaced, ...] = ()
        self.ignored: tuple[Ignored, ...] = ()
        self.started: list[Task] = []
        self.running = 0
        self.moment = Moment(0.0)
        #: Nodes and pods that pictures have to show anew.
        self.nodes_changed: set[str] = set()
        self.pods_changed: set[str] = set()
        self.distrusted: set[str] = set()
        self._checkpoint = checkpoint
        self._gangs: dict[str, dict[str, Task]] = {}
        self._promises: dict[str, dict[str, Task]] = {}
        self._orders: dict[str, deque[Entry]] = {}
        self._withdrawn: set[str] = set()
        #: Pods whose machine has just opened to everybody, and that machine.
        self._expected: list[tuple[Task, str]] = []

    # Pods

    def arrive(self, member: Member, now: float) -> Task:
        """A pod is created and waits."""
        task = self.tasks[member.key] = Task(member, now)
        if task.gang:
            self._gangs.setdefault(task.gang, {})[task.key] = task
        self.waiting.add(task)
        self.meter.arrived(task)
        self.pods_changed.add(task.key)
        self.moment.arrived.append(task.key)
        return task

    def schedule(self, tasks: Iterable[Task] | None, now: float) -> None:
        """One pass of the scheduler over ``tasks``, or over every pod that waits.

        Gangs are left to who steers; else they are bound when the whole gang fits, and not before.
        """
        if tasks is not None:
            for task in tasks:
                self._try(task, now)
        else:
            self._try_all(now)
        if not self.steers:
            for gang in [name for name in self.waiting.gangs if len(self.waiting.gangs[name]) == len(self._gangs[name])]:
                self._try_gang(list(self._gangs[gang].values()), now)

    def _try_all(self, now: float) -> None:
        blocked: set[str] = set()
        while heads := [task for task in self.waiting.heads() if task.digest not in blocked]:
            for task in heads:
                if self._try(task, now):
                    break
                blocked.add(task.digest)

    def _try(self, task: Task, now: float) -> bool:
        node = None if task.gang else self.scheduler.best(task.member.spec)
        if node is None:
            return False
        self._sit(task, node)
        self._start([task], now)
        return True

    def _try_gang(self, tasks: list[Task], now: float) -> None:
        if len(tasks) < tasks[0].member.options.gang_size:
            return
        nodes = self.scheduler.best_for_all([task.member.spec for task in tasks])
        if nodes is None:
            return
        for task, node in zip(tasks, nodes, strict=True):
            self._sit(task, node)
        self._start(tasks, now)

    def place(self, task: Task, node: str, now: float) -> bool:
        """Bind a waiting pod to an open node, or hold its seat there until its gang is complete; False where it does not fit."""
        if not self.scheduler.fits(task.member.spec, node):
            self._break_promise(task, node)
            return False
        self._sit(task, node)
        if task.gang:
            task.nominated = True
        else:
            self._start([task], now)
        return True

    def _break_promise(self, task: Task, node: str) -> None:
        """A policy promised room that is not there: pods that share GPUs sit on devices that the API does not show.

        Until a pod leaves it the node is shown with a taint, so that the pod becomes demand again and is not sent there for ever.
        """
        self.meter.broken += 1
        self.moment.broken.append(task.key)
        self.distrusted.add(node)
        self.nodes_changed.add(node)

    def promise(self, task: Task, intent: str) -> None:
        """A machine is coming for a waiting pod; should room appear elsewhere before, the scheduler binds it there.

        A gang that lacks a machine may be planned for another zone as a whole: what came for its members comes for nobody then.
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
        """A pod has done its work, or is not wanted any more."""
        if task.seat is not None:
            self._leave(task, now)
        else:
            self._release(task)
            self.waiting.remove(task)
        self.meter.finished(task, now)
        if task.started is not None:
            self.running -= 1
        del self.tasks[task.key]
        if task.gang:
            del self._gangs[task.gang][task.key]
        self.pods_changed.add(task.key)
        self.moment.finished += 1

    def evict(self, task: Task, now: float) -> None:
        """A pod loses its seat and the work since its last checkpoint, and waits again; a gang does so together."""
        mates = self._gangs[task.gang].values() if task.gang else (task,)
        for one in mates:
            if one.seat is not None:
                self._evict(one, now)

    def _evict(self, task: Task, now: float) -> None:
        self._leave(task, now)
        if task.started is not None:
            self.running -= 1
            self.meter.evicted(task, lost=task.fall_back(now, self._checkpoint))
        task.started = None
        task.nominated = False
        task.waits_since = now
        self.waiting.add(task)
        self.pods_changed.add(task.key)
        self.moment.evicted.append(task.key)

    def _sit(self, task: Task, node: str) -> None:
        self._release(task)
        task.refused = None
        self.waiting.remove(task)
        task.seat = self.scheduler.place(task.member.spec, node)
        self.on_node[node][task.key] = task
        self.idle_since.pop(node, None)
        self.pods_changed.add(task.key)

    def _start(self, tasks: Sequence[Task], now: float) -> None:
        """Start pods that work together: from when the last of them has its image."""
        working_from = now + max((self.cloud.image_pull(task.seat.node, now) for task in tasks if task.seat is not None), default=0.0)
        for task in tasks:
            task.started = now
            task.working_from = working_from
            task.nominated = False
            task.attempt += 1
            self.running += 1
            self.meter.began(task)
            if task.first_start is None:
                task.first_start = task.working_from
            self.started.append(task)
            self.pods_changed.add(task.key)

    def _leave(self, task: Task, now: float) -> None:
        seat = task.seat
        assert seat is not None, "only seated pods leave"
        self.scheduler.leave(task.member.spec, seat)
        if task.started is not None:
            offering = self.cloud.machine(seat.node).offering
            self.meter.left(task, offering, cost=self.cloud.markets.cost(offering, task.started, now), now=now)
        task.seat = None
        del self.on_node[seat.node][task.key]
        if not self.on_node[seat.node]:
            self._idle(seat.node, now)
        if seat.node in self.distrusted:
            self.distrusted.discard(seat.node)
            self.nodes_changed.add(seat.node)
        if self.kept and self.cloud.machine(seat.node).offering.pool in self.kept:
            # The scheduler will not fill it again; a plan may.
            self.waiting.forget()

    def _idle(self, node: str, now: float) -> None:
        self.idle_since[node] = now
        self.moment.idled.append(node)

    # Machines

    def ask(self, purchase: Purchase, now: float) -> None:
        """Write a purchase into the ledger and ask the cloud; the pods it is for wait for it."""
        entries = deque(entry_of(purchase, intent, now) for intent in purchase.machines)
        self._orders[purchase.id] = entries
        for entry in entries:
            self.ledger[entry.id] = entry
            self.bought.append(now)
            for key in entry.intent.pods:
                task = self.tasks.get(key)
                if task is not None and task.seat is None and (task.gang or not task.promised):
                    self.promise(task, entry.id)
                    self.meter.failovers += task.failed_over(purchase.offerings, now)
        self.meter.asked(purchase, now)
        self.cloud.ask(purchase.id, purchase.offerings, count=len(entries), now=now, spread=purchase.spread, standing=purchase.standing)

    def withdraw(self, purchase: str) -> None:
        """What the cloud has not granted of a purchase is wanted no more; an answer that is still out is taken as it comes."""
        self.cloud.withdraw(purchase)
        self._withdrawn.add(purchase)
        if purchase not in self._orders or self.cloud.unanswered(purchase):
            return
        for entry in self._orders.pop(purchase):
            self._forget(entry)

    def answered(self, answer: Answer, now: float) -> None:
        """The cloud has answered: some intents have their machine, the rest are given up unless the order stands."""
        entries = self._orders[answer.purchase]
        purchase = entries[0].purchase
        for machine in answer.machines:
            entry = entries.popleft()
            entry.grant(machine)
            self.entries[machine.id] = entry
            for task in self._promises.get(entry.id, {}).values():
                task.refused = None
        self.meter.granted(purchase, answer.machines, now)
        if entries:
            self.meter.refused(answer, now)
            for task in [task for entry in entries for task in self._promises.get(entry.id, {}).values()]:
                task.note_refused(answer.refusals, now)
        if not entries or not purchase.standing or answer.purchase in self._withdrawn:
            for entry in self._orders.pop(answer.purchase):
                self._forget(entry)
        self.moment.answers.append(answer)

    def registered(self, machine: CloudMachine, now: float) -> None:
        """A Node has joined, its GPUs not there yet."""
        entry = self.entries[machine.id]
        entry.name_node()
        self.node_of_intent[entry.id] = machine.id
        self.nodes_changed.add(machine.id)
        self.moment.registered.append(machine.id)
        if not self.steers:
            self._join(machine, now, devices=False)

    def visible(self, machine: CloudMachine) -> None:
        """All that a machine has is allocatable."""
        self.entries[machine.id].ready = True
        self.nodes_changed.add(machine.id)

    def open_ready(self, now: float) -> None:
        """Open every machine that may open now, seat its pods, start the gangs that are complete."""
        while able := [entry for entry in self.entries.values() if entry.ready and self._may_open(entry)]:
            for entry in able:
                self._open(entry, now)
        if self.steers:
            for gang in {task.gang for name in self.moment.opened for task in self.on_node.get(name, {}).values() if task.gang}:
                self.start_gang(gang, now)

    def settle_promises(self) -> None:
        """Where nobody steers: who sits where it was planned, now that the scheduler has had its way?"""
        for task, node in self._expected:
            kept = task.seat is not None and task.seat.node == node
            self.meter.kept += kept
            self.meter.broken += not kept
        self._expected.clear()

    def start(self, key: Key, now: float) -> None:
        """A machine that was there before the run."""
        machine = self.cloud.start(key, now)
        self.meter.began_with(machine)
        self._join(machine, now, devices=True)

    def start_gang(self, gang: str, now: float) -> None:
        """Start a gang's pods together once each has its seat on an open node."""
        tasks = self._gangs[gang].values()
        if all(task.seat is not None for task in tasks):
            self._start([task for task in tasks if task.started is None], now)

    def _join(self, machine: CloudMachine, now: float, *, devices: bool) -> None:
        self.scheduler.add(machine.id, machine.offering, devices=devices)
        self.on_node[machine.id] = {}
        self._idle(machine.id, now)
        self.nodes_changed.add(machine.id)

    def _may_open(self, entry: Entry) -> bool:
        if not self.steers:
            return True
        if any(intent in self.ledger for intent in entry.intent.opens_after):
            return False
        # The machines of a gang open together: none is eaten by other pods while another still boots.
        gangs = {task.gang for task in self._promises.get(entry.id, {}).values()} - {""}
        return all(self._has_room(task) for gang in gangs for task in self._gangs[gang].values())

    def _has_room(self, task: Task) -> bool:
        return task.seat is not None or (bool(task.promised) and self.ledger[task.promised].ready)

    def _open(self, entry: Entry, now: float) -> None:
        machine = entry.machine
        assert machine is not None, "only machines that were granted open"
        del self.ledger[entry.id], self.entries[machine.id]
        self.moment.opened.append(machine.id)
        if self.steers:
            self._oldest_first(entry)
        promised = list(self._promises.pop(entry.id, {}).values())
        for task in promised:
            self.waiting.release(task)
        if not self.steers:
            self.scheduler.complete(machine.id, machine.offering)
            self.nodes_changed.add(machine.id)
            self._expected += [(task, machine.id) for task in promised]
            return
        self._join(machine, now, devices=True)
        for task in promised:
            if self.place(task, machine.id, now):
                self.meter.kept += 1

    def _oldest_first(self, entry: Entry) -> None:
        """Of pods that scheduling cannot tell apart the oldest take the seats of a machine, whichever of them it was bought for.

        The younger ones wait in their place: machines that boot slowly would else keep pods waiting that others overtook.
        """
        for task, older in self.waiting.overtaken(self._promises.get(entry.id, {}).values()):
            other = older.promised
            self._release(task)
            self._release(older)
            self.promise(older, entry.id)
            if other:
                self.promise(task, other)
                self.ledger[other].exchange(older.key, task.key)

    def close(self, drain: Drain) -> None:
        """Take no more pods on a node that is going away."""
        self.scheduler.close(drain.node)
        self.drains[drain.node] = drain

    def give_back(self, name: str, now: float) -> None:
        """Give a machine back: pods that are still there are evicted. ``name`` is a machine's, or an intent's that has its machine."""
        machine = self.cloud.terminate(name, now)
        self.moment.given_back.append(name)
        self._gone(machine, now)
        self.waiting.forget()

    def lost(self, machine: CloudMachine, why: str, now: float) -> None:
        """A machine is gone by itself."""
        self.moment.lost.append(Lost(machine, why))
        self.meter.lost(machine, why, now)
        self._gone(machine, now)

    def _gone(self, machine: CloudMachine, now: float) -> None:
        self.meter.gone(machine)
        name = machine.id
        if name in self.on_node:
            for task in list(self.on_node[name].values()):
                if task.seat is not None:
                    self.evict(task, now)
            self.drains.pop(name, None)
            self.scheduler.remove(name)
            del self.on_node[name], self.idle_since[name]
        self.distrusted.discard(name)
        self.nodes_changed.add(name)
        entry = self.entries.pop(name, None)
        if entry is not None:
            self._forget(entry)

    def _forget(self, entry: Entry) -> None:
        """Nothing comes of an entry: its pods are demand again, and a node that it was to replace stays."""
        del self.ledger[entry.id]
        for task in list(self._promises.pop(entry.id, {}).values()):
            self.waiting.release(task)
        for drain in [drain for drain in self.drains.values() if entry.id in drain.needs]:
            del self.drains[drain.node]
            self.scheduler.open(drain.node)
