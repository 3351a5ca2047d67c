"""Breakers over offerings: what a cloud refused, and when it is asked again.

A breaker is closed (there is none), open until a moment, or half-open: from that moment on one request is made as a probe, and its answer
closes the breaker or opens it for twice as long. Events are folded by :func:`step`; what may be asked now is in ``asking``.
Everything is plain data that survives a restart as JSON.

A hunt is a search for spot capacity that has met a refusal. Trying a dozen dry offerings one after the other takes half a minute, so
that after ``HUNT_SECONDS`` whoever has been waiting since it began takes on-demand, whatever spot is still untried.
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

#: How long a breaker is open the first time and at most, in seconds; absent: until something changes. Three minutes are what Karpenter
#: caches capacity errors for, thirty what Cluster Autoscaler backs off at most; a quota is looked at by people and lifts more slowly.
#: A pool whose machines never join, or never show what they are sold with, is for people to mend; one machine now and then finds out.
#: What a cloud will not take of a pool's configuration, or of its price, is often mended outside of the pool, where no change of it shows:
#: an image is shared again, a key enabled, a subnet made. One machine is asked for then, after half an hour first and once a day at least.
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
#: What people mend: a change of the settings or of the pool has it asked again at once.
MENDED_BY_PEOPLE = frozenset({ABSENT, CONFIGURATION, FRUITLESS, LACKING, PRICE})
#: What a cloud answers within seconds and without harm: a whole request tells as much as one machine, and what is refused costs a second.
#: Who waits for a machine that does not come up, or is at a quota that people have to lift, should be one only.
LIGHT = frozenset({CAPACITY, RECLAIMED, UNKNOWN})
#: So many machines in a row that did not come up open a breaker, so many tries in a row without a node a pool's: one may be bad luck.
STRIKES: Mapping[str, int] = {FAILED: 2, LACKING: 2, ABSENT: 3}
#: What a grant proves nothing about.
AFTER_GRANTS = frozenset({*STRIKES, FRUITLESS})
#: A period is drawn out by up to this part, so that offerings that ran dry together are not all asked again at once.
JITTER = 0.1
#: A probe without an answer for so long is forgotten: the longest time a machine has to register, and to be ready, and half of that more.
PROBE_SECONDS = 2700.0
#: From the first refusal of spot to on-demand, and from the last one to the end of the hunt. The answer to the last request for spot may
#: take five seconds more, which makes ten.
HUNT_SECONDS, HUNT_QUIET = 5.0, 30.0
#: How long a grant of spot shows that there is some, and no refusal since: as long as a first refusal shows that there is none.
PROOF_SECONDS = 180.0

#: How long an offering that was refused or reclaimed is not relied upon once it is back: of the spells of spot in AWS's series of 2023
#: four in ten end within twenty minutes, and far fewer of those that have lasted so long end within the next twenty.
SETTLE_SECONDS = 1200.0
#: After spot was taken back in a pool, nothing that runs goes back to spot of that pool for so long, whatever the offering.
RETURN_SECONDS = 3600.0


class Target(Struct, frozen=True, gc=False):
    """Offerings that one answer speaks of. An empty field stands for all there are: capacity is not a pool's, a quota not a zone's.

    ``region`` stands beside an empty ``zone`` where an answer is one region's: clouds count quotas and requests by region.
    """

    pool: str = ""
    market: str = ""
    instance_types: tuple[str, ...] = ()
    zone: str = ""
    region: str = ""

    def covers(self, key: OfferingKey) -> bool:
        pool, market, instance_type, zone = key
        return (
            self.pool in ("", pool)
            and self.market in ("", market)
            and (not self.instance_types or instance_type in self.instance_types)
            and self.zone in ("", zone)
            # What does not tell its region may be anywhere.
            and (not self.region or region_in(zone) in ("", self.region))
        )

    @property
    def words(self) -> str:
        some = self.instance_types[:3] + (("…",) if len(self.instance_types) > 3 else ())
        pool = f"pool {self.pool}" if self.pool else ""
        what = " ".join(filter(None, (pool, self.market, ", ".join(some), self.zone))) or "every offering"
        return f"{what} in {self.region}" if self.region else what


class Breaker(Struct, frozen=True, gc=False):
    """What is wrong with the offerings of ``target``.

    ``strikes`` refusals in a row from ``since`` to ``last``; asked again at ``until``, None is not before something changes. ``probe`` is
    when a probe was asked for that has no answer yet. ``detail`` is what the cloud said last, ``lacks`` the resource that machines never
    showed. Times are seconds since the epoch.
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
    """A breaker that a grant closed at ``at``, not long ago, after ``strikes`` from ``since`` on."""

    target: Target
    at: float
    strikes: int = 0
    since: float = 0.0


