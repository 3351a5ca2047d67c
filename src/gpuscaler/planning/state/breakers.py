"""Breakers of offerings: refusals of the cloud, and the time of the next attempt.

A breaker is closed (it does not exist), open until a given time, or half-open: from that time on one request is made as a probe, and its
answer closes the breaker or opens it for twice as long. Events are folded by :func:`step`;
:mod:`~gpuscaler.planning.state.askable_offerings` derives the offerings that may be requested. Everything is plain data that survives a
restart as JSON.

A hunt is a search for spot capacity that was refused at least once. Trying a dozen offerings without capacity one after the other takes
half a minute. So after ``HUNT_SECONDS``, pods that have been pending since it began take on-demand, even if some spot is still untried.
"""

import zlib
from collections.abc import Mapping

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.model.accelerators import is_device
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.zones import region_in
from gpuscaler.planning.state import offering_events
from gpuscaler.planning.state.offering_events import (
    ABSENT,
    CAPACITY,
    CONFIGURATION,
    FAILED,
    FRUITLESS,
    LACKING,
    PRICE,
    QUOTA,
    RECLAIMED,
    THROTTLED,
    UNAUTHORISED,
    UNKNOWN,
    Absent,
    Asked,
    Changed,
    Dropped,
    Event,
    Failed,
    Fruitless,
    Granted,
    Lacking,
    Ready,
    Reclaimed,
    Refused,
    Registered,
    Served,
)

#: How long a breaker is open, the first time and at most, in seconds; without an entry, until something changes. Karpenter caches capacity
#: errors for three minutes, and Cluster Autoscaler backs off for at most thirty; people handle quotas, which takes longer.
#: A pool whose machines never join, or never show the resources of their type, has to be fixed by people; one machine now and then checks.
#: Configuration or price errors of a pool are often fixed outside of the pool, where no change of it shows: an image is shared again, a
#: key enabled, a subnet created. So one machine is requested after half an hour at first, and at least once a day.
PERIODS: Mapping[str, tuple[float, float]] = {
    CAPACITY: (180.0, 1800.0),
    RECLAIMED: (180.0, 1800.0),
    UNKNOWN: (180.0, 1800.0),
    FAILED: (300.0, 1800.0),
    LACKING: (3600.0, 86_400.0),
    FRUITLESS: (3600.0, 86_400.0),
    ABSENT: (86_400.0, 86_400.0),
    CONFIGURATION: (1800.0, 86_400.0),
    PRICE: (1800.0, 86_400.0),
    QUOTA: (600.0, 3600.0),
    UNAUTHORISED: (600.0, 3600.0),
    THROTTLED: (5.0, 60.0),
}
#: Causes that people fix: a change of the settings or of the pool leads to a new attempt at once.
FIXED_BY_PEOPLE = frozenset({ABSENT, CONFIGURATION, FRUITLESS, LACKING, PRICE})
#: Causes that a cloud reports within seconds and without harm: the probe may be a full request, because a refusal costs only a second.
#: For other causes, such as machines that do not come up or a quota that people have to raise, the probe is a single machine.
LIGHT = frozenset({CAPACITY, RECLAIMED, UNKNOWN})
#: The number of failures in a row that opens a breaker: machines that did not come up or lacked a resource, or, for a pool, attempts
#: without a node. A single failure may be bad luck.
STRIKES: Mapping[str, int] = {FAILED: 2, LACKING: 2, ABSENT: 3}
#: Causes that a grant does not disprove.
AFTER_GRANTS = frozenset({*STRIKES, FRUITLESS})
#: A period is extended by up to this fraction, so that offerings that ran out of capacity together are not all retried at once.
JITTER = 0.1
#: A probe without an answer is forgotten after this time: 1.5 times the longest time in which a machine has to register and be ready.
PROBE_SECONDS = 2700.0
#: The time from the first refusal of spot to on-demand, and from the last refusal to the end of the hunt. The answer to the last request
#: for spot may take five more seconds, ten in total.
HUNT_SECONDS, HUNT_QUIET = 5.0, 30.0
#: How long a grant of spot without a later refusal proves capacity: as long as a first refusal blocks an offering.
PROOF_SECONDS = 180.0

#: How long an offering that was refused or reclaimed is not relied upon once it is back: 40 % of the periods with spot capacity in AWS's
#: data of 2023 end within 20 minutes. Of the periods that have lasted 20 minutes, far fewer end within the next 20.
SETTLE_SECONDS = 1200.0
#: After a spot reclaim in a pool, running pods are not moved back to any spot offering of that pool for this time.
RETURN_SECONDS = 3600.0


