"""The contents of an Azure account: tenant, subscriptions, resource groups, operations, quotas, and the clock that moves them."""

import heapq
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, Final

from gpuscaler.embedded.azure.conditions import Conditions
from gpuscaler.embedded.azure.hardware import sizes
from gpuscaler.embedded.azure.hardware.hardware import SPOT, Hardware
from gpuscaler.embedded.azure.state import (
    COMPUTE,
    IN_PROGRESS,
    Cluster,
    Machine,
    Operation,
    ResourceGroup,
    ScaleSet,
    ScheduledEvent,
)
from gpuscaler.embedded.azure.wire.errors import Failure, no_resource, refusal
from gpuscaler.simulation.cloud.machines import CloudEvent
from gpuscaler.simulation.cloud.markets import Markets

SUBSCRIPTION: Final = "11111111-1111-4111-8111-111111111111"
TENANT: Final = "99999999-9999-4999-8999-999999999999"
#: Quotas of a new subscription, in vCPUs; families have the same limit as ``cores``.
LIMIT: Final = 10_000


class Contents:
    """What an account consists of; :class:`~gpuscaler.embedded.azure.account.Account` adds what machines do by themselves.

    ``time`` is the time up to which everything due was processed.
    """

    def __init__(
        self,
        *,
        now: Callable[[], float],
        subscriptions: tuple[str, ...],
        locations: tuple[str, ...],
        zones: int,
        conditions: Conditions,
        series: Markets,
        tenant: str,
        seed: int,
    ) -> None:
        self.now = now
        self.time = now()
        self.tenant = tenant
        self.conditions = self.first_conditions = conditions
        self.subscriptions, self.locations = subscriptions, locations
        self.zones = tuple(str(number) for number in range(1, zones + 1))
        self.dice = Random(seed)
        self.listeners: list[Callable[[CloudEvent], None]] = []
        self.hardware = Hardware(self.conditions, seed=seed, series=series, hear=self._notify)
        #: Resource groups by subscription and name in lower case.
        self.groups: dict[tuple[str, str], ResourceGroup] = {}
        self.operations: dict[str, Operation] = {}
        #: Machines by the id of their hardware, with their scale set.
        self.owners: dict[str, tuple[ScaleSet, Machine]] = {}
        #: (subscription, location, quota family or ``cores`` or ``lowPriorityCores``, in lower case) and the limit in vCPUs.
        self.limits: dict[tuple[str, str, str], int] = {}
        #: (subscription, location, size in lower case): zones in which the size is restricted; empty: everywhere.
        self.restrictions: dict[tuple[str, str, str], tuple[str, ...]] = {}
        #: Changes of prices: (size in lower case, location, market) and dollars per hour.
        self.prices: dict[tuple[str, str, str], float] = {}
        #: Locks, autoscale settings, policies and identities, by folded id.
        self.documents: dict[str, dict[str, Any]] = {}
        self.events: dict[str, ScheduledEvent] = {}
        self.incarnation = 1
        #: Tokens that were issued, with the time until which they are valid.
        self.tokens: dict[str, float] = {}
        #: Ids of clients that get tokens, None: any; and secrets that are refused.
        self.clients: set[str] | None = None
        self.wrong_secrets: set[str] = set()
        #: Deletions that the next writes preempt.
        self.preempt_deletions = 0
        #: Faults of nodes that the control path offers, by name, if its machines are nodes of a cluster.
        self.node_acts: dict[str, Callable[[Any], Any]] = {}
        self._numbers = 0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []

    # Time

    def put(self, at: float, act: Callable[[], None]) -> None:
        """Schedule ``act`` to be called when the time ``at`` has come."""
        heapq.heappush(self._agenda, (at, self.number(), act))

    def next_event(self) -> float | None:
        """The time of the next scheduled event."""
        own = self._agenda[0][0] if self._agenda else None
        return min((at for at in (own, self.hardware.core.next_event()) if at is not None), default=None)

    def advance(self) -> None:
        """Process everything that is due by now, in order of time."""
        now = self.now()
        while (at := self.next_event()) is not None and at <= now:
            self.time = max(self.time, at)
            if self._agenda and self._agenda[0][0] <= at:
                heapq.heappop(self._agenda)[2]()
            else:
                self.hardware.advance(self.time)
        self.time = max(self.time, now)

    def _notify(self, event: CloudEvent) -> None:
        for listener in self.listeners:
            listener(event)

    # Names

    def number(self) -> int:
        """A number that was not given out before."""
        self._numbers += 1
        return self._numbers

    def uuid(self) -> str:
        """An id in the form of operations and machines."""
        return f"00000000-0000-4000-8000-{self.number():012x}"

    # Contents

    def check_subscription(self, subscription: str) -> str:
        """The subscription as the account spells it. Raises :class:`AzureError` if there is none."""
        for known in self.subscriptions:
            if known.lower() == subscription.lower():
                return known
        raise refusal("SubscriptionNotFound", f"The subscription '{subscription}' could not be found.", status=404)

    def check_location(self, location: str) -> str:
        """A location in Azure's spelling: lower case, no blanks. Raises :class:`AzureError` if the account does not use it."""
        folded = location.lower().replace(" ", "")
        if folded not in self.locations:
            text = (
                f"The provided location '{location}' is not available for resource type 'Microsoft.Compute/virtualMachineScaleSets'. "
                f"List of available regions for the resource type is '{','.join(self.locations)}'."
            )
            raise refusal("LocationNotAvailableForResourceType", text)
        return folded

    def group(self, subscription: str, name: str) -> ResourceGroup:
        """A resource group. Raises :class:`AzureError` if there is none."""
        self.check_subscription(subscription)
        found = self.groups.get((subscription.lower(), name.lower()))
        if found is None:
            raise refusal("ResourceGroupNotFound", f"Resource group '{name}' could not be found.", status=404)
        return found

    def scale_set(self, subscription: str, group: str, name: str) -> ScaleSet:
        """A scale set. Raises :class:`AzureError` if there is none."""
        where = self.group(subscription, group)
        found = where.scale_sets.get(name.lower())
        if found is None:
            raise no_resource("Microsoft.Compute/virtualMachineScaleSets", name, group)
        return found

    def cluster(self, subscription: str, group: str, name: str) -> Cluster:
        """An AKS cluster. Raises :class:`AzureError` if there is none."""
        where = self.group(subscription, group)
        found = where.clusters.get(name.lower())
        if found is None:
            raise no_resource("Microsoft.ContainerService/managedClusters", name, group)
        return found

    def all_scale_sets(self) -> Iterator[ScaleSet]:
        """All scale sets, and the profiles of agent pools without one."""
        for group in self.groups.values():
            yield from group.scale_sets.values()
        for cluster in self.all_clusters():
            for pool in cluster.pools.values():
                yield from pool.profiles.values()

    def all_clusters(self) -> Iterator[Cluster]:
        for group in self.groups.values():
            yield from group.clusters.values()

    def machines_in(self, subscription: str, location: str) -> Iterator[Machine]:
        """All machines of a subscription in a location."""
        for scale_set in self.all_scale_sets():
            if scale_set.subscription.lower() == subscription.lower() and scale_set.location == location:
                yield from scale_set.machines.values()

    # Quotas

    def limit(self, subscription: str, location: str, name: str) -> int:
        """A quota in vCPUs; ``name`` is a family, ``cores`` or ``lowPriorityCores``."""
        return self.limits.get((subscription.lower(), location, name.lower()), LIMIT)

    def usage(self, subscription: str, location: str) -> dict[str, int]:
        """The vCPUs in use, by quota. Machines that were never allocated use none; deallocated ones do."""
        used = {"cores": 0, "lowPriorityCores": 0}
        for machine in self.machines_in(subscription, location):
            size = sizes.size_of(machine.size)
            if size is None or (machine.cloud is None and machine.state != "Creating" and not machine.deallocated):
                continue
            if machine.market == SPOT:
                used["lowPriorityCores"] += size.vcpu
            else:
                family = sizes.family(size.name)
                used["cores"] += size.vcpu
                used[family] = used.get(family, 0) + size.vcpu
        return used

    # Scheduled events

    def announce(self, machine: Machine, kind: str, at: float, *, seconds: int = -1) -> ScheduledEvent:
        """Add a scheduled event of one machine, which begins at ``at``; it is listed until the machine is gone."""
        event = ScheduledEvent(self.uuid().upper(), kind, (machine.name,), at, seconds=seconds)
        self.events[event.id] = event
        self.incarnation += 1
        self.put(at, lambda: self.start_event(event.id))
        return event

    def start_event(self, ident: str) -> None:
        """Begin an event, at its time or since the owner of its machine asks for it; one that has begun or is gone stays so."""
        event = self.events.get(ident)
        if event is not None and event.status == "Scheduled":
            event.status = "Started"
            self.incarnation += 1
            if event.act is not None:
                event.act()

    def withdraw_events(self, machine: Machine) -> None:
        """Drop the scheduled events of a machine that is gone."""
        for ident in [event.id for event in self.events.values() if machine.name in event.resources]:
            del self.events[ident]
            self.incarnation += 1

    # Operations

    def begin(self, subscription: str, location: str, provider: str = COMPUTE) -> Operation:
        """A new operation."""
        operation = Operation(self.uuid(), provider, subscription, location, self.time)
        self.operations[operation.id] = operation
        return operation

    def end(self, operation: Operation, status: str, error: Failure | None = None) -> None:
        """End an operation; ending it again changes nothing."""
        if operation.status != IN_PROGRESS:
            return
        operation.status, operation.error, operation.ended_at = status, error, self.time
        operation.waiting.clear()
        self.put(self.time + self.conditions.operations_kept, lambda: self._forget(operation.id))
        if operation.then is not None:
            operation.then(operation)

    def _forget(self, name: str) -> None:
        self.operations.pop(name, None)

    def forget_operations(self) -> None:
        """Lose all operations, as if they were too old: their URLs answer 404, and their effects go on."""
        self.operations.clear()
