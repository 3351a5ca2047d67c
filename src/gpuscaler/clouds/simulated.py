"""The simulated cloud's core: machines that are bought, boot, show their GPUs, cost by the second and end. No I/O and no clock.

Whoever drives it asks :meth:`SimulatedCloud.next_event` when something will happen and calls :meth:`SimulatedCloud.advance` with the
time that has come. Time is seconds since the epoch and never runs backwards.
"""

import heapq
import random
from collections.abc import Iterable, Iterator

from msgspec import Struct

from gpuscaler.clouds.delays import Delays
from gpuscaler.model.pods import Resources
from gpuscaler.model.pools import Offering, Pool

#: Billing is by the second with a minimum of a minute, as EC2 bills on-demand Linux machines.
MINIMUM_BILLED_SECONDS = 60.0

#: A machine's life, in order. ``registered`` is a Ready node without its GPUs, ``visible`` one whose GPUs are allocatable.
BOOTING, REGISTERED, VISIBLE, TERMINATED = "booting", "registered", "visible", "terminated"

#: Why a purchase was refused: the offering does not exist, the pool is at its maximum, the offering has no more machines.
UNKNOWN_OFFERING, POOL_LIMIT, NO_CAPACITY = "unknown-offering", "pool-limit", "no-capacity"

#: Resources that only appear once a device plugin has registered: everything the kubelet does not count by itself.
KUBELET_RESOURCES = ("cpu", "memory", "ephemeral-storage", "pods")


class CloudMachine(Struct, gc=False):
    """One machine. Times are None until they come; ``visible_at`` and ``registered_at`` are plans until the state says so."""

    id: str
    offering: Offering
    state: str
    bought_at: float
    registered_at: float
    visible_at: float
    terminated_at: float | None = None

    def billed_seconds(self, now: float) -> float:
        """Seconds billed up to ``now``: from the purchase to the end, at least a minute."""
        end = self.terminated_at if self.terminated_at is not None else now
        return max(MINIMUM_BILLED_SECONDS, end - self.bought_at)

    def cost(self, now: float) -> float:
        """US dollars billed up to ``now``."""
        return self.offering.price * self.billed_seconds(now) / 3600.0


class Refusal(Struct, frozen=True, gc=False):
    """Why ``missing`` machines of a purchase were not granted; ``kind`` is one of the refusals above."""

    kind: str
    missing: int
    detail: str


class Grant(Struct, frozen=True, gc=False):
    """The answer to a purchase: the machines that were granted, and why others were not."""

    machines: tuple[CloudMachine, ...]
    refusal: Refusal | None = None


class CloudEvent(Struct, frozen=True, gc=False):
    """A machine entered ``state`` at ``at``."""

    at: float
    state: str
    machine: CloudMachine