class Proof(Struct, frozen=True, gc=False):
    """A grant of spot at ``at``, not long ago."""

    offering: OfferingKey
    at: float


class Hunt(Struct, frozen=True, gc=False):
    """A search for spot that was refused first at ``since`` and last at ``last``."""

    since: float
    last: float


class Breakers(Struct, frozen=True, gc=False):
    """Every breaker that is not closed, those closed within ``SETTLE_SECONDS``, the hunt that is on, and spot that was granted lately.

    ``reclaims`` is when a spot machine of each pool was last taken back, for ``RETURN_SECONDS``.
    """

    open: tuple[Breaker, ...] = ()
    closed: tuple[Closed, ...] = ()
    hunt: Hunt | None = None
    proofs: tuple[Proof, ...] = ()
    reclaims: Mapping[str, float] = {}


def step(breakers: Breakers, event: Event) -> Breakers:
    """The breakers after ``event``. Events may come late: one that is older than what it would undo changes nothing for the worse."""
    match event:
        case Refused(partial=True, cause=offering_events.CAPACITY):
            # Who has just given a machine is asked once more for the rest; only nothing at all is a strike.
            return hunted(breakers, event)
        case Refused():
            return hunted(struck(breakers, event, target_of(event), event.cause), event)
        case Reclaimed(offering=(_, market, instance_type, zone)):
            return struck(interrupted(breakers, event), event, Target("", market, (instance_type,), zone), RECLAIMED)
        case Failed() | Lacking() | Absent() | Fruitless():
            return failed(breakers, event)
        case Asked():
            return replace(breakers, open=tuple(probed(one, event) for one in breakers.open))
        case Granted():
            return proven(granted(breakers, event), event)
        case Dropped(offering=offering):
            return replace(breakers, open=tuple(unprobed(one, offering) for one in breakers.open))
        case Registered():
            return replace(breakers, open=tuple(one for one in breakers.open if one.cause != ABSENT or not closes(event, one)))
        case Ready():
            return replace(breakers, open=tuple(one for one in breakers.open if not disproved(one, event)))
        case Served():
            return replace(breakers, open=tuple(one for one in breakers.open if one.cause != FRUITLESS or not closes(event, one)))
        case Changed(pool=pool):
            waits = (one for one in breakers.open if one.until is None or one.cause in MENDED_BY_PEOPLE)
            gone = {one.target for one in waits if pool in ("", one.target.pool)}
            return replace(breakers, open=tuple(one for one in breakers.open if one.target not in gone))


def interrupted(breakers: Breakers, event: Reclaimed) -> Breakers:
    """Note in which pool spot was taken back."""
    pool, market = event.offering[:2]
    recent = {name: at for name, at in breakers.reclaims.items() if event.at < at + RETURN_SECONDS}
    return replace(breakers, reclaims={**recent, pool: max(event.at, recent.get(pool, 0.0))}) if market == "spot" else breakers


