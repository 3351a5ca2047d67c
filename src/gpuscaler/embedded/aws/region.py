"""One region of an account: its contents, and its scheduled events."""

import heapq
from collections.abc import Callable
from functools import partial
from typing import Any

from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.hardware.hardware import Hardware
from gpuscaler.embedded.aws.hardware.zones import zones_of
from gpuscaler.embedded.aws.queue_state import Queue
from gpuscaler.embedded.aws.state import Group, Instance, Template, Volume
from gpuscaler.simulation.cloud.machines import CloudEvent
from gpuscaler.simulation.cloud.markets import Markets


class Region:
    """A region with ``zones`` zones; ``place`` is its number in the account, and in the ids of its instances.

    ``listeners`` receive machines' own events and their ends; ``reconcile`` reconciles a group.
    """

    def __init__(
        self,
        name: str,
        *,
        account: str,
        zones: int,
        conditions: Conditions,
        reconcile: Callable[["Region", Group], None],
        place: int = 0,
        seed: int = 0,
        series: Markets | None = None,
    ) -> None:
        self._reconcile = reconcile
        self.name, self.account, self.conditions, self.first_conditions = name, account, conditions, conditions
        self.zones = zones_of(name, zones)
        self.now = 0.0
        self.listeners: list[Callable[[CloudEvent], None]] = []
        ids = f"i-{place:02x}{{:015x}}"
        self.hardware = Hardware(name, conditions, ids=ids, seed=seed, series=series or Markets(), hear=self._notify_listeners)
        self.templates: dict[str, Template] = {}
        self.configurations: dict[str, dict[str, Any]] = {}
        self.groups: dict[str, Group] = {}
        self.instances: dict[str, Instance] = {}
        self.volumes: dict[str, Volume] = {}
        self.nodegroups: dict[tuple[str, str], dict[str, Any]] = {}
        #: EKS's Pod Identity associations, by id.
        self.associations: dict[str, dict[str, Any]] = {}
        self.queues: dict[str, Queue] = {}
        self.reservations: dict[str, dict[str, Any]] = {}
        #: Images that no longer exist, and the names of those that have one.
        self.deregistered: set[str] = set()
        self.image_names: dict[str, str] = {}
        #: Whether new disks are encrypted, and with which key.
        self.encrypts_disks, self.disk_key = False, "alias/aws/ebs"
        #: (operation, ClientToken) with the request and its answer.
        self.tokens: dict[tuple[str, str], tuple[dict[str, Any], dict[str, Any]]] = {}
        self._numbers = 0
        self._agenda: list[tuple[float, int, Callable[[float], None]]] = []

    def number(self) -> int:
        """A number that was not given out before."""
        self._numbers += 1
        return self._numbers

    def identifier(self, prefix: str) -> str:
        """An id in EC2's form: ``prefix``, a dash, 17 hexadecimal digits."""
        return f"{prefix}-{self.number():017x}"

    def uuid(self) -> str:
        """An id in the form of activities and events."""
        return f"00000000-0000-4000-8000-{self.number():012x}"

    def put(self, at: float, act: Callable[[float], None]) -> None:
        """Schedule ``act`` to be called with the time ``at`` when it has come."""
        heapq.heappush(self._agenda, (at, self.number(), act))

    def wake(self, group: Group, moment: float | None = None) -> None:
        """Have a group reconciled at ``moment`` at the latest; without one as fast as Auto Scaling reacts."""
        when = self.now + self.conditions.reaction if moment is None else moment
        if group.wakes_at is None or when < group.wakes_at:
            group.wakes_at = when
            self.put(when, partial(self._reconcile_if_due, group))

    def _reconcile_if_due(self, group: Group, now: float) -> None:
        if group.wakes_at is not None and now >= group.wakes_at and self.groups.get(group.name) is group:
            group.wakes_at = None
            self._reconcile(self, group)

    def next_event(self) -> float | None:
        """The time of the next scheduled event."""
        own = self._agenda[0][0] if self._agenda else None
        return min((at for at in (own, self.hardware.core.next_event()) if at is not None), default=None)

    def advance(self, now: float) -> None:
        """Process everything that is due, in order of time."""
        while (at := self.next_event()) is not None and at <= now:
            self.now = max(self.now, at)
            if self._agenda and self._agenda[0][0] <= at:
                heapq.heappop(self._agenda)[2](self.now)
            else:
                self.hardware.advance(self.now)
        self.now = max(self.now, now)

    def deliver(self, event: CloudEvent) -> None:
        """Deliver an event of a machine that was held back to all listeners."""
        self._notify_listeners(event)

    def _notify_listeners(self, event: CloudEvent) -> None:
        for listener in self.listeners:
            listener(event)