class Target(Struct, frozen=True, gc=False):
    """The offerings that one answer applies to. An empty field matches all: capacity is not per pool, a quota is not per zone.

    ``region`` is set, with an empty ``zone``, if an answer applies to one region: clouds count quotas and requests by region.
    ``account_pools`` is set, with an empty ``pool``, if an answer applies to one of several accounts: quotas are counted by account, and
    the names of zones and the capacity behind them differ.
    """

    pool: str = ""
    market: str = ""
    instance_types: tuple[str, ...] = ()
    zone: str = ""
    region: str = ""
    account_pools: tuple[str, ...] = ()

    def covers(self, key: OfferingKey) -> bool:
        pool, market, instance_type, zone = key
        return (
            self.pool in ("", pool)
            and (not self.account_pools or pool in self.account_pools)
            and self.market in ("", market)
            and (not self.instance_types or instance_type in self.instance_types)
            and self.zone in ("", zone)
            # An offering whose region is unknown may be in any region.
            and (not self.region or region_in(zone) in ("", self.region))
        )

    @property
    def words(self) -> str:
        pool = f"pool {self.pool}" if self.pool else ""
        offerings = " ".join(filter(None, (pool, self.market, _shortened(self.instance_types), self.zone))) or "every offering"
        region = f" in {self.region}" if self.region else ""
        pools = f" of the account with {_shortened(self.account_pools)}" if self.account_pools else ""
        return f"{offerings}{region}{pools}"


def _shortened(names: tuple[str, ...]) -> str:
    return ", ".join((*names[:3], *(("…",) if len(names) > 3 else ())))


class Breaker(Struct, frozen=True, gc=False):
    """Failures of the offerings of ``target``.

    There were ``strikes`` refusals in a row from ``since`` to ``last``. The next attempt is at ``until``; None means not before something
    changes. ``probe`` is the time of a probe that has no answer yet. ``detail`` is the cloud's last message, ``lacks`` the resource that
    machines never showed. Times are seconds since the epoch.
    """

    target: Target
    cause: str
    strikes: int
    since: float
    last: float
    until: float | None
    probe: float | None = None
    detail: str = ""
    lacks: str = ""


class Closed(Struct, frozen=True, gc=False):
    """A breaker that a grant closed recently, at ``at``, after ``strikes`` from ``since`` on."""

    target: Target
    at: float
    strikes: int = 0
    since: float = 0.0


class Proof(Struct, frozen=True, gc=False):
    """A recent grant of spot, at ``at``."""

    offering: OfferingKey
    at: float


class Hunt(Struct, frozen=True, gc=False):
    """A search for spot whose first refusal was at ``since`` and whose last one was at ``last``."""

    since: float
    last: float


class Breakers(Struct, frozen=True, gc=False):
    """Every breaker that is not closed, those closed within ``SETTLE_SECONDS``, the current hunt, and recent grants of spot.

    ``reclaims`` has the time of the last spot reclaim of each pool, for ``RETURN_SECONDS``.
    """

    open: tuple[Breaker, ...] = ()
    closed: tuple[Closed, ...] = ()
    hunt: Hunt | None = None
    proofs: tuple[Proof, ...] = ()
    reclaims: Mapping[str, float] = {}


def step(breakers: Breakers, event: Event) -> Breakers:
    """The breakers after ``event``. Events may come late: an event older than the state that it would undo does no harm."""
    match event:
        case Refused(partial=True, cause=offering_events.CAPACITY):
            # An offering that has just granted some machines is requested once more for the rest; only a full refusal is a strike.
            return record_in_hunt(breakers, event)
        case Refused():
            return record_in_hunt(add_strike(breakers, event, target_of(event), event.cause), event)
        case Reclaimed(offering=(_, market, instance_type, zone)):
            return add_strike(record_interruption(breakers, event), event, Target("", market, (instance_type,), zone), RECLAIMED)
        case Failed() | Lacking() | Absent() | Fruitless():
            return record_failure(breakers, event)
        case Asked():
            return replace(breakers, open=tuple(record_probe(breaker, event) for breaker in breakers.open))
        case Granted():
            return record_proof(record_grant(breakers, event), event)
        case Dropped(offering=offering):
            return replace(breakers, open=tuple(without_probe(breaker, offering) for breaker in breakers.open))
        case Registered():
            return replace(
                breakers, open=tuple(breaker for breaker in breakers.open if breaker.cause != ABSENT or not closes(event, breaker))
            )
        case Ready():
            return replace(breakers, open=tuple(breaker for breaker in breakers.open if not disproves_failure(breaker, event)))
        case Served():
            return replace(
                breakers, open=tuple(breaker for breaker in breakers.open if breaker.cause != FRUITLESS or not closes(event, breaker))
            )
        case Changed(pool=pool):
            waits = (breaker for breaker in breakers.open if breaker.until is None or breaker.cause in FIXED_BY_PEOPLE)
            dropped = {breaker.target for breaker in waits if pool in ("", breaker.target.pool)}
            return replace(breakers, open=tuple(breaker for breaker in breakers.open if breaker.target not in dropped))


