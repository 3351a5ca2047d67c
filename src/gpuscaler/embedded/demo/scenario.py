"""The scenario of a demo: when it ends at the latest, what is submitted, when the spot market has no capacity."""

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.embedded.demo.workload import cut_trace, draw_trace
from gpuscaler.embedded.serving.cluster import Conditions
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.simulation.cloud.delays import Delay, Delays
from gpuscaler.simulation.cloud.markets import Markets, Steps
from gpuscaler.simulation.traces.jobs import Trace

#: A demo takes two hours of cluster time, which at the default speed are one minute.
SPAN = 7200.0
#: When spot runs dry and when it recovers, as fractions of the whole time.
DRY, BACK = 0.25, 0.4


class Scenario(Struct, frozen=True):
    """``trace`` has what is submitted within ``span`` seconds; between ``dry`` and ``back`` no spot machine is available.

    ``since`` is how far into a user's trace it starts, in seconds. Everything takes ``haste`` times less than it would.
    """

    trace: Trace
    seed: int
    since: float | None = None
    span: float = SPAN
    dry: float = DRY * SPAN
    back: float = BACK * SPAN
    haste: float = 1.0


def scenario(seed: int, trace: Trace | None = None) -> Scenario:
    """The demo for ``seed``: with its own workload, or with a busy part of ``trace``."""
    if trace is None:
        return Scenario(draw_trace(seed, SPAN), seed)
    busy, since = cut_trace(trace, SPAN)
    return Scenario(busy, seed, since - trace.jobs[0].submit)


def accelerate(scenario: Scenario, haste: float) -> Scenario:
    """The same scenario ``haste`` times as fast, for a cluster whose clock cannot be accelerated."""
    jobs = tuple(replace(job, submit=job.submit / haste, duration=job.duration / haste) for job in scenario.trace.jobs)
    times = {name: getattr(scenario, name) / haste for name in ("span", "dry", "back")}
    return replace(scenario, trace=replace(scenario.trace, jobs=jobs), haste=haste, **times)


def conditions(scenario: Scenario, policy: Policy, began: float) -> Conditions:
    """A cloud with the usual delays and faults, whose spot markets are dry for a while. ``began`` is second 0, since the epoch."""
    usual = Delays()
    delays = Delays(**{name: _accelerate_delay(getattr(usual, name), scenario.haste) for name in usual.__struct_fields__})
    return Conditions(seed=scenario.seed, delays=delays, markets=markets(scenario, policy, began))


def markets(scenario: Scenario, policy: Policy, began: float) -> Markets:
    """Spot markets with unlimited capacity, except for a time without any."""
    many = float("inf")
    steps = Steps([0.0, scenario.dry, scenario.back], [many, 0.0, many])
    spot: dict[OfferingKey, Steps] = {offering.key: steps for offering in policy.offerings.values() if offering.market == "spot"}
    return Markets(spot, {}, began=began)


def _accelerate_delay(delay: Delay, haste: float) -> Delay:
    return Delay(delay.low / haste, delay.mode / haste, delay.high / haste)
