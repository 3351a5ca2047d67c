"""Breakers of offerings: from events to the offerings that may be requested."""

from functools import reduce
from itertools import pairwise

import msgspec
import pytest
from msgspec.structs import replace

from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.state.askable_offerings import Openness, next_openness_change, openness
from gpuscaler.planning.state.breaker_messages import describe_breaker
from gpuscaler.planning.state.breakers import Breakers, complete_stored, has_enough_strikes, step
from gpuscaler.planning.state.offering_events import (
    CAPACITY,
    CONFIGURATION,
    PRICE,
    QUOTA,
    THROTTLED,
    Absent,
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

A, B = OfferingKey("gpus", "spot", "g5.xlarge", "us-east-1a"), OfferingKey("gpus", "spot", "g5.xlarge", "us-east-1b")
OTHER_TYPE, OTHER_POOL = OfferingKey("gpus", "spot", "g6.xlarge", "us-east-1a"), OfferingKey("more", "spot", "g5.xlarge", "us-east-1a")
ON_DEMAND = OfferingKey("gpus", "on-demand", "g5.xlarge", "us-east-1a")
GPU, EFA = "nvidia.com/gpu", "vpc.amazonaws.com/efa"
ALL = (A, B, OTHER_TYPE, OTHER_POOL, ON_DEMAND)


def after(*events: Event) -> Breakers:
    return reduce(step, events, Breakers())


def explained(breakers: Breakers, now: float) -> tuple[str, ...]:
    """The message of every breaker that stops purchases, in order of its target."""
    return tuple(
        describe_breaker(breaker, now)
        for breaker in sorted(breakers.open, key=lambda breaker: breaker.target.words)
        if has_enough_strikes(breaker)
    )


def blocked(breakers: Breakers, now: float) -> set[OfferingKey]:
    return set(openness(breakers, ALL, now).blocked)


def probing(breakers: Breakers, now: float) -> set[OfferingKey]:
    return set(openness(breakers, ALL, now).probing)


def half_open(breakers: Breakers, now: float) -> set[OfferingKey]:
    return set(openness(breakers, ALL, now).half_open)


def reopening(breakers: Breakers) -> float:
    """The seconds until the one breaker of ``breakers`` is half-open."""
    (breaker,) = breakers.open
    assert breaker.until is not None
    return breaker.until - breaker.last


def test_without_events_no_offering_is_blocked() -> None:
    assert openness(Breakers(), ALL, 0.0) == Openness()


def test_a_capacity_error_blocks_only_its_market_type_and_zone_in_every_pool() -> None:
    assert blocked(after(Refused(A, 100.0)), 101.0) == {A, OTHER_POOL}


def test_a_capacity_error_may_apply_to_every_zone() -> None:
    assert blocked(after(Refused(A, 100.0, every_zone=True)), 101.0) == {A, B, OTHER_POOL}


def test_after_three_minutes_one_probe_may_request_all_needed_machines() -> None:
    breakers = after(Refused(A, 100.0))

    assert blocked(breakers, 279.0) == {A, OTHER_POOL}
    assert (blocked(breakers, 300.0), half_open(breakers, 300.0), probing(breakers, 300.0)) == (set(), {A, OTHER_POOL}, set())


def test_a_probe_after_a_quota_error_or_failed_machines_is_limited_to_one_machine() -> None:
    quota, failed = after(Refused(A, 0.0, cause=QUOTA)), after(Failed(A, 0.0), Failed(A, 0.0))

    assert half_open(quota, 700.0) == probing(quota, 700.0) == {A, B, OTHER_POOL}
    assert half_open(failed, 700.0) == probing(failed, 700.0) == {A}


def test_no_second_probe_is_sent_before_the_first_is_answered() -> None:
    breakers = after(Refused(A, 100.0), Asked(A, 300.0))

    assert (blocked(breakers, 301.0), half_open(breakers, 301.0)) == ({A, OTHER_POOL}, set())


def test_a_granted_probe_closes_the_breaker() -> None:
    assert after(Refused(A, 100.0), Asked(A, 300.0), Granted(A, 302.0)).open == ()


def test_a_probe_without_an_answer_is_forgotten_after_three_quarters_of_an_hour() -> None:
    breakers = after(Refused(A, 100.0), Asked(A, 300.0))

    assert A in half_open(breakers, 300.0 + 2701.0)


def test_every_refused_probe_doubles_the_blocked_time_up_to_half_an_hour() -> None:
    breakers, now, waits = after(Refused(A, 0.0)), 0.0, []
    for _ in range(8):
        waits.append(reopening(breakers))
        now += waits[-1]
        breakers = step(step(breakers, Asked(A, now)), Refused(A, now))

    for wait, least in zip(waits, [180, 360, 720, 1440, 1800, 1800, 1800, 1800], strict=True):
        assert least <= wait <= least * 1.1


def test_a_grant_resets_the_doubling_of_the_blocked_time() -> None:
    breakers = after(Refused(A, 0.0), Refused(A, 300.0), Granted(A, 900.0), Refused(A, 901.0))

    assert reopening(breakers) < 200


def test_offerings_that_ran_out_together_are_not_retried_together() -> None:
    zones = [OfferingKey("gpus", "spot", "g5.xlarge", f"zone-{number}") for number in range(6)]

    assert len({reopening(after(Refused(zone, 0.0))) for zone in zones}) == 6


def test_late_answers_to_earlier_requests_do_not_extend_the_blocked_time() -> None:
    assert reopening(after(*[Refused(A, float(second)) for second in range(9)])) < 200


def test_a_late_grant_does_not_close_a_breaker_with_a_newer_refusal() -> None:
    assert blocked(after(Refused(A, 100.0), Granted(A, 99.0)), 101.0) == {A, OTHER_POOL}


def test_a_partial_grant_counts_as_a_refusal_of_the_rest() -> None:
    assert A in blocked(after(Granted(A, 100.0), Refused(A, 100.0, detail="4 of 10")), 101.0)


def test_a_quota_blocks_every_type_of_its_bucket_in_every_zone() -> None:
    breakers = after(Refused(A, 0.0, cause=QUOTA, bucket=("g5.xlarge", "g6.xlarge")))

    assert blocked(breakers, 599.0) == {A, B, OTHER_TYPE, OTHER_POOL}


def test_a_quota_probe_that_is_refused_for_capacity_allows_a_probe_of_another_offering() -> None:
    breakers = after(Refused(A, 0.0, cause=QUOTA, bucket=("g5.xlarge", "g6.xlarge")), Asked(A, 700.0), Refused(A, 701.0))

    assert blocked(breakers, 702.0) == {A, OTHER_POOL}
    assert probing(breakers, 702.0) == {B, OTHER_TYPE}


def test_a_refused_price_blocks_the_market_of_the_pool_until_a_change_or_a_probe() -> None:
    breakers = after(Refused(A, 0.0, cause=PRICE))

    assert blocked(breakers, 1799.0) == {A, B, OTHER_TYPE}
    assert blocked(step(breakers, Changed(1700.0, pool="more")), 1799.0) == {A, B, OTHER_TYPE}
    assert blocked(step(breakers, Changed(1700.0, pool="gpus")), 1700.0) == set()
    assert blocked(breakers, 1981.0) == set()
    assert probing(breakers, 1981.0) == {A, B, OTHER_TYPE}


def test_a_refused_configuration_blocks_the_pool_and_is_retried_at_least_daily() -> None:
    breakers = after(Refused(A, 0.0, cause=CONFIGURATION))
    assert blocked(breakers, 1799.0) == {A, B, OTHER_TYPE, ON_DEMAND}

    moments = [breakers.open[0].until or 0.0]
    for _ in range(10):
        at = moments[-1]
        assert probing(breakers, at) == {A, B, OTHER_TYPE, ON_DEMAND}
        breakers = step(step(breakers, Asked(A, at)), Refused(A, at, cause=CONFIGURATION))
        moments.append(breakers.open[0].until or 0.0)
    waits = [after - before for before, after in pairwise(moments)]
    assert waits[:2] == [pytest.approx(3600, rel=0.11), pytest.approx(7200, rel=0.11)]
    assert max(waits) <= 86_400 * 1.1


@pytest.mark.parametrize("cause", [PRICE, CONFIGURATION])
def test_a_stored_breaker_without_a_period_gets_one(cause: str) -> None:
    breakers = after(Refused(A, 100.0, cause=cause))
    old = Breakers(open=tuple(replace(breaker, until=None) for breaker in breakers.open))

    assert blocked(old, 1e9) != set()
    assert complete_stored(old) == breakers


def test_throttling_blocks_all_offerings_for_some_seconds() -> None:
    breakers = after(Refused(A, 0.0, cause=THROTTLED))

    assert blocked(breakers, 4.9) == set(ALL)
    assert blocked(breakers, 6.0) == set()


def test_a_breaker_respects_the_clouds_retry_after() -> None:
    assert reopening(after(Refused(A, 0.0, retry_after=82_800.0))) == 82_800.0


def test_two_machines_that_never_register_open_the_breaker_but_one_does_not() -> None:
    once = after(Failed(A, 0.0))

    assert (blocked(once, 1.0), half_open(once, 1.0)) == (set(), set())
    assert blocked(step(once, Failed(A, 1.0)), 2.0) == {A}


def test_a_ready_machine_resets_the_failures_but_a_registered_one_does_not() -> None:
    assert blocked(after(Failed(A, 0.0), Ready(A, 1.0), Failed(A, 2.0)), 3.0) == set()
    assert blocked(after(Failed(A, 0.0), Registered(A, 1.0), Failed(A, 2.0)), 3.0) == {A}


def test_two_machines_without_gpus_block_their_type_for_an_hour_doubling_to_a_day() -> None:
    alike = {A, B, ON_DEMAND}
    lacking = after(Lacking(A, 0.0, GPU), Registered(A, 1.0))
    assert blocked(lacking, 2.0) == set()
    lacking = step(lacking, Lacking(A, 10.0, GPU, "no plug-in"))
    waits = []
    for _ in range(8):
        (breaker,) = lacking.open
        assert breaker.until is not None
        waits.append(reopening(lacking))
        assert (blocked(lacking, breaker.until - 1.0), probing(lacking, breaker.until)) == (alike, alike)
        probe: list[Event] = [Asked(A, breaker.until), Granted(A, breaker.until + 1.0), Registered(A, breaker.until + 60.0)]
        lacking = reduce(step, probe, lacking)
        assert blocked(lacking, breaker.until + 61.0) == alike
        lacking = step(lacking, Lacking(A, breaker.until + 960.0, GPU))

    assert 3600.0 <= waits[0] <= 3960.0
    assert waits[:5] == sorted(waits[:5])
    assert 86_400.0 <= waits[-1] <= 1.1 * 86_400.0


def test_only_a_machine_that_shows_the_missing_resource_closes_the_breaker() -> None:
    lacking = after(Lacking(A, 0.0, GPU), Lacking(A, 1.0, GPU))

    assert step(lacking, Ready(A, 2.0, frozenset({"cpu"}))).open == lacking.open
    assert step(lacking, Ready(A, 2.0, frozenset({"cpu", GPU}))).open == ()
    assert step(lacking, Changed(2.0, A[0])).open == ()


def test_a_missing_resource_other_than_gpus_blocks_no_offering() -> None:
    lacking = after(Lacking(A, 0.0, EFA), Lacking(A, 1.0, EFA))

    assert blocked(lacking, 2.0) == set()
    assert f"machines never showed {EFA}, 2 times" in explained(lacking, 2.0)[0]
    assert "nothing is bought for pods that request it; retried at" in explained(lacking, 2.0)[0]


def test_a_grant_does_not_close_the_breaker_of_failed_machines() -> None:
    probe = after(Failed(A, 0.0), Failed(A, 0.0), Asked(A, 400.0), Granted(A, 402.0))

    assert blocked(probe, 403.0) == {A}
    assert blocked(step(probe, Registered(A, 600.0)), 601.0) == {A}
    assert blocked(step(probe, Ready(A, 600.0)), 601.0) == set()


def test_a_reclaim_blocks_its_offering_and_immediate_further_reclaims_count_as_one() -> None:
    breakers = after(Reclaimed(A, 0.0), Reclaimed(A, 60.0), Reclaimed(A, 120.0))

    assert blocked(breakers, 121.0) == {A, OTHER_POOL}
    assert reopening(breakers) < 200


def test_pods_skip_untried_spot_five_seconds_after_the_first_refusal_of_spot() -> None:
    breakers = after(*[Refused(OfferingKey("gpus", "spot", "g5.xlarge", f"zone-{number}"), 2.0 * number) for number in range(4)])

    assert openness(breakers, ALL, 4.9).skip_untried_spot_since is None
    assert openness(breakers, ALL, 5.0).skip_untried_spot_since == 0.0


def test_pods_do_not_skip_untried_spot_if_the_same_request_was_filled_otherwise() -> None:
    breakers = after(Refused(A, 0.0, filled=True), Refused(B, 1.0, filled=True))

    assert blocked(breakers, 6.0) == {A, B, OTHER_POOL}
    assert openness(breakers, ALL, 6.0).skip_untried_spot_since is None


def test_a_partial_grant_leads_to_one_more_request_before_the_breaker_opens() -> None:
    partial = after(Granted(A, 0.0), Refused(A, 0.0, partial=True))

    assert (blocked(partial, 1.0), half_open(partial, 1.0)) == (set(), set())
    assert blocked(step(partial, Refused(A, 3.0)), 4.0) == {A, OTHER_POOL}
    assert openness(partial, ALL, 6.0).skip_untried_spot_since == 0.0


def proven(breakers: Breakers, now: float) -> set[OfferingKey]:
    return set(openness(breakers, ALL, now).proven)


def test_recently_granted_spot_is_proven_while_other_spot_is_refused() -> None:
    breakers = after(Granted(A, 0.0), Granted(ON_DEMAND, 0.0), Refused(B, 1.0))

    assert [proven(breakers, now) for now in (5.9, 6.0, 31.0, 32.0)] == [set(), {A}, {A}, set()]
    assert proven(step(breakers, Refused(A, 7.0)), 8.0) == set()


def test_a_partial_grant_proves_spot_but_a_grant_of_three_minutes_ago_does_not() -> None:
    assert proven(after(Granted(A, 0.0), Refused(A, 0.0, partial=True)), 6.0) == {A}
    assert proven(after(Granted(A, 0.0), Refused(B, 170.0)), 179.0) == {A}
    assert proven(after(Granted(A, 0.0), Refused(B, 170.0)), 180.0) == set()


def test_only_the_latest_grant_of_an_offering_is_kept_and_old_ones_are_dropped() -> None:
    breakers = after(Granted(A, 100.0), Granted(A, 50.0), Granted(B, 200.0), Granted(OTHER_TYPE, 290.0))

    assert [(proof.offering, proof.at) for proof in breakers.proofs] == [(B, 200.0), (OTHER_TYPE, 290.0)]


def test_pods_try_untried_spot_again_when_none_was_refused_for_a_while() -> None:
    assert openness(after(Refused(A, 0.0)), ALL, 31.0).skip_untried_spot_since is None


def test_a_later_refusal_of_spot_restarts_the_delay_before_untried_spot_is_skipped() -> None:
    breakers = after(Refused(A, 0.0), Refused(B, 100.0))

    assert openness(breakers, ALL, 104.0).skip_untried_spot_since is None
    assert openness(breakers, ALL, 106.0).skip_untried_spot_since == 100.0


def test_refusals_of_on_demand_do_not_make_pods_skip_untried_spot() -> None:
    assert openness(after(Refused(ON_DEMAND, 0.0)), ALL, 9.0).skip_untried_spot_since is None


def test_pods_also_skip_untried_spot_after_a_refused_probe() -> None:
    breakers = after(Refused(A, -500.0), Asked(A, 0.0), Refused(A, 0.0))

    assert openness(breakers, ALL, 6.0).skip_untried_spot_since == 0.0


def test_a_later_pod_skips_untried_spot_only_after_its_own_refusal() -> None:
    breakers = after(*[Refused(OfferingKey("gpus", "spot", "g5.xlarge", f"zone-{number}"), 2.0 * number) for number in range(20)])

    assert openness(breakers, ALL, 38.0).skip_untried_spot_since == 32.0


def unsettled(breakers: Breakers, now: float) -> set[OfferingKey]:
    return set(openness(breakers, ALL, now).no_moves_to)


def test_spot_that_is_reclaimed_repeatedly_is_blocked_for_longer_each_time() -> None:
    breakers, pauses, now = Breakers(), [], 0.0
    for _ in range(5):
        breakers = step(breakers, Reclaimed(A, now))
        back = next(at for at in range(int(now), int(now) + 4000, 10) if A not in blocked(breakers, at))
        pauses.append(back - now)
        breakers = step(breakers, Granted(A, float(back)))
        now = back + 300.0

    for pause, least in zip(pauses, (180.0, 360.0, 720.0, 1440.0, 1800.0), strict=True):
        assert least <= pause <= 1.1 * least + 10.0


def test_a_reclaim_of_spot_that_lasted_long_is_not_treated_as_repeated() -> None:
    breakers = after(Reclaimed(A, 0.0), Granted(A, 200.0), Reclaimed(A, 200.0 + 1300.0))

    assert A not in blocked(breakers, 1500.0 + 200.0)


def test_an_offering_takes_no_moved_pods_for_twenty_minutes_after_it_recovers() -> None:
    breakers = after(Reclaimed(A, 0.0))
    back = step(breakers, Granted(A, 300.0))

    assert unsettled(breakers, 1199.0) == {A, OTHER_POOL}
    assert unsettled(breakers, 1200.0) == set()
    assert (blocked(back, 301.0), unsettled(back, 1499.0), unsettled(back, 1500.0)) == (set(), {A, OTHER_POOL}, set())


def test_breakers_closed_long_ago_are_forgotten() -> None:
    breakers = after(Refused(A, 0.0), Granted(A, 300.0), Refused(B, 5000.0), Granted(B, 5300.0))

    assert [closed.target.zone for closed in breakers.closed] == ["us-east-1b"]


def test_an_offering_still_takes_moved_pods_after_throttling() -> None:
    assert unsettled(after(Refused(A, 0.0, cause=THROTTLED)), 1.0) == set()


def test_the_next_openness_change_is_predicted_through_refusal_recovery_and_retry() -> None:
    breakers = after(Refused(A, 0.0))
    half_open = reopening(breakers)

    assert [next_openness_change(breakers, now) for now in (0.0, 5.0, 30.0, half_open, 1200.0)] == [5.0, 30.0, half_open, 1200.0, None]


def test_breakers_can_be_encoded_as_json_and_decoded() -> None:
    breakers = after(
        Refused(A, 1.5, detail="none"), Granted(A, 1.7), Refused(B, 2.0, cause=QUOTA), Failed(A, 3.0), Reclaimed(OTHER_TYPE, 4.0)
    )

    assert msgspec.json.decode(msgspec.json.encode(breakers), type=Breakers) == breakers


def test_breaker_events_can_be_encoded_as_json_and_decoded() -> None:
    events: list[Event] = [Asked(A, 1.0), Refused(A, 2.0, detail="none"), Granted(A, 3.0), Registered(A, 4.0), Changed(5.0)]

    assert msgspec.json.decode(msgspec.json.encode(events), type=list[Event]) == events


def test_a_breaker_message_has_the_offering_the_cause_and_the_time() -> None:
    breakers = after(Refused(A, 0.0, detail="InsufficientInstanceCapacity"), Refused(A, 3600.0, detail="InsufficientInstanceCapacity"))
    (breaker,) = breakers.open
    assert breaker.until is not None

    (line,) = explained(breakers, 3601.0)

    assert line.startswith("spot g5.xlarge us-east-1a: no capacity, 2 times since 00:00:00 UTC (InsufficientInstanceCapacity); ")
    assert line.endswith("retried at 01:06:30 UTC")
    assert explained(breakers, breaker.until)[0].endswith("; may be probed now")
    assert explained(step(breakers, Asked(A, 4000.0)), 4001.0)[0].endswith("; probed at 01:06:40 UTC, no answer yet")


def test_the_breaker_message_says_that_a_configuration_change_is_needed() -> None:
    (line,) = explained(after(Refused(A, 0.0, cause=PRICE)), 1.0)

    again = "retried at 00:32:01 UTC with one machine, or as soon as the settings or the pool change"
    assert line == f"pool gpus spot: price refused since 00:00:00 UTC; {again}"


def test_the_first_failure_of_a_machine_has_no_breaker_message() -> None:
    assert explained(after(Failed(A, 0.0)), 1.0) == ()


def test_breaker_messages_distinguish_a_used_up_quota_from_a_lack_of_capacity() -> None:
    assert CAPACITY in Refused(A, 0.0).cause
    assert "quota used up" in explained(after(Refused(A, 0.0, cause=QUOTA)), 1.0)[0]


# Regions

EAST, WEST = OfferingKey("east", "on-demand", "g5.xlarge", "us-east-1a"), OfferingKey("west", "on-demand", "g5.xlarge", "us-west-2-lax-1a")
EAST_TOO = OfferingKey("other", "on-demand", "g6.xlarge", "us-east-1d")


def blocked_of(breakers: Breakers, *keys: OfferingKey) -> set[OfferingKey]:
    return set(openness(breakers, keys, 1.0).blocked)


def test_a_quota_covers_its_whole_bucket_in_one_region() -> None:
    breakers = after(Refused(EAST, 0.0, cause=QUOTA, bucket=("g5.xlarge", "g6.xlarge")))

    assert blocked_of(breakers, EAST, EAST_TOO, WEST) == {EAST, EAST_TOO}
    assert explained(breakers, 1.0)[0].startswith("on-demand g5.xlarge, g6.xlarge in us-east-1: quota used up")


@pytest.mark.parametrize(
    "refused",
    [
        Refused(A, 0.0, cause=QUOTA, bucket=("g5.xlarge",), account_pools=("gpus",)),
        Refused(A, 0.0, account_pools=("gpus",)),
        Refused(A, 0.0, every_zone=True, account_pools=("gpus",)),
    ],
)
def test_a_refusal_of_one_account_does_not_block_pools_of_another(refused: Refused) -> None:
    breakers = after(refused)

    assert blocked_of(breakers, A, OTHER_POOL) == {A}
    assert " of the account with gpus: " in explained(breakers, 1.0)[0]


@pytest.mark.parametrize("refused", [Refused(WEST, 0.0, cause=THROTTLED), Refused(WEST, 0.0, every_zone=True)])
def test_a_refusal_for_all_zones_of_a_region_does_not_block_other_regions(refused: Refused) -> None:
    assert blocked_of(after(refused), EAST, WEST) == {WEST}


def test_a_zone_with_an_unknown_region_may_be_in_any_region() -> None:
    here = OfferingKey("here", "on-demand", "g5.xlarge", "rack7")

    assert blocked_of(after(Refused(EAST, 0.0, cause=QUOTA)), EAST, WEST, here) == {EAST, here}
    assert blocked_of(after(Refused(here, 0.0, cause=QUOTA)), EAST, WEST, here) == {EAST, WEST, here}


# Pools whose machines never become nodes


def absences(*moments: float, key: OfferingKey = A) -> Breakers:
    """The breakers after machines were given up at each of ``moments``, 900 s after their order."""
    return after(*(Absent(key, at - 900.0, at, "it never came") for at in moments))


def test_three_consecutive_attempts_without_a_node_pause_the_pool() -> None:
    twice, thrice = absences(900.0, 1800.0), absences(900.0, 1800.0, 2700.0)

    assert blocked(twice, 2700.0) == set()
    assert blocked(thrice, 2700.0) == {key for key in ALL if key[0] == "gpus"}
    (message,) = explained(thrice, 2700.0)
    assert message.startswith("pool gpus: machines never became nodes, 3 times since 00:15:00 UTC (it never came); retried at 1970-01-02 ")


def test_machines_bought_together_count_as_one_attempt() -> None:
    together = after(*(Absent(A, 0.0, 900.0 + seconds) for seconds in (0.0, 0.0, 5.0, 9.0)))

    assert [breaker.strikes for breaker in together.open] == [1]


def test_a_paused_pool_is_probed_with_one_machine_after_a_day() -> None:
    paused = absences(900.0, 1800.0, 2700.0)

    assert probing(paused, 2700.0 + 2.2 * 86_400.0) == {key for key in ALL if key[0] == "gpus"}


@pytest.mark.parametrize("event", [Registered(B, 3000.0), Changed(3000.0), Changed(3000.0, "gpus")], ids=["a node", "settings", "the pool"])
def test_a_node_or_a_change_ends_the_pause_of_a_pool(event: Event) -> None:
    assert step(absences(900.0, 1800.0, 2700.0), event).open == ()


@pytest.mark.parametrize("event", [Granted(A, 3000.0), Changed(3000.0, "more"), Registered(OTHER_POOL, 3000.0)])
def test_grants_and_other_pools_do_not_end_the_pause_of_a_pool(event: Event) -> None:
    assert blocked(step(absences(900.0, 1800.0, 2700.0), event), 3000.0) == {key for key in ALL if key[0] == "gpus"}