def granted(breakers: Breakers, event: Granted) -> Breakers:
    """The breakers that a grant proves wrong are closed, but for machines that do not come up."""
    if not breakers.open and not breakers.closed:
        return breakers
    proven = [one for one in breakers.open if one.cause not in AFTER_GRANTS and closes(event, one)]
    recent = [one for one in breakers.closed if event.at < one.at + SETTLE_SECONDS]
    recent += [Closed(one.target, event.at, one.strikes, one.since) for one in proven if one.cause != THROTTLED]
    return replace(breakers, open=tuple(one for one in breakers.open if one not in proven), closed=tuple(recent))


def proven(breakers: Breakers, event: Granted) -> Breakers:
    """Note that spot was granted."""
    if event.offering.market != "spot":
        return breakers
    known = next((one.at for one in breakers.proofs if one.offering == event.offering), event.at)
    others = tuple(one for one in breakers.proofs if one.offering != event.offering and event.at < one.at + PROOF_SECONDS)
    return replace(breakers, proofs=(*others, Proof(event.offering, max(known, event.at))))


def target_of(event: Refused) -> Target:
    """The offerings that a refusal speaks of."""
    pool, market, instance_type, zone = event.offering
    match event.cause:
        case offering_events.CAPACITY:
            everywhere = Target("", market, event.bucket or (instance_type,), region=region_in(zone))
            return everywhere if event.every_zone else replace(everywhere, zone=zone, region="")
        case offering_events.QUOTA:
            return Target("", market, event.bucket or (instance_type,), region=region_in(zone))
        case offering_events.PRICE:
            return Target(pool, market)
        case offering_events.CONFIGURATION | offering_events.UNAUTHORISED:
            return Target(pool)
        case offering_events.THROTTLED:
            return Target(region=region_in(zone))
        case _:
            return Target(pool, market, (instance_type,), zone)


def closes(event: Granted | Registered | Ready | Served, one: Breaker) -> bool:
    """Whether ``event`` proves ``one`` wrong: something it covers was had after the last strike."""
    return one.target.covers(event.offering) and event.at >= one.last


def failed(breakers: Breakers, event: Failed | Lacking | Absent | Fruitless) -> Breakers:
    """One more strike for a machine that did not come up."""
    pool, market, instance_type, zone = event.offering
    match event:
        case Failed():
            return struck(breakers, event, Target(pool, market, (instance_type,), zone), FAILED)
        case Lacking(resource=resource):
            # Neither a market nor a zone makes a device plug-in run.
            return struck(breakers, event, Target(pool, "", (instance_type,)), LACKING, lacks=resource)
        case Absent():
            return absent(breakers, event)
        case Fruitless():
            # What a pod does not come to does not depend on how it is paid.
            return struck(breakers, event, Target(pool, "", (instance_type,), zone), FRUITLESS)


def disproved(one: Breaker, event: Ready) -> bool:
    """Whether a machine that is ready shows that those of ``one`` come up: it has what they lacked."""
    return one.cause in STRIKES and closes(event, one) and (not one.lacks or one.lacks in event.shows)


def absent(breakers: Breakers, event: Absent) -> Breakers:
    """One more strike against the pool, unless the machine was asked for before the last one: machines bought together are one try."""
    target = Target(event.offering.pool)
    known = next((one for one in breakers.open if one.target == target and one.cause == ABSENT), None)
    return breakers if known is not None and event.tried < known.last else struck(breakers, event, target, ABSENT)


