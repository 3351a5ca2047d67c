"""An error of Azure closes what it is about in the breakers, and nothing else."""

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from tests.clouds.azure.api.test_errors import BUSY, FAMILY, NO_CAPACITY, SPOT, THROTTLED_READ, error, quota_text

from gpuscaler.clouds.azure.api.causes import meaning_of, pause_of, refusals
from gpuscaler.clouds.azure.api.errors import failure_of
from gpuscaler.clouds.protocol import CAPACITY, CONFIGURATION, PRICE, QUOTA, UNAUTHORISED, Refusal
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.planning.state.breakers import Breakers, is_open, step
from gpuscaler.planning.state.offering_events import Refused

NOW = 1_000_000.0


class Size(Struct, frozen=True):
    family: str
    vcpus: float


H100 = "standardNCADSH100v5Family"
SMALL, LARGE, HUGE, T4, A100 = (
    "Standard_NC8ads_H100_v5", "Standard_NC40ads_H100_v5", "Standard_NC80adis_H100_v5", "Standard_NC4as_T4_v3", "Standard_NC24ads_A100_v4",
)  # fmt: skip
SIZES = {
    SMALL: Size(H100, 8),
    LARGE: Size(H100, 40),
    HUGE: Size(H100, 80),
    T4: Size("standardNCASv3_T4Family", 4),
    A100: Size("standardNCADSA100v4Family", 24),
}


def key(market: str, size: str = LARGE, zone: str = "eastus-1", pool: str = "") -> OfferingKey:
    return OfferingKey(pool or f"{market}-{zone}", market, size, zone)


#: A pool for each market and zone, all sizes, and the same in another region.
OFFERED = tuple(
    key(market, size, zone)
    for market in ("spot", "on-demand", "reserved")
    for zone in ("eastus-0", "eastus-1", "eastus-2", "westus3-1")
    for size in SIZES
)
#: What the caller passes: offerings of one location.
EASTUS = tuple(offering for offering in OFFERED if offering.zone.startswith("eastus"))


def refused(
    code: str,
    text: str,
    requested: Sequence[OfferingKey],
    *,
    status: int = 409,
    partial: bool = False,
    offered: Iterable[OfferingKey] = EASTUS,
) -> tuple[Refusal, ...]:
    return refusals([meaning_of(failure_of(status, error(code, text)))], requested, offered, SIZES, partial=partial)


def breakers_after(refused: Iterable[Refusal]) -> Breakers:
    breakers = Breakers()
    for refusal in refused:
        event = Refused(refusal.offering, NOW, refusal.cause, refusal.detail, refusal.bucket, refusal.every_zone, refusal.retry_after)
        breakers = step(breakers, event)
    return breakers


def closed(refused: Iterable[Refusal], after: float = 1.0) -> set[OfferingKey]:
    """The offerings, of all regions, that are closed some seconds later."""
    breakers = breakers_after(refused)
    return {
        offering
        for offering in OFFERED
        if any(breaker.target.covers(offering) and is_open(breaker, NOW + after) for breaker in breakers.open)
    }


def test_no_capacity_for_spot_closes_on_demand_of_the_same_size_where_the_request_could_go() -> None:
    """Z5."""
    answer = refused("AllocationFailed", "Allocation failed.", [key("spot")])

    assert closed(answer, after=100) == {key("spot"), key("on-demand")}
    # On-demand was not asked: it is tried again as soon as any other offering without capacity.
    assert closed(answer, after=500) == closed(answer, after=3500) == {key("spot")}
    assert closed(answer, after=4000) == set()


def test_no_capacity_closes_every_zone_of_a_pool_in_several_zones() -> None:
    pool = [key("spot", LARGE, zone, "gpu") for zone in ("eastus-1", "eastus-2")]

    answer = refused("AllocationFailed", "Allocation failed.", pool[:1], offered=(*pool, *EASTUS))

    assert closed(answer) == {key(market, LARGE, zone) for market in ("spot", "on-demand") for zone in ("eastus-1", "eastus-2")}


def test_no_capacity_after_some_machines_came_closes_no_other_market() -> None:
    answer = refused("AllocationFailed", "Allocation failed.", [key("spot")], partial=True)

    assert [refusal.offering for refusal in answer] == [key("spot")]


def test_no_capacity_in_a_zone_closes_both_markets_there_and_no_other_zone() -> None:
    answer = refused("ZonalAllocationFailed", NO_CAPACITY, [key("on-demand")])

    assert closed(answer) == {key("spot"), key("on-demand")}


def test_the_zone_that_an_error_names_is_the_one_that_closes() -> None:
    pool = [key("spot", LARGE, zone, "gpu") for zone in ("eastus-1", "eastus-2")]
    text = f"We do not have sufficient capacity for the requested VM size {LARGE} in zone 2. Read more"

    answer = refused("ZonalAllocationFailed", text, pool, offered=(*pool, *EASTUS))

    assert closed(answer) == {key("spot", LARGE, "eastus-2"), key("on-demand", LARGE, "eastus-2")}


