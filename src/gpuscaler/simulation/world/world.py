"""The cluster of a run: pods that wait and run, machines that come and go."""

from collections import deque
from collections.abc import Sequence

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.planning.plans import Ignored, Unplaced
from gpuscaler.simulation.cloud.core import SimulatedCloud
from gpuscaler.simulation.cloud.machines import CloudMachine, PurchaseAnswer
from gpuscaler.simulation.world.autoscaler import LostMachine, Purchase
from gpuscaler.simulation.world.ledger import Drain, LedgerEntry, entry_of
from gpuscaler.simulation.world.queue import Task
from gpuscaler.simulation.world.scheduler import Scheduler
from gpuscaler.simulation.world.seating import Seating


class World(Seating):
    """The whole state at a moment of virtual time: :class:`Seating` has the pods, this class the machines.

    ``steers`` says whether machines arrive closed and seat the pods they were bought for first, ``soft_taint_shares`` the shares of use up
    to which they have soft taints. A pod saves its work every ``checkpoint`` seconds, never if that is 0.
    """

    def __init__(
        self,
        policy: Policy,
        cloud: SimulatedCloud,
        *,
        scoring: str,
        steers: bool = True,
        soft_taint_shares: Sequence[float] = (),
        checkpoint: float = 0.0,
    ) -> None:
        kept = frozenset(pool.name for pool in policy.pools if pool.keeps_closed and steers)
        offerings = list(policy.offerings.values())
        scheduler = Scheduler(offerings, scoring=scoring, kept=kept, soft_taint_shares=soft_taint_shares)
        super().__init__(cloud, scheduler, steers=steers, kept=kept, checkpoint=checkpoint)
        self.entries: dict[str, LedgerEntry] = {}
        self.node_of_intent: dict[str, str] = {}
        self.drains: dict[str, Drain] = {}
        self.bought: deque[float] = deque()
        #: Pods that the last plan left without a place, and pods that it did not count as demand.
        self.refusals: tuple[Unplaced, ...] = ()
        self.ignored: tuple[Ignored, ...] = ()
        self._orders: dict[str, deque[LedgerEntry]] = {}
        #: Intents of machines that were bought for pods before these had to leave their nodes, by pod.
        self._awaited_by: dict[str, str] = {}
        self._withdrawn: set[str] = set()
        #: Pods, with their machine that has just opened to all pods.
        self._expected: list[tuple[Task, str]] = []

    def order_machines(self, purchase: Purchase, now: float) -> None:
        """Write a purchase into the ledger and ask the cloud; the pods it is for wait for it."""
        entries = deque(entry_of(purchase, intent, now) for intent in purchase.machines)
        self._orders[purchase.id] = entries
        for entry in entries:
            self.ledger[entry.id] = entry
            self.bought.append(now)
            for key in entry.intent.pods:
                task = self.tasks.get(key)
                if task is not None and task.seat is not None:
                    self._awaited_by[key] = entry.id
                elif task is not None and (task.gang or not task.promised):
                    self.promise(task, entry.id)
                    self.meter.failovers += task.end_failover(purchase.offerings, now)
        self.meter.record_purchase(purchase, now)
        self.cloud.ask(purchase.id, purchase.offerings, count=len(entries), now=now, spread=purchase.spread, standing=purchase.standing)

    def withdraw(self, purchase: str) -> None:
        """Cancel the part of a purchase that the cloud has not granted; an outstanding answer is accepted when it comes."""
        self.cloud.withdraw(purchase)
        self._withdrawn.add(purchase)
        if purchase not in self._orders or self.cloud.unanswered(purchase):
            return
        for entry in self._orders.pop(purchase):
            self._drop_entry(entry)

    def process_answer(self, answer: PurchaseAnswer, now: float) -> None:
        """Process the cloud's answer: some intents get their machine, the rest are given up unless the order stands."""
        entries = self._orders[answer.purchase]
        purchase = entries[0].purchase
        for machine in answer.machines:
            entry = entries.popleft()
            entry.grant(machine)
            self.entries[machine.id] = entry
            for task in self._promises.get(entry.id, {}).values():
                task.refused = None
        self.meter.record_grant(purchase, answer.machines, now)
        if entries:
            self.meter.record_refusals(answer, now)
            for task in [task for entry in entries for task in self._promises.get(entry.id, {}).values()]:
                task.record_refusals(answer.refusals, now)
        if not entries or not purchase.standing or answer.purchase in self._withdrawn:
            for entry in self._orders.pop(answer.purchase):
                self._drop_entry(entry)
        self.moment.answers.append(answer)

    def register_node(self, machine: CloudMachine, now: float) -> None:
        """Process a Node that has joined, without its GPUs yet."""
        entry = self.entries[machine.id]
        entry.name_node()
        self.node_of_intent[entry.id] = machine.id
        self.nodes_changed.add(machine.id)
        self.moment.registered.append(machine.id)
        if not self.steers:
            self._join(machine, now, devices=False)

    def mark_ready(self, machine: CloudMachine) -> None:
        """Record that all resources of a machine are allocatable."""
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
        """Without steering: count which pods sit where planned, after the scheduler's pass."""
        for task, node in self._expected:
            was_kept = task.seat is not None and task.seat.node == node
            self.meter.kept += was_kept
            self.meter.broken += not was_kept
        self._expected.clear()

    def start(self, key: OfferingKey, now: float) -> None:
        """Add a machine that existed before the run."""
        machine = self.cloud.start(key, now)
        self.meter.record_start_machine(machine)
        self._join(machine, now, devices=True)

    def _join(self, machine: CloudMachine, now: float, *, devices: bool) -> None:
        self.scheduler.add(machine.id, machine.offering, devices=devices)
        self.on_node[machine.id] = {}
        self._mark_idle(machine.id, now)
        self.nodes_changed.add(machine.id)

    def _may_open(self, entry: LedgerEntry) -> bool:
        if not self.steers:
            return True
        if any(intent in self.ledger for intent in entry.intent.opens_after):
            return False
        # The machines of a gang open together, so that other pods take none while another still boots.
        gangs = {task.gang for task in self._promises.get(entry.id, {}).values()} - {""}
        return all(self._has_room(task) for gang in gangs for task in self._gangs[gang].values())

    def _has_room(self, task: Task) -> bool:
        return task.seat is not None or (bool(task.promised) and self.ledger[task.promised].ready)

    def _open(self, entry: LedgerEntry, now: float) -> None:
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
        self._note_room(machine.id)

    def _oldest_first(self, entry: LedgerEntry) -> None:
        """Give a machine's seats to the oldest of interchangeable pods, whichever of them it was bought for.

        The younger pods wait in their place; otherwise slow machines would keep pods waiting while others overtake them.
        """
        for task, older in self.waiting.overtaken_pairs(self._promises.get(entry.id, {}).values()):
            other = older.promised
            self._release(task)
            self._release(older)
            self.promise(older, entry.id)
            if other:
                self.promise(task, other)
                self.ledger[other].replace_pod(older.key, task.key)

    def close(self, drain: Drain) -> None:
        """Take no more pods on a node that is going away."""
        self.scheduler.close(drain.node)
        self.drains[drain.node] = drain

    def end_machine(self, name: str, now: float) -> None:
        """End a machine and evict its remaining pods. ``name`` is a machine's, or an intent's that has its machine."""
        machine = self.cloud.terminate(name, now)
        self.moment.removed.append(name)
        self._remove_machine(machine, now)
        self.waiting.forget_refusals()

    def lose_machine(self, machine: CloudMachine, why: str, now: float) -> None:
        """Process a machine that is gone by itself."""
        self.moment.lost.append(LostMachine(machine, why))
        self.meter.record_loss(machine, why, now)
        self._remove_machine(machine, now)

    def _remove_machine(self, machine: CloudMachine, now: float) -> None:
        self.meter.record_machine_end(machine)
        name = machine.id
        if name in self.on_node:
            for task in list(self.on_node[name].values()):
                if task.seat is not None:
                    self.evict(task, now)
                if (intent := self._awaited_by.pop(task.key, "")) in self.ledger and task.seat is None and not task.promised:
                    self.promise(task, intent)
            self.drains.pop(name, None)
            self.scheduler.remove(name)
            del self.on_node[name], self.idle_since[name]
        self.distrusted.discard(name)
        self.nodes_changed.add(name)
        entry = self.entries.pop(name, None)
        if entry is not None:
            self._drop_entry(entry)

    def _drop_entry(self, entry: LedgerEntry) -> None:
        """Drop an entry that came to nothing: its pods are demand again, and a node that it was to replace stays."""
        del self.ledger[entry.id]
        for task in list(self._promises.pop(entry.id, {}).values()):
            self.waiting.release(task)
        for drain in [drain for drain in self.drains.values() if entry.id in drain.needs]:
            del self.drains[drain.node]
            self.scheduler.open(drain.node)