def record_interruption(breakers: Breakers, event: Reclaimed) -> Breakers:
    """Record the pool in which spot was reclaimed."""
    pool, market = event.offering[:2]
    recent = {name: at for name, at in breakers.reclaims.items() if event.at < at + RETURN_SECONDS}
    return replace(breakers, reclaims={**recent, pool: max(event.at, recent.get(pool, 0.0))}) if market == "spot" else breakers


def record_grant(breakers: Breakers, event: Granted) -> Breakers:
    """Close the breakers that a grant disproves, except those about machines that do not come up."""
    if not breakers.open and not breakers.closed:
        return breakers
    proven = [breaker for breaker in breakers.open if breaker.cause not in AFTER_GRANTS and closes(event, breaker)]
    recent = [closed for closed in breakers.closed if event.at < closed.at + SETTLE_SECONDS]
    recent += [Closed(breaker.target, event.at, breaker.strikes, breaker.since) for breaker in proven if breaker.cause != THROTTLED]
    return replace(breakers, open=tuple(breaker for breaker in breakers.open if breaker not in proven), closed=tuple(recent))


def record_proof(breakers: Breakers, event: Granted) -> Breakers:
    """Record a grant of spot."""
    if event.offering.market != "spot":
        return breakers
    proven_at = next((proof.at for proof in breakers.proofs if proof.offering == event.offering), event.at)
    others = tuple(proof for proof in breakers.proofs if proof.offering != event.offering and event.at < proof.at + PROOF_SECONDS)
    return replace(breakers, proofs=(*others, Proof(event.offering, max(proven_at, event.at))))


def target_of(event: Refused) -> Target:
    """The offerings that a refusal applies to."""
    pool, market, instance_type, zone = event.offering
    match event.cause:
        case offering_events.CAPACITY:
            everywhere = Target("", market, event.bucket or (instance_type,), region=region_in(zone), account_pools=event.account_pools)
            return everywhere if event.every_zone else replace(everywhere, zone=zone, region="")
        case offering_events.QUOTA:
            return Target("", market, event.bucket or (instance_type,), region=region_in(zone), account_pools=event.account_pools)
        case offering_events.PRICE:
            return Target(pool, market)
        case offering_events.CONFIGURATION | offering_events.UNAUTHORISED:
            return Target(pool)
        case offering_events.THROTTLED:
            return Target(region=region_in(zone))
        case _:
            return Target(pool, market, (instance_type,), zone)


def closes(event: Granted | Registered | Ready | Served, breaker: Breaker) -> bool:
    """Whether ``event`` disproves ``breaker``: it is about a covered offering, and not before the last strike."""
    return breaker.target.covers(event.offering) and event.at >= breaker.last


def record_failure(breakers: Breakers, event: Failed | Lacking | Absent | Fruitless) -> Breakers:
    """Add a strike for a machine that did not come up."""
    pool, market, instance_type, zone = event.offering
    match event:
        case Failed():
            return add_strike(breakers, event, Target(pool, market, (instance_type,), zone), FAILED)
        case Lacking(resource=resource):
            # Whether a device plug-in runs does not depend on the market or the zone.
            return add_strike(breakers, event, Target(pool, "", (instance_type,)), LACKING, lacks=resource)
        case Absent():
            return record_absence(breakers, event)
        case Fruitless():
            # Whether pods run on a machine does not depend on its market.
            return add_strike(breakers, event, Target(pool, "", (instance_type,), zone), FRUITLESS)


def disproves_failure(breaker: Breaker, event: Ready) -> bool:
    """Whether a ready machine shows that machines of ``breaker`` come up now: it has the resource that they lacked."""
    return breaker.cause in STRIKES and closes(event, breaker) and (not breaker.lacks or breaker.lacks in event.shows)


def record_absence(breakers: Breakers, event: Absent) -> Breakers:
    """Add a strike against the pool, unless the machine was ordered before the last strike: machines bought together are one attempt."""
    target = Target(event.offering.pool)
    breaker = next((breaker for breaker in breakers.open if breaker.target == target and breaker.cause == ABSENT), None)
    return breakers if breaker is not None and event.tried < breaker.last else add_strike(breakers, event, target, ABSENT)


