"""The hardware of a region: the simulated cloud's core as EC2's capacity, shared by all groups, and obstacles to launches."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.hardware import instance_types
from gpuscaler.embedded.aws.hardware.refusals import INSUFFICIENT, Failure, is_late, message
from gpuscaler.embedded.aws.hardware.zones import subnet_id
from gpuscaler.embedded.aws.wire.errors import AwsError
from gpuscaler.embedded.serving.conditions import check_market
from gpuscaler.model.offerings import MARKETS, OfferingKey
from gpuscaler.model.pools import Offering, Pool
from gpuscaler.simulation.cloud.core import SimulatedCloud
from gpuscaler.simulation.cloud.delays import Delay
from gpuscaler.simulation.cloud.machines import ANSWERED, CloudEvent, CloudMachine
from gpuscaler.simulation.cloud.markets import Markets

#: The pool of the core that has all machines: capacity belongs to EC2, not to a group.
EC2: Final = "ec2"
#: The market of launches into a capacity reservation: it has exactly the reserved capacity.
RESERVED: Final = "reserved"
#: vCPU limits apply to such a bucket of families in one market; all other families share one.
_BUCKETS: Final = {"p": "P", "g": "G and VT", "vt": "G and VT", "inf": "Inf", "trn": "Trn", "dl": "DL"}


class Trouble(Struct, frozen=True, gc=False):
    """Launches that match (an empty field matches all) fail with ``code``: the next ``times`` of them, or all if None."""

    code: str
    market: str = ""
    instance_type: str = ""
    zone: str = ""
    times: int | None = None

    def __post_init__(self) -> None:
        check_market(self.market, MARKETS)

    def hits(self, market: str, instance_type: str, zone: str) -> bool:
        return self.market in ("", market) and self.instance_type in ("", instance_type) and self.zone in ("", zone)


class Scarcity(Markets):
    """``series`` of markets, with limits that can be changed at any time: (market, instance type, zone), each "" for all."""

    def __init__(self, series: Markets) -> None:
        super().__init__()
        self._series = series
        self.limits: dict[tuple[str, str, str], int] = {}

    def capacity(self, key: OfferingKey, now: float) -> float:
        capacity = self._series.capacity(key, now)
        for limit, count in self.limits.items():
            if all(pattern in ("", value) for pattern, value in zip(limit, key[1:], strict=True)):
                capacity = min(capacity, count)
        return capacity

    def next_change(self, key: OfferingKey, now: float) -> float | None:
        return self._series.next_change(key, now)

    def price(self, offering: Offering, now: float) -> float:
        return self._series.price(offering, now)


@dataclass(slots=True)
class LaunchResult:
    """The result of a request to launch."""

    machines: list[CloudMachine] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)


class Hardware:
    """The machines of ``region``. ``hear`` receives the events that they have by themselves; ``ids`` names the n-th."""

    def __init__(
        self, region: str, conditions: Conditions, *, ids: str, seed: int, series: Markets, hear: Callable[[CloudEvent], None]
    ) -> None:
        self._region, self._hear = region, hear
        self.markets = Scarcity(series)
        delays = replace(conditions.boot, answer=Delay(0.0, 0.0, 0.0))
        self.core = SimulatedCloud((), seed=seed, delays=delays, faults=conditions.machines, markets=self.markets, ids=ids)
        self._offerings: dict[OfferingKey, Offering] = {}
        self._asked = 0
        self.troubles: list[Trouble] = []
        #: (bucket, market) and the account's vCPU limit.
        self.vcpu_limits: dict[tuple[str, str], int] = {}

    def launch(self, market: str, types: Sequence[str], zone: str, *, count: int, now: float, bid: float | None = None) -> LaunchResult:
        """Launch up to ``count`` of ``types``, in order of preference, for at most ``bid`` dollars per hour."""
        result = LaunchResult()
        for name in types:
            left = count - len(result.machines)
            if left < 1:
                break
            try:
                offering = self.offering(market, name, zone)
            except AwsError as error:
                result.failures.append(Failure(error.code, error.message, market, name, zone, left))
                continue
            failure = self._find_obstacle(offering, left, now, bid)
            if failure is None:
                granted = self._request(offering, left, now)
                result.machines += granted
                if len(granted) < left:
                    code = "ReservationCapacityExceeded" if market == RESERVED else INSUFFICIENT
                    failure = self._failure(code, offering, left - len(granted))
            if failure is not None:
                result.failures.append(failure)
        return result

    def advance(self, now: float) -> None:
        """Process all events up to ``now``."""
        for event in self.core.advance(now):
            if event.kind != ANSWERED:
                self._hear(event)

    def reserve(self, instance_type: str, zone: str, count: int) -> None:
        """Add ``count`` machines, or remove some, that only launches into a reservation get."""
        key = (RESERVED, instance_type, zone)
        self.markets.limits[key] = self.markets.limits.get(key, 0) + count

    def in_reservations(self, instance_type: str, zone: str) -> int:
        """The number of reserved machines in use."""
        wanted = (RESERVED, instance_type, zone)
        return sum(machine.offering.key[1:] == wanted for machine in self.core.list())

    def end(self, machine: CloudMachine, now: float) -> None:
        """End a machine, and report it."""
        if machine.ended_at is None:
            ended = self.core.terminate(machine.id, now)
            self._hear(CloudEvent(now, ended.state, ended))

    def doomed(self, instance_type: str, market: str, zone: str) -> str:
        """Why an accepted launch ends by itself, empty if it does not; each call counts."""
        trouble = self._trouble(market, instance_type, zone, late=True)
        return trouble.code if trouble is not None else ""

    def price(self, market: str, name: str, zone: str, now: float) -> float:
        """US dollars per hour."""
        return self.markets.price(self.offering(market, name, zone), now)

    def offering(self, market: str, name: str, zone: str) -> Offering:
        """Its key in the core; added when it is requested for the first time."""
        key = OfferingKey(EC2, market, name, zone)
        if key not in self._offerings:
            instance_type = instance_types.get_type(name)
            price = instance_types.price(name, self._region, market)
            self._offerings[key] = Offering(EC2, market, name, zone, price, instance_type.allocatable, {})
            self.core.set_pools([Pool(EC2, tuple(self._offerings.values()))])
        return self._offerings[key]

    def _request(self, offering: Offering, count: int, now: float) -> list[CloudMachine]:
        self._asked += 1
        token = f"{self._region}/{self._asked}"
        self.core.ask(token, (offering.key,), count=count, now=now)
        granted: list[CloudMachine] = []
        for event in self.core.advance(now):
            if event.answer is None:
                self._hear(event)
            elif event.answer.purchase == token:
                granted += event.answer.machines
        return granted

    def _find_obstacle(self, offering: Offering, count: int, now: float, bid: float | None) -> Failure | None:
        """The reason that refuses a launch before capacity is checked."""
        _, market, name, zone = offering.key
        trouble = self._trouble(market, name, zone)
        if trouble is not None:
            return self._failure(trouble.code, offering, count)
        price = self.markets.price(offering, now)
        if bid is not None and market == "spot" and bid < price:
            return self._failure("SpotMaxPriceTooLow", offering, count, bid=f"{bid:g}", price=f"{price:g}")
        limit = self.vcpu_limits.get((bucket(name), market))
        if limit is not None:
            running = (machine.offering for machine in self.core.list() if machine.offering.market == market)
            used = sum(
                instance_types.get_type(other.instance_type).vcpu for other in running if bucket(other.instance_type) == bucket(name)
            )
            if used + count * instance_types.get_type(name).vcpu > limit:
                code = "MaxSpotInstanceCountExceeded" if market == "spot" else "VcpuLimitExceeded"
                return self._failure(code, offering, count, limit=str(limit))
        return None

    def _trouble(self, market: str, name: str, zone: str, *, late: bool = False) -> Trouble | None:
        """The first trouble that applies to a launch, counted: of those that refuse at once, or of the ``late`` ones."""
        for place, trouble in enumerate(self.troubles):
            if is_late(trouble.code) == late and trouble.hits(market, name, zone):
                if trouble.times is not None:
                    self.troubles[place : place + 1] = [replace(trouble, times=trouble.times - 1)] if trouble.times > 1 else []
                return trouble
        return None

    @staticmethod
    def _failure(code: str, offering: Offering, missing: int, **more: str) -> Failure:
        _, market, name, zone = offering.key
        text = message(code, market=market, instance_type=name, zone=zone, subnet=subnet_id(zone), **more)
        return Failure(code, text, market, name, zone, missing)


def bucket(instance_type: str) -> str:
    """The vCPU limit that an instance type counts against: "P", "G and VT", …, "Standard"."""
    letters = instance_type.split(".")[0]
    family = letters[: next((place for place, letter in enumerate(letters) if letter.isdigit()), len(letters))]
    return _BUCKETS.get(family, "Standard")
