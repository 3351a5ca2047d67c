"""Properties of breakers after any events."""

from functools import reduce

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.soaking import examples

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.state.askable_offerings import next_openness_change, openness
from gpuscaler.planning.state.breakers import Breakers, step
from gpuscaler.planning.state.offering_events import (
    CAPACITY,
    CONFIGURATION,
    FAILED,
    PRICE,
    QUOTA,
    THROTTLED,
    UNAUTHORISED,
    UNKNOWN,
    Asked,
    Changed,
    Event,
    Failed,
    Granted,
    Lacking,
    Ready,
    Reclaimed,
    Refused,
    Registered,
)

KEYS = [
    OfferingKey(pool, market, kind, zone)
    for pool in "ab"
    for market in ("spot", "on-demand")
    for kind in ("g", "h")
    for zone in ("1", "2", "")
]
CAUSES = (CAPACITY,) * 4 + (QUOTA, PRICE, CONFIGURATION, UNAUTHORISED, THROTTLED, UNKNOWN)
#: A time after every period, probe and hunt.
LONG = 3 * 86_400.0
GPU = "nvidia.com/gpu"


@st.composite
def histories(draw: st.DrawFn) -> list[Event]:
    """Events in order of time, some of them late."""
    now = 0.0
    events: list[Event] = []
    for _ in range(draw(st.integers(0, 25))):
        now += draw(st.sampled_from((0.0, 1.0, 8.0, 60.0, 400.0, 3000.0)))
        key, at = draw(st.sampled_from(KEYS)), now - draw(st.sampled_from((0.0, 0.0, 0.0, 5.0, 500.0)))
        refused = Refused(
            key,
            at,
            draw(st.sampled_from(CAUSES)),
            bucket=draw(st.sampled_from(((), ("g", "h")))),
            every_zone=draw(st.booleans()),
            retry_after=draw(st.sampled_from((0.0, 0.0, 1000.0))),
            account_pools=draw(st.sampled_from(((), (key.pool,)))),
        )
        success = (Granted(key, at), Registered(key, at), Ready(key, at, frozenset({GPU})))
        others = (*success, Asked(key, at), Failed(key, at), Lacking(key, at, GPU), Reclaimed(key, at), Changed(at, key[0]))
        every: tuple[Event, ...] = (refused, refused, refused, *others)
        events.append(draw(st.sampled_from(every)))
    return events


def after(events: list[Event]) -> tuple[Breakers, float]:
    return reduce(step, events, Breakers()), max((event.at for event in events), default=0.0)


@given(histories(), st.floats(0.0, 5000.0))
@settings(max_examples=examples(60), deadline=None)
def test_no_offering_is_both_blocked_and_half_open(events: list[Event], later: float) -> None:
    breakers, now = after(events)
    now_open = openness(breakers, KEYS, now + later)

    assert not now_open.blocked & now_open.half_open
    assert now_open.probing <= now_open.half_open
    assert now_open.blocked | now_open.half_open | now_open.no_moves_to <= set(KEYS)


@given(histories())
@settings(max_examples=examples(60), deadline=None)
def test_openness_stays_the_same_until_its_predicted_next_change(events: list[Event]) -> None:
    breakers, now = after(events)
    for _ in range(40):
        moment = next_openness_change(breakers, now)
        at = now + LONG if moment is None else moment
        # A hunt includes its end.
        middle = (now + at) / 2 if moment is not None else at
        assert openness(breakers, KEYS, middle) == openness(breakers, KEYS, max(now, min(middle, now + 1e-6)))
        if moment is None:
            return
        now = moment
    raise AssertionError("there is always another change")


@given(histories())
@settings(max_examples=examples(60), deadline=None)
def test_every_breaker_that_needs_no_change_by_a_person_becomes_half_open_eventually(events: list[Event]) -> None:
    breakers, now = after(events)
    stuck = [breaker.target for breaker in breakers.open if breaker.until is None]

    for key in openness(breakers, KEYS, now + LONG).blocked:
        assert any(target.covers(key) for target in stuck)


@given(histories(), st.sampled_from(KEYS))
@settings(max_examples=examples(60), deadline=None)
def test_an_offering_is_not_blocked_after_its_machine_became_ready(events: list[Event], key: OfferingKey) -> None:
    breakers, now = after(events)
    breakers = step(step(step(breakers, Granted(key, now)), Registered(key, now)), Ready(key, now, frozenset({GPU})))
    now_open = openness(breakers, KEYS, now)

    assert key not in now_open.blocked | now_open.half_open


@given(histories(), st.sampled_from(KEYS))
@settings(max_examples=examples(60), deadline=None)
def test_an_offering_that_was_just_refused_is_blocked(events: list[Event], key: OfferingKey) -> None:
    breakers, now = after(events)

    assert key in openness(step(breakers, Refused(key, now)), KEYS, now).blocked


@given(histories())
@settings(max_examples=examples(40), deadline=None)
def test_breakers_survive_a_restart_after_any_events(events: list[Event]) -> None:
    breakers, _ = after(events)

    assert msgspec.json.decode(msgspec.json.encode(breakers), type=Breakers) == breakers
    assert msgspec.json.decode(msgspec.json.encode(events), type=list[Event]) == events


@given(histories())
@settings(max_examples=examples(40), deadline=None)
def test_the_number_of_breakers_never_exceeds_that_of_targets(events: list[Event]) -> None:
    breakers, _ = after(events)
    targets = [breaker.target for breaker in breakers.open]

    assert len(targets) == len(set(targets))
    assert all(breaker.strikes >= 1 and breaker.since <= breaker.last for breaker in breakers.open if breaker.cause != FAILED)