def add_strike(
    breakers: Breakers, event: Refused | Failed | Lacking | Absent | Fruitless | Reclaimed, target: Target, cause: str, *, lacks: str = ""
) -> Breakers:
    """Add a strike against ``target``. While its breaker is open without a probe, further refusals and reclaims are not new strikes."""
    breaker = next((breaker for breaker in breakers.open if (breaker.target, breaker.lacks) == (target, lacks)), None)
    # A probe of other breakers by this request has proved nothing; they may be probed again elsewhere.
    others = tuple(without_probe(other, event.offering) for other in breakers.open if other is not breaker)
    detail = "" if isinstance(event, Reclaimed) else event.detail
    if breaker is None:
        # Spot that comes and goes is requested less and less often: a few minutes of capacity do not reset its strikes.
        before = [closed for closed in breakers.closed if closed.target == target and event.at < closed.at + SETTLE_SECONDS]
        last_time = max(before, key=lambda closed: closed.strikes, default=None) if cause == RECLAIMED else None
        strikes, since = (last_time.strikes, last_time.since or event.at) if last_time is not None else (0, event.at)
        new = Breaker(target, cause, strikes + 1, since, event.at, None, detail=detail, lacks=lacks)
    elif breaker.probe is None and is_open(breaker, event.at):
        return replace(breakers, open=(*others, replace(breaker, detail=detail or breaker.detail)))
    else:
        since, last = min(breaker.since, event.at), max(breaker.last, event.at)
        new = Breaker(target, cause, breaker.strikes + 1, since, last, None, detail=detail, lacks=lacks)
    if cause in PERIODS:
        retry_after = event.retry_after if isinstance(event, Refused) else 0.0
        new = replace(new, until=event.at + max(pause_seconds(new), retry_after))
    return replace(breakers, open=(*others, new))


def complete_stored(breakers: Breakers) -> Breakers:
    """Complete ``breakers`` that were read from storage: earlier versions had no period for some causes."""
    if all(breaker.until is not None or breaker.cause not in PERIODS for breaker in breakers.open):
        return breakers
    return replace(
        breakers,
        open=tuple(
            replace(breaker, until=breaker.last + pause_seconds(breaker)) if breaker.until is None and breaker.cause in PERIODS else breaker
            for breaker in breakers.open
        ),
    )


def without_probe(breaker: Breaker, key: OfferingKey) -> Breaker:
    return (
        replace(breaker, probe=None)
        if breaker.probe is not None and breaker.cause not in AFTER_GRANTS and breaker.target.covers(key)
        else breaker
    )


def pause_seconds(breaker: Breaker) -> float:
    """How long ``breaker`` stays open: longer with every strike, plus a jitter that is derived from its target and strikes."""
    first, longest = PERIODS[breaker.cause]
    # Beyond twenty doublings every period is at its maximum. Doubling starts after the strike that first opens the breaker.
    length = min(first * 2.0 ** min(20, max(0, breaker.strikes - STRIKES.get(breaker.cause, 1))), longest)
    fraction = zlib.crc32(f"{breaker.target.words}/{breaker.strikes}".encode()) / 2**32
    return length * (1.0 + JITTER * fraction)


def record_in_hunt(breakers: Breakers, event: Refused) -> Breakers:
    """Record a refusal of spot in the hunt. A refused probe counts too, because it was requested for pods.

    If other offerings of the request were granted, no pod has to hurry: spot was available.
    """
    if event.offering.market != "spot" or event.cause not in (CAPACITY, QUOTA, UNKNOWN) or event.filled:
        return breakers
    hunt = breakers.hunt
    if hunt is not None and event.at <= hunt.last + HUNT_QUIET:
        return replace(breakers, hunt=Hunt(min(hunt.since, event.at), max(hunt.last, event.at)))
    return replace(breakers, hunt=Hunt(event.at, event.at))


def record_probe(breaker: Breaker, event: Asked) -> Breaker:
    """Record in a half-open breaker that its probe was sent."""
    asks = breaker.lacks in event.resources if withholds(breaker) else True
    half_open = asks and has_enough_strikes(breaker) and breaker.target.covers(event.offering) and not is_open(breaker, event.at)
    return replace(breaker, probe=event.at) if half_open else breaker


def withholds(breaker: Breaker) -> bool:
    """Whether ``breaker`` stops purchases only for pods that request the lacking resource: one that is not a GPU, such as EFA."""
    return bool(breaker.lacks) and not is_device(breaker.lacks)


def has_enough_strikes(breaker: Breaker) -> bool:
    """Whether ``breaker`` has enough strikes to stop purchases: a first machine that failed does not stop any."""
    return breaker.strikes >= STRIKES.get(breaker.cause, 1)


def paused_pools(breakers: Breakers, now: float) -> frozenset[str]:
    """Pools that are paused because several machines in a row never became nodes."""
    return frozenset(breaker.target.pool for breaker in breakers.open if breaker.cause == ABSENT and is_open(breaker, now))


def is_open(breaker: Breaker, now: float) -> bool:
    """Whether ``breaker`` blocks the offerings that it covers at ``now``."""
    if not has_enough_strikes(breaker):
        return False
    if breaker.until is None or now < breaker.until:
        return True
    return breaker.probe is not None and now < breaker.probe + PROBE_SECONDS