def test_an_overconstrained_request_in_a_zone_closes_only_that_market_and_zone() -> None:
    """Z5, second half."""
    answer = refused("OverconstrainedZonalAllocationRequest", "Allocation failed.", [key("spot")])

    assert closed(answer, after=3500) == {key("spot")}


def test_an_overconstrained_request_closes_its_market_in_its_zones() -> None:
    pool = [key("spot", LARGE, zone, "gpu") for zone in ("eastus-1", "eastus-2")]

    answer = refused("OverconstrainedAllocationRequest", "Allocation failed.", pool[:1], offered=(*pool, *EASTUS))

    assert closed(answer) == {key("spot", LARGE, "eastus-1"), key("spot", LARGE, "eastus-2")}


@pytest.mark.parametrize(("market", "seconds"), [("spot", 3600), ("on-demand", 82_800)])
def test_a_size_that_is_not_available_closes_in_its_market_in_all_zones(market: str, seconds: float) -> None:
    text = f"The requested VM size for resource 'Following SKUs have failed for Capacity Restrictions: {LARGE}' is currently not available."

    answer = refused("SkuNotAvailable", text, [key(market), key(market, HUGE)])

    assert closed(answer, after=seconds - 60) == {key(market, LARGE, zone) for zone in ("eastus-0", "eastus-1", "eastus-2")}
    assert [refusal.retry_after for refusal in answer] == [seconds]


def test_a_familys_quota_closes_its_sizes_that_no_longer_fit_for_ten_minutes() -> None:
    """Z6."""
    answer = refused("OperationNotAllowed", FAMILY, [key("on-demand")])

    assert closed(answer, after=599) == {
        key("on-demand", size, zone) for size in (LARGE, HUGE) for zone in ("eastus-0", "eastus-1", "eastus-2")
    }
    (refusal,) = answer
    assert (refusal.cause, refusal.bucket, refusal.retry_after) == (QUOTA, (LARGE, HUGE), 600)
    assert H100 in refusal.detail
    assert closed(answer, after=700) == set()


def test_a_familys_quota_of_nothing_closes_all_its_sizes_for_an_hour() -> None:
    text = quota_text("Standard NCADSH100v5 Family Cores", limit=0, usage=0, required=8)

    (refusal,) = refused("QuotaExceeded", text, [key("on-demand", SMALL)], status=400)

    assert (set(refusal.bucket), refusal.retry_after) == ({SMALL, LARGE, HUGE}, 3600)


def test_a_quota_in_which_one_machine_of_each_size_still_fits_closes_nothing() -> None:
    text = quota_text(f"{H100} Cores", limit=200, usage=100, required=160)

    assert refused("OperationNotAllowed", text, [key("on-demand")]) == ()


def test_a_family_that_no_size_belongs_to_is_that_of_the_request() -> None:
    text = quota_text("standardUnheardOfFamily Cores", limit=200, usage=192, required=40)

    (refusal,) = refused("OperationNotAllowed", text, [key("on-demand")])

    assert refusal.bucket == (LARGE, HUGE)


def test_a_quota_without_numbers_closes_the_family_of_the_request() -> None:
    (refusal,) = refused("QuotaExceeded", "", [key("on-demand")])

    assert set(refusal.bucket) == {SMALL, LARGE, HUGE}


def test_a_quota_for_sizes_that_are_not_known_closes_those_of_the_request() -> None:
    offering = key("on-demand", "Standard_Unknown")

    (refusal,) = refusals([meaning_of(failure_of(409, error("OperationNotAllowed", FAMILY)))], [offering], [*EASTUS, offering], {})

    assert refusal.bucket == ("Standard_Unknown",)


def test_the_quota_of_spot_closes_all_spot_of_the_region_and_leaves_on_demand_open() -> None:
    """Z8."""
    answer = refused("OperationNotAllowed", SPOT, [key("spot")])

    assert closed(answer, after=3500) == {offering for offering in EASTUS if offering.market == "spot"}


def test_the_quota_of_spot_in_which_a_machine_still_fits_closes_only_larger_sizes() -> None:
    text = quota_text("LowPriorityCores", limit=100, usage=50, required=80)

    assert closed(refused("OperationNotAllowed", text, [key("spot")])) == {
        offering for offering in EASTUS if offering.market == "spot" and offering.instance_type == HUGE
    }