class SimulatedCloud:
    """Machines of ``pools``, bought and ended by calls, changed by time.

    The delays of the n-th machine depend on ``seed`` and n alone, so that two policies compared on one seed meet the same luck.
    """

    def __init__(self, pools: Iterable[Pool], *, seed: int = 0, delays: Delays | None = None) -> None:
        self._pools = {pool.name: pool for pool in pools}
        self._offerings = {offering.key: offering for pool in self._pools.values() for offering in pool.offerings}
        self._seed = seed
        self._delays = delays or Delays()
        self._all: dict[str, CloudMachine] = {}
        self._alive: dict[str, CloudMachine] = {}
        self._grants: dict[str, Grant] = {}
        self._in_pool: dict[str, int] = dict.fromkeys(self._pools, 0)
        self._of_offering: dict[tuple[str, str, str, str], int] = dict.fromkeys(self._offerings, 0)
        self._due: list[tuple[float, int, str, str]] = []

    def buy(self, offering: tuple[str, str, str, str], *, count: int, now: float, token: str) -> Grant:
        """Ask for ``count`` machines of an offering (its key); a ``token`` that was seen before gets the same answer and buys nothing."""
        if count < 1:
            raise ValueError(f"count must be at least 1, got {count}")
        known = self._grants.get(token)
        if known is not None:
            return known
        wanted = self._offerings.get(offering)
        if wanted is None:
            grant = Grant((), Refusal(UNKNOWN_OFFERING, count, f"no offering {'/'.join(offering)}"))
        else:
            granted, refusal = self._room(wanted, count)
            grant = Grant(tuple(self._start(wanted, now) for _ in range(granted)), refusal)
        self._grants[token] = grant
        return grant

    def terminate(self, machine_id: str, now: float) -> CloudMachine:
        """End a machine at once. Ending it again changes nothing; an unknown id raises KeyError."""
        machine = self.machine(machine_id)
        if self._alive.pop(machine_id, None) is not None:
            machine.state = TERMINATED
            machine.terminated_at = now
            self._in_pool[machine.offering.pool] -= 1
            self._of_offering[machine.offering.key] -= 1
        return machine

    def machine(self, machine_id: str) -> CloudMachine:
        """A machine by its id, ended or not; an unknown id raises KeyError."""
        return self._all[machine_id]

    def list(self) -> tuple[CloudMachine, ...]:
        """The machines that exist, oldest first."""
        return tuple(self._alive.values())

    def history(self) -> tuple[CloudMachine, ...]:
        """Every machine that was ever bought, oldest first."""
        return tuple(self._all.values())

    def next_event(self) -> float | None:
        """When the next machine changes state by itself, or None."""
        while self._due and self._due[0][3] not in self._alive:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def advance(self, now: float) -> tuple[CloudEvent, ...]:
        """What happened up to and including ``now``, in order of time, then of purchase."""
        return tuple(self._events_until(now))

    def _events_until(self, now: float) -> Iterator[CloudEvent]:
        while (due := self.next_event()) is not None and due <= now:
            at, _, state, machine_id = heapq.heappop(self._due)
            machine = self._alive[machine_id]
            machine.state = state
            yield CloudEvent(at, state, machine)

    def _room(self, offering: Offering, count: int) -> tuple[int, Refusal | None]:
        """How many of ``count`` can be granted, and why not all."""
        granted, refusal = count, None
        if offering.count is not None:
            left = max(0, offering.count - self._of_offering[offering.key])
            if left < granted:
                refusal = Refusal(NO_CAPACITY, count - left, f"{'/'.join(offering.key)} has {left} machines left, {count} were asked")
                granted = left
        maximum = self._pools[offering.pool].max
        if maximum is not None:
            left = max(0, maximum - self._in_pool[offering.pool])
            if left < granted:
                detail = f"pool {offering.pool} may have {maximum} machines and has {maximum - left}, {count} were asked"
                refusal = Refusal(POOL_LIMIT, count - left, detail)
                granted = left
        return granted, refusal

    def _start(self, offering: Offering, now: float) -> CloudMachine:
        ordinal = len(self._all) + 1
        luck = random.Random(f"{self._seed}/{ordinal}")
        registered = now + self._delays.boot.sample(luck)
        plugin = self._delays.device_plugin.sample(luck)
        visible = registered + plugin if any(name not in KUBELET_RESOURCES for name in offering.allocatable) else registered
        machine = CloudMachine(f"sim-{ordinal:05d}", offering, BOOTING, now, registered, visible)
        self._all[machine.id] = self._alive[machine.id] = machine
        self._in_pool[offering.pool] += 1
        self._of_offering[offering.key] += 1
        heapq.heappush(self._due, (registered, 2 * ordinal, REGISTERED, machine.id))
        heapq.heappush(self._due, (visible, 2 * ordinal + 1, VISIBLE, machine.id))
        return machine


def before_device_plugin(allocatable: Resources) -> dict[str, int]:
    """What a registered node offers while its device plugin has not registered yet."""
    return {name: amount for name, amount in allocatable.items() if name in KUBELET_RESOURCES}
