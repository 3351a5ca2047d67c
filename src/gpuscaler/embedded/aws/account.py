"""An AWS account: its regions and what is in them. Everything is data and calls; time moves when :meth:`Account.advance` says so."""

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.errors import AwsError
from gpuscaler.embedded.aws.zones import zones_of


@dataclass(slots=True)
class Template:
    """A launch template; ``versions`` begin with 1. Data is what requests and replies call LaunchTemplateData."""

    id: str
    name: str
    created_at: float
    versions: list[dict[str, Any]]
    default: int = 1
    tags: list[dict[str, str]] = field(default_factory=list)

    def version(self, wanted: str) -> int:
        """The number that ``$Latest``, ``$Default`` or a number stands for."""
        number = {"$Latest": len(self.versions), "$Default": self.default}.get(wanted)
        if number is None:
            number = int(wanted) if wanted.isdigit() else 0
        if not 1 <= number <= len(self.versions):
            raise AwsError("InvalidLaunchTemplateId.VersionNotFound", f"Could not find launch template version {wanted} of {self.id}")
        return number


class Region:
    """One region of an account."""

    def __init__(self, name: str, *, account: str, zones: int, conditions: Conditions) -> None:
        self.name, self.account, self.conditions = name, account, conditions
        self.zones = zones_of(name, zones)
        self.now = 0.0
        self.templates: dict[str, Template] = {}
        self.groups: dict[str, Any] = {}
        self.nodegroups: dict[tuple[str, str], dict[str, Any]] = {}
        self._numbers = 0
        self._agenda: list[tuple[float, int, Callable[[float], None]]] = []

    def number(self) -> int:
        """A number that was not given before."""
        self._numbers += 1
        return self._numbers

    def identifier(self, prefix: str) -> str:
        """An id as EC2's are: ``prefix``, a dash, 17 hexadecimal digits."""
        return f"{prefix}-{self.number():017x}"

    def put(self, at: float, act: Callable[[float], None]) -> None:
        """Have ``act`` called with the moment when ``at`` has come."""
        heapq.heappush(self._agenda, (at, self.number(), act))

    def next_event(self) -> float | None:
        """When something happens by itself next."""
        return self._agenda[0][0] if self._agenda else None

    def advance(self, now: float) -> None:
        """Let everything happen that is due."""
        while self._agenda and self._agenda[0][0] <= now:
            at, _, act = heapq.heappop(self._agenda)
            self.now = max(self.now, at)
            act(self.now)
        self.now = max(self.now, now)


class Account:
    """An account with ``regions`` of so many ``zones``. ``now`` is its clock, in seconds since the epoch."""

    id = "123456789012"

    def __init__(
        self, *, now: Callable[[], float], regions: Iterable[str] = ("us-east-1",), zones: int = 3, conditions: Conditions | None = None
    ) -> None:
        self.now = now
        told = conditions or Conditions()
        self.regions = {name: Region(name, account=self.id, zones=zones, conditions=told) for name in regions}
        self.advance()

    def region(self, name: str) -> Region:
        """The region of that name. Raises :class:`AwsError` for one that the account does not use."""
        if name not in self.regions:
            raise AwsError("OptInRequired", f"You are not subscribed to this service in {name}", status=403)
        return self.regions[name]

    def next_event(self) -> float | None:
        """When something happens by itself next."""
        return min((at for region in self.regions.values() if (at := region.next_event()) is not None), default=None)

    def advance(self) -> None:
        """Let everything happen that is due by now."""
        now = self.now()
        for region in self.regions.values():
            region.advance(now)
