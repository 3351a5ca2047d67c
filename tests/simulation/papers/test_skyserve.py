"""A fleet of replicas on spot series."""

from pathlib import Path

import pytest

from gpuscaler.simulation.papers.skyserve import (
    COLD_START,
    ON_DEMAND_PRICE,
    POLICIES,
    SPARE,
    SPOT_PRICE,
    TARGET,
    replay_service,
    skyserve_table,
)
from gpuscaler.simulation.traces.spot import MarketSeries, SpotError, SpotFile, read_spot

SERIES = Path(__file__).parents[4] / "shared" / "data" / "spot_availability_changes.csv.gz"
DAY = 86_400.0
FALLS_BACK = ("On-demand", "SpotHedge", "gpuscaler")


def zone(name: str, *changes: tuple[float, int], days: float = 1.0) -> MarketSeries:
    return MarketSeries(name, "t", name, tuple((at, float(nodes)) for at, nodes in changes), days * DAY)


def always(name: str) -> MarketSeries:
    return zone(name, (0.0, 1))


def dry(name: str) -> MarketSeries:
    return zone(name, (0.0, 0))


@pytest.mark.parametrize("name", ["Even Spread", "Round Robin", "SpotHedge", "gpuscaler"])
def test_with_permanent_spot_capacity_only_spot_is_paid_and_replicas_are_ready_after_one_cold_start(name: str) -> None:
    outcome = replay_service([always("a"), always("b")], POLICIES[name])

    assert outcome.available == pytest.approx(1 - COLD_START / DAY, abs=1e-6)
    assert outcome.cost == pytest.approx((TARGET + SPARE) * 24 * SPOT_PRICE, rel=0.01)


@pytest.mark.parametrize("name", FALLS_BACK)
def test_without_spot_capacity_all_replicas_are_on_demand(name: str) -> None:
    outcome = replay_service([dry("a"), dry("b")], POLICIES[name])

    assert outcome.available == pytest.approx(1 - COLD_START / DAY, abs=1e-6)
    assert outcome.cost == pytest.approx(TARGET * 24 * ON_DEMAND_PRICE)


@pytest.mark.parametrize("name", ["Even Spread", "Round Robin"])
def test_a_policy_without_on_demand_fallback_is_unavailable_without_spot_capacity(name: str) -> None:
    outcome = replay_service([dry("a"), dry("b")], POLICIES[name])

    assert (outcome.available, outcome.cost) == (0.0, 0.0)


def test_round_robin_replaces_replicas_of_a_zone_without_capacity_and_even_spread_does_not() -> None:
    series = [always("a"), dry("b")]

    assert replay_service(series, POLICIES["Even Spread"]).available == 0.0
    assert replay_service(series, POLICIES["Round Robin"]).available > 0.99


@pytest.mark.parametrize("name", sorted(POLICIES))
def test_replicas_are_lost_when_their_zone_loses_capacity(name: str) -> None:
    outcome = replay_service([zone("a", (0.0, 1), (DAY / 2, 0)), always("b")], POLICIES[name])

    assert (outcome.lost > 0) is (name != "On-demand")


def test_spare_replicas_cover_the_loss_of_one_zone_of_three() -> None:
    series = [zone("a", (0.0, 1), (DAY / 2, 0)), always("b"), always("c")]

    assert replay_service(series, POLICIES["gpuscaler"]).available == pytest.approx(1 - COLD_START / DAY, abs=1e-6)


def test_on_demand_replicas_are_removed_only_once_returned_spot_capacity_is_stable() -> None:
    blink = zone("a", (0.0, 0), (3600.0, 1))
    steady = replay_service([blink], POLICIES["gpuscaler"])
    hours_on_demand = (steady.cost - (TARGET + SPARE) * 23 * SPOT_PRICE) / (TARGET * ON_DEMAND_PRICE)

    assert 1 + 20 / 60 < hours_on_demand < 2
    assert steady.available == pytest.approx(1 - COLD_START / DAY, abs=1e-6)


def test_zones_without_capacity_are_retried_with_growing_waits() -> None:
    assert replay_service([dry("a"), dry("b")], POLICIES["gpuscaler"]).refused < 2 * 24 * 2 + 20
    assert replay_service([dry("a"), dry("b")], POLICIES["SpotHedge"]).refused > 1000


def test_the_published_saving_is_compared_with_spot_hedge() -> None:
    published = skyserve_table(SpotFile("spot.csv", (always("a"), always("b"))))
    (hedge,) = [row for row in published.rows if row.published is not None]

    assert hedge.policy == "SpotHedge"
    assert hedge.difference == pytest.approx(hedge.ours - 57.0)


def test_a_file_with_prices_only_is_rejected_because_it_lacks_availability() -> None:
    with pytest.raises(SpotError, match=r"prices\.csv: saw no series of availability"):
        skyserve_table(SpotFile("prices.csv"))


def test_on_the_real_series_our_policy_is_available_and_costs_no_more_than_spot_hedge() -> None:
    if not SERIES.exists():
        pytest.skip("needs ../shared/data/spot_availability_changes.csv.gz")
    series = read_spot(SERIES).availability
    ours, hedge = (replay_service(series, POLICIES[name]) for name in ("gpuscaler", "SpotHedge"))

    assert ours.available >= 0.99
    assert ours.cost <= hedge.cost
