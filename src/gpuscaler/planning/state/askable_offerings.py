"""The offerings that may be requested from the cloud now, and the next time at which this changes."""

from collections.abc import Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.state import State
from gpuscaler.planning.state.breakers import (
    HUNT_QUIET,
    HUNT_SECONDS,
    LIGHT,
    PROBE_SECONDS,
    PROOF_SECONDS,
    RETURN_SECONDS,
    SETTLE_SECONDS,
    Breaker,
    Breakers,
    Target,
    has_enough_strikes,
    is_open,
    withholds,
)
from gpuscaler.planning.state.offering_events import THROTTLED

#: The minimum time from a pod's arrival to the answer to the first request for it.
ANSWER_SECONDS = 1.0


class Openness(Struct, frozen=True, gc=False):
    """The offerings that may be requested now.

    Do not request ``blocked`` offerings. Request each ``half_open`` one once; if it is also in ``probing``, for one machine. Running pods
    are not moved to the offerings of ``no_moves_to``, which were refused or reclaimed recently. Pods pending since before
    ``skip_untried_spot_since`` buy only ``proven`` spot offerings, granted recently and not refused since, and no untried ones. When no
    pod has waited too long for spot, that time is None and ``proven`` is empty. Running pods are not moved back to spot machines of the
    pools in ``spot_return_blocked_until`` before the given time.
    """

    blocked: frozenset[OfferingKey] = frozenset()
    half_open: frozenset[OfferingKey] = frozenset()
    probing: frozenset[OfferingKey] = frozenset()
    no_moves_to: frozenset[OfferingKey] = frozenset()
    skip_untried_spot_since: float | None = None
    proven: frozenset[OfferingKey] = frozenset()
    spot_return_blocked_until: Mapping[str, float] = {}


def openness(breakers: Breakers, offerings: Iterable[OfferingKey], now: float) -> Openness:
    """Derive the openness of ``offerings`` at ``now`` from the breakers."""
    hunt = breakers.hunt
    hurry = hunt is not None and hunt.since + HUNT_SECONDS <= now <= hunt.last + HUNT_QUIET
    # A pod that arrived while spot was being refused got its own refusal a second later, and waits for spot as long from then.
    skip_untried_spot_since = max(hunt.since, hunt.last - HUNT_SECONDS - ANSWER_SECONDS) if hunt is not None and hurry else None
    proven = frozenset(proof.offering for proof in breakers.proofs if hurry and now < proof.at + PROOF_SECONDS)
    spot_return_blocked_until = {pool: at + RETURN_SECONDS for pool, at in breakers.reclaims.items()}
    active = [breaker for breaker in breakers.open if has_enough_strikes(breaker) and not withholds(breaker)]
    fresh = [closed.target for closed in breakers.closed if now < closed.at + SETTLE_SECONDS]
    if not active and not fresh:
        return Openness(skip_untried_spot_since=skip_untried_spot_since, proven=proven, spot_return_blocked_until=spot_return_blocked_until)
    exact = {place_of(breaker.target): breaker for breaker in active if is_exact(breaker.target)}
    wide = [breaker for breaker in active if not is_exact(breaker.target)]
    fresh_places, fresh = {place_of(target) for target in fresh if is_exact(target)}, [target for target in fresh if not is_exact(target)]
    blocked, half_open, probing, no_moves_to = set(), set(), set(), set()
    for key in offerings:
        place = key[1:]
        if place in fresh_places or (fresh and any(target.covers(key) for target in fresh)):
            no_moves_to.add(key)
        covering = [breaker for breaker in wide if breaker.target.covers(key)]
        if (breaker := exact.get(place)) is not None:
            covering.append(breaker)
        if not covering:
            continue
        if any(is_open(breaker, now) for breaker in covering):
            blocked.add(key)
        else:
            half_open.add(key)
            if any(breaker.cause not in LIGHT for breaker in covering):
                probing.add(key)
        if any(not is_settled(breaker, now) for breaker in covering):
            no_moves_to.add(key)
    return Openness(
        frozenset(blocked),
        frozenset(half_open),
        frozenset(probing),
        frozenset(no_moves_to),
        skip_untried_spot_since,
        proven - blocked,
        spot_return_blocked_until,
    )


def with_breakers(state: State, breakers: Breakers, offerings: Iterable[OfferingKey], now: float) -> State:
    """``state`` with the openness of ``offerings`` at ``now``."""
    return with_openness(state, openness(breakers, offerings, now), breakers)


def with_openness(state: State, openness: Openness, breakers: Breakers) -> State:
    """``state`` with the openness ``openness``, which was derived from ``breakers``."""
    return replace(
        state,
        blocked_offerings=openness.blocked,
        half_open_offerings=openness.half_open,
        probed_offerings=openness.probing,
        no_moves_to=openness.no_moves_to,
        skip_untried_spot_since=openness.skip_untried_spot_since,
        proven_offerings=openness.proven,
        spot_return_blocked_until=openness.spot_return_blocked_until,
        breakers=breakers,
    )


def is_settled(breaker: Breaker, now: float) -> bool:
    """Whether the last failure of ``breaker`` is long enough ago for running pods to be moved to a new machine of its offerings."""
    return breaker.cause == THROTTLED or (not is_open(breaker, now) and now >= breaker.last + SETTLE_SECONDS)


def is_exact(target: Target) -> bool:
    """Whether ``target`` is exactly one market, instance type and zone of any pool, as in most capacity errors."""
    return not (target.pool or target.account_pools) and bool(target.market and target.zone) and len(target.instance_types) == 1


def place_of(target: Target) -> tuple[str, str, str]:
    """Market, instance type and zone of an exact target: the last parts of the keys of its offerings."""
    return (target.market, target.instance_types[0], target.zone)


def next_openness_change(breakers: Breakers, now: float) -> float | None:
    """The next moment after ``now`` at which :func:`openness` changes without an event; None when it does not."""
    moments = [breaker.until for breaker in breakers.open if has_enough_strikes(breaker) and breaker.until is not None]
    moments += [breaker.probe + PROBE_SECONDS for breaker in breakers.open if breaker.probe is not None]
    moments += [breaker.last + SETTLE_SECONDS for breaker in breakers.open if has_enough_strikes(breaker) and breaker.until is not None]
    moments += [closed.at + SETTLE_SECONDS for closed in breakers.closed]
    if breakers.hunt is not None:
        moments += [breakers.hunt.since + HUNT_SECONDS, breakers.hunt.last + HUNT_QUIET]
        moments += [proof.at + PROOF_SECONDS for proof in breakers.proofs]
    return min((moment for moment in moments if moment > now), default=None)
