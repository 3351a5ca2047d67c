"""Schedules turns and plans of the control loop: soon after a change that matters, and at a regular interval in any case."""

import asyncio
from collections.abc import Mapping

from gpuscaler.kube.reflector import Batch
from gpuscaler.lifecycle.pacing import Pace, Timetable
from gpuscaler.model.nodes import Node
from gpuscaler.model.pods import Pod
from gpuscaler.model.workloads import Workload

#: The delay before a turn after a node or pod in ``awaited`` changed, so that changes that come together share one turn.
SOON_SECONDS = 0.1


class Alarm:
    """Rings when a turn is due; its ``plans`` hold when a plan is due. Times are those of the event loop.

    ``awaited`` are the pods and nodes whose changes cause a turn at once, and ``nodes`` the nodes that existed in the last turn.
    """

    def __init__(self, pace: Pace) -> None:
        self.plans = Timetable(pace)
        self.awaited: frozenset[str] = frozenset()
        self.nodes: Mapping[str, Node] = {}
        self._rung = asyncio.Event()
        self._due = 0.0
        self._unschedulable: set[str] = set()

    @property
    def pace(self) -> Pace:
        return self.plans.pace

    @pace.setter
    def pace(self, pace: Pace) -> None:
        self.plans.pace = pace

    def time(self) -> float:
        return asyncio.get_running_loop().time()

    def wake(self) -> None:
        """Make the next turn due now."""
        self.turn_by(self.time())

    def turn_by(self, at: float) -> None:
        """Make the next turn due at this time, or sooner."""
        if at < self._due:
            self._due = at
            self._rung.set()

    def turn_at(self, at: float) -> None:
        """Make the next turn due at this time, and not sooner."""
        self._due = at

    def plan_by(self, at: float) -> None:
        """Make the next turn and plan due at this time, or sooner."""
        self.plans.plan_by(at)
        self.turn_by(at)

    async def wait(self) -> None:
        """Wait until the next turn is due."""
        while (left := self._due - self.time()) > 0:
            self._rung.clear()
            try:
                async with asyncio.timeout(max(left, 0.001)):
                    await self._rung.wait()
            except TimeoutError:
                return

    def begin_turn(self) -> float:
        """Begin a turn and return its start time; the next turn is due after the resync interval, or when a plan is due."""
        started = self.time()
        self._due = started + self.pace.resync
        if started < self.plans.due:
            # A plan that is due sooner stays due at its time, whatever this turn is for.
            self._due = min(self._due, self.plans.due)
        return started

    def note_changes(self, batch: Batch) -> None:
        """Make a turn due soon if an awaited object changed, and a plan once no more pods become unschedulable."""
        # In a large cluster, heartbeats of nodes that are not awaited come many times a second.
        nodes = batch.changes if batch.model is Node and self.awaited else ()
        soon = any(name in self.awaited or name not in self.nodes for name in nodes)
        if batch.model is Node:
            soon = soon or any(isinstance(node, Node) and self._is_announced(node) for node in batch.changes.values())
        if batch.model is Pod:
            for key, pod in batch.changes.items():
                if isinstance(pod, Pod) and pod.unschedulable and not pod.node_name:
                    if key not in self._unschedulable:
                        self._unschedulable.add(key)
                        self._note_demand()
                else:
                    self._unschedulable.discard(key)
                soon = soon or key in self.awaited or (isinstance(pod, Pod) and pod.node_name in self.awaited)
        if batch.model is Workload and self.awaited:
            # A machine that is not open yet may have to open for the pods of the DaemonSet.
            soon = any(isinstance(item, Workload) and item.kind == "DaemonSet" for item in batch.changes.values())
        if soon:
            self.turn_by(self.time() + SOON_SECONDS)

    def _is_announced(self, node: Node) -> bool:
        """Whether an agent on ``node`` announces something new about its machine: there may be only 30 s left."""
        before = self.nodes.get(node.name)
        return node.scheduled_event is not None and (before is None or before.scheduled_event != node.scheduled_event)

    def _note_demand(self) -> None:
        now = self.time()
        self.plans.pods_came(now)
        self._due = min(self._due, self.plans.due) if self._due > now else self._due
        self._rung.set()