def struck(
    breakers: Breakers, event: Refused | Failed | Lacking | Absent | Fruitless | Reclaimed, target: Target, cause: str, *, lacks: str = ""
) -> Breakers:
    """One more strike against ``target``. Answers to requests of before it opened, and one reclaim after another, are not new strikes."""
    known = next((one for one in breakers.open if (one.target, one.lacks) == (target, lacks)), None)
    # Whatever else a probe was to prove, it has not; the next may ask elsewhere.
    others = tuple(unprobed(one, event.offering) for one in breakers.open if one is not known)
    detail = "" if isinstance(event, Reclaimed) else event.detail
    if known is None:
        # Spot that comes and goes is asked ever more rarely: that there was some for a few minutes does not make it new.
        before = [one for one in breakers.closed if one.target == target and event.at < one.at + SETTLE_SECONDS]
        last_time = max(before, key=lambda one: one.strikes, default=None) if cause == RECLAIMED else None
        strikes, since = (last_time.strikes, last_time.since or event.at) if last_time is not None else (0, event.at)
        new = Breaker(target, cause, strikes + 1, since, event.at, None, detail=detail, lacks=lacks)
    elif known.probe is None and is_open(known, event.at):
        return replace(breakers, open=(*others, replace(known, detail=detail or known.detail)))
    else:
        since, last = min(known.since, event.at), max(known.last, event.at)
        new = Breaker(target, cause, known.strikes + 1, since, last, None, detail=detail, lacks=lacks)
    if cause in PERIODS:
        asked = event.retry_after if isinstance(event, Refused) else 0.0
        new = replace(new, until=event.at + max(period(new), asked))
    return replace(breakers, open=(*others, new))


def recalled(breakers: Breakers) -> Breakers:
    """``breakers`` as they were read: versions before this one had no period for some causes."""
    if all(one.until is not None or one.cause not in PERIODS for one in breakers.open):
        return breakers
    return replace(
        breakers,
        open=tuple(
            replace(one, until=one.last + period(one)) if one.until is None and one.cause in PERIODS else one for one in breakers.open
        ),
    )


def unprobed(one: Breaker, key: OfferingKey) -> Breaker:
    return replace(one, probe=None) if one.probe is not None and one.cause not in AFTER_GRANTS and one.target.covers(key) else one


def period(one: Breaker) -> float:
    """How long ``one`` stays open: longer with every strike, drawn out by a part that its target and strikes decide."""
    first, most = PERIODS[one.cause]
    # Beyond twenty doublings every period is at its most. What two machines say opens it for the first time.
    length = min(first * 2.0 ** min(20, max(0, one.strikes - STRIKES.get(one.cause, 1))), most)
    luck = zlib.crc32(f"{one.target.words}/{one.strikes}".encode()) / 2**32
    return length * (1.0 + JITTER * luck)


def hunted(breakers: Breakers, event: Refused) -> Breakers:
    """Note a refusal of spot in the hunt. A probe that was refused counts too: there are pods that it was asked for.

    Where the rest of the request was granted nobody has to hurry: spot was had.
    """
    if event.offering.market != "spot" or event.cause not in (CAPACITY, QUOTA, UNKNOWN) or event.filled:
        return breakers
    hunt = breakers.hunt
    if hunt is not None and event.at <= hunt.last + HUNT_QUIET:
        return replace(breakers, hunt=Hunt(min(hunt.since, event.at), max(hunt.last, event.at)))
    return replace(breakers, hunt=Hunt(event.at, event.at))


def probed(one: Breaker, event: Asked) -> Breaker:
    """A half-open breaker remembers that its probe is out."""
    asks = one.lacks in event.resources if withholds(one) else True
    half_open = asks and counts(one) and one.target.covers(event.offering) and not is_open(one, event.at)
    return replace(one, probe=event.at) if half_open else one


def withholds(one: Breaker) -> bool:
    """Whether ``one`` stops only what is bought for pods that ask for what machines lack: something beside GPUs, such as EFA."""
    return bool(one.lacks) and not is_device(one.lacks)


def counts(one: Breaker) -> bool:
    """Whether ``one`` stops anything: a first machine that failed does not."""
    return one.strikes >= STRIKES.get(one.cause, 1)


def paused_pools(breakers: Breakers, now: float) -> frozenset[str]:
    """Pools of which nothing is bought since machine after machine never became a node."""
    return frozenset(one.target.pool for one in breakers.open if one.cause == ABSENT and is_open(one, now))


def is_open(one: Breaker, now: float) -> bool:
    """Whether nothing that ``one`` covers may be asked at ``now``."""
    if not counts(one):
        return False
    if one.until is None or now < one.until:
        return True
    return one.probe is not None and now < one.probe + PROBE_SECONDS
