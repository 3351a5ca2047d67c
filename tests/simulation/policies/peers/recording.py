"""Records an autoscaler's actions in a replay with their time; pools from the catalogue; markets without capacity."""

import json
from collections.abc import Sequence
from typing import Any

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.settings import parse_policy
from gpuscaler.simulation.cloud.delays import NO_FAULTS, Delay, Delays
from gpuscaler.simulation.cloud.markets import Markets, Steps
from gpuscaler.simulation.replay import EPOCH, run
from gpuscaler.simulation.traces.traces import Trace
from gpuscaler.simulation.world.autoscaler import Autoscaler, Decisions, Moment, Purchase, View
from gpuscaler.simulation.world.meter import Result

QUICK = Delays(boot=Delay(100, 100, 100), device_plugin=Delay(20, 20, 20), answer=Delay(1, 1, 1), image_pull=Delay(0, 0, 0))


class Recording:
    """Passes everything on and records (seconds since the run's epoch, what) of each purchase, removal and soft taint."""

    def __init__(self, inner: Autoscaler) -> None:
        self._inner = inner
        self.purchases: list[tuple[float, Purchase]] = []
        self.removals: list[tuple[float, str]] = []
        self.marks: list[tuple[float, str, bool]] = []
        self.until = float("inf")

    @property
    def name(self) -> str:
        return self._inner.name

    @property
    def steers(self) -> bool:
        return self._inner.steers

    @property
    def soft_taint_shares(self) -> tuple[float, ...]:
        return self._inner.soft_taint_shares

    @property
    def decide_at(self) -> float | None:
        at = self._inner.decide_at
        return None if at is None or at - EPOCH > self.until else at

    def start(self) -> tuple[tuple[OfferingKey, int], ...]:
        return self._inner.start()

    def observe(self, moment: Moment, view: View) -> None:
        self._inner.observe(moment, view)

    def decide(self, view: View, now: float) -> Decisions:
        decisions = self._inner.decide(view, now)
        self.purchases += [(now - EPOCH, purchase) for purchase in decisions.purchases]
        self.removals += [(now - EPOCH, removal.node) for removal in decisions.removals]
        self.marks += [(now - EPOCH, node, unneeded) for node, unneeded in decisions.marks]
        return decisions


def pools_of(types: Sequence[str], *, markets: Sequence[str] = ("on-demand",), zones: Sequence[str] = ("us-east-1a",)) -> Policy:
    """One pool of catalogue types in us-east-1."""
    pool = {"name": "all", "types": list(types), "markets": list(markets), "zones": list(zones)}
    return parse_policy(json.dumps({"region": "us-east-1", "pools": [pool]}))


def dry(policy: Policy, market: str, *, until: float = float("inf")) -> Markets:
    """No capacity in any offering of ``market`` before ``until``, in seconds since the run's epoch."""
    times, values = ([0.0], [0.0]) if until == float("inf") else ([0.0, until], [0.0, 1000.0])
    keys = [offering.key for pool in policy.pools for offering in pool.offerings if offering.market == market]
    return Markets({key: Steps(times, values) for key in keys}, began=EPOCH)


def replay(jobs: Trace, policy: Policy, autoscaler: Autoscaler, *, until: float = float("inf"), **options: Any) -> Result:
    """A run without faults; after ``until`` seconds a :class:`Recording` is no longer called."""
    if isinstance(autoscaler, Recording):
        autoscaler.until = until
    options.setdefault("delays", QUICK)
    return run(jobs, policy, autoscaler=autoscaler, faults=NO_FAULTS, **options)
