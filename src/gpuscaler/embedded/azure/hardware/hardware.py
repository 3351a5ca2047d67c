"""The hardware of all locations: the simulated cloud's core as Azure's capacity, and obstacles to machines."""

from collections.abc import Callable
from typing import Final

from msgspec.structs import replace

from gpuscaler.embedded.azure.conditions import Conditions
from gpuscaler.embedded.azure.hardware import sizes
from gpuscaler.embedded.azure.hardware.refusals import BOOTSTRAP, Trouble, failure, in_zone
from gpuscaler.embedded.azure.wire.errors import Failure
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Offering, Pool
from gpuscaler.simulation.cloud.core import SimulatedCloud
from gpuscaler.simulation.cloud.delays import Delay
from gpuscaler.simulation.cloud.machines import ANSWERED, CloudEvent, CloudMachine
from gpuscaler.simulation.cloud.markets import Markets

#: The pool of the core that has all machines: capacity belongs to Azure, not to a scale set.
AZURE: Final = "azure"
SPOT: Final = "spot"
#: The market of machines in capacity reservations: no limit and no trouble applies to it.
RESERVED: Final = "reserved"


class Scarcity(Markets):
    """``series`` of markets, with limits that can be changed at any time: (market, size, zone), each "" for all, and a code."""

    def __init__(self, series: Markets) -> None:
        super().__init__()
        self._series = series
        self.limits: dict[tuple[str, str, str], tuple[int, str]] = {}

    def limit(self, key: OfferingKey) -> tuple[float, str]:
        """The least limit of a market, and the code with which machines beyond it fail ("": the usual one)."""
        found: tuple[float, str] = (float("inf"), "")
        if key.market == RESERVED:
            return found
        for (market, size, zone), (machines, code) in self.limits.items():
            if market in ("", key.market) and size.lower() in ("", key.instance_type.lower()) and in_zone(zone, key.zone):
                found = min(found, (machines, code), key=lambda pair: pair[0])
        return found

    def capacity(self, key: OfferingKey, now: float) -> float:
        """Machines of a market beyond this are evicted, which happens to spot machines only."""
        return min(self._series.capacity(key, now), self.limit(key)[0]) if key.market == SPOT else float("inf")

    def next_change(self, key: OfferingKey, now: float) -> float | None:
        return self._series.next_change(key, now)

    def price(self, offering: Offering, now: float) -> float:
        return self._series.price(offering, now)


class Hardware:
    """All machines. ``hear`` receives the events that they have by themselves."""

    def __init__(self, conditions: Conditions, *, seed: int, series: Markets, hear: Callable[[CloudEvent], None]) -> None:
        self._hear = hear
        self.markets = Scarcity(series)
        delays = replace(conditions.boot, answer=Delay(0.0, 0.0, 0.0))
        faults = replace(conditions.machines, notice_seconds=conditions.notice)
        self.core = SimulatedCloud((), seed=seed, delays=delays, faults=faults, markets=self.markets, ids="vm-{:012x}")
        self._offerings: dict[OfferingKey, Offering] = {}
        self._asked = 0
        self.troubles: list[Trouble] = []

    def refused_at_once(self, market: str, size: str, zones: tuple[str, ...], count: int) -> tuple[Failure, int] | None:
        """The reason and HTTP status with which a write that needs ``count`` machines in any of ``zones`` fails at once."""
        for zone in zones:
            trouble = self._trouble(market, size, zone, lambda trouble: trouble.answered > 0)
            if trouble is not None:
                shown = failure(trouble.code, market=market, size=size, zone=zone, message=trouble.message, count=str(count))
                return shown, trouble.answered
        return None

    def place(self, market: str, size: str, zone: str, now: float, *, bid: float | None = None) -> CloudMachine | Failure:
        """Place one machine in ``zone`` for at most ``bid`` dollars per hour."""
        trouble = self._trouble(market, size, zone, lambda trouble: not trouble.answered and trouble.code not in BOOTSTRAP)
        if trouble is not None:
            return failure(trouble.code, market=market, size=size, zone=zone, message=trouble.message)
        offering = self.offering(market, size, zone)
        if bid is not None and bid > 0 and market == SPOT and bid < self.markets.price(offering, now):
            return failure("SpotPriceGreaterThanMaxPrice", market=market, size=size, zone=zone)
        limit, code = self.markets.limit(offering.key)
        usual = "AllocationFailed" if zone.endswith("-0") else "ZonalAllocationFailed"
        refused = failure(code or usual, market=market, size=size, zone=zone)
        if market != SPOT and limit <= sum(machine.offering.key == offering.key for machine in self.core.list()):
            return refused
        self._asked += 1
        token = str(self._asked)
        self.core.ask(token, (offering.key,), count=1, now=now)
        for event in self.core.advance(now):
            if event.answer is None:
                self._hear(event)
            elif event.answer.purchase == token and event.answer.machines:
                return event.answer.machines[0]
        return refused

    def add(self, market: str, size: str, zone: str, now: float) -> CloudMachine:
        """Add a machine that exists from the beginning."""
        return self.core.start(self.offering(market, size, zone).key, now)

    def report(self, machine: CloudMachine, now: float) -> None:
        """Report the state of a machine, as if it had just come into it."""
        self._hear(CloudEvent(now, machine.state, machine))

    def bootstrap_failure(self, market: str, size: str, zone: str, name: str) -> Failure | None:
        """Why a placed machine does not become a node, None if it does; each call counts."""
        trouble = self._trouble(market, size, zone, lambda trouble: trouble.code in BOOTSTRAP)
        if trouble is None:
            return None
        return failure(trouble.code, market=market, size=size, zone=zone, message=trouble.message, name=name)

    def advance(self, now: float) -> None:
        """Process all events up to ``now``."""
        for event in self.core.advance(now):
            if event.kind != ANSWERED:
                self._hear(event)

    def end(self, machine: CloudMachine, now: float) -> None:
        """End a machine, and report it."""
        if machine.ended_at is None:
            ended = self.core.terminate(machine.id, now)
            self._hear(CloudEvent(now, ended.state, ended))

    def offering(self, market: str, size: str, zone: str) -> Offering:
        """Its key in the core; added when it is requested for the first time."""
        details = sizes.size_of(size)
        name = details.name if details is not None else size
        key = OfferingKey(AZURE, market, name, zone)
        if key not in self._offerings:
            price = sizes.price(details, zone.rpartition("-")[0], market) if details is not None else 1.0
            allocatable = details.allocatable if details is not None else {}
            self._offerings[key] = Offering(AZURE, market, name, zone, price, allocatable, {})
            self.core.set_pools([Pool(AZURE, tuple(self._offerings.values()))])
        return self._offerings[key]

    def _trouble(self, market: str, size: str, zone: str, kind: Callable[[Trouble], bool]) -> Trouble | None:
        """The first trouble of a kind that applies, counted."""
        for place, trouble in enumerate(self.troubles):
            if market != RESERVED and kind(trouble) and trouble.hits(market, size, zone):
                if trouble.times is not None:
                    self.troubles[place : place + 1] = [replace(trouble, times=trouble.times - 1)] if trouble.times > 1 else []
                return trouble
        return None