def test_the_quota_of_the_region_closes_what_no_longer_fits_of_every_family() -> None:
    text = quota_text("Total Regional Cores", limit=100, usage=92, required=40)

    assert closed(refused("OperationNotAllowed", text, [key("on-demand")])) == {
        offering for offering in EASTUS if offering.market == "on-demand" and SIZES[offering.instance_type].vcpus > 8
    }


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (409, "OperationNotAllowed", BUSY),
        (409, "OperationNotAllowed", "The scale set is being changed."),
        (409, "Conflict", ""),
        (429, "OperationNotAllowed", "The server rejected the request because too many requests have been received."),
        (429, "SubscriptionRequestsThrottled", ""),
        (200, "OperationPreempted", "The operation has been preempted by a more recent operation."),
        (412, "PreconditionFailed", ""),
    ],
)
def test_throttling_and_conflicts_close_nothing(status: int, code: str, text: str) -> None:
    """Z7."""
    assert refused(code, text, [key("spot")], status=status) == ()


def test_the_wait_of_a_throttled_request_is_that_of_azure_or_half_a_minute() -> None:
    """Z7."""
    busy, throttled = meaning_of(failure_of(409, error("OperationNotAllowed", BUSY))), meaning_of(failure_of(429, THROTTLED_READ))

    assert pause_of([busy]) == 30
    assert pause_of([busy], retry_after=90) == 90
    assert pause_of([throttled], retry_after=1200) == 1200
    assert pause_of([meaning_of(failure_of(409, error("AllocationFailed", "")))], retry_after=9) == 0


@pytest.mark.parametrize("code", ["AllocationFailed", "CapacityReservationFull", "SkuNotAvailable", "QuotaExceeded"])
def test_a_reservation_without_room_closes_only_itself(code: str) -> None:
    answer = refused(code, SPOT if code == "QuotaExceeded" else "", [key("reserved")])

    assert closed(answer) == {key("reserved")}
    assert {refusal.cause for refusal in answer} == {CAPACITY}


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("SubnetIsFull", CONFIGURATION),
        ("RequestDisallowedByPolicy", CONFIGURATION),
        ("AuthorizationFailed", UNAUTHORISED),
        ("SpotPriceGreaterThanProvidedMaxPrice", PRICE),
    ],
)
def test_what_is_wrong_with_a_pool_closes_that_pool(code: str, cause: str) -> None:
    answer = refused(code, "", [key("spot")], status=400)

    assert {refusal.cause for refusal in answer} == {cause}
    assert closed(answer) == {offering for offering in OFFERED if offering.pool == key("spot").pool}


def test_an_unknown_error_closes_the_offering_of_that_pool_for_minutes() -> None:
    answer = refused("InternalServerError", "An internal error occurred.", [key("spot")], status=500)

    assert closed(answer, after=170) == {key("spot")}
    assert closed(answer, after=300) == set()


def test_several_errors_of_one_request_are_all_reported_once() -> None:
    meanings = [meaning_of(failure_of(409, error(code, ""))) for code in ("AllocationFailed", "ZonalAllocationFailed", "QuotaExceeded")]

    answer = refusals(meanings, [key("on-demand")], EASTUS, SIZES)

    assert [(refusal.cause, refusal.offering.market) for refusal in answer] == [
        (CAPACITY, "on-demand"), (CAPACITY, "spot"), (QUOTA, "on-demand")
    ]  # fmt: skip


def test_sizes_whose_family_is_not_known_are_no_family() -> None:
    nameless = key("on-demand", "Standard_Nameless")
    sizes = {**SIZES, "Standard_Nameless": Size("", 100)}

    (refusal,) = refusals([meaning_of(failure_of(400, error("QuotaExceeded", "")))], [key("on-demand")], [*EASTUS, nameless], sizes)

    assert set(refusal.bucket) == {SMALL, LARGE, HUGE}


def test_sizes_are_compared_without_regard_to_case() -> None:
    offering = key("on-demand", LARGE.lower())

    (refusal,) = refused("OperationNotAllowed", FAMILY, [offering], offered=[offering])

    assert refusal.bucket == (LARGE.lower(),)


@given(
    st.integers(0, 599),
    st.text(),
    st.sampled_from([BUSY, FAMILY, SPOT, NO_CAPACITY, "", quota_text("cores", limit=10, usage=5, required=8)]),
    st.lists(st.sampled_from(OFFERED), max_size=3),
    st.lists(st.sampled_from(OFFERED), max_size=20),
)
def test_whatever_azure_answers_its_refusals_are_about_offerings_that_exist(
    status: int, code: str, text: str, requested: list[OfferingKey], offered: list[OfferingKey]
) -> None:
    answer = refused(code, text, requested, status=status, offered=offered)

    assert {refusal.offering for refusal in answer} <= {*requested, *offered}
    assert {kind for refusal in answer for kind in refusal.bucket} <= {offering.instance_type for offering in (*requested, *offered)}
    breakers_after(answer)
